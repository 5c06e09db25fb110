"""Keys that change while people are connected: old and new overlap, and nobody is disconnected.

The server is `toolbus serve`, a process of its own; its log says when it has taken a change up.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from support.bystanders import check_call, say, unharmed_server
from support.command_line import CommandLine, Running
from support.raw_client import bearer, raw_connection, raw_participant
from support.wire_talk import ask, refusal
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient, Toolkit
from toolbus.wire import Refresh
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.key_files import add_key

OLD, NEW = (Key.generate(kid=kid, iss="acme") for kid in ("old", "new"))


def token_of(key: Key, name: str = "ann") -> str:
    return ParticipantToken(name=name, room=["lab"], api=ApiScope.full()).to_jwt(key)


class Served:
    """`toolbus serve --keys keys.toml`, the file, and what it says of it."""

    def __init__(self, process: Running, url: str, keys: Path) -> None:
        self.process = process
        self.url = url
        self.keys = keys

    def trust(self, *keys: Key) -> None:
        """Change the file, as an operator does."""
        KeyRing(keys).save(self.keys)

    async def says(self) -> str:
        """Give the next line of its log."""
        stderr = self.process.process.stderr
        assert stderr is not None
        async with asyncio.timeout(20):
            return await asyncio.to_thread(stderr.readline)

    async def lets_in(self, key: Key) -> bool:
        """Whether a token of this key is good at the door."""
        async with raw_connection(self.url) as client:
            head = await client.upgrade("/rooms/lab", bearer(token_of(key)))
        assert head.status in {101, 401}, head
        return head.status == 101

    def room(self, name: str, key: Key) -> RoomClient:
        return RoomClient(self.url, room="lab", token=token_of(key, name))


@asynccontextmanager
async def served(folder: Path, *keys: Key) -> AsyncIterator[Served]:
    """Run a server of its own that trusts the keys of a file."""
    path = folder / "keys.toml"
    KeyRing(keys).save(path)
    # Its log is read on a thread, which ends only when the process has: hence the order.
    with CommandLine(folder).serving("--keys", str(path)) as (process, url):
        try:
            yield Served(process, url, path)
        finally:
            process.process.kill()


async def connections(*people: RoomClient) -> dict[str, str]:
    """Tell on which connection each one is, after a call of everybody."""
    for person in people:
        await check_call(person)
    return {each.name: each.id for each in await people[0].participants()}


@pytest.mark.row(14)
async def test_keys_rotate_by_overlap_and_nobody_is_disconnected(tmp_path: Path) -> None:
    """TOKEN-6: from the old key over both to the new one, under people of both."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(tmp_path, OLD))
        host = await stack.enter_async_context(server.room("host", OLD))
        await stack.enter_async_context(host.host(Toolkit("echo", [say])))
        early = await stack.enter_async_context(server.room("early", OLD))
        before = await connections(host, early)
        assert (await server.lets_in(OLD), await server.lets_in(NEW)) == (True, False)

        add_key(server.keys, NEW)  # what `toolbus key create --out` does
        assert (await server.says()).endswith("trusted from now on: 'old', 'new'\n")
        assert (await server.lets_in(OLD), await server.lets_in(NEW)) == (True, True)
        late = await stack.enter_async_context(server.room("late", NEW))
        both = await connections(host, early, late)
        assert both == {**before, "late": both["late"]}

        server.trust(NEW)
        assert (await server.says()).endswith("trusted from now on: 'new'\n")
        assert (await server.lets_in(OLD), await server.lets_in(NEW)) == (False, True)
        assert await connections(host, early, late) == both


@pytest.mark.row(14)
async def test_refresh_is_judged_by_the_keys_of_its_moment() -> None:
    """TOKEN-6, REFRESH-1: who holds a token of the removed key goes on with one of the new."""
    async with unharmed_server(key=OLD) as server:
        mallory = token_of(OLD, "mallory")
        async with raw_participant(server, token=mallory) as client:
            server.server.trust(KeyRing([NEW]))
            refused = await refusal(client, Refresh(1, mallory))
            assert refused.code == "permission_denied"
            facts = await ask(client, Refresh(2, token_of(NEW, "mallory")))
            assert facts["name"] == "mallory"


@pytest.mark.row(14)
@pytest.mark.parametrize("text", ["", "[[key]]\nkid = 1\n", "not TOML", None])
async def test_a_broken_key_file_leaves_the_old_keys_in_force(
    tmp_path: Path, text: str | None
) -> None:
    async with served(tmp_path, OLD) as server:
        if text is None:
            server.keys.unlink()
        else:
            server.keys.write_text(text)
        why = await server.says()
        assert "the keys stay as they were" in why
        assert "keys.toml" in why
        assert await server.lets_in(OLD)
        server.trust(OLD, NEW)
        assert "trusted from now on" in await server.says()
        assert (await server.lets_in(OLD), await server.lets_in(NEW)) == (True, True)


@pytest.mark.row(14)
async def test_sighup_reads_the_file_at_once_and_says_so(tmp_path: Path) -> None:
    async with served(tmp_path, OLD) as server:
        server.process.process.send_signal(signal.SIGHUP)
        assert "trusted from now on: 'old'" in await server.says()
        assert await server.lets_in(OLD)


def test_a_server_never_trusts_nobody() -> None:
    server = RoomServer(ServerSettings(keys=KeyRing([OLD])))
    with pytest.raises(ValueError, match="at least one key"):
        server.trust(KeyRing([]))
