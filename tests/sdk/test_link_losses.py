"""Connections that go at a bad moment: what waits goes on waiting, what ends does end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from support.lone_host import echo
from support.scripted_server import Line, ScriptedServer, scripted_server
from toolbus import RoomClient, Toolkit
from toolbus.errors import InvalidArguments, RoomException, Unavailable
from toolbus.link import Link, LinkOwner
from toolbus.settings import RoomSettings
from toolbus.wire import (
    Event,
    Failed,
    Notice,
    Register,
    Result,
    Subscribe,
    Unregister,
    Welcome,
    encode,
    pack_body,
    unpack_body,
)
from toolbus_server.testing import running_server


def link_to(url: str, on_up: Callable[[Welcome], Awaitable[None]]) -> Link:
    settings = RoomSettings.resolve(url=url, room="lab", token="t", environ={})
    return Link(settings, LinkOwner({}, on_up=on_up, on_down=lambda _: None))


def link_of(room: RoomClient) -> Link:
    assert room._parts is not None
    return room._parts.link


def cut(link: Link) -> None:
    """Lose the connection as a network does."""
    assert link.connection is not None
    link.connection.transport.abort()


async def test_who_waits_goes_on_waiting_when_a_link_goes_as_soon_as_it_came() -> None:
    ups: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def on_up(_: Welcome) -> None:
        ups.put_nowait(go := asyncio.Event())
        await go.wait()

    async with scripted_server() as server, asyncio.timeout(10):
        link = link_to(server.url, on_up)
        start = asyncio.create_task(link.start())
        (await ups.get()).set()
        await start
        await link.ready()
        cut(link)
        again = await ups.get()
        waiting = asyncio.create_task(link.ready())
        await asyncio.wait([waiting], timeout=0.05)
        link._ready.set()  # up, and down again in the same turn
        link._ready.clear()
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        again.set()
        await waiting
        assert link.connection is not None
        await link.stop()
        with pytest.raises(Unavailable):
            await link.ready()


async def test_a_connection_lost_while_it_is_made_ready_was_never_there() -> None:
    async def on_up(_: Welcome) -> None:
        connection = link.connection
        assert connection is not None
        connection.transport.abort()
        await connection.wait_closed()

    async with scripted_server() as server, asyncio.timeout(10):
        link = link_to(server.url, on_up)
        with pytest.raises(Unavailable):
            await link.start()
        assert not link.is_ready


async def test_a_link_that_is_stopped_as_it_is_lost_does_stop() -> None:
    ups: asyncio.Queue[None] = asyncio.Queue()
    is_up, block = asyncio.Event(), asyncio.Event()

    async def on_up(_: Welcome) -> None:
        ups.put_nowait(None)
        if is_up.is_set():
            await block.wait()

    async with scripted_server() as server, asyncio.timeout(10):
        link = link_to(server.url, on_up)
        await link.start()
        await ups.get()
        is_up.set()
        cut(link)
        await ups.get()
        cut(link)
        stop = asyncio.create_task(link.stop())
        async with asyncio.timeout(5):
            await stop


@pytest.mark.parametrize("retry", [False, True])
async def test_a_call_made_while_the_connection_is_closing_waits_for_the_next(retry: bool) -> None:
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(Toolkit("t", [echo])),
        server.room("alice") as alice,
    ):
        connection = link_of(alice).connection
        assert connection is not None
        connection.close_with(1002, "no reason")
        chunk = await alice.invoke("t", "echo", {"text": "x"}, retry=retry, timeout_s=10)
        assert chunk.value == "x"


async def test_a_source_of_tokens_that_is_cancelled_is_asked_again() -> None:
    async with running_server() as server, asyncio.timeout(10):
        answers = [server.token("alice"), "", server.token("alice")]

        async def token() -> str:
            if not (answer := answers.pop(0)):
                raise asyncio.CancelledError
            return answer

        async with RoomClient(server.url, room="lab", token=token) as alice:
            cut(link_of(alice))
            await _down(link_of(alice))
            assert [each async for each in alice.toolkits()] == []


# What is hosted


def hosting(room: RoomClient, name: str) -> asyncio.Task[None]:
    async def host() -> None:
        async with room.host(Toolkit(name, [])):
            await asyncio.Event().wait()

    return asyncio.create_task(host())


async def registered(line: Line) -> str:
    """Answer a registration well; tell for which toolkit."""
    request = await line.answer(Register, {"digest": "d" * 64, "generation": 1})
    name: str = unpack_body(request.manifest)["name"]
    return name


def room_at(server: ScriptedServer) -> RoomClient:
    return RoomClient(server.url, room="lab", token="t")


async def test_a_toolkit_withdrawn_while_all_are_registered_again_keeps_none_from_it() -> None:
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(10):
        line = await server.next_line()
        tasks = []
        for name in ("a", "b"):
            tasks.append(hosting(room, name))
            assert await registered(line) == name
        line.connection.transport.abort()
        again = await server.next_line()
        request = await again.next_of(Register)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        await again.send(Failed(request.id, "internal", "no", False, "no", None, None))
        assert await registered(again) == "b"
        taken = await again.answer(Unregister, {})
        assert (taken.toolkit, taken.public) == ("a", True)
        await link_of(room).ready()
        tasks[1].cancel()
        await again.answer(Unregister, {})


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_toolkit_withdrawn_without_a_connection_is_taken_back_on_the_next(
    is_answered: bool,
) -> None:
    """Also where its registration was given up before there was an answer: it may stand."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(10):
        line = await server.next_line()
        task = hosting(room, "a")
        await (registered(line) if is_answered else line.next_of(Register))
        down = asyncio.create_task(_down(link_of(room)))
        line.connection.transport.abort()
        await down
        task.cancel()
        await asyncio.wait([task])
        again = await server.next_line()
        assert (await again.answer(Unregister, {})).toolkit == "a"


async def test_a_registration_whose_answer_is_lost_is_made_on_the_next() -> None:
    """As where a server ends just as a host begins: nobody has to start the host anew."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(10):
        line = await server.next_line()
        task = hosting(room, "a")
        await line.next_of(Register)
        line.connection.transport.abort()
        again = await server.next_line()
        assert await registered(again) == "a"
        task.cancel()
        assert (await again.answer(Unregister, {})).toolkit == "a"


async def test_a_toolkit_that_cannot_be_registered_again_for_now_is_tried_again() -> None:
    """LEAVE-4: as where a node cannot ask Redis; the connection lasts meanwhile."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(10):
        line = await server.next_line()
        task = hosting(room, "a")
        await registered(line)
        line.connection.transport.abort()
        again = await server.next_line()
        for _ in range(2):
            request = await again.next_of(Register)
            await again.send(Failed(request.id, "unavailable", "no", True, "no", None, None))
            await link_of(room).ready()
        assert await registered(again) == "a"
        task.cancel()
        await again.answer(Unregister, {})


@asynccontextmanager
async def tried_again(room: RoomClient, server: ScriptedServer) -> AsyncIterator[Line]:
    """Have a toolkit tried again that was withdrawn, with an answer that is still to come."""
    line = await server.next_line()
    task = hosting(room, "a")
    await registered(line)
    line.connection.transport.abort()
    again = await server.next_line()
    request = await again.next_of(Register)
    await again.send(Failed(request.id, "unavailable", "no", True, "no", None, None))
    request = await again.next_of(Register)
    task.cancel()
    await again.answer(Unregister, {})
    await asyncio.wait([task])
    yield again
    await again.send(Result(request.id, pack_body({"digest": "d" * 64, "generation": 1})))


async def test_a_toolkit_that_was_withdrawn_while_it_is_tried_again_is_taken_back() -> None:
    """A server may be done with that before it is done with the registration."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(10):
        async with tried_again(room, server) as line:
            pass
        assert (await line.answer(Unregister, {})).toolkit == "a"


async def test_a_toolkit_that_is_hosted_anew_while_it_is_tried_again_is_not_taken_back() -> None:
    async with scripted_server() as server, asyncio.timeout(10):
        async with room_at(server) as room:
            async with tried_again(room, server) as line:
                tasks = [hosting(room, "a")]
                newer = await line.next_of(Register)
            await until_none_is_tried()
            await line.send(Result(newer.id, pack_body({"digest": "d" * 64, "generation": 1})))
            tasks.append(hosting(room, "b"))
            assert isinstance(await line.next_of(object), Register)
        for task in tasks:
            task.cancel()


async def until_none_is_tried() -> None:
    """Wait until nothing is tried again."""
    while "_try_again" in _names_of_tasks():  # noqa: ASYNC110 - a task tells nobody here
        await asyncio.sleep(0)


async def test_whoever_leaves_while_its_toolkit_is_tried_again_leaves_nothing_behind() -> None:
    async with scripted_server() as server, asyncio.timeout(10):
        async with room_at(server) as room:
            line = await server.next_line()
            task = hosting(room, "a")
            await registered(line)
            line.connection.transport.abort()
            again = await server.next_line()
            request = await again.next_of(Register)
            await again.send(Failed(request.id, "unavailable", "no", True, "no", None, None))
            await link_of(room).ready()
            assert "_try_again" in _names_of_tasks()
        assert "_try_again" not in _names_of_tasks()
        task.cancel()


def _names_of_tasks() -> set[str]:
    coroutines = [task.get_coro() for task in asyncio.all_tasks() if not task.cancelling()]
    return {getattr(each, "__name__", "") for each in coroutines}


async def _down(link: Link) -> None:
    while link.is_ready:  # noqa: ASYNC110 - a loss is told to the link's owner alone
        await asyncio.sleep(0)


# Readers


async def test_a_reader_does_not_depend_on_another_that_was_refused() -> None:
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(10):
        line = await server.next_line()
        first, second = (asyncio.create_task(anext(room.events())) for _ in range(2))
        request = await line.next_of(Subscribe)
        await line.send(Failed(request.id, "internal", "no", False, "no", None, None))
        with pytest.raises(RoomException):
            await first
        await line.answer(Subscribe, {"topics": ["toolkits"]})
        summary = {"name": "t", "title": "", "description": "", "version": "", "digest": "d"}
        more = {"public": True, "owner": {"name": "o", "issuer": ""}, "hosts": 1, "tools": []}
        await line.send(Event(1, "toolkit_added", {"toolkit": summary | more}))
        assert (await second).name == "toolkit_added"


# Names


async def test_a_name_that_is_no_text_is_refused_here_and_costs_no_connection() -> None:
    async with running_server() as server, server.room("alice") as alice:
        before = link_of(alice).connection
        for toolkit, tool in ((7, "x"), ("t", None), (b"t", "x")):
            with pytest.raises(InvalidArguments):
                await alice.invoke(toolkit, tool)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(InvalidArguments):
            await alice.toolkit(7)  # type: ignore[arg-type]  # what is tested
        assert [each async for each in alice.toolkits()] == []
        assert link_of(alice).connection is before


async def test_a_server_that_leaves_again_and_again_is_asked_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LEAVE-4, LEAVE-9: and of the lines to it that stay open only a few are kept."""
    pauses: list[float] = []

    def longest(_: float, most: float) -> float:
        pauses.append(most)
        return 0.0

    monkeypatch.setattr("toolbus.link.random.uniform", longest)
    came: asyncio.Queue[None] = asyncio.Queue()

    async def on_up(_: Welcome) -> None:
        came.put_nowait(None)

    async with scripted_server() as server, asyncio.timeout(20):
        link = link_to(server.url, on_up)
        await link.start()
        for _ in range(8):
            await came.get()
            line = link._line
            assert line is not None
            line.on_message(encode(Notice("leaving", {"grace_ms": 10_000})))
        assert pauses[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
        assert len([line for line in link._lines() if not line.closed.is_set()]) <= 6
        await link.stop()
