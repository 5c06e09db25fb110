"""Looking up names that hang, fail or are answered late, in bounded time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from support.parts.name_server import NAME, NameServer, name_server
from toolbus.transport.name_lookup import HostResolver

TIME_S = 60
PORT = 7


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Answer for `NAME` in place of the system's resolver."""
    with name_server(monkeypatch) as server:
        yield server


async def addresses(resolver: HostResolver, host: str = NAME) -> list[str]:
    return [info[4][0] for info in await resolver.addresses(host, PORT)]


async def test_hung_lookup_is_awaited_once(names: NameServer) -> None:
    names.may_answer.clear()
    resolver = HostResolver(0.2)
    async with asyncio.timeout(TIME_S):
        asked = (addresses(resolver) for _ in range(100))
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(end) for end in ends} == {socket.gaierror}
        assert names.lookups == 1
        assert await addresses(resolver, "127.0.0.1") == ["127.0.0.1"]
        running = resolver._running[NAME, PORT].future
        names.may_answer.set()
        await asyncio.wrap_future(running)
        assert await addresses(resolver) == ["127.0.0.1"]


async def test_no_thread_of_the_program_waits_for_a_lookup(names: NameServer) -> None:
    names.may_answer.clear()
    resolver = HostResolver()
    async with asyncio.timeout(TIME_S):
        waiting = [asyncio.ensure_future(addresses(resolver)) for _ in range(64)]
        assert await asyncio.to_thread(lambda: "free") == "free"
        names.may_answer.set()
        assert await asyncio.gather(*waiting) == [["127.0.0.1"]] * 64


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ["127.0.0.1"]),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), ["127.0.0.1"]),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), None),
    ],
)
async def test_last_addresses_are_used_unless_the_name_is_gone(
    names: NameServer,
    caplog: pytest.LogCaptureFixture,
    error: OSError | None,
    expected: list[str] | None,
) -> None:
    resolver = HostResolver(0.2)
    async with asyncio.timeout(TIME_S):
        assert await addresses(resolver) == ["127.0.0.1"]
        names.error = error
        if error is None:
            names.may_answer.clear()
        for _ in range(3):
            if expected is None:
                with pytest.raises(socket.gaierror):
                    await addresses(resolver)
            else:
                assert await addresses(resolver) == expected
    assert caplog.text.count("its last address 127.0.0.1 is used") == (expected is not None)


async def test_lookup_without_a_thread_fails_and_the_next_one_succeeds(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = HostResolver()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(socket.gaierror, match="can't start new thread"):
            await addresses(resolver)
    assert await addresses(resolver) == ["127.0.0.1"]


async def test_lookups_that_hang_are_limited(names: NameServer) -> None:
    names.may_answer.clear()
    resolver = HostResolver(0.0)
    for port in range(1, 257):
        with pytest.raises(socket.gaierror, match="takes longer"):
            await resolver.addresses(NAME, port)
    with pytest.raises(socket.gaierror, match="256 other lookups"):
        await resolver.addresses(NAME, 257)
