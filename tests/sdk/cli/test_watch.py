"""`toolbus watch` in a separate process: in a terminal, into a pipe, as JSON."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine, Running
from support.processes.pseudo_terminal import in_terminal

TOOLS = """
from toolbus import Toolkit, ToolFailed, tool

@tool
async def add(a: int, b: int = 1) -> int:
    return a + b

@tool
async def fail() -> str:
    raise ToolFailed("a secret that stays in the call")

@tool
async def wait() -> str:
    import asyncio
    await asyncio.Event().wait()

@tool(approval=True)
async def pay() -> str:
    return "paid"

sums = Toolkit("sums", [add, fail, wait, pay])
"""
QUICK = ("--interval", "0.2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch")
    (folder / "sum_tools.py").write_text(TOOLS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def toolbus(folder: Path) -> Iterator[CommandLine]:
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("sum_tools:sums", "--name", "bob"):
            yield there


def json_until(watch: Running, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read lines until one matches."""
    while line := watch.line():
        look: dict[str, Any] = json.loads(line)
        if is_it(look):
            return look
    raise AssertionError(watch.ended().err)


def line_until(watch: Running, pattern: str) -> str:
    while line := watch.line():
        if re.search(pattern, line):
            return line
    raise AssertionError(watch.ended().err)


# On a terminal


def test_terminal_shows_participants_and_calls(toolbus: CommandLine) -> None:
    with in_terminal(toolbus, "watch", *QUICK, "--name", "eve") as terminal:
        terminal.wait_for(r"room main  in flight 0")
        terminal.wait_for(r"participants 2: bob, eve")
        terminal.wait_for(r"toolkits 1: sums \(1 host\)")
        assert toolbus.run_here("call", "sums.add", "a=2", "--name", "ann").code == 0
        terminal.wait_for(r"sums\.add +0\.\d +0\.0 +\d+\.\d ms +\d+\.\d ms")
        assert toolbus.run_here("call", "sums.fail", "--name", "ann").code == 1
        terminal.wait_for(r"sums\.fail  tool_failed  executed yes  ann to bob")
        with toolbus.start("call", "sums.wait", "--name", "zoe") as waiting:
            terminal.wait_for(r"in flight 1")
            terminal.forget()
            waiting.end(signal.SIGINT)
        terminal.wait_for(r"in flight 0")
        assert "a secret" not in terminal.drawn
        assert terminal.interrupt() == 0
        assert "Traceback" not in terminal.drawn
        assert terminal.drawn.rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_terminal_shows_a_lost_connection_and_continues_after_reconnecting(folder: Path) -> None:
    here = CommandLine(folder)
    with here.serving() as (server, url):
        there, port = here.at(url), url.rpartition(":")[2]
        with in_terminal(there, "watch", *QUICK) as terminal:
            with there.hosting("sum_tools:sums", "--name", "eve"):
                terminal.wait_for(r"participants 2: eve, ")
                server.end()
                terminal.wait_for(r"lost the connection to ws://[^ ]+ [(]the server closed it: ")
                terminal.wait_for(r"connection lost, reconnecting")
            terminal.forget()
            with there.start("serve", "--dev", "--port", port, "--json") as again:
                assert again.line()
                terminal.wait_for(r"reconnected to ws://[^ ]+")
                terminal.wait_for(r"participants 1: ")
                terminal.forget()
                with there.hosting("sum_tools:sums", "--name", "bob"):
                    terminal.wait_for(r"participants 2: bob, ")
                    assert there.run_here("call", "sums.add", "a=2").code == 0
                    terminal.wait_for(r"sums\.add")
                assert terminal.interrupt() == 0


# Into a pipe


def test_pipe_receives_lines_of_changes(toolbus: CommandLine) -> None:
    with toolbus.start("watch", *QUICK, "--name", "eve") as watch:
        line_until(watch, r"^\d\d:\d\d:\d\d participants 2: bob, eve$")
        line_until(watch, r" toolkits 1: sums \(1 host\)$")
        assert toolbus.run_here("call", "sums.add", "a=1", "--name", "ann").code == 0
        line_until(watch, r" sums\.add  \d\.\d calls/s  0\.0 errors/s  p50 .* ms  p99 .* ms$")
        assert toolbus.run_here("call", "sums.nope", "--name", "ann").code == 4
        line_until(watch, r" error sums\.nope  not_found  executed no  ann to no host$")
        outcome = watch.end(signal.SIGINT)
    assert (outcome.code, outcome.err) == (0, "")


def test_pipe_receives_a_line_of_a_call_that_waits_for_a_person_and_of_its_end(
    toolbus: CommandLine,
) -> None:
    with toolbus.start("watch", *QUICK, "--name", "eve") as watch:
        with toolbus.start("call", "sums.pay", "--name", "ann") as call:
            line_until(watch, r"in flight 1  waiting for a person 1  ")
            line_until(watch, r" sums\.pay  waits for a person, .* now  ann to bob$")
            (hold,) = toolbus.value_here("approvals", "--json", "--name", "ann")
            toolbus.run_here("approvals", "approve", hold["id"], "--name", "ann")
            line_until(watch, r" sums\.pay  approved after .*  ann to bob$")
            assert call.ended().code == 0


def test_sigterm_exits_with_0(toolbus: CommandLine) -> None:
    with toolbus.start("watch", *QUICK) as watch:
        assert watch.line()
        assert watch.end().code == 0


def test_json_is_one_object_per_line_with_trace_ids(toolbus: CommandLine) -> None:
    sampled = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}  # no collector listens
    with toolbus.start("watch", *QUICK, "--json", "--name", "eve") as watch:
        first = json_until(watch, lambda look: True)
        assert (first["room"], first["connected"], first["in_flight"]) == ("main", True, 0)
        assert first["toolkits"] == [{"name": "sums", "owner": "bob", "hosts": 1}]
        assert {"name": "eve", "connections": 1} in first["participants"]
        toolbus.run("call", "sums.fail", "--name", "ann", **sampled)
        look = json_until(watch, lambda look: bool(look["errors"]))
        (error,) = look["errors"]
        assert (look["failed"], error["code"], error["executed"]) == (1, "tool_failed", "yes")
        assert (error["toolkit"], error["tool"]) == ("sums", "fail")
        assert (error["caller"], error["host"]) == ("ann", "bob")
        assert re.fullmatch("[0-9a-f]{32}", error["trace_id"])
        assert "secret" not in json.dumps(look)
        assert watch.end(signal.SIGINT).code == 0


def test_once_and_for_exit_without_a_signal(toolbus: CommandLine) -> None:
    once = toolbus.run("watch", "--once", "--json", *QUICK)
    assert (once.code, len(once.out.splitlines())) == (0, 1)
    some = toolbus.run("watch", "--for", "0.5", "--json", *QUICK)
    assert some.code == 0
    assert 1 <= len(some.out.splitlines()) <= 3


# Refusals


def test_watch_without_the_grant_exits_with_3_and_a_next_step(toolbus: CommandLine) -> None:
    token = toolbus.run_here("token", "create", "--name", "ann", "--preset", "user").out.strip()
    for more in ([], ["--json"]):
        outcome = toolbus.run_here("watch", "--token", token, *more)
        assert (outcome.code, outcome.out) == (3, "")
        assert "permission_denied" in outcome.err
        assert "calls" in outcome.err


def test_kicked_watcher_exits_with_3(toolbus: CommandLine) -> None:
    with toolbus.start("watch", *QUICK, "--name", "eve") as watch:
        assert watch.line()
        assert toolbus.run_here("admin", "kick", "eve").code == 0
        outcome = watch.ended()
    assert outcome.code == 3
    assert "revoked" in outcome.err


def test_missing_server_exits_with_6(tmp_path: Path, toolbus: CommandLine) -> None:
    nowhere = CommandLine(toolbus.folder, {"TOOLBUS_URL": "ws://127.0.0.1:1"})
    assert nowhere.run_here("watch", "--once").code == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "--interval must be a number of seconds"),
        (["--interval", "nan"], "--interval must be a number of seconds"),
        (["--interval", "inf"], "--interval must be a number of seconds"),
        (["--for", "-1"], "--for must be a number of seconds"),
        (["--for", "nan"], "--for must be a number of seconds"),
        (["--once", "--for", "3"], "--once and --for cannot be combined"),
    ],
)
def test_invalid_flags_exit_with_2_before_connecting(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    nowhere = CommandLine(tmp_path, {"TOOLBUS_URL": "ws://127.0.0.1:1"})
    outcome = nowhere.run_here("watch", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
