"""A client without a block, before its server, and in another event loop than its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from support.redis.server import free_port
from toolbus import FileChunk, KeyRing, RoomClient, Toolkit, tool
from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.room.room import connection_of
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server


async def test_connect_and_aclose_do_what_the_block_does(server: TestServer) -> None:
    async with server.room("watch") as watch, watch.events(["participants"]) as events:
        ann = server.room("ann")
        await ann.aclose()
        assert await ann.connect() is ann
        assert (ann.name, (await anext(events)).name) == ("ann", "participant_joined")
        for again in (ann.connect, ann.__aenter__):
            with pytest.raises(RuntimeError, match="already entered: one client has"):
                await again()
        for _ in range(2):
            await ann.aclose()
        assert (await anext(events)).name == "participant_left"
        with pytest.raises(Unavailable, match="the room is closed"):
            await ann.participants()
        async with ann:
            assert (await anext(events)).name == "participant_joined"
            await ann.aclose()


async def test_repr_shows_where_who_and_state_but_no_secret(server: TestServer) -> None:
    ann, facts = server.room("ann"), f"RoomClient {server.url}, room 'lab'"
    assert repr(ann) == f"<{facts}, not connected>"
    connecting = asyncio.create_task(ann.connect())
    await asyncio.sleep(0)
    assert repr(ann) == f"<{facts}, connecting>"
    await connecting
    assert repr(ann) == f"<{facts}, name 'ann', connected>"
    connection_of(ann).link._set_not_ready()
    assert repr(ann) == f"<{facts}, name 'ann', reconnecting>"
    connection_of(ann).link.error = PermissionDenied("removed")
    assert repr(ann) == f"<{facts}, name 'ann', ended>"
    await ann.aclose()
    assert repr(ann) == f"<{facts}, name 'ann', closed>"
    wrong = RoomClient("ws://ann:pw@h", token="t.o.k", name="x" * 500 + "\n", room="a\nb")
    assert repr(wrong) == f"<RoomClient room 'a\\nb', name '{'x' * SHOWN_CHARS}', not connected>"


# Waiting for a server


@pytest.mark.parametrize("wait", [True, 60])
async def test_client_waits_for_a_server_that_is_not_there_yet(
    wait: bool | float, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(keys=KeyRing([]), port=free_port(), drain_s=1.0)
    async with running_server(settings=settings) as server:
        token, url = server.token("ann"), server.url
    has_logged = asyncio.Event()

    def on_record(_: object) -> bool:
        has_logged.set()
        return True

    caplog.handler.addFilter(on_record)
    ann = RoomClient(url, room="lab", token=token, wait=wait)
    connecting = asyncio.create_task(ann.connect())
    await has_logged.wait()
    with pytest.raises(RuntimeError, match="already entered"):
        await ann.connect()
    async with running_server(key=server.key, settings=settings):
        await connecting
        assert ann.name == "ann"
        await ann.aclose()
    assert caplog.messages[0].startswith(f"cannot join at {url} yet, trying again")
    assert "joined room lab now" in caplog.messages


async def test_wait_has_a_limit_and_waits_for_nothing_that_stays(server: TestServer) -> None:
    token = server.token("ann")
    for wait in (False, 0):
        with pytest.raises(Unavailable) as refused:
            await RoomClient(f"ws://127.0.0.1:{free_port()}", token=token, wait=wait).connect()
        assert "waited" not in refused.value.message
    for wrong in ("5", -1, float("inf"), float("nan"), None):
        with pytest.raises(ValueError, match="wait must be True, False or a number"):
            await RoomClient(server.url, token=token, wait=wrong).connect()  # type: ignore[arg-type]
    with pytest.raises(PermissionDenied):
        await RoomClient(server.url, room="other", token=token, wait=True).connect()


# Another event loop


async def test_other_loop_is_refused_before_anything_is_sent(server: TestServer) -> None:
    """Every request, stream, upload and change, of a client and of a room that it gave."""
    ran: list[str] = []

    @tool
    def note(text: str) -> None:
        ran.append(text)

    @tool
    async def upload(attachment: FileChunk) -> None:
        ran.append("upload")

    async def pieces() -> AsyncIterator[bytes]:
        ran.append("read")
        yield b"a"

    async with server.room("host") as host, host.host(Toolkit("kit", [note, upload])):
        client = await server.room("ann").connect()
        kit = await client.toolkit("kit")
        client_uses: dict[str, Callable[[], Awaitable[Any]]] = {
            "call": lambda: client.call("kit.note", text="a"),
            "proxy": lambda: kit.note(text="a"),
            "stream": client.stream("kit.note", {"text": "a"}).__aenter__,
            "upload": lambda: client.invoke("kit.upload", attachment=pieces()),
            "toolkit": lambda: client.toolkit("kit"),
            "explain": lambda: client.explain("kit.note"),
            "toolkits": lambda: anext(client.toolkits()),
            "send": lambda: client.send("host", "note"),
            "events": client.events().__aenter__,
            "watch": client.watch_calls().__aenter__,
            "attributes": lambda: client.set_attributes(a=1),
            "host": client.host(Toolkit("mine", [note])).__aenter__,
            "drain": client.drain,
            "refresh": client.refresh,
            "admin": lambda: client.admin("rooms"),
            "closed": client.closed,
            "aclose": client.aclose,
        }
        for name, use in client_uses.items():
            with pytest.raises(RoomException, match="belongs to another event loop") as refused:
                await asyncio.to_thread(asyncio.run, _awaited(use))
            error = refused.value
            assert type(error) is Unavailable, name
            assert (error.executed, error.retryable) == ("no", False), name
            assert "toolbus.sync.RoomClient" in error.message
        assert ran == []
        assert await asyncio.to_thread(lambda: (client.name, client.room)) == ("ann", "lab")
        await client.call("kit.note", text="mine")
        assert ran == ["mine"]
        await client.aclose()


async def _awaited(use: Callable[[], Awaitable[Any]]) -> Any:
    return await use()


async def test_client_of_a_loop_that_has_ended_is_refused_and_can_connect_again(
    server: TestServer,
) -> None:
    client = server.room("ann")

    def in_loops() -> None:
        async def leave_open() -> None:
            await client.connect()
            websocket = connection_of(client).link.websocket
            assert websocket is not None
            websocket.transport.abort()

        asyncio.run(leave_open())
        with pytest.raises(Unavailable, match="another event loop"):
            asyncio.run(client.participants())
        asyncio.run(client.aclose())

        async def again() -> str:
            async with client:
                return client.name

        assert asyncio.run(again()) == "ann"

    await asyncio.to_thread(in_loops)
