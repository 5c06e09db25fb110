"""Keys that change while participants are connected: they overlap, and all stay connected.

The server is `toolbus serve`, a process of its own; it logs each reload.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.clients.raw_client import bearer, raw_connection, raw_participant
from support.clients.raw_requests import ask, refusal
from support.processes.command_line import CommandLine, Running
from support.rooms.unharmed_server import check_call, say, unharmed_server
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient, Toolkit
from toolbus.wire import Refresh
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.process.key_files import add_key

OLD, NEW = (Key.generate(kid=kid, iss="acme") for kid in ("old", "new"))


def token_of(key: Key, name: str = "ann") -> str:
    return ParticipantToken(name=name, room=["lab"], api=ApiScope.full()).to_jwt(key)


class KeyedServer:
    """`toolbus serve --keys keys.toml`, with the file and the log."""

    def __init__(self, process: Running, url: str, keys: Path) -> None:
        self.process = process
        self.url = url
        self.keys = keys

    def trust(self, *keys: Key) -> None:
        """Replace the keys in the file, as an operator does."""
        KeyRing(keys).save(self.keys)

    async def next_log_line(self) -> str:
        """Return the next line of the log."""
        stderr = self.process.process.stderr
        assert stderr is not None
        async with asyncio.timeout(60):
            return await asyncio.to_thread(stderr.readline)

    async def accepts(self, key: Key) -> bool:
        """Whether a client with a token of this key can connect."""
        async with raw_connection(self.url) as client:
            head = await client.upgrade("/rooms/lab", bearer(token_of(key)))
        assert head.status in {101, 401}, head
        return head.status == 101

    def room(self, name: str, key: Key) -> RoomClient:
        return RoomClient(self.url, room="lab", token=token_of(key, name))


@asynccontextmanager
async def served(folder: Path, *keys: Key) -> AsyncIterator[KeyedServer]:
    """Run a server that trusts the keys of a file."""
    path = folder / "keys.toml"
    KeyRing(keys).save(path)
    # The log is read on a thread, which ends only after the process: hence the order.
    options = ("--keys", str(path), "--state", str(folder / "state"))
    with CommandLine(folder).serving(*options) as (process, url):
        try:
            yield KeyedServer(process, url, path)
        finally:
            process.process.kill()


async def connections(*participants: RoomClient) -> dict[str, str]:
    """Return the connection id of each participant, after a call of each."""
    for each in participants:
        await check_call(each)
    return {each.name: each.id for each in await participants[0].participants()}


async def test_keys_rotate_by_overlap_without_disconnects(tmp_path: Path) -> None:
    """TOKEN-6: from the old key over both to the new one, with participants of both."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(tmp_path, OLD))
        host = await stack.enter_async_context(server.room("host", OLD))
        await stack.enter_async_context(host.host(Toolkit("echo", [say])))
        early = await stack.enter_async_context(server.room("early", OLD))
        before = await connections(host, early)
        assert (await server.accepts(OLD), await server.accepts(NEW)) == (True, False)
        assert "connection refused: unknown_kid (kid 'new'" in await server.next_log_line()

        add_key(server.keys, NEW)  # what `toolbus key create --out` does
        assert (await server.next_log_line()).endswith("trusted keys: 'old', 'new'\n")
        assert (await server.accepts(OLD), await server.accepts(NEW)) == (True, True)
        late = await stack.enter_async_context(server.room("late", NEW))
        both = await connections(host, early, late)
        assert both == {**before, "late": both["late"]}

        server.trust(NEW)
        assert (await server.next_log_line()).endswith("trusted keys: 'new'\n")
        assert (await server.accepts(OLD), await server.accepts(NEW)) == (False, True)
        assert await connections(host, early, late) == both


async def test_refresh_is_checked_with_the_current_keys() -> None:
    """TOKEN-6, REFRESH-1: a participant with an old token continues with a new one."""
    async with unharmed_server(key=OLD) as server:
        mallory = token_of(OLD, "mallory")
        async with raw_participant(server, token=mallory) as client:
            server.server.trust(KeyRing([NEW]))
            refused = await refusal(client, Refresh(1, mallory))
            assert refused.code == "permission_denied"
            facts = await ask(client, Refresh(2, token_of(NEW, "mallory")))
            assert facts["name"] == "mallory"


@pytest.mark.parametrize(
    "text",
    ["", "[[key]]\nkid = 1\n", "not TOML", None, KeyRing([OLD, replace(NEW, iss="2")]).to_toml()],
    ids=["empty", "no key", "no TOML", "missing", "no alias"],
)
async def test_an_invalid_key_file_leaves_the_old_keys_trusted(
    tmp_path: Path, text: str | None
) -> None:
    async with served(tmp_path, OLD) as server:
        if text is None:
            server.keys.unlink()
        else:
            server.keys.write_text(text)
        line = await server.next_log_line()
        assert "the keys were not reloaded" in line
        assert "keys.toml" in line
        assert await server.accepts(OLD)
        server.trust(OLD, NEW)
        assert "trusted keys" in await server.next_log_line()
        assert (await server.accepts(OLD), await server.accepts(NEW)) == (True, True)


async def test_keys_that_other_users_can_change_are_not_reloaded(tmp_path: Path) -> None:
    async with served(tmp_path, OLD) as server:
        draft = tmp_path / "draft.toml"
        KeyRing([OLD, NEW]).save(draft)
        draft.chmod(0o666)
        draft.replace(server.keys)
        assert f"other users can change {server.keys}" in await server.next_log_line()
        assert (await server.accepts(OLD), await server.accepts(NEW)) == (True, False)


async def test_sighup_reloads_the_file_at_once_and_logs_it(tmp_path: Path) -> None:
    async with served(tmp_path, OLD) as server:
        server.process.process.send_signal(signal.SIGHUP)
        assert "trusted keys: 'old'" in await server.next_log_line()
        assert await server.accepts(OLD)


def test_a_server_needs_at_least_one_key() -> None:
    server = RoomServer(ServerSettings(keys=KeyRing([OLD])))
    with pytest.raises(ValueError, match="at least one key"):
        server.trust(KeyRing([]))
