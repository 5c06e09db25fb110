"""Names with several addresses, of which some are silent, refuse or belong to nobody."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clients.certificates import make_pki
from support.clients.server_tls import tls_settings
from support.parts.name_server import NAME, NameServer, full_listener, name_server
from toolbus import RoomClient, Unavailable
from toolbus.client import reconnecting_connection
from toolbus.concurrency import event_loop
from toolbus.transport import addresses
from toolbus.transport.addresses import UnreachableHost, open_streams
from toolbus_server.testing import TestServer, running_server

TIME_S = 60


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Answer for `NAME` in place of the system's resolver; no proxy is asked."""
    monkeypatch.setenv("NO_PROXY", "*")
    addresses._RESOLVER._last.clear()  # of the tests before
    with name_server(monkeypatch) as server:
        yield server


def room_by_name(server: TestServer, name: str = NAME) -> RoomClient:
    url = server.url.replace("127.0.0.1", name)
    return RoomClient(url, room="lab", token=server.token("ann"))


@asynccontextmanager
async def dropping(address: str, port: int) -> AsyncIterator[None]:
    with full_listener(address, port):
        yield


@asynccontextmanager
async def silent(address: str, port: int) -> AsyncIterator[None]:
    """Accept connections and never answer."""
    with socket.create_server((address, port)):
        yield


@asynccontextmanager
async def closing(address: str, port: int) -> AsyncIterator[None]:
    """Accept connections and close them, as a proxy does that has no server behind it."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, address, port):
        yield


@asynccontextmanager
async def refusing(_: str, __: int) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("first", [dropping, silent, closing, refusing])
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, event_loop._loop_factory()])
def test_a_participant_joins_by_the_address_that_answers(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, first: Any, factory: Any
) -> None:
    monkeypatch.setattr(addresses, "_LEAST_SHARE_S", 0.1)
    monkeypatch.setattr(reconnecting_connection, "_OPEN_TIMEOUT_S", 3.0)
    names.addresses = ["127.0.0.2", "127.0.0.1"]

    async def join() -> None:
        async with asyncio.timeout(TIME_S), running_server() as server:
            async with first("127.0.0.2", server.server.port), room_by_name(server) as room:
                assert room.me.name == "ann"

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(join())


async def test_an_error_has_each_address_with_its_reason(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting_connection, "_OPEN_TIMEOUT_S", 0.5)
    monkeypatch.setattr(addresses, "_LEAST_SHARE_S", 0.1)
    names.addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    async with running_server() as server:
        port = server.server.port
        async with dropping("127.0.0.2", port), silent("127.0.0.3", port):
            with pytest.raises(Unavailable) as caught:
                await room_by_name(server).__aenter__()
    assert re.sub(r"0\.[0-9]+ s", "S", caught.value.message) == (
        f"cannot connect to ws://{NAME}:{port}: 127.0.0.2: no answer within S, "
        "127.0.0.3: it accepts, but does not answer within S, 127.0.0.4: connection refused"
    )


async def test_an_address_that_was_silent_is_tried_last(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else some silent ones would hide a good one behind them at each attempt."""
    monkeypatch.setattr(reconnecting_connection, "_OPEN_TIMEOUT_S", 0.5)
    monkeypatch.setattr(addresses, "_LEAST_SHARE_S", 5.0)
    names.addresses = ["127.0.0.2", "127.0.0.1"]
    async with running_server() as server, silent("127.0.0.2", server.server.port):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.2: it accepts, but does not answer"):
            await room_by_name(server).__aenter__()
        async with room_by_name(server) as room:
            assert room.me.name == "ann"


async def test_a_refusal_has_the_addresses(names: NameServer) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.3"]
    reasons = "127.0.0.2: connection refused, 127.0.0.3: connection refused"
    async with running_server() as server:
        with pytest.raises(Unavailable) as caught:
            await room_by_name(server).__aenter__()
    assert f"so no server runs there ({reasons}); start it" in caught.value.message


async def test_of_many_addresses_the_rest_is_counted(names: NameServer) -> None:
    names.addresses = [f"127.0.1.{number}" for number in range(20)]
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
        with pytest.raises(UnreachableHost) as caught:
            await open_streams(NAME, port, timeout_s=TIME_S)
    assert caught.value.is_refused
    assert len(caught.value.reasons) == 20
    assert str(caught.value).startswith("127.0.1.0: connection refused, 127.0.1.1: ")
    assert str(caught.value).endswith("connection refused, and 12 more")


async def test_many_silent_addresses_leave_time_for_the_last(names: NameServer) -> None:
    last = "127.0.1.20"
    names.addresses = [f"127.0.1.{number}" for number in range(21)]
    with socket.create_server((last, 0)) as listening:
        port = listening.getsockname()[1]
        with ExitStack() as stack:
            for address in names.addresses[:-1]:
                stack.enter_context(full_listener(address, port))
            _, writer = await open_streams(NAME, port, timeout_s=2.0)
            assert writer.get_extra_info("peername")[0] == last
            writer.close()
            await writer.wait_closed()


async def test_the_certificate_is_that_of_the_name(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pki = make_pki(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pki.authority))
    names.addresses = ["127.0.0.2", "127.0.0.1"]
    async with running_server(settings=tls_settings(pki)) as server:
        async with room_by_name(server) as room:
            assert room.me.name == "ann"
        names.name = "localhost"
        with pytest.raises(Unavailable, match=r"not trusted: Hostname mismatch.*'localhost'"):
            await room_by_name(server, "localhost").__aenter__()
