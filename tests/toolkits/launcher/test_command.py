"""Commands that toolkits start: their output as it comes, and the end of all of them."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from support.sandbox.pids import host_pid
from support.sandbox.reach import SYSTEM_PATH
from toolbus_toolkits.launcher import (
    LaunchFailed,
    ProgramLimits,
    RunningCommand,
    run_command,
    start_command,
)
from toolbus_toolkits.launcher.host_watch import HostWatch
from toolbus_toolkits.sandbox import SandboxConfig

TIME_S = 30
ENVIRONMENT = {"PATH": SYSTEM_PATH}
CommandOptions: TypeAlias = Callable[..., dict[str, Any]]
linux = pytest.mark.skipif(sys.platform != "linux", reason="marks of processes exist on Linux")


class Output:
    """What a command writes, and an event for each piece."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, bytes]] = []
        self.came = asyncio.Event()

    def __call__(self, name: str, data: bytes) -> None:
        self.pieces.append((name, data))
        self.came.set()

    def text(self, name: str = "stdout") -> str:
        return b"".join(data for pipe, data in self.pieces if pipe == name).decode()

    async def lines(self, count: int) -> list[str]:
        while self.text().count("\n") < count:
            self.came.clear()
            await self.came.wait()
        return self.text().splitlines()


@pytest.fixture
def command_options(sandbox: SandboxConfig | None) -> CommandOptions:
    """The arguments of a start, with each sandbox."""

    def options(output: Callable[[Any, bytes], None] | None = None) -> dict[str, Any]:
        on_output = output or Output()
        return {"env": ENVIRONMENT, "cwd": "/", "on_output": on_output, "sandbox": sandbox}

    return options


def bash(line: str) -> list[str]:
    return ["bash", "--noprofile", "--norc", "-c", line]


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; one that nobody has waited for yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for_end(pid: int) -> None:
    """Wait for the end of a process that is no child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([descriptor], [], [], TIME_S)
    os.close(descriptor)
    assert ended, f"pid {pid} goes on"


@pytest.mark.parametrize("is_odd", [False, True])
async def test_output_comes_by_pipe_in_order_with_the_exit_status(
    command_options: CommandOptions, tmp_path: Path, is_odd: bool
) -> None:
    output = Output()
    line = (
        "for n in {1..2000}; do echo $n; echo -$n >&2; done;"
        "pwd; echo $A; env | grep -c b\\.c=; exit 7"
    )
    # A shell that starts another program would lose a variable of such a name.
    environment = ENVIRONMENT | {"A": "b c"} | ({"b.c": "1"} if is_odd else {})
    options = command_options(output) | {"env": environment, "cwd": tmp_path}
    async with asyncio.timeout(TIME_S), run_command(bash(line), **options) as command:
        assert await command.wait() == command.returncode == 7
    numbers = "".join(f"{n}\n" for n in range(1, 2001))
    assert output.text() == f"{numbers}{tmp_path}\nb c\n{int(is_odd)}\n"
    assert output.text("stderr") == "".join(f"-{n}\n" for n in range(1, 2001))


async def test_a_signal_that_ends_a_command_is_in_its_status(
    command_options: CommandOptions,
) -> None:
    async with (
        asyncio.timeout(TIME_S),
        run_command(bash("kill -TERM $$"), **command_options()) as command,
    ):
        in_namespace = command.confined_by == "bubblewrap"
        status = 128 + signal.SIGTERM if in_namespace else -signal.SIGTERM
        assert await command.wait() == status


async def test_a_command_reads_what_is_written_until_its_input_is_closed(
    command_options: CommandOptions,
) -> None:
    output = Output()
    async with asyncio.timeout(TIME_S):
        async with run_command(["cat"], stdin=True, **command_options(output)) as command:
            await command.write(b"first\n")
            assert await output.lines(1) == ["first"]
            await command.write(b"x" * 1_000_000)  # more than the pipes hold
            command.close_stdin()
            command.close_stdin()
            assert await command.wait() == 0
            with pytest.raises(BrokenPipeError):
                await command.write(b"more")
        assert len(output.text()) == 1_000_006
        async with run_command(["cat"], **command_options()) as command:
            with pytest.raises(BrokenPipeError):
                await command.write(b"it has no input")
            assert await command.wait() == 0


async def test_a_write_that_waits_ends_with_the_command(command_options: CommandOptions) -> None:
    async with (
        asyncio.timeout(TIME_S),
        run_command(["sleep", "600"], stdin=True, **command_options()) as command,
    ):
        writing = asyncio.create_task(command.write(b"x" * 10_000_000))
        await asyncio.wait([writing], timeout=0)
        command.kill()
        with pytest.raises(BrokenPipeError):
            await writing


@pytest.fixture(params=["pidfd", "thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the end of a process is seen."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return str(request.param)


TREE = """
for n in {1..10}; do sleep 600 & echo $!; done
(sleep 600 & echo $!; exec sleep 600) & echo $!
nohup sleep 600 >/dev/null 2>&1 & echo $!
trap '' TERM HUP INT
echo started
wait
"""


@pytest.mark.parametrize("end", ["kill", "cancel", "deadline"])
async def test_the_end_of_a_command_is_that_of_its_tree(
    command_options: CommandOptions, end: str, way: str
) -> None:
    output = Output()

    async def use() -> None:
        async with run_command(bash(TREE), **command_options(output)) as command:
            running.set_result(command)
            await command.wait()

    running = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(TIME_S):
        task = asyncio.create_task(use())
        command: RunningCommand = await running
        lines = await output.lines(14)
        pids = [host_pid(command.pid, int(line)) for line in lines if line.isdecimal()]
        if end == "kill":
            command.kill()
            command.kill()
            await task
        elif end == "cancel":
            task.cancel()
            await asyncio.wait([task])
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0)
    assert command.returncode == -signal.SIGKILL
    if way == "pidfd":  # else nothing tells when the others have ended
        assert all(has_ended(pid) for pid in pids)


ESCAPES = {
    "a session of its own": "setsid sh -c 'echo $$; exec sleep 600' &",
    "a daemon": "(setsid sh -c 'sleep 600 & echo $!' &)",
    "a daemon without the environment": "(env -i setsid /bin/sh -c 'sleep 600 & echo $!' &)",
    "one that closed its output": "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' &",
    "one that starts others": "setsid sh -c 'echo $$; while :; do sh -c : ; done' 2>/dev/null &",
}


@linux
@pytest.mark.parametrize("end", ["normal", "kill"])
@pytest.mark.parametrize("kind", ESCAPES)
async def test_what_left_the_group_ends_with_the_command(
    command_options: CommandOptions, kind: str, end: str
) -> None:
    output = Output()
    line = f"{ESCAPES[kind]}\n{'sleep 600' if end == 'kill' else 'read -r'}"
    async with (
        asyncio.timeout(TIME_S),
        run_command(bash(line), stdin=True, **command_options(output)) as command,
    ):
        pid = host_pid(command.pid, int((await output.lines(1))[0]))
        if end == "normal":
            command.close_stdin()
        else:
            command.kill()
        await command.wait()
        assert has_ended(pid)


@linux
async def test_another_command_and_its_daemons_go_on(command_options: CommandOptions) -> None:
    output = Output()
    line = f"{ESCAPES['a session of its own']} sleep 600"
    async with asyncio.timeout(TIME_S), run_command(bash(line), **command_options(output)) as other:
        daemon = host_pid(other.pid, int((await output.lines(1))[0]))
        async with run_command(bash("setsid sleep 600 &"), **command_options()) as command:
            await command.wait()
        assert not has_ended(daemon)
        assert other.returncode is None


async def test_endless_output_leaves_the_loop_its_turns_and_waits_while_paused(
    command_options: CommandOptions,
) -> None:
    turns = 0
    size = 0
    came = asyncio.Event()

    def on_output(_: str, data: bytes) -> None:
        nonlocal size
        size += len(data)
        assert len(data) <= 65_536
        came.set()

    options = command_options(on_output)
    async with asyncio.timeout(TIME_S), run_command(["yes"], **options) as command:
        await came.wait()
        while size < 10_000_000:
            before = size
            await asyncio.sleep(0)
            turns += 1
            assert size - before <= 2 * 65_536
        command.pause()
        command.pause()
        size = 0
        for _ in range(100):
            await asyncio.sleep(0)
        assert not size
        came.clear()
        command.resume()
        await came.wait()
        command.pause()
        size = 0
        command.kill()
        assert await command.wait() == -signal.SIGKILL
        assert 0 < size <= 1 << 20  # what the pipe held
    assert turns > 10


async def test_a_callback_that_raises_prevents_no_end(command_options: CommandOptions) -> None:
    def on_output(_: str, data: bytes) -> None:
        raise ZeroDivisionError

    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    options = command_options(on_output)
    async with asyncio.timeout(TIME_S), run_command(bash("echo x; exit 3"), **options) as command:
        assert await command.wait() == 3
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_a_callback_may_kill_the_command_for_each_piece_of_output(
    command_options: CommandOptions,
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    output = Output()

    def on_output(name: str, data: bytes) -> None:
        output(name, data)
        command.kill()

    options = command_options(on_output)
    async with asyncio.timeout(TIME_S), run_command(bash("echo x"), **options) as command:
        command.pause()
        await command._process.ended.wait()
        command.kill()
        assert await command.wait() == 0
    assert output.text() == "x\n"
    assert not reported


async def test_while_reading_is_paused_the_last_output_is_not_lost(
    command_options: CommandOptions,
) -> None:
    output = Output()
    options = command_options(output)
    async with asyncio.timeout(TIME_S), run_command(bash("echo x"), **options) as command:
        command.pause()
        waiting = asyncio.create_task(command.wait())
        await command._process.ended.wait()
        assert not output.pieces
        command.resume()
        assert await waiting == 0
    assert output.text() == "x\n"


async def test_limits_hold_from_the_start(command_options: CommandOptions) -> None:
    output = Output()
    limits = ProgramLimits(open_files=99, file_bytes=5_000_000, cpu_s=60)
    options = command_options(output) | {"limits": limits}
    line = "ulimit -n -c -f -t"
    async with asyncio.timeout(TIME_S), run_command(bash(line), **options) as command:
        assert await command.wait() == 0
    values = [line.split()[-1] for line in output.text().splitlines()]
    assert values == ["99", "0", str(5_000_000 // 1024), "60"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 99


@pytest.mark.parametrize(
    ("argv", "changed", "words"),
    [
        (["no-such-program"], {}, "no such program in PATH"),
        (["bash"], {"env": {"PATH": "/no/such/folder"}}, "no such program in PATH"),
        (["bash"], {"cwd": "/no/such/folder"}, "there is no folder /no/such/folder"),
        (["bash", "-c", "a\0b"], {}, "null byte"),
        (["bash", "-c", "x" * 1_000_000], {}, "Argument list too long"),
    ],
)
async def test_a_command_that_cannot_be_started_is_explained(
    command_options: CommandOptions, argv: list[str], changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(LaunchFailed, match=words):
        await start_command(argv, **command_options() | changed)


async def test_a_start_that_is_cancelled_leaves_no_process_and_no_open_file(
    command_options: CommandOptions,
) -> None:
    async with run_command(["true"], stdin=True, **command_options()) as command:
        await command.wait()  # from now on this process and the loop have all that they keep
    process = psutil.Process()
    children, descriptors = len(process.children()), process.num_fds()
    for turns in range(5):
        task = asyncio.create_task(start_command(["cat"], stdin=True, **command_options()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        if isinstance(done[0], RunningCommand):
            await done[0].aclose()
    assert len(process.children()) == children
    assert process.num_fds() == descriptors


HOST = """
import asyncio, os, sys
from toolbus_toolkits.launcher import *

async def use(line):
    def on_output(name, data):
        print(data.decode(), end="", flush=True)
    options = {"env": dict(os.environ), "cwd": "/", "on_output": on_output}
    command = await start_command(["bash", "-c", line], **options)
    await command.wait()
"""


def host(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOST + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@linux
def test_what_a_host_started_ends_when_it_is_killed() -> None:
    # It had another event loop before, and a child by fork that outlives it.
    code = """
async def main():
    sleep = "sleep 600 </dev/null >/dev/null 2>&1"
    server = Program("sh", ["-c", "echo $$ >&2; exec sleep 600"])
    async with launch(server, on_line=lambda line: print(line, flush=True)):
        await asyncio.gather(
            use(f"(env -i setsid /bin/sh -c 'echo $$; exec {sleep}' &); {sleep} & echo $!; wait"),
            use(f"trap '' TERM HUP; echo $$; while :; do {sleep}; done"),
        )

asyncio.run(use("true"))
if os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
asyncio.run(main())
"""
    with host(code) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(4)]
        assert not any(has_ended(pid) for pid in pids)
        process.kill()
        for pid in pids:
            wait_for_end(pid)
        process.stdin.close()


@linux
def test_a_child_by_fork_neither_ends_the_commands_of_its_parent_nor_is_ended_by_them() -> None:
    code = """
async def parent():
    ended = asyncio.Event()
    options = {"env": dict(os.environ), "cwd": "/", "on_output": lambda *_: ended.set()}
    command = await start_command(["bash", "-c", "read; echo x"], stdin=True, **options)
    child = os.fork()
    if child == 0:
        try:
            command.kill()
            from multiprocessing import Process
            asyncio.events._set_running_loop(None)
            asyncio.run(use("echo of the child"))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    await command.write(b"\\n")
    print(status, await command.wait(), flush=True)

asyncio.run(parent())
"""
    with host(code) as process:
        out, _ = process.communicate(timeout=TIME_S)
    assert out == "of the child\n0 0\n"


def end_as_its_host_would(watch: HostWatch) -> None:
    pid = watch.pid
    assert pid is not None
    watch._forget()
    os.waitpid(pid, 0)


@linux
def test_the_watch_kills_no_group_that_has_ended_and_no_group_without_a_line() -> None:
    watch = HostWatch()
    sleepers = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(3)]
    gone, watched, other = sleepers
    try:
        watch.add(gone.pid, "command")
        watch.add(watched.pid, "command")
        watch.remove(gone.pid)  # from now on its id may be that of any process
        end_as_its_host_would(watch)
        assert watched.wait(TIME_S) == -signal.SIGKILL
        assert gone.poll() is None
        assert other.poll() is None
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@linux
def test_a_watch_that_does_not_read_is_replaced() -> None:
    watch = HostWatch()
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        watch.add(sleeper.pid, "command")
        first = watch.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        for _ in range(10_000):  # more lines than its pipe holds
            watch.add(2**30, "command")
            watch.remove(2**30)
        assert watch.pid != first
        assert has_ended(first)
        end_as_its_host_would(watch)
        assert sleeper.wait(TIME_S) == -signal.SIGKILL
    finally:
        sleeper.kill()
        sleeper.wait()


async def test_a_command_may_be_run_by_two_event_loops_in_turn(
    command_options: CommandOptions,
) -> None:
    async def run() -> int:
        async with run_command(["sh", "-c", "exit 4"], **command_options()) as command:
            return await command.wait()

    for _ in range(2):
        task = asyncio.create_task(asyncio.to_thread(asyncio.run, run()))
        assert await task == 4
