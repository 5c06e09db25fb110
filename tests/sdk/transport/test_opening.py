"""Websockets through a proxy, and those that are redirected."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.clients.ending_tokens import lives_for
from toolbus import RoomClient, Unavailable
from toolbus.diagnostics.exit_codes import failure_lines
from toolbus_server.testing import running_server

TIME_S = 60
TOKEN = lives_for("ann", 60)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    finally:
        writer.close()


@asynccontextmanager
async def proxy_to(port: int, asked: list[bytes]) -> AsyncIterator[str]:
    """Pass each CONNECT on to a local port, whatever it asks for; yield the proxy's URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"


async def test_a_proxy_gets_the_name_which_is_not_looked_up_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with asyncio.timeout(TIME_S), running_server() as server:
        async with proxy_to(server.server.port, asked) as proxy:
            monkeypatch.setenv("https_proxy", proxy)
            token = server.token("ann")
            async with RoomClient("ws://far.invalid:81", room="lab", token=token) as room:
                assert room.me.name == "ann"
    assert asked == [b"CONNECT far.invalid:81 HTTP/1.1"]


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("socks5://127.0.0.1:9", "a SOCKS proxy needs a package: pip install 'python-socks"),
        ("socks5h://ann:secret@127.0.0.1:9", "a SOCKS proxy needs a package"),
        ("socks4://127.0.0.1:9", "a SOCKS proxy needs a package"),
        ("other://ann:secret@127.0.0.1:9", "its address is invalid: scheme other isn't supported"),
        ("http://", "its address is invalid: hostname"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    proxy: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "python_socks", None)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(TIME_S), RoomClient("wss://far.invalid", token=TOKEN, wait=True):
            pass
    error = caught.value
    assert (error.executed, error.retryable) == ("no", False)
    assert f"the proxy of the environment cannot be used: {words}" in error.message
    assert "secret" not in f"{error.message} {error.details} {error.__context__}"
    assert "name the server's host in NO_PROXY" in failure_lines(error)[1]


async def test_a_redirect_is_followed_at_the_same_origin_only() -> None:
    paths: list[bytes] = []
    places = [b"/bus", b"ws://127.0.0.2/bus"]

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split()[1].partition(b"?")[0])
        place = places[len(paths) - 1]
        writer.write(b"HTTP/1.1 307 There\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % place)
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as service:
        url = f"ws://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match=r"another service answers there \(HTTP 307\)"):
            async with asyncio.timeout(TIME_S), RoomClient(url, room="lab", token=TOKEN):
                pass
    assert paths == [b"/rooms/lab", b"/bus"]
