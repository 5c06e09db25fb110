"""`toolbus host files` in a process of its own: what it sends and receives, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.logged_host import Host, host_of
from support.rooms.events import until_hosts
from toolbus import NotFound, PermissionDenied, RoomClient, RoomException
from toolbus_server.testing import running_server
from toolbus_toolkits.workspace import is_draft

COMMAND = ["-m", "toolbus", "host", "files", "--root"]
PIECE = os.urandom(1024) * 1024


@asynccontextmanager
async def _hosting(root: Path, *flags: str) -> AsyncIterator[tuple[RoomClient, Host]]:
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server() as server,
        server.room("alice") as alice,
        host_of(
            server.url, server.token("host"), [*COMMAND, str(root), *flags], TOOLBUS_DRAIN="0.3"
        ) as host,
    ):
        await until_hosts(alice, "files", 1)
        yield alice, host


async def test_large_files_go_there_and_back(tmp_path: Path) -> None:
    async with _hosting(tmp_path) as (alice, host):
        await host.wait_for_log("toolkit files has no policy: whoever may call it changes any")
        await alice.invoke("files.put", {"path": "new/file"}, attachment=PIECE * 8)
        received = await alice.call("files.get", path="new/file")
        assert await received.read() == PIECE * 8
    assert os.listdir(tmp_path / "new") == ["file"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_a_host_was_doing_when_it_ends_leaves_the_old_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    is_half_way = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield PIECE
        is_half_way.set()
        await asyncio.Event().wait()

    async with _hosting(tmp_path) as (alice, host):
        token = (await alice.call("files.read", path="file"))["token"]
        async with alice.stream("files.watch") as changes:
            assert (await anext(changes)).value == {"path": ".", "change": "watching"}
            arguments = {"path": "file", "token": token}
            putting = asyncio.ensure_future(
                alice.invoke("files.put", arguments, attachment=pieces())
            )
            await is_half_way.wait()
            host.signal(number)
            assert await host.ended() == (0 if number == signal.SIGTERM else -number)
            for ending in (putting, anext(changes)):
                with pytest.raises(RoomException):
                    await ending
    assert "Traceback" not in host.output
    assert (tmp_path / "file").read_bytes() == b"old"
    # Where the file system has files without a name, SIGKILL leaves no draft either.
    left = set(os.listdir(tmp_path)) - {"file"}
    assert all(map(is_draft, left)) if number == signal.SIGKILL else not left


async def test_a_policy_denies_what_a_pattern_covers(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for name in ("keys/one", "file"):
        (tmp_path / name).write_text(name)
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'mode = "bypass"\n[[rule]]\nbehavior = "deny"\ntool = "files"\nmatch = "keys/**"\n'
    )
    async with _hosting(tmp_path, "--policy", str(policy)) as (alice, _):
        assert await (await alice.call("files.get", path="file")).read() == b"file"
        for call in (
            alice.call("files.get", path="keys/one"),
            alice.call("files.get", path="./keys/../keys/one"),
            alice.invoke("files.put", {"path": "keys/two"}, attachment=b"2"),
        ):
            with pytest.raises(PermissionDenied) as caught:
                await call
            assert caught.value.executed == "no"
    assert os.listdir(tmp_path / "keys") == ["one"]


async def test_a_host_that_only_reads_has_no_tools_that_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(PIECE)
    async with _hosting(tmp_path, "--read-only") as (alice, _):
        assert await (await alice.call("files.get", path="file")).read() == PIECE
        with pytest.raises(NotFound):
            await alice.invoke("files.put", {"path": "file"}, attachment=b"new")
