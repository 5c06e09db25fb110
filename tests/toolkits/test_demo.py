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

from support.patience import PATIENCE_S
from support.processes.launch import ChildProcess
from toolbus import HostLost
from toolbus.cli.app import make_app
from toolbus_toolkits import demo as demo_module
from toolbus_toolkits.demo.scene_runner import Scene, SceneFailed, SceneOutput, run_scenes, table
from toolbus_toolkits.demo.scenes import expect_refusal

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "toolbus", "demo"]
LONGEST_LINE = 100

pytestmark = pytest.mark.timeout(600)  # a whole demo on a machine with much else to do


def scene(outcome: str | BaseException, title: str = "A title") -> Scene:
    async def act() -> str:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Scene(title, "do something", "that it is done", act)


async def run_all(*scenes: Scene, limit_s: float = 5.0) -> tuple[bool, str]:
    out = io.StringIO()
    succeeded = await run_scenes(scenes, SceneOutput(out), limit_s=limit_s)
    return succeeded, " ".join(out.getvalue().split())


def printed_pids(output: str) -> list[int]:
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
    async with asyncio.timeout(PATIENCE_S):
        while word not in " ".join(output.split()):
            line = await process.stdout.readline()
            assert line, f"the demo ended before it said {word!r}: {output}"
            output += line.decode()
    return output


# The demo as a whole


@pytest.fixture(scope="module")
def completed() -> subprocess.CompletedProcess[str]:
    return subprocess.run(DEMO, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_every_scene_of_the_demo_has_the_expected_result(
    completed: subprocess.CompletedProcess[str],
) -> None:
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stderr == ""
    assert completed.stdout.count("✓ result") == 15
    assert "✗" not in completed.stdout


@pytest.mark.parametrize(
    "fact",
    [
        "of clock the visitor sees only clock.now",
        "permission_denied, executed: no, retryable: no",
        "invalid_arguments, executed: no, retryable: no: /max_rows",
        "tool_failed, executed: yes",
        "approved sql.query No rule allows this call",
        "tool_result: ok clock.now",
        "done after 2 replies; for the diary permission_denied, executed: no: /tools/0",
        "of 6 calls were asked about: mean([]) divided by the length",
        'approved it says: "we are out of cheese"',
        'executed: no a person denied this call, and says: "say what for"',
        "deadline_exceeded, executed: maybe, retryable: no",
        "the caller went on after",
        "host_lost, executed: maybe, retryable: yes",
        "sql has 1 host",
        "host_lost, executed: maybe after",
        "then executed: yes on sql-3",
        "4 spans from 3 processes: caller",
        "all 15 scenes had the expected result",
    ],
)
def test_demo_shows(completed: subprocess.CompletedProcess[str], fact: str) -> None:
    assert fact in " ".join(completed.stdout.split())


def test_demo_draws_one_call_over_three_processes(
    completed: subprocess.CompletedProcess[str],
) -> None:
    title, *spans = completed.stdout[completed.stdout.rindex("\ntrace ") :].split("\n")[1:6]
    assert title.endswith("4 spans")
    assert [re.sub(r"\W*(.*?)\s{2,}(\w+)\s+(\S+).*", r"\1/\2/\3", line) for line in spans] == [
        "sql.query/CLIENT/demo[caller]",
        "sql.query/SERVER/server[room]",
        "sql.query/SERVER/sql[sql-3]",
        "execute_tool query/INTERNAL/sql[sql-3]",
    ]
    assert all(line.endswith("executed=yes") for line in spans)


def test_demo_draws_the_way_from_a_message_to_the_tools_that_answer_it(
    completed: subprocess.CompletedProcess[str],
) -> None:
    title, *spans = completed.stdout[completed.stdout.index("\ntrace ") :].split("\n")[1:16]
    assert title.endswith("14 spans")
    drawn = [re.sub(r"^(\W*)(.*?)\s{2,}\w+\s+(\S+).*", r"\1\2/\3", line) for line in spans]
    assert drawn == [
        "agent.ask/demo[caller]",
        "└─ agent.ask/server[room]",
        "   └─ agent.ask/demo[caller]",
        "      └─ execute_tool ask/demo[caller]",
        "         └─ invoke_agent agent/demo[caller]",
        "            ├─ chat replies.jsonl/demo[caller]",
        "            ├─ execute_tool query/demo[caller]",
        "            │  ├─ hold/demo[caller]",
        "            │  └─ sql.query/demo[caller]",
        "            │     └─ sql.query/server[room]",
        f"            │        └─ sql.query/{(sql := drawn[10].partition('/')[2])}",
        f"            │           └─ execute_tool query/{sql}",
        "            ├─ execute_tool now/demo[caller]",
        "            └─ chat replies.jsonl/demo[caller]",
    ]
    assert sql in ("sql[sql-1]", "sql[sql-2]")


def test_help_readme_and_makefile_name_the_same_processes(
    completed: subprocess.CompletedProcess[str],
) -> None:
    help_text = CliRunner().invoke(make_app(), ["demo", "--help"], env={"COLUMNS": "200"}).stdout
    texts = {
        "help": help_text,
        "demo": completed.stdout,
        "README.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "Makefile": (ROOT / "Makefile").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        words = " ".join(text.replace("│", " ").split()).lower()
        assert "server and three hosts" in words, name
        if name != "Makefile":
            assert "three processes: caller, server, host" in words, name
    assert len(printed_pids(completed.stdout.partition("listens on")[0])) == 4


def test_demo_is_plain_text_that_fits_its_columns(
    completed: subprocess.CompletedProcess[str],
) -> None:
    assert "\x1b" not in completed.stdout
    too_long = [line for line in completed.stdout.splitlines() if len(line) > LONGEST_LINE]
    assert [line for line in too_long if "executed=" not in line] == []
    assert all(len(line) <= LONGEST_LINE + 4 for line in too_long)


def test_demo_leaves_no_process_and_no_file(
    completed: subprocess.CompletedProcess[str],
) -> None:
    pids = printed_pids(completed.stdout)
    assert len(set(pids)) >= 6
    assert still_running(pids) == []
    folder = re.search(r"(\S+)/packages\.sqlite", completed.stdout)
    assert folder is not None
    assert not os.path.exists(folder[1])


async def test_stopped_demo_ends_what_it_started() -> None:
    async with running_demo() as process:
        output = await read_until(process, "listens on")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            rest, _ = await process.communicate()
        assert process.returncode == 128 + signal.SIGINT
        assert b"stopped" in rest
    pids = printed_pids(output)
    assert len(pids) == 4
    assert still_running(pids) == []


async def test_killed_demo_leaves_no_process() -> None:
    async with running_demo() as process:
        started = [
            psutil.Process(pid) for pid in printed_pids(await read_until(process, "listens"))
        ]
        process.kill()
        _, living = await asyncio.to_thread(psutil.wait_procs, started, timeout=PATIENCE_S)
    assert len(started) == 4
    assert living == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_any_signal_to_stop_ends_the_demo_and_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ended: list[bool] = []

    async def perform(output: SceneOutput, *, keep: bool) -> int:
        try:
            assert signal.getsignal(number) is not signal.SIG_DFL  # which would end the tests
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            ended.append(keep)
        return 0

    monkeypatch.setattr(demo_module, "_run_demo", perform)
    out = io.StringIO()
    async with asyncio.timeout(PATIENCE_S):
        assert await demo_module._run(SceneOutput(out), keep=False) == 128 + number
    assert ended == [False]
    assert "stopped; all started processes have ended" in out.getvalue()


# Without the fault scenes, which make no difference to --keep and are all run above.
KEPT = """
from toolbus_toolkits import demo

demo.fault_scenes = lambda processes: []
demo.typer.run(demo.demo)
"""


async def test_kept_demo_lets_others_join_until_it_is_stopped() -> None:
    async with running_demo("--keep", program=("-c", KEPT)) as process:
        output = await read_until(process, "sql.query sql=")
        variables = dict(re.findall(r"(TOOLBUS_\w+)=(\S+)", output))
        command = (sys.executable, "-m", "toolbus", "call", "clock.now", "timezone=Europe/Oslo")
        guest = await ChildProcess.start(command, variables)
        async with asyncio.timeout(PATIENCE_S):
            assert await guest.process.wait() == 0
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            rest, _ = await process.communicate()
        assert process.returncode == 0
        assert b"stopped; all started processes have ended" in rest
    assert still_running(printed_pids(output)) == []


# Missing parts


def test_demo_without_an_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolbus.cli.own_commands._is_installed", lambda _: False)
    with pytest.raises(typer.Exit) as ended:
        demo_module.demo()
    assert ended.value.exit_code == 2
    assert "[server,otel,shell]'" in capsys.readouterr().err


FALSE_SCENE = """
from toolbus_toolkits import demo
from toolbus_toolkits.demo.scene_runner import Scene, SceneFailed

async def act():
    raise SceneFailed("the row is missing")

demo.fault_scenes = lambda processes: [Scene("A failure", "fail", "success", act)]
demo.typer.run(demo.demo)
"""


def test_demo_with_a_failed_scene_exits_with_1_and_stops_its_processes() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FALSE_SCENE], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "failed: the row is missing" in ended.stdout
    assert "One call, one trace" not in ended.stdout
    pids = printed_pids(ended.stdout)
    assert len(pids) == 4
    assert still_running(pids) == []


# Running scenes


async def test_scenes_with_the_expected_result_are_all_run() -> None:
    succeeded, output = await run_all(scene("one thing"), scene("another"))
    assert succeeded
    assert "1 A title action do something expected that it is done ✓ result one thing" in output
    assert "2 A title" in output
    assert "all 2 scenes had the expected result" in output


async def test_scene_with_another_result_ends_the_run() -> None:
    succeeded, output = await run_all(scene(SceneFailed("it was red")), scene("fine", "Never run"))
    assert not succeeded
    assert "✗ result it was red" in output
    assert "scene 1 failed: it was red" in output
    assert "Never run" not in output


async def test_scene_that_fails_with_a_room_exception_prints_whether_the_tool_ran() -> None:
    succeeded, output = await run_all(scene(HostLost("the host disconnected", executed="maybe")))
    assert not succeeded
    assert "host_lost, executed: maybe: the host disconnected" in output


async def test_scene_that_raises_fails() -> None:
    succeeded, output = await run_all(scene(KeyError("rows")))
    assert not succeeded
    assert "KeyError: 'rows'" in output


async def test_scene_that_never_ends_is_cut_short() -> None:
    async def wait_for_ever() -> str:
        await asyncio.Event().wait()
        return "never"

    succeeded, output = await run_all(
        Scene("Endless", "wait", "an end", wait_for_ever), scene("fine"), limit_s=0.05
    )
    assert not succeeded
    assert "✗ result not within 0 s" in output


async def test_cancelled_run_is_cancelled_and_not_failed() -> None:
    with pytest.raises(asyncio.CancelledError):
        await run_all(scene(asyncio.CancelledError()))


async def test_call_that_should_fail_and_succeeds_fails_the_scene() -> None:
    async def succeed() -> int:
        return 7

    with pytest.raises(SceneFailed, match="the call succeeded: 7"):
        await expect_refusal(succeed(), "host_lost", "maybe")


async def test_call_that_fails_with_another_executed_fails_the_scene() -> None:
    async def fail() -> None:
        raise HostLost("gone", executed="no")

    with pytest.raises(SceneFailed, match="host_lost, executed: no"):
        await expect_refusal(fail(), "host_lost", "maybe")


def test_table_shows_no_control_characters_of_others() -> None:
    out = io.StringIO()
    SceneOutput(out).print_tables(table("names", ["name"], [["\x1b[31mred"], ["[bold]fat"]]))
    assert "\x1b" not in out.getvalue()
    assert "\\x1b[31mred" in out.getvalue()
    assert "[bold]fat" in out.getvalue()
