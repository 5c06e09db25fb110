"""A host without a server: what is dispatched to it, and what it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from support.patience import PATIENCE_S
from toolbus import ToolContext, Toolkit, tool
from toolbus.concurrency.pausable_clock import CallTime
from toolbus.errors import RoomException
from toolbus.hosting.runner import Runner
from toolbus.telemetry.tracing import Tracing
from toolbus.wire import (
    CallId,
    Cancel,
    Credit,
    Dispatch,
    Failed,
    Frame,
    Input,
    Progress,
    RequestId,
    Result,
    StreamChunk,
    UnknownFrame,
    decode_from_client,
    exception_of,
    pack_body,
    unpack_body,
)

T = TypeVar("T")
PLENTY = {"credit_chunks": 100_000, "credit_bytes": 2**40}
ALICE = pack_body(["p1", "alice", "user", "acme"])


class Wire:
    """A connection whose buffer is full until the test empties it; `take` gets every frame."""

    def __init__(self, take: Callable[[Frame], None]) -> None:
        self._take = take
        self.is_open = True
        self.is_behind = False
        self.gathered = 0
        """How often it was told that more may come in this turn."""
        self._caught_up = asyncio.Event()

    def fall_behind(self) -> None:
        self.is_behind = True
        self._caught_up.clear()

    def catch_up(self) -> None:
        self.is_behind = False
        self._caught_up.set()

    def gather(self) -> None:
        self.gathered += 1

    async def drained(self) -> None:
        await self._caught_up.wait()

    def send_message(self, data: bytes) -> None:
        frame = decode_from_client(data)
        assert not isinstance(frame, UnknownFrame)
        self._take(frame)


class ScriptedPeer:
    """The server side: it dispatches calls and receives the answers and the chunks before them."""

    def __init__(self, max_in_flight: int, tracing: Tracing, *, reads_parts: bool) -> None:
        self.answers: asyncio.Queue[Result | Failed] = asyncio.Queue()
        self.unread: asyncio.Queue[StreamChunk | Progress | Credit] = asyncio.Queue()
        self.wire = Wire(self._take)
        self.rooms: list[tuple[int, float | None]] = []
        self.runner = Runner(
            room_of=self._room_of,
            room_name="lab",
            tracing=tracing,
            connection=self.wire,
            max_in_flight=max_in_flight,
        ).for_connection(
            self.wire, self._room_of, sends_parts=reads_parts, ask_person=self._ask_person
        )
        self.asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        """The calls that wait for a person, by their numbers; a test sets their decisions."""

    async def _ask_person(self, number: int, *_: Any) -> dict[str, Any]:
        decision: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.asked[number] = decision
        try:
            return await decision
        finally:
            del self.asked[number]

    def approve(self, *numbers: int) -> None:
        """Approve calls that wait for a person."""
        for number in numbers:
            self.asked[number].set_result({"outcome": "approved"})

    def _room_of(self, call: int, time: CallTime) -> Any:
        self.rooms.append((call, time.ends_at))
        return "a room"

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, StreamChunk | Progress | Credit):
            self.unread.put_nowait(frame)
            return
        assert isinstance(frame, Result | Failed)
        self.answers.put_nowait(frame)

    def dispatch(
        self, number: int, tool: str, /, *, packed: bytes | None = None, **more: Any
    ) -> None:
        """Dispatch a call; `more` are its arguments, besides `header`."""
        header = {"caller": ALICE, **more.pop("header", {})}
        arguments = pack_body(more) if packed is None else packed
        call_id = CallId(str(number))
        self.runner.dispatch(Dispatch(number, call_id, "t", tool, 60_000, arguments, header))

    def cancel(self, number: int) -> None:
        self.runner.cancel(Cancel(RequestId(number), "cancelled"))

    def credit(self, number: int, chunks: int, total_bytes: int) -> None:
        """Give a call credit."""
        self.runner.on_stream_frame(Credit(RequestId(number), False, chunks, total_bytes))

    def input(self, call: int, number: int, *fields: Any, last: bool = False) -> None:
        """Send a chunk of a call's input, or only the end of the input."""
        body = pack_body([*fields]) if fields else None
        self.runner.on_stream_frame(Input(RequestId(call), number, body, last))

    async def next_of(self, kind: type[T]) -> T:
        """Return the next frame besides answers, which must be of this kind."""
        async with asyncio.timeout(60):
            frame = await self.unread.get()
        assert isinstance(frame, kind), frame
        return frame

    async def fields_of(self, number: int) -> list[Any]:
        """Return the fields of the next chunk of call 1, which must have this number."""
        frame = await self.next_of(StreamChunk)
        assert (frame.id, frame.number) == (1, number)
        fields: list[Any] = unpack_body(frame.body, binary=True)
        return fields

    async def is_quiet(self) -> bool:
        """Let everything run that can; return whether the host sends nothing."""
        done, waiting = await asyncio.wait(
            [asyncio.ensure_future(self.answers.get())], timeout=0.05
        )
        for each in waiting:
            each.cancel()
        return not done and self.unread.empty()

    async def answer(self) -> Any:
        """Return the next answer: a value, or the error that it stands for."""
        async with asyncio.timeout(60):
            frame = await self.answers.get()
        if isinstance(frame, Failed):
            return exception_of(frame)
        return unpack_body(frame.body, binary=True)[-1]

    async def error(self) -> RoomException:
        answer = await self.answer()
        assert isinstance(answer, RoomException), answer
        return answer

    async def idle(self) -> None:
        """Wait until nothing runs, waits in a queue or was left behind."""
        async with asyncio.timeout(60):
            while tasks := [run.task for run in self.runner._running if run.task]:
                await asyncio.wait(tasks)
        assert self.runner._calls == {}
        assert (self.runner._aside.count, self.runner._returning) == (0, {})
        assert self.answers.empty()


class HostStage:
    """Makes hosts with tools, and stops all of them at the end."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = asyncio.Event()
        self.ended: list[str] = []
        self._servers: list[ScriptedPeer] = []
        self._loop = asyncio.get_running_loop()

    def server(
        self,
        *tools: Any,
        kit: type[Toolkit] = Toolkit,
        max_in_flight: int = 256,
        tracing: Tracing | None = None,
        reads_parts: bool = False,
    ) -> ScriptedPeer:
        server = ScriptedPeer(max_in_flight, tracing or Tracing(), reads_parts=reads_parts)
        server.runner.host(kit("t", tools), public=True)
        self._servers.append(server)
        return server

    def enter(self) -> None:
        self._loop.call_soon_threadsafe(self.entered.set)

    async def wait_entered(self) -> None:
        async with asyncio.timeout(60):
            await self.entered.wait()
        self.entered.clear()

    async def close(self) -> None:
        self.gate.set()
        for server in self._servers:
            async with asyncio.timeout(60):
                await server.runner.stop()
            await server.idle()


def hold(host_stage: HostStage, **options: Any) -> Callable[..., Any]:
    """Make an async tool that waits until it is cancelled."""

    @tool(name="hold", **options)
    async def hold(number: int = 0) -> str:
        host_stage.enter()
        try:
            await asyncio.Event().wait()
        finally:
            host_stage.ended.append(f"hold {number}")
        return ""

    return hold


def hold_thread(host_stage: HostStage, **options: Any) -> Callable[..., Any]:
    """Make a sync tool that waits until the gate is open, and ignores cancels."""

    @tool(name="hold_thread", **options)
    def hold_thread(context: ToolContext, number: int = 0) -> str:
        host_stage.enter()
        host_stage.gate.wait(PATIENCE_S)
        host_stage.ended.append(f"cancelled {context.cancelled}")
        return str(number)

    return hold_thread


@tool
async def echo(text: str) -> str:
    return text
