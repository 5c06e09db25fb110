"""`toolbus serve --workers N` that cannot start: message and exit code."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from support.nodes.processes import named_server
from support.nodes.workers import leases, workers_of
from support.processes.command_line import CommandLine
from support.redis.server import RedisServer
from toolbus import KeyRing
from toolbus_server.cluster import node
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server

TIME_S = 60


def test_workers_without_a_redis_are_refused_with_the_reason(tmp_path: Path) -> None:
    toolbus = CommandLine(tmp_path)
    config = tmp_path / "server.toml"
    config.write_text("workers = 2\n")
    for outcome in (
        toolbus.run_here("serve", "--dev", "--workers", "2"),
        toolbus.run_here("serve", "--dev", TOOLBUS_WORKERS="2"),
        toolbus.run_here("serve", "--dev", "--config", str(config)),
    ):
        assert (outcome.code, outcome.out) == (2, "")
        assert "--workers 2 needs --redis: the workers share their rooms" in outcome.err


@pytest.mark.parametrize("count", ["0", "-1", "257", "many"])
def test_an_invalid_number_of_workers_is_refused(tmp_path: Path, count: str) -> None:
    outcome = CommandLine(tmp_path).run_here("serve", "--dev", "--workers", count)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--workers" in outcome.err


def test_invalid_names_of_workers_are_refused(tmp_path: Path) -> None:
    """A name with a number may have at most 128 characters."""
    flags = ("--workers", "2", "--redis", "redis://127.0.0.1:1", "--node", "n" * 127)
    outcome = CommandLine(tmp_path).run_here("serve", "--dev", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"--node: '{'n' * 127}-2' is not a valid node name" in outcome.err


async def test_workers_do_not_start_if_a_name_is_taken(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one server: the same message and exit code, and no lease stays behind."""
    monkeypatch.setattr(node, "HEARTBEAT_S", 0.2)  # so that its lease is soon renewed
    settings = ServerSettings(keys=KeyRing([]), port=0, redis=redis.url, node="one-2")
    async with asyncio.timeout(TIME_S), running_server(settings=settings):
        before = await leases(redis)
        async with named_server(tmp_path, redis, "--workers", "2") as server:
            assert await server.process.wait() == 3
            await server.until_logged("already_exists")
        assert "another live server has the node name one-2" in server.log[-1]
        assert not any("restart in" in line for line in server.log)
        assert await leases(redis) == before


def test_workers_do_not_share_a_port_with_another_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--workers", "2", "--redis", "redis://127.0.0.1:1", "--port", port)
        outcome = CommandLine(tmp_path).run("serve", "--dev", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"port {port} is in use" in outcome.err


def test_one_worker_runs_without_a_supervisor(tmp_path: Path) -> None:
    with CommandLine(tmp_path).serving("--dev", "--workers", "1") as (running, _):
        assert workers_of(running.process.pid) == set()
        assert running.end().code == 0
