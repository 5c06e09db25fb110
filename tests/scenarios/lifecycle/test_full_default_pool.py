"""A program whose functions fill the default thread pool: nothing of toolbus waits there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.clients.ending_tokens import ends_in, lives_for
from support.clients.forged_tokens import KEY
from support.patience import PATIENCE_S
from support.rooms.events import until, until_hosts
from toolbus import FileChunk, KeyRing, RoomClient, ToolContext, Toolkit, tool
from toolbus_server.process.key_files import KeyReloader
from toolbus_server.testing import FaultProxy, running_server


@tool
def shout(text: str) -> str:
    return text.upper()


@asynccontextmanager
async def full_pool() -> AsyncIterator[None]:
    """Fill the default pool of the loop while the block runs, for 30 s at most."""
    release, entered = threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def block() -> None:
        entered.set()
        release.wait(60)

    blocked = loop.run_in_executor(None, block)
    assert entered.wait(PATIENCE_S)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    finally:
        release.set()
        await blocked


async def test_host_with_keys_reconnects_and_runs_sync_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.toml"
    KeyRing([KEY]).save(keys)
    monkeypatch.setenv("TOOLBUS_KEYS", str(keys))
    async with running_server(key=KEY) as server, FaultProxy(server.url) as proxy:
        async with (
            full_pool(),
            server.room("caller") as caller,
            RoomClient(proxy.url, room="lab", name="host") as host,
            host.host(Toolkit("loud", [shout])),
        ):
            before = host.me.id
            proxy.reset()
            await until(lambda: host.me.id != before)
            await until_hosts(caller, "loud", 1)
            assert await caller.call("loud.shout", text="a") == "A"


async def test_token_is_renewed_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "ann.jwt"
    path.write_text(ends_in("ann", 45))
    async with running_server(key=KEY) as server:
        async with full_pool(), RoomClient(server.url, room="lab", token=path) as ann:
            path.write_text(lives_for("ann", 3_600, role="second"))
            await until(lambda: ann.me.role == "second")


async def test_files_local_tools_and_keys_of_a_server(tmp_path: Path) -> None:
    async with full_pool():
        await FileChunk(b"data").save(tmp_path / "a")
        await FileChunk.from_path(tmp_path / "a").save(tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == b"data"

        result = await Toolkit("loud", [shout]).execute(ToolContext(), "shout", {"text": "b"})
        assert result.value == "B"

        KeyRing([KEY]).save(tmp_path / "keys.toml")
        trusted: asyncio.Queue[KeyRing] = asyncio.Queue()
        reloader = KeyReloader([tmp_path / "keys.toml"], KeyRing([]), trusted.put_nowait)
        reloader.request()
        following = asyncio.create_task(reloader.follow())
        assert [key.kid for key in await trusted.get()] == [KEY.kid]
        following.cancel()
        await asyncio.wait([following])
