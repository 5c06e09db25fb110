"""Connections that are lost at an inconvenient moment."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.clients.ending_tokens import lives_for
from support.parts.isolated_host import echo
from support.parts.scripted_server import ScriptedConnection, ScriptedServer, scripted_server
from toolbus import RoomClient, Toolkit
from toolbus.cli.room_options import CommandRoom
from toolbus.client.connection import Connection
from toolbus.client.reconnecting_connection import (
    ReconnectingConnection,
    ReconnectingConnectionOwner,
)
from toolbus.errors import InvalidArguments, RoomException, Unavailable
from toolbus.room.room import connection_of
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


def connection_to(
    url: str, on_connected: Callable[[Welcome], Awaitable[None]]
) -> ReconnectingConnection:
    settings = RoomSettings.resolve(url=url, room="lab", token="e30.e30.t", environ={})

    async def finish(_: Connection) -> None:
        """There are no calls."""

    owner = ReconnectingConnectionOwner(
        handlers=lambda _: {},
        on_connected=on_connected,
        on_connection_lost=lambda _: None,
        on_ended=lambda: None,
        on_replaced=finish,
    )
    return ReconnectingConnection(settings, owner)


def link_of(room: RoomClient) -> ReconnectingConnection:
    return connection_of(room).link


def lose(connection: ReconnectingConnection) -> None:
    """Lose the connection without a closing handshake."""
    assert connection.websocket is not None
    connection.websocket.transport.abort()


async def test_waiting_continues_if_a_new_connection_is_lost_at_once() -> None:
    ups: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def on_connected(_: Welcome) -> None:
        ups.put_nowait(go := asyncio.Event())
        await go.wait()

    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        start = asyncio.create_task(connection.start())
        (await ups.get()).set()
        await start
        await connection.ready()
        lose(connection)
        again = await ups.get()
        waiting = asyncio.create_task(connection.ready())
        await asyncio.wait([waiting], timeout=0.05)
        connection._ready.set()  # ready, and lost again in the same iteration
        connection._ready.clear()
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        again.set()
        await waiting
        assert connection.websocket is not None
        await connection.stop()
        with pytest.raises(Unavailable):
            await connection.ready()


async def test_connection_lost_while_it_is_made_ready_is_never_ready() -> None:
    async def on_connected(_: Welcome) -> None:
        websocket = connection.websocket
        assert websocket is not None
        websocket.transport.abort()
        await websocket.wait_closed()

    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        with pytest.raises(Unavailable):
            await connection.start()
        assert not connection.is_ready


async def test_connection_that_is_stopped_while_it_is_lost_stops() -> None:
    ups: asyncio.Queue[None] = asyncio.Queue()
    is_up, block = asyncio.Event(), asyncio.Event()

    async def on_connected(_: Welcome) -> None:
        ups.put_nowait(None)
        if is_up.is_set():
            await block.wait()

    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        await connection.start()
        await ups.get()
        is_up.set()
        lose(connection)
        await ups.get()
        lose(connection)
        stop = asyncio.create_task(connection.stop())
        async with asyncio.timeout(60):
            await stop


@pytest.mark.parametrize("retry", [False, True])
async def test_call_made_while_the_connection_is_closing_waits_for_the_next(retry: bool) -> None:
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(Toolkit("t", [echo])),
        server.room("alice") as alice,
    ):
        websocket = link_of(alice).websocket
        assert websocket is not None
        websocket.close_with(1002, "no reason")
        chunk = await alice.invoke("t.echo", {"text": "x"}, retry=retry, timeout_s=10)
        assert chunk.value == "x"


async def test_command_does_not_take_a_connection_that_is_closing_for_open() -> None:
    async with running_server() as server:
        token = server.token("ann")
        async with CommandRoom(server.url, room="lab", token=token) as room:
            assert room.is_connected
            websocket = link_of(room).websocket
            assert websocket is not None
            websocket.close_with(1002, "no reason")
            assert not room.is_connected


async def test_server_that_does_not_answer_is_a_warning_before_the_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "toolbus.client.reconnecting_connection"
    monkeypatch.setattr(f"{module}._OPEN_TIMEOUT_S", 0.2)
    monkeypatch.setattr(f"{module}._SILENT_WAIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable):
            await RoomClient(url, room="lab", token=lives_for("ann", 60)).__aenter__()
    assert f"{url} has not answered yet; waiting up to 0.15 s more" in caplog.messages


async def test_outage_is_a_line_a_minute_with_its_reason_and_in_the_error_of_a_call(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus.concurrency.backoff._REPEAT_S", 0.0)
    async with running_server() as server, server.room("alice") as alice, asyncio.timeout(60):
        text = f"cannot connect to {server.url}: connection refused"
        pattern = rf"no connection to {server.url} after \d+ attempts in \d s: {text}"
        await server.server.stop()
        with pytest.raises(Unavailable) as late:
            await alice.invoke("t.echo", {}, timeout_s=0.5)
        assert late.value.message.startswith(f"no connection before the deadline: {text}")
        assert any(re.match(pattern, message) for message in caplog.messages)


@pytest.mark.parametrize("odd", ["", None])
async def test_token_source_without_a_token_is_called_again(odd: Any) -> None:
    """An empty answer stands for a source that is cancelled."""
    async with running_server() as server, asyncio.timeout(60):
        answers = [server.token("alice"), None, odd, server.token("alice")]

        async def token() -> Any:
            if (answer := answers.pop(0)) == "":
                raise asyncio.CancelledError
            return answer

        async with RoomClient(server.url, room="lab", token=token) as alice:
            with pytest.raises(TypeError, match="token= must return text, not NoneType"):
                await alice.refresh()
            lose(link_of(alice))
            await _down(link_of(alice))
            assert [toolkit async for toolkit in alice.toolkits()] == []


# A move to another server that fails


@asynccontextmanager
async def failed_move(
    code: int,
) -> AsyncIterator[tuple[ReconnectingConnection, Connection, ScriptedConnection]]:
    """Yield a connection whose other server closed with `code`, with its first connection."""
    blocks, is_blocked = [False, True], asyncio.Event()

    async def on_connected(_: Welcome) -> None:
        if blocks and blocks.pop(0) and connection.websocket is not None:
            is_blocked.set()
            await connection.websocket.wait_closed()
            raise ConnectionError

    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        await connection.start()
        first, peer = connection._current, await server.next_connection()
        assert first is not None
        await peer.send(Notice("move", {}))
        second = await server.next_connection()
        await is_blocked.wait()
        assert not connection.is_ready  # what it hosts is not registered yet
        await second.websocket.close(code)
        await connection.ready()
        yield connection, first, peer
        await connection.stop()


@pytest.mark.parametrize("code", [1012, 4403])
async def test_connection_that_could_not_move_stays_and_is_closed_at_the_end(code: int) -> None:
    """LEAVE-11: a server that leaves, and one that refuses the room."""
    async with failed_move(code) as (connection, first, peer):
        assert connection.websocket is first.websocket
        await connection.stop()
        await peer.websocket.wait_closed()
        assert peer.websocket.close_code == 1000


async def test_connection_that_could_not_move_takes_no_calls_once_its_server_leaves() -> None:
    """LEAVE-9, LEAVE-11."""
    async with failed_move(1012) as (connection, first, _):
        first.on_message(encode(Notice("leaving", {"grace_ms": 10_000})))
        assert not connection.is_ready
        await connection.ready()
        assert connection.websocket is not first.websocket


async def test_old_connection_that_is_replaced_during_a_move_does_not_end_the_new_one() -> None:
    """LEAVE-11: as by a server that has joined the others of its bus again."""

    async def on_connected(_: Welcome) -> None:
        if peers:
            await peers[0].websocket.close(4409)
            await first.closed.wait()

    peers: list[ScriptedConnection] = []
    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        await connection.start()
        assert connection._current is not None
        first = connection._current
        peers.append(await server.next_connection())
        first.on_message(encode(Notice("move", {})))
        await first.closed.wait()
        await connection.ready()
        assert connection.websocket is not first.websocket
        await connection.stop()


async def test_connection_whose_server_leaves_during_the_replay_takes_no_calls() -> None:
    """LEAVE-9."""

    async def on_connected(_: Welcome) -> None:
        if not seen:
            seen.append(connection._current)
            seen[0].on_message(encode(Notice("leaving", {"grace_ms": 10_000})))

    seen: list[Any] = []
    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        await connection.start()
        assert not connection.is_ready
        await connection.ready()
        assert connection.websocket is not seen[0].websocket
        await connection.stop()


# Hosted toolkits


def hosting(room: RoomClient, name: str) -> asyncio.Task[None]:
    async def host() -> None:
        async with room.host(Toolkit(name, [])):
            await asyncio.Event().wait()

    return asyncio.create_task(host())


async def registered(peer: ScriptedConnection) -> str:
    """Accept a registration; return the toolkit's name."""
    request = await peer.answer(Register, {"digest": "d" * 64, "generation": 1})
    name: str = unpack_body(request.manifest)["name"]
    return name


def room_at(server: ScriptedServer) -> RoomClient:
    return RoomClient(server.url, room="lab", token="e30.e30.t")


async def test_toolkit_withdrawn_during_replay_does_not_stop_the_others() -> None:
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(60):
        peer = await server.next_connection()
        tasks = []
        for name in ("a", "b"):
            tasks.append(hosting(room, name))
            assert await registered(peer) == name
        peer.websocket.transport.abort()
        again = await server.next_connection()
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
async def test_toolkit_withdrawn_without_a_connection_is_unregistered_on_the_next(
    is_answered: bool,
) -> None:
    """Also if its registration was cancelled before its reply: it may be registered."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(60):
        peer = await server.next_connection()
        task = hosting(room, "a")
        await (registered(peer) if is_answered else peer.next_of(Register))
        down = asyncio.create_task(_down(link_of(room)))
        peer.websocket.transport.abort()
        await down
        task.cancel()
        await asyncio.wait([task])
        again = await server.next_connection()
        assert (await again.answer(Unregister, {})).toolkit == "a"


async def test_registration_whose_reply_is_lost_is_repeated_on_the_next_connection() -> None:
    """As when a server ends while a host registers: the host need not be restarted."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(60):
        peer = await server.next_connection()
        task = hosting(room, "a")
        await peer.next_of(Register)
        peer.websocket.transport.abort()
        again = await server.next_connection()
        assert await registered(again) == "a"
        task.cancel()
        assert (await again.answer(Unregister, {})).toolkit == "a"


async def test_registration_that_fails_temporarily_is_retried() -> None:
    """LEAVE-4: as when a node cannot reach Redis; the connection stays open."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(60):
        peer = await server.next_connection()
        task = hosting(room, "a")
        await registered(peer)
        peer.websocket.transport.abort()
        again = await server.next_connection()
        for _ in range(2):
            request = await again.next_of(Register)
            await again.send(Failed(request.id, "unavailable", "no", True, "no", None, None))
            await link_of(room).ready()
        assert await registered(again) == "a"
        task.cancel()
        await again.answer(Unregister, {})


@asynccontextmanager
async def tried_again(
    room: RoomClient, server: ScriptedServer
) -> AsyncIterator[ScriptedConnection]:
    """Have a withdrawn toolkit retried, with a reply that is still to come."""
    peer = await server.next_connection()
    task = hosting(room, "a")
    await registered(peer)
    peer.websocket.transport.abort()
    again = await server.next_connection()
    request = await again.next_of(Register)
    await again.send(Failed(request.id, "unavailable", "no", True, "no", None, None))
    request = await again.next_of(Register)
    task.cancel()
    await again.answer(Unregister, {})
    await asyncio.wait([task])
    yield again
    await again.send(Result(request.id, pack_body({"digest": "d" * 64, "generation": 1})))


async def test_toolkit_withdrawn_during_its_retry_is_unregistered() -> None:
    """A server may handle the withdrawal before the registration."""
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(60):
        async with tried_again(room, server) as peer:
            pass
        assert (await peer.answer(Unregister, {})).toolkit == "a"


async def test_toolkit_hosted_again_during_its_retry_is_not_unregistered() -> None:
    async with scripted_server() as server, asyncio.timeout(60):
        async with room_at(server) as room:
            async with tried_again(room, server) as peer:
                tasks = [hosting(room, "a")]
                newer = await peer.next_of(Register)
            await until_none_is_tried()
            await peer.send(Result(newer.id, pack_body({"digest": "d" * 64, "generation": 1})))
            tasks.append(hosting(room, "b"))
            assert isinstance(await peer.next_of(object), Register)
        for task in tasks:
            task.cancel()


async def until_none_is_tried() -> None:
    """Wait until no registration is retried."""
    while "_retry" in _names_of_tasks():  # noqa: ASYNC110 - the task has no event for its end
        await asyncio.sleep(0)


async def test_leaving_the_room_during_a_retry_leaves_no_task() -> None:
    async with scripted_server() as server, asyncio.timeout(60):
        async with room_at(server) as room:
            peer = await server.next_connection()
            task = hosting(room, "a")
            await registered(peer)
            peer.websocket.transport.abort()
            again = await server.next_connection()
            request = await again.next_of(Register)
            await again.send(Failed(request.id, "unavailable", "no", True, "no", None, None))
            await link_of(room).ready()
            assert "_retry" in _names_of_tasks()
        assert "_retry" not in _names_of_tasks()
        task.cancel()


def _names_of_tasks() -> set[str]:
    coroutines = [task.get_coro() for task in asyncio.all_tasks() if not task.cancelling()]
    return {getattr(coroutine, "__name__", "") for coroutine in coroutines}


async def _down(connection: ReconnectingConnection) -> None:
    while connection.is_ready:  # noqa: ASYNC110 - only the connection's owner is notified of a loss
        await asyncio.sleep(0)


# Subscribers


async def test_subscriber_does_not_depend_on_another_that_was_refused() -> None:
    async with scripted_server() as server, room_at(server) as room, asyncio.timeout(60):
        peer = await server.next_connection()
        first, second = (asyncio.create_task(anext(room.events())) for _ in range(2))
        request = await peer.next_of(Subscribe)
        await peer.send(Failed(request.id, "internal", "no", False, "no", None, None))
        with pytest.raises(RoomException):
            await first
        await peer.answer(Subscribe, {"topics": ["toolkits"]})
        summary = {"name": "t", "title": "", "description": "", "version": "", "digest": "d"}
        more = {"public": True, "owner": {"name": "o", "issuer": ""}, "hosts": 1, "tools": []}
        await peer.send(Event(1, "toolkit_added", {"toolkit": summary | more}))
        assert (await second).name == "toolkit_added"


# Names


async def test_name_that_is_not_text_is_refused_locally() -> None:
    async with running_server() as server, server.room("alice") as alice:
        before = link_of(alice).websocket
        for tool in (7, None, b"t.x", "t", "t.", ".x", ""):
            with pytest.raises(InvalidArguments, match=r"write .toolkit\.tool"):
                await alice.invoke(tool)  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(InvalidArguments):
            await alice.toolkit(7)  # type: ignore[arg-type]  # the point of the test
        assert [toolkit async for toolkit in alice.toolkits()] == []
        assert link_of(alice).websocket is before


async def test_reconnecting_to_a_server_that_keeps_leaving_backs_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LEAVE-4, LEAVE-9: and only a few of the leaving connections stay open."""
    pauses: list[float] = []

    def longest(_: float, most: float) -> float:
        pauses.append(most)
        return 0.0

    monkeypatch.setattr("toolbus.client.reconnecting_connection.random.uniform", longest)
    came: asyncio.Queue[None] = asyncio.Queue()

    async def on_connected(_: Welcome) -> None:
        came.put_nowait(None)

    async with scripted_server() as server, asyncio.timeout(60):
        connection = connection_to(server.url, on_connected)
        await connection.start()
        for _ in range(8):
            await came.get()
            peer = connection._current
            assert peer is not None
            peer.on_message(encode(Notice("leaving", {"grace_ms": 10_000})))
        assert pauses[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
        assert len([peer for peer in connection._connections() if not peer.closed.is_set()]) <= 6
        await connection.stop()


async def test_open_connection_has_no_headers_of_its_handshake() -> None:
    async with running_server() as server, server.room("alice") as alice:
        websocket = link_of(alice).websocket
        assert websocket is not None
        for head in (websocket.request, websocket.response):
            assert head is not None
            assert not head.headers  # one of them has the token
        assert await alice.participants()
