"""`toolbus serve --workers N` where it cannot be: what is said, and with which exit code."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from scenarios.test_node_names import named_server
from support.command_line import CommandLine
from support.redis_server import RedisServer
from support.worker_processes import leases, workers_of
from toolbus import KeyRing
from toolbus_server.nodes import node
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server

TIME_S = 40


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
        assert "--workers 2 needs --redis: each worker is a server" in outcome.err


@pytest.mark.parametrize("count", ["0", "-1", "257", "many"])
def test_a_number_of_workers_that_cannot_be_is_refused(tmp_path: Path, count: str) -> None:
    outcome = CommandLine(tmp_path).run_here("serve", "--dev", "--workers", count)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--workers" in outcome.err


def test_names_that_workers_cannot_have_are_refused(tmp_path: Path) -> None:
    """Of 128 characters there are too many with a number behind them."""
    flags = ("--workers", "2", "--redis", "redis://127.0.0.1:1", "--node", "n" * 127)
    outcome = CommandLine(tmp_path).run_here("serve", "--dev", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"--node: '{'n' * 127}-2' names no node" in outcome.err


@pytest.mark.row(80)
async def test_workers_of_whose_names_one_is_taken_do_not_start(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one server: the same words, the same exit code, and nothing of them stays behind."""
    monkeypatch.setattr(node, "BEAT_S", 0.2)  # so that they see soon that it lives
    settings = ServerSettings(keys=KeyRing([]), port=0, redis=redis.url, node="one-2")
    async with asyncio.timeout(TIME_S), running_server(settings=settings):
        before = await leases(redis)
        async with named_server(tmp_path, redis, "--workers", "2") as server:
            assert await server.process.wait() == 3
            await server.until_logged("already_exists")
        assert "another server is called one-2, and it is alive" in server.log[-1]
        assert not any("is started in" in line for line in server.log)
        assert await leases(redis) == before


def test_workers_do_not_share_a_port_with_another_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--workers", "2", "--redis", "redis://127.0.0.1:1", "--port", port)
        outcome = CommandLine(tmp_path).run("serve", "--dev", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"port {port} is in use" in outcome.err


def test_one_worker_is_one_server_without_a_parent(tmp_path: Path) -> None:
    with CommandLine(tmp_path).serving("--dev", "--workers", "1") as (running, _):
        assert workers_of(running.process.pid) == set()
        assert running.end().code == 0
