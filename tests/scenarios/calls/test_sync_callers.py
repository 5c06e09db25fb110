"""Callers without an event loop: what they get, how they are refused, and how they end."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import toolbus
from support.patience import PATIENCE_S
from toolbus import FileChunk, MixedChunk, RoomException, TextChunk, Toolkit, sync, tool
from toolbus.concurrency.loop_thread import LoopThread
from toolbus.errors import ConnectionLost, InvalidArguments, NotFound, Unavailable
from toolbus_server.testing import TestServer, running_server

HOSTS = {"host", "replace", "drain", "offer_builders", "closed", "forwarding"}
"""What a client does that hosts; and what only a program with an event loop needs."""
RENAMED = {"aclose": "close"}


@tool(approval=True)
async def write(text: str) -> str:
    """Write what a person has approved."""
    return f"wrote {text}"


@tool
def ask(context: toolbus.ToolContext) -> str:
    """Ask a person."""
    return f"{context.ask_sync('Which?')} it is"


class Served:
    """A server and a host on a thread of their own."""

    def __init__(self, server: TestServer, thread: LoopThread) -> None:
        self.url = server.url
        self.token = server.token("ann")
        self.token_of = server.token
        self.thread = thread
        self.begun = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.on_begin: Callable[[], None] = lambda: None

    def client(self) -> sync.RoomClient:
        return sync.RoomClient(self.url, room="lab", token=self.token)

    def toolkit(self) -> Toolkit:
        @tool
        def double(number: int) -> int:
            """Double a number."""
            return 2 * number

        @tool
        async def steps(count: int) -> AsyncIterator[int]:
            """Count."""
            for number in range(count):
                yield number

        @tool
        async def file() -> FileChunk:
            """Return a file in pieces."""

            async def pieces() -> AsyncIterator[bytes]:
                for letter in b"ab":
                    yield bytes([letter]) * 600_000

            return FileChunk.from_pieces(pieces(), "a.bin")

        @tool
        async def both() -> MixedChunk:
            """Return a text and a file."""
            return MixedChunk((TextChunk("see"), FileChunk(b"data", "b.bin")))

        @tool
        async def size(attachment: FileChunk) -> int:
            """Measure a file."""
            return len(await attachment.read())

        @tool
        async def hold(context: toolbus.ToolContext) -> None:
            """Wait until the call is cancelled."""
            context.emit("begun")
            self.begun.release()
            self.on_begin()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.release()

        return Toolkit("kit", [double, steps, file, both, size, hold, write, ask])


@pytest.fixture
def served() -> Iterator[Served]:
    stack = AsyncExitStack()
    thread = LoopThread("server", stack.aclose)

    async def start() -> Served:
        server = await stack.enter_async_context(running_server())
        made = Served(server, thread)
        room = await stack.enter_async_context(server.room("host"))
        await stack.enter_async_context(room.host(made.toolkit()))
        return made

    yield thread.run(start)
    thread.stop(10)


def test_sync_client_calls_streams_and_lists(served: Served) -> None:
    with served.client() as room:
        assert (room.room, room.name, room.me.name) == ("lab", "ann", "ann")
        assert room.grants.messaging
        assert room.call("kit.double", number=2) == room.call("kit.double", {"number": 2}) == 4
        assert room.invoke("kit.double", {"number": 2}, returns=int, timeout_s=5) == 4
        with room.stream("kit.steps", {"count": 3}) as chunks:
            assert [chunk.value for chunk in chunks] == [0, 1, 2]
        kit = room.toolkit("kit")
        assert kit.with_options(timeout_s=5).double(number=3) == kit.call("double", number=3) == 6
        with kit.steps({"count": 2}) as chunks:
            assert [chunk.value for chunk in chunks] == [0, 1]
        with pytest.raises(RuntimeError, match="enter the stream first"):
            next(room.stream("kit.steps"))
        assert kit.tool("double").description == kit.double.__doc__
        for name in ("double", "steps"):
            shown = pydoc.plain(pydoc.render_doc(getattr(kit, name)))
            assert f"\n{name}(*, " in shown
            assert "partial" not in shown
        assert [found.name for found in room.toolkits()] == ["kit"]
        assert room.explain("kit.double", {"number": 1}).would_run
        assert room.assess("kit.double", {"number": 1}, patterns=["x"]).matches == ()
        with room.events(["messages"]) as events:
            assert room.send("ann", "note", {"a": 1}) == 1
            received = next(iter(events))
            assert received.message is not None
            assert received.message.body == {"a": 1}
        room.set_attributes(status="busy")
        [ann] = [each for each in room.participants() if each.name == "ann"]
        assert ann.attributes == {"status": "busy"}
        with pytest.raises(InvalidArguments, match="number"):
            room.call("kit.double", number="x")
        with pytest.raises(TypeError, match="did you mean"):
            room.invoke("kit.double", number=1)  # type: ignore[call-overload]


def test_files_in_results_are_read_saved_and_sent_on_without_a_loop(
    served: Served, tmp_path: Path
) -> None:
    content = b"a" * 600_000 + b"b" * 600_000
    with served.client() as room:
        room.invoke("kit.file").save(tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes() == content
        assert room.call("kit.file").read() == content
        text, file = room.call("kit.both")
        assert text == "see"
        [chunk] = [
            each for each in room.invoke("kit.both").chunks if isinstance(each, sync.FileChunk)
        ]
        with room.stream("kit.file") as chunks:
            part = next(chunks)
            assert isinstance(part, sync.FileChunk)
            assert max(map(len, part.pieces())) < len(content)
        received = room.call("kit.file")
        assert room.invoke("kit.size", attachment=received, returns=int) == len(content)
        with pytest.raises(RuntimeError, match="read only once"):
            received.read()
        late = room.call("kit.file")
    file.save(tmp_path / "small")  # it is in memory
    assert (tmp_path / "small").read_bytes() == chunk.read() == b"data"
    with pytest.raises(Unavailable, match="closed"):
        late.save(tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_sync_client_holds_and_approves(served: Served) -> None:
    """One thread waits for a person, who answers from another one."""
    answers: list[Any] = []
    with served.client() as room, room.events(["holds"]) as events:

        def call() -> None:
            for outcome in ("approved", "changed", "denied"):
                try:
                    chunk = room.invoke("kit.write", {"text": outcome}, purpose="to try it")
                    answers.append(chunk.value)
                except toolbus.ApprovalDenied as error:
                    answers.append(error.message)

        thread = threading.Thread(target=call)
        thread.start()
        for outcome in ("approved", "changed", "denied"):
            added = next(events).hold
            assert added is not None
            (listed,) = room.holds()
            hold = room.hold(listed.id)
            assert (hold.id, hold.purpose) == (added.id, "to try it")
            if outcome == "approved":
                room.approve(hold)
            elif outcome == "changed":
                room.approve(hold.id, {"text": "other"})
            else:
                room.deny(hold, "no")
            settled = next(events).hold
            assert settled is not None
            assert settled.outcome == ("denied" if outcome == "denied" else "approved")
        thread.join(PATIENCE_S)
        assert [held.outcome for held in room.holds(settled=True)] == [
            *("approved", "approved", "denied")
        ]
    assert answers == [
        "wrote approved",
        "wrote other",
        'a person denied this call, and says: "no"',
    ]


def test_sync_client_answers_what_a_tool_asks(served: Served) -> None:
    answers: list[Any] = []
    with served.client() as room, room.events(["holds"]) as events:
        thread = threading.Thread(target=lambda: answers.append(room.call("kit.ask")))
        thread.start()
        asked = next(events).hold
        assert asked is not None
        room.answer(asked, "red")
        thread.join(PATIENCE_S)
    assert answers == ["red it is"]


def test_sync_client_has_the_methods_of_the_client_with_the_same_arguments() -> None:
    for name in {name for name in dir(toolbus.RoomClient) if not name.startswith("_")} - HOSTS:
        theirs = getattr(toolbus.RoomClient, name)
        ours = getattr(sync.RoomClient, RENAMED.get(name, name))
        if isinstance(theirs, property):
            assert isinstance(ours, property)
        elif name not in {"invoke", "stream"}:  # their options are one type in both
            wanted = dict(inspect.signature(theirs).parameters)
            wanted.pop("unknown", None)
            assert list(inspect.signature(ours).parameters) == list(wanted), name
    ours, theirs = (inspect.signature(each) for each in (sync.RoomClient, toolbus.RoomClient))
    assert [(each.name, each.default) for each in ours.parameters.values()] == [
        (each.name, each.default) for each in theirs.parameters.values()
    ]


def test_uses_that_cannot_work_are_refused_with_the_way_out(served: Served) -> None:
    room = served.client()
    room.close()
    with pytest.raises(Unavailable, match="not connected: with RoomClient"):
        room.call("kit.double", number=1)
    with room:
        with pytest.raises(RuntimeError, match="already connected"):
            room.connect()

        async def in_loop(use: Callable[[], Any]) -> None:
            with pytest.raises(RuntimeError, match="runs an event loop"):
                use()

        for use in (room.connect, room.close, lambda: room.call("kit.double", number=1)):
            asyncio.run(in_loop(use))
        found = room.toolkits()
        stream = room.stream("kit.steps", {"count": 9})
        stream.__enter__()
        assert "token" not in repr(room)
        assert repr(room) == f"<sync.RoomClient {served.url}, room 'lab', name 'ann', connected>"
    room.close()
    late: list[Callable[[], Any]] = [
        lambda: room.call("kit.double", number=1),
        lambda: next(found),
        lambda: next(stream),
        lambda: room.stream("kit.steps").__enter__(),
        lambda: room.name,
        room.participants,
    ]
    for use in late:
        with pytest.raises(Unavailable, match="the room is closed") as refused:
            use()
        assert (refused.value.executed, refused.value.retryable) == ("no", False)
    stream.__exit__(None, None, None)
    assert "closed" in repr(room)
    with room:
        assert room.call("kit.double", number=1) == 2


def test_failed_connection_leaves_a_client_that_can_connect_later(served: Served) -> None:
    room = sync.RoomClient(served.url, room="elsewhere", token=served.token)
    for _ in range(2):
        with pytest.raises(toolbus.PermissionDenied):
            room.connect()
    with pytest.raises(ValueError, match="wait must be"):
        sync.RoomClient(served.url, token=served.token, wait="yes").connect()  # type: ignore[arg-type]


def test_ctrl_c_in_a_waiting_thread_cancels_the_call(served: Served) -> None:
    main = threading.main_thread().ident
    assert main is not None
    served.on_begin = lambda: signal.pthread_kill(main, signal.SIGINT)
    with served.client() as room:
        with pytest.raises(KeyboardInterrupt):
            room.call("kit.hold")
        assert served.cancelled.acquire(timeout=PATIENCE_S)
        assert room.call("kit.double", number=1) == 2


def test_many_threads_call_at_once_and_each_gets_its_own_result(served: Served) -> None:
    with served.client() as room:
        outcomes = in_threads(100, lambda number: room.call("kit.double", number=number))
    assert outcomes == [2 * number for number in range(100)]


def in_threads(count: int, use: Callable[[int], Any], between: Any = lambda: None) -> list[Any]:
    """Use something in threads; return what each got, or what was raised there."""
    outcomes: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            outcomes[number] = use(number)
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    between()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return outcomes


def test_calls_in_flight_end_when_another_thread_closes_the_client(served: Served) -> None:
    room = served.client().connect()

    def close_once_all_have_begun() -> None:
        for _ in range(5):
            assert served.begun.acquire(timeout=PATIENCE_S)
        room.close()

    outcomes = in_threads(5, lambda _: room.call("kit.hold"), close_once_all_have_begun)
    assert {type(outcome) for outcome in outcomes} == {ConnectionLost}
    assert {outcome.executed for outcome in outcomes} == {"maybe"}


def test_end_of_the_thread_of_a_client_ends_every_call(served: Served) -> None:
    with served.client() as room:

        def end_loop(_: object) -> None:
            asyncio.get_running_loop().call_soon(sys.exit)

        def hold(number: int) -> None:
            if number == 1:
                assert served.begun.acquire(timeout=PATIENCE_S)
            room.invoke("kit.hold", timeout_s=50, on_progress=end_loop if number else None)

        outcomes = in_threads(2, hold)
        assert all(isinstance(outcome, RoomException) for outcome in outcomes)
        with pytest.raises(RoomException):
            room.call("kit.double", number=1)


def test_client_that_nobody_holds_leaves_the_room(served: Served) -> None:
    with served.client() as watching:
        with watching.events(["participants"]) as events:
            token = served.token_of("bob")
            bob = sync.RoomClient(served.url, room="lab", token=token).connect()
            assert next(events).name == "participant_joined"
            del bob
            assert next(events).name == "participant_left"
        with pytest.raises(NotFound):
            watching.send("bob", "note")


PROGRAM = """
import contextlib, os, sys, threading
from toolbus import ConnectionLost
from toolbus.sync import RoomClient
room = RoomClient(sys.argv[1], room="lab", token=sys.argv[2]).connect()
begun = threading.Event()
def hold():
    with contextlib.suppress(ConnectionLost):
        room.invoke("kit.hold", on_progress=lambda _: begun.set())
threading.Thread(target=hold, daemon=True).start()
begun.wait()
if os.fork() == 0:
    try:
        room.call("kit.double", number=1)
    except RuntimeError as error:
        print(error, flush=True)
    room.close()
    sys.exit()
os.wait()
print(room.call("kit.double", number=2))
"""


def test_program_ends_with_an_open_client_and_a_fork_has_none(served: Served) -> None:
    quiet = ("-W", "ignore::DeprecationWarning")  # newer Pythons warn of a fork beside threads
    program = [sys.executable, *quiet, "-c", PROGRAM, served.url, served.token]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "this client was connected before the process was forked: make another one here",
        "4",
    ]
    assert served.cancelled.acquire(timeout=PATIENCE_S)
