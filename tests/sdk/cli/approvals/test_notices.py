"""`toolbus approvals --exec`: a command is told of each call that waits."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, Running
from support.processes.held_files import Callers, hosted_files

IMPATIENT = """
import runpy
from toolbus.cli.approvals import notices
notices.COMMAND_S, notices.MAX_COMMANDS = 0.5, 1
runpy.run_module("toolbus", run_name="__main__", alter_sys=True)
"""
SCRIPT = """
read -r told
case "$told" in
  *hang*) sleep 1000 & echo $!; wait;;
  *fail*) exit 3;;
  *) echo "$told";;
esac
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with hosted_files(tmp_path_factory.mktemp("notices")) as toolbus:
        (toolbus.folder / "tell.sh").write_text(SCRIPT)
        yield toolbus


@pytest.fixture
def callers(toolbus: CommandLine) -> Iterator[Callers]:
    with Callers(toolbus) as callers:
        yield callers


def told(running: Running) -> Any:
    return json.loads(running.line())


def until_ended(process: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(process).wait(PATIENCE_S)


def test_command_gets_each_call_that_waits_as_json_and_arguments_only_if_wanted(
    toolbus: CommandLine, callers: Callers
) -> None:
    _, before = callers.held("a", "--purpose", "$(touch x); \x1b[2J")
    typed = ("approvals", "--name", "ann", "--exec", "cat; echo")
    with toolbus.start(*typed) as plain, toolbus.start(*typed, "--with-arguments") as whole:
        facts = {"id": before, "tool": "files.write", "who": "ann", "why": "$(touch x); \x1b[2J"}
        assert told(plain) == facts
        assert told(whole) == facts | {"arguments": {"path": "a"}}
        _, after = callers.held("b")
        assert told(plain) == {"id": after, "tool": "files.write", "who": "ann", "why": ""}
        assert told(whole)["arguments"] == {"path": "b"}
        for running in (plain, whole):
            ended = running.end()
            assert (ended.code, ended.out) == (0, "")


def test_command_that_hangs_is_killed_with_what_it_started_and_keeps_no_other_from_running(
    toolbus: CommandLine, callers: Callers
) -> None:
    typed = ("approvals", "--name", "ann", "--exec", "sh tell.sh")
    with toolbus.running("-c", IMPATIENT, *typed) as running:
        callers.held("a", "--purpose", "hang")
        sleeping = int(running.line())
        callers.held("b", "--purpose", "fail")
        _, after = callers.held("c")
        assert told(running)["id"] == after
        until_ended(sleeping)
        callers.held("d", "--purpose", "hang")
        sleeping = int(running.line())
        ended = running.end(signal.SIGINT)
        until_ended(sleeping)
    assert ended.code == 0
    words = [line.partition(", ")[2].partition(": ")[2] for line in ended.err.splitlines()]
    assert words[:2] == ["killed after 0.5 s", "exit status 3"], ended.err


def test_command_may_leave_unread_what_it_is_told(toolbus: CommandLine, callers: Callers) -> None:
    _, large = callers.held("x" * 100_000)
    typed = ("approvals", "--name", "ann", "--exec", "head -c 24; echo", "--with-arguments")
    with toolbus.start(*typed) as running:
        assert large in running.line()
        _, after = callers.held("b")
        assert after in running.line()
        ended = running.end()
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--with-arguments"], "--with-arguments is for --exec"),
        (["--exec", "cat", "--once"], "give it alone"),
        (["--exec", "cat", "--bell"], "give it alone"),
        (["--exec", "cat", "--json"], "give it alone"),
        (["--exec", "cat", "show", "a"], "options follow the command"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    toolbus: CommandLine, options: list[str], words: str
) -> None:
    refused = toolbus.run_here("approvals", *options)
    assert (refused.code, words in refused.err) == (2, True)
