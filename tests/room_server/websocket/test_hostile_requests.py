"""Requests that are not valid upgrades: wrong paths, broken HTTP, random bytes.

The server answers or drops them, without an error in its log and without opening a session.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from support.clients.forged_tokens import KEY
from support.clients.handshakes import ask, code_for_browser, handshake_server, rest_of
from support.clients.raw_client import (
    CLOSE,
    bearer,
    raw_connection,
    upgrade_request,
    websocket_frame,
)
from support.rooms.unharmed_server import no_logged_errors, unharmed_server
from toolbus import KeyRing
from toolbus.wire import SUBPROTOCOL
from toolbus_server import ServerSettings
from toolbus_server.testing import running_server


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/rooms/",
        "/rooms/Den",
        "/rooms/d%65n",
        "/rooms/den/",
        "/rooms/den/more",
        "/rooms/-den",
        "/rooms/" + "d" * 64,
        "/rooms/../rooms/den",
        "/rooms/d\ten",
        "/rooms/den\x00",
        "/rooms/den#lab",
        "//[",
        "//[::1",
        "//rooms/den",
        "http://[/rooms/den",
        "*",
        "?",
    ],
)
async def test_path_that_is_not_a_room_is_not_found(path: str) -> None:
    """CONN-1, CONN-5, CONN-6: a browser is upgraded, and gets a close code and no welcome."""
    async with handshake_server() as server:
        token = server.token("mallory", room="*")

        assert (await ask(server, path, bearer(token))).status == 404
        assert await code_for_browser(server, path, token) == 4404


@pytest.mark.parametrize(
    "query",
    [
        "epoch=0",
        "epoch=-1",
        "epoch=1.5",
        "epoch=1e3",
        "epoch=+1",
        "epoch=0x10",
        "epoch=%EF%BC%91",
        "epoch=" + "9" * 16,
        "epoch=" + "9" * 5_000,
        "instance=a%0Ab",
        "instance=%00",
        "epoch=x",
        "instance=%1B[2J",
        "instance=" + "a" * 129,
        "&" * 16,
    ],
)
async def test_unreadable_instance_or_epoch_is_refused(query: str) -> None:
    """CONN-4."""
    async with handshake_server() as server:
        token = server.token("mallory", room="*")

        assert (await ask(server, f"/rooms/den?{query}", bearer(token))).status == 400
        assert await code_for_browser(server, f"/rooms/den?{query}", token) == 4404


@pytest.mark.parametrize("offer", ["", "toolbus.v2", "TOOLBUS.V1", "toolbus.v1x"])
async def test_client_without_the_subprotocol_gets_426(offer: str) -> None:
    """CONN-2, CONN-5."""
    async with handshake_server() as server:
        token = server.token("mallory", room="*")
        headers = [("Authorization", f"Bearer {token}"), ("Sec-WebSocket-Protocol", offer)]
        head = await ask(server, "/rooms/den", headers[: 2 if offer else 1])

        assert (head.status, SUBPROTOCOL in head.body) == (426, True)


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"GET", b"POST", 405),
        (b"Upgrade: websocket", b"Upgrade: h2c", 426),
        (b"Sec-WebSocket-Key", b"X-Key", 400),
        (b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 8", 400),
        (b"toolbus.v1", b"toolbus.v1, b@d", 400),
    ],
)
async def test_request_that_is_not_a_valid_upgrade_is_refused(
    old: bytes, new: bytes, status: int
) -> None:
    async with handshake_server() as server, raw_connection(server.url) as client:
        request = upgrade_request("/rooms/den", bearer(server.token("mallory", room="*")))
        client.send(request.replace(old, new, 1))

        assert (await client.read_head()).status == status


@pytest.mark.parametrize(
    "request_bytes",
    [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, b"GET / HTTP/2\r\n\r\n"],
    ids=["empty", "tls", "http2"],
)
async def test_bytes_that_are_not_http_are_dropped(request_bytes: bytes) -> None:
    async with handshake_server() as server, raw_connection(server.url) as client:
        client.send(request_bytes)
        client.writer.write_eof()
        assert await rest_of(client) == b""


async def test_request_line_that_is_too_long_is_refused() -> None:
    """CONN-5."""
    async with handshake_server() as server:
        path = f"/rooms/den?instance={'a' * 8_192}"

        assert (await ask(server, path, bearer(server.token("mallory")))).status == 414


EARLY = {
    "message": websocket_frame(b"\x93\x22\x01\x80"),
    "fragment": websocket_frame(b"\x93", fin=False),
    "text": websocket_frame(b"hello", opcode=1),
    "unmasked": websocket_frame(b"\x93\x22\x01\x80", masked=False),
    "bad-opcode": websocket_frame(b"", opcode=7),
    "close": websocket_frame(b"\x03\xe8", opcode=CLOSE),
}


@pytest.mark.parametrize("name", EARLY)
async def test_client_that_does_not_wait_for_the_handshake_is_dropped(name: str) -> None:
    """CONN-10."""
    async with handshake_server() as server, raw_connection(server.url) as client:
        request = upgrade_request("/rooms/den", bearer(server.token("mallory", room="*")))
        client.send(request + EARLY[name])
        assert await rest_of(client) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /rooms/den HTTP/1.1\r\nHost: a\r\nX"])
async def test_client_that_does_not_finish_its_request_is_dropped(sent: bytes) -> None:
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, handshake_timeout_s=0.2)
    async with unharmed_server(settings=settings) as server, raw_connection(server.url) as client:
        client.send(sent)
        assert await rest_of(client) == b""


TEXT = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=255), max_size=60)
PATHS = st.one_of(
    TEXT,
    TEXT.map(lambda text: f"/rooms/{text}"),
    TEXT.map(lambda text: f"/rooms/den?{text}"),
    st.tuples(TEXT, TEXT).map(lambda pair: f"/rooms/den?instance={pair[0]}&epoch={pair[1]}"),
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["Authorization", "Sec-WebSocket-Protocol", "Origin", "Host", "X-Any"]),
        st.one_of(
            TEXT,
            TEXT.map(lambda text: f"Bearer {text}"),
            TEXT.map(lambda text: f"toolbus.v1, bearer.{text}"),
            st.just("toolbus.v1"),
        ),
    ),
    max_size=6,
)


@example_settings(max_examples=25)
@given(st.lists(st.tuples(PATHS, HEADERS), min_size=1, max_size=20))
async def test_no_request_without_a_good_token_joins_or_breaks_the_handshake(
    requests: list[tuple[str, list[tuple[str, str]]]],
) -> None:
    with no_logged_errors():
        async with running_server(key=KEY) as server:
            for path, headers in requests:
                async with raw_connection(server.url) as client:
                    client.send(upgrade_request(path, headers))
                    client.writer.write_eof()
                    answer = await rest_of(client)
                assert not answer.startswith(b"HTTP/1.1 5")
                assert server.server.hub.rooms == {}


@example_settings(max_examples=25)
@given(st.lists(st.binary(max_size=400), min_size=1, max_size=20))
async def test_no_bytes_break_the_handshake(attempts: list[bytes]) -> None:
    with no_logged_errors():
        async with running_server(key=KEY) as server:
            for data in attempts:
                async with raw_connection(server.url) as client:
                    client.send(data)
                    client.writer.write_eof()
                    assert await rest_of(client) == b""
