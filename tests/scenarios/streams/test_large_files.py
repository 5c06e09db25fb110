"""Files far larger than anything that holds them: server, host and caller as processes of their
own.

The callers are `toolbus call`. What one of them needs for itself is what it needs for a small file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import pytest

from support.processes.flow_process import FlowHost, Memory, command, flow_host
from support.processes.server_process import ServerProcess, server_process
from toolbus import RoomClient
from toolbus.errors import HostLost

MIB = 1024 * 1024
FILE_BYTES = 64 * MIB
SOAK_BYTES = 2048 * MIB
GROWTH_BYTES = 8 * MIB
"""By how much a process may grow for one file. 1 MiB may be in flight to each reader (STREAM-4), 1
MiB may wait there, and 1 MiB is read from a disk at a time; twice that, and what allocators
keep.
"""
LOST = 6


class ObservedTransfers(NamedTuple):
    """A server and a host, each a process, and an observer."""

    server: ServerProcess
    host: FlowHost
    alice: RoomClient
    folder: Path

    async def call(self, *arguments: str) -> dict[str, int]:
        """Run `toolbus call`, which must succeed; return by how much the others grew, and all that
        it used.
        """
        caller = await command(self.server, "call", *arguments)
        async with Memory(server=self.server.pid, host=self.host.pid, caller=caller.pid) as memory:
            assert await caller.wait() == 0
        grown = {name: memory.grown(name) for name in ("server", "host")}
        return {**grown, "caller": memory.most["caller"]}

    async def get(self, path: Path, target: Path) -> dict[str, int]:
        """Let a caller fetch a file of the host's."""
        arguments = ("flow.give", f"path={path}", "--out", str(target), "--timeout", "500")
        return await self.call(*arguments)

    async def put(self, path: Path) -> tuple[dict[str, int], str]:
        """Let a caller send a file to the host; return what the host received as well."""
        output = self.folder / "said.json"
        arguments = ("flow.keep", "--attach", str(path), "--out", str(output), "--timeout", "500")
        return await self.call(*arguments), json.loads(output.read_text())["sha256"]


@asynccontextmanager
async def observed_transfers(folder: Path) -> AsyncIterator[ObservedTransfers]:
    async with (
        server_process(folder) as server,
        server.room("alice") as alice,
        flow_host(server, alice, folder) as host,
    ):
        yield ObservedTransfers(server, host, alice, folder)


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def check_both_ways(folder: Path, large: Path) -> None:
    """Send a file in each direction, and compare with the memory for a small one."""
    small, back = folder / "small.bin", folder / "back.bin"
    small.write_bytes(os.urandom(MIB))
    async with observed_transfers(folder) as now:
        small_out, (small_in, _) = await now.get(small, back), await now.put(small)
        out = await now.get(large, back)
        assert hash_of(back) == hash_of(large)
        into, seen = await now.put(large)
        assert seen == hash_of(large)
    for grown, before in ((out, small_out), (into, small_in)):
        assert grown["server"] < GROWTH_BYTES
        assert grown["host"] < GROWTH_BYTES
        assert grown["caller"] - before["caller"] < GROWTH_BYTES


async def test_a_file_arrives_unchanged_and_no_process_keeps_it_in_memory(tmp_path: Path) -> None:
    """STREAM-9: 64 MiB, out of the room and into it."""
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(FILE_BYTES))
    await check_both_ways(tmp_path, large)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_two_gigabytes_take_no_more_memory_than_a_few_megabytes(tmp_path: Path) -> None:
    """STREAM-9."""
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        for _ in range(SOAK_BYTES // FILE_BYTES):
            file.write(os.urandom(FILE_BYTES))
    await check_both_ways(tmp_path, large)


# Small calls during a file transfer


@pytest.mark.soak
@pytest.mark.parametrize("way", ["out", "in"])
async def test_the_slowest_of_a_hundred_calls_beside_a_file_is_not_much_slower(
    tmp_path: Path, way: str
) -> None:
    """STREAM-4."""
    beside, apart = await small_calls(tmp_path, way, rounds=15)
    assert p99(beside) < 3 * p99(apart)


async def small_calls(tmp_path: Path, way: str, *, rounds: int) -> tuple[list[float], list[float]]:
    """Time small calls to the host of a file, over the file's connection, and apart.

    Apart are those made while a file goes over another server to another host, so that the machine
    is as busy: three processes of it, and one that calls, are more than two cores have.
    """
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(FILE_BYTES))
    tool, *arguments = {
        "out": ("fetch", f"size={FILE_BYTES}", "--out", str(tmp_path / "back.bin")),
        "in": ("keep", "--attach", str(large)),
    }[way]
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    beside: list[float] = []
    apart: list[float] = []
    async with observed_transfers(folders[0]) as here, observed_transfers(folders[1]) as there:
        for number in range(1, rounds + 1):
            for place, times in ((here, beside), (there, apart)):
                caller = await command(place.server, "call", f"flow.{tool}", *arguments)
                await place.host.wrote(f"began {tool}", number)
                while place.host.count(f"left {tool}") < number:
                    times.append(await ping_s(here.alice))
                assert await caller.wait() == 0
    return beside, apart


async def ping_s(room: RoomClient) -> float:
    """Make a small call; return how long it took."""
    began = perf_counter()
    assert await room.call("flow.ping") == "pong"
    return perf_counter() - began


def p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


# Interrupted files


async def test_a_host_that_dies_in_the_middle_of_a_file_leaves_no_half_of_it(
    tmp_path: Path,
) -> None:
    """CALL-13, STREAM-9: neither for a command nor for a program."""
    target = tmp_path / "target.bin"
    async with observed_transfers(tmp_path) as now, asyncio.timeout(60):
        size = f"size={SOAK_BYTES}"
        caller = await command(now.server, "call", "flow.fetch", size, "--out", str(target))
        await now.host.wrote("began fetch")
        file = await now.alice.invoke("flow.fetch", {"size": SOAK_BYTES})
        pieces = file.pieces()
        assert await anext(pieces)
        await now.host.child.kill()
        with pytest.raises(HostLost) as lost:
            async for _ in pieces:
                pass
        assert lost.value.executed == "maybe"
        assert await caller.wait() == LOST
        assert sorted(os.listdir(tmp_path)) == ["flow", "keys.toml"]


@pytest.mark.parametrize("how", ["dies", "drops it"])
async def test_a_tool_is_cancelled_when_the_reader_of_its_file_leaves(
    tmp_path: Path, how: str
) -> None:
    """CALL-12, STREAM-8."""
    async with observed_transfers(tmp_path) as now, asyncio.timeout(60):
        if how == "dies":
            arguments = ("flow.fetch", f"size={SOAK_BYTES}", "--out", str(tmp_path / "target.bin"))
            caller = await command(now.server, "call", *arguments)
            await now.host.wrote("began fetch")
            caller.kill()
            await caller.wait()
        else:
            file = await now.alice.invoke("flow.fetch", {"size": SOAK_BYTES})
            del file
        await now.host.wrote("left fetch")
        assert await now.alice.call("flow.ping") == "pong"


@pytest.mark.parametrize("who", ["caller", "host"])
async def test_an_upload_ends_with_either_of_its_ends(tmp_path: Path, who: str) -> None:
    """CALL-12, CALL-13, INPUT-3."""
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(SOAK_BYTES)
    async with observed_transfers(tmp_path) as now, asyncio.timeout(60):
        caller = await command(now.server, "call", "flow.keep", "--attach", str(large))
        await now.host.wrote("began keep")
        if who == "caller":
            caller.kill()
            await caller.wait()
            await now.host.wrote("left keep")
            assert await now.alice.call("flow.ping") == "pong"
        else:
            await now.host.child.kill()
            assert await caller.wait() == LOST
