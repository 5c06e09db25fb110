"""Programs that toolkits start."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from support.patience import PATIENCE_S
from support.sandbox.pids import host_pid
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus_toolkits.launcher import (
    LaunchFailed,
    Program,
    ProgramLimits,
    RunningProgram,
    launch,
)
from toolbus_toolkits.launcher.host_watch import HOST_WATCH, HostWatch
from toolbus_toolkits.launcher.program import program_environment
from toolbus_toolkits.sandbox import SandboxConfig

Launch: TypeAlias = Callable[..., AbstractAsyncContextManager[RunningProgram]]


@pytest.fixture
def launched(sandbox: SandboxConfig | None) -> Launch:
    """`launch`, with each sandbox."""
    return lambda program, **options: launch(replace(program, sandbox=sandbox), **options)


def python(code: str, **options: object) -> Program:
    return Program(sys.executable, ["-c", code], **options)  # type: ignore[arg-type]


async def written(running: RunningProgram, end: bytes = b"no such byte") -> bytes:
    """Return what a program writes, to this end or its own."""
    output = b""
    while not output.endswith(end) and (data := await running.read()):
        output += data
    return output


async def output_of(launched: Launch, program: Program) -> str:
    async with asyncio.timeout(PATIENCE_S), launched(program) as running:
        return (await written(running)).decode()


async def test_a_program_gets_its_own_variables_and_nothing_of_its_host(
    launched: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLBUS_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    shown = await output_of(
        launched,
        python("import os; print(dict(os.environ), os.getcwd())", env={"OWN": "1"}, cwd=tmp_path),
    )
    assert "'OWN': '1'" in shown
    assert str(tmp_path) in shown
    assert "secret" not in shown


def test_a_shell_function_is_not_inherited() -> None:
    host = {"PATH": "/bin", "SHELL": "() { :; }; id", "LD_PRELOAD": "x.so"}
    assert program_environment({"A": "b"}, host) == {"PATH": "/bin", "A": "b"}


async def test_limits_are_those_of_the_program_and_of_what_it_starts(launched: Launch) -> None:
    code = (
        "import subprocess, sys; sys.stdin.readline(); sys.stdout.flush();"
        "subprocess.run([sys.executable, '-c', 'import resource as r;"
        "print(*(r.getrlimit(getattr(r, \\'RLIMIT_\\' + k))[0]"
        " for k in \\'NOFILE FSIZE CORE AS CPU\\'.split()))'])"
    )
    limits = ProgramLimits(open_files=99, file_bytes=5_000_000, memory_bytes=1 << 33, cpu_s=60)
    async with asyncio.timeout(PATIENCE_S), launched(python(code, limits=limits)) as running:
        running.stdin.write(b"\n")
        assert await written(running, b"\n") == b"99 5000000 0 8589934592 60\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 99


@pytest.mark.parametrize("name", ["memory_bytes", "cpu_s", "open_files", "file_bytes"])
def test_a_limit_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        ProgramLimits(**{name: 0})


async def test_a_program_that_ignores_its_end_is_killed_with_all_that_it_started(
    launched: Launch,
) -> None:
    code = (
        "import signal, subprocess, sys, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    async with asyncio.timeout(PATIENCE_S), launched(python(code)) as running:
        child = psutil.Process(host_pid(running.pid, int(await written(running, b"\n"))))
        await running.stop(grace_s=0.1)
        assert running.returncode == -9
    child.wait(PATIENCE_S)


async def test_a_program_that_cleans_up_at_its_end_is_given_the_time(launched: Launch) -> None:
    lines: list[str] = []
    code = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('cleaned up'));"
        "print(1, flush=True); time.sleep(600)"
    )
    async with (
        asyncio.timeout(PATIENCE_S),
        launched(python(code), on_line=lines.append) as running,
    ):
        await written(running, b"\n")
        running._started.signal(signal.SIGTERM)
        await running.exited(PATIENCE_S)
        assert running.returncode == 1
    assert lines == ["cleaned up"]


async def test_what_a_program_leaves_in_its_group_ends_with_it(launched: Launch) -> None:
    code = (
        "import subprocess, sys;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); sys.stdin.readline()"
    )
    async with asyncio.timeout(PATIENCE_S), launched(python(code)) as running:
        child = psutil.Process(host_pid(running.pid, int(await written(running, b"\n"))))
        running.stdin.write(b"\n")
        await running.exited(PATIENCE_S)
    child.wait(PATIENCE_S)


async def test_a_cancelled_task_ends_its_program(launched: Launch) -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with launched(python("import time; time.sleep(600)")) as running:
            started.set_result(running.pid)
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    process = psutil.Process(await started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    process.wait(PATIENCE_S)


async def test_the_last_lines_say_why_a_program_ended(launched: Launch) -> None:
    lines: list[str] = []
    code = (
        "import sys; print('x' * 200_000, file=sys.stderr);"
        "print('no \\x1b[31mS3CRET', file=sys.stderr); sys.exit(4)"
    )
    async with (
        asyncio.timeout(PATIENCE_S),
        launched(
            python(code),
            on_line=lines.append,
            redact=lambda line: line.replace("S3CRET", "settings"),
        ) as running,
    ):
        await written(running)
        await running.exited(20)
        ending = r"it ended with status 4; its last line was: no \x1b[31msettings"
        assert running.ending() == ending
    assert lines == running.last_lines
    assert len(lines[0]) == SHOWN_CHARS


async def test_of_a_flood_of_lines_only_the_last_of_each_read_remain(launched: Launch) -> None:
    lines: list[str] = []
    code = (
        "import os, sys; [os.write(2, b'x\\n' * 32_768) for _ in range(32)]; os.write(2, b'end\\n')"
    )
    async with asyncio.timeout(60), launched(python(code), on_line=lines.append) as running:
        await written(running)
        await running.exited(30)
    assert lines[-1] == "end"
    assert len(lines) < 100_000  # of a million


async def test_of_a_line_without_an_end_the_first_part_is_held_without_secrets(
    launched: Launch,
) -> None:
    sizes: list[int] = []

    def measured(text: str) -> str:
        sizes.append(len(text))
        return text.replace("VALUE", "[c]")

    code = "import os; [os.write(2, b'VALUE' * 13_107) for _ in range(32)]; os.write(2, b'\\nend')"
    async with asyncio.timeout(60), launched(python(code), redact=measured) as running:
        await written(running)
        await running.exited(30)
        assert [line[:3] for line in running.last_lines] == ["[c]", "end"]
    assert max(sizes) <= 2 * 65_536  # of 2 MiB


async def test_a_program_that_is_killed_while_it_writes_leaves_no_open_pipe(
    launched: Launch,
) -> None:
    await output_of(
        launched, python("")
    )  # the process that watches over this one has a pipe, for good
    process = psutil.Process()
    before = process.num_fds()
    code = "import os\nwhile True: os.write(1, b'x' * 65_536)"
    async with asyncio.timeout(PATIENCE_S), launched(python(code)) as running:
        assert await running.read(1)
    assert process.num_fds() == before


async def test_a_program_runs_where_no_shell_can_watch_its_host(
    launched: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolbus_toolkits.launcher.host_watch._SHELL", "/no/such/shell")
    monkeypatch.setattr("toolbus_toolkits.launcher.process.HOST_WATCH", HostWatch())
    assert await output_of(launched, python("print('ran')")) == "ran\n"
    assert "is not ended if this process is killed" in caplog.text


async def test_a_program_ends_as_ever_if_the_shell_that_watches_its_host_has_ended(
    launched: Launch,
) -> None:
    async with asyncio.timeout(PATIENCE_S), launched(python("input()")) as running:
        assert HOST_WATCH.pid is not None
        shell = psutil.Process(HOST_WATCH.pid)
        shell.kill()
        os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is killed
        async with launched(python("")):  # and another shell takes its place
            assert HOST_WATCH.pid != shell.pid
        running.stdin.write(b"\n")
        await running.exited(20)
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (Program("no-such-program"), "there is no such program in PATH"),
        (
            Program(sys.executable, cwd=Path("/no/such/folder")),
            "there is no folder /no/such/folder",
        ),
        (Program(f"{sys.executable} x.py"), "write its arguments in args"),
        (Program(sys.executable, ["a\0b"]), "null byte"),
    ],
)
async def test_a_program_that_cannot_be_started_is_explained(
    launched: Launch, program: Program, words: str
) -> None:
    with pytest.raises(LaunchFailed, match=words):
        async with launched(program):
            pass


def test_secrets_are_not_in_the_text_of_a_program() -> None:
    program = Program("x", ["--token=secret"], {"TOKEN": "secret"})
    assert "secret" not in repr(program)


LEAVES_A_CHILD = {
    "holds its output": "sleep 60 & echo last words",
    "writes on": "(while sleep 0.01; do echo more; done) & echo last words",
    "is in a session of its own": "setsid sleep 60 & echo last words",
    "closes its own output, and goes on": "exec >&- 2>&-; sleep 0.1; exit 5",
}


@pytest.mark.parametrize("kind", LEAVES_A_CHILD)
async def test_the_end_of_a_program_is_the_end_of_its_output(launched: Launch, kind: str) -> None:
    script = f"{LEAVES_A_CHILD[kind]}\nexit 5"
    async with asyncio.timeout(PATIENCE_S), launched(Program("sh", ["-c", script])) as running:
        output = await written(running)
        await running.exited()
        assert running.ending() == "it ended with status 5"
    assert (b"last words" in output) == ("closes" not in kind)
