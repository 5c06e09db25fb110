"""A command that runs once: its output as it comes, and its end at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from toolbus_toolkits.launcher.process import (
    PipeName,
    Program,
    ProgramLimits,
    StartedProcess,
    to_the_end,
)
from toolbus_toolkits.sandbox import Backend, SandboxConfig

__all__ = ["RunningCommand", "run_command", "start_command"]

_DEFAULT_LIMITS = ProgramLimits()


class RunningCommand:
    """A command that was started with `start_command` or `run_command`.

    When it has ended, what it left behind is killed: its process group, and, on Linux, what has
    left that. How those are known, and what is not found, is in `launcher.marks`.
    """

    def __init__(self, process: StartedProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id, and the id of its process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs.

        In a sandbox of bubblewrap or docker a signal that ended the command itself is 128 and more,
        as shells have it.
        """
        return self._process.returncode

    @property
    def confined_by(self) -> Backend | None:
        """What confines it; None without a sandbox. `subprocess` only sets limits."""
        confined = self._process.confined
        return None if confined is None else confined.backend

    @property
    def is_protected(self) -> bool:
        """Whether secrets and settings in its folders are kept from it: see `SandboxConfig`."""
        confined = self._process.confined
        return confined is not None and confined.is_protected

    async def wait(self) -> int:
        """Wait until it has ended, its output was read, and nothing of it is left.

        What a process that it left behind holds open is waited for no longer than 0.2 s without a
        byte, 1 s in all. While reading is paused, what was written is waiting to be read.

        Returns:
            Its exit status, negative for a signal.
        """
        await self._process.closed.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    def kill(self) -> None:
        """Kill all of it (SIGKILL), without waiting; `wait` tells when it has ended.

        What it has written is still given, also while reading is paused: at most what its pipes
        hold. Idempotent.
        """
        self._process.kill()

    async def write(self, data: bytes) -> None:
        """Write to its stdin, and wait until there is room for more.

        Raises:
            BrokenPipeError: It has ended, has closed its stdin, or was started without one.
        """
        stdin = self._process.stdin
        if stdin is None:
            raise BrokenPipeError("the command was started without an input")
        try:
            stdin.write(data)
            await stdin.drain()
        except (OSError, RuntimeError) as error:  # the second by other event loops
            raise BrokenPipeError("the command reads no input any more") from error
        if self._process.ended.is_set() or stdin.is_closing():
            raise BrokenPipeError("the command reads no input any more")

    def close_stdin(self) -> None:
        """Tell the command that its input ends here. Idempotent."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._process.stdin.close()

    def pause(self) -> None:
        """Leave its output in the pipes, so that it waits when they are full."""
        self._process.stdout.pause_reading()
        self._process.stderr.pause_reading()

    def resume(self) -> None:
        """Read its output again, after `pause`."""
        self._process.stdout.resume_reading()
        self._process.stderr.resume_reading()

    def read_waiting(self) -> None:
        """Give what it has written until now, before this returns."""
        self._process.stdout.read_waiting()
        self._process.stderr.read_waiting()

    async def aclose(self) -> None:
        """Kill all of it and wait until it has ended, also if this task is cancelled."""
        await to_the_end(self._process.end())


async def start_command(  # noqa: PLR0913 - what a process gets
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    on_output: Callable[[PipeName, bytes], None],
    limits: ProgramLimits = _DEFAULT_LIMITS,
    stdin: bool = False,
    descriptors: Sequence[int] = (),
    sandbox: SandboxConfig | None = None,
) -> RunningCommand:
    """Start a command; it ends with this process, if nothing ends it before.

    Args:
        argv: A program, by path or by name in PATH of `env`, and its arguments.
        env: All its variables.
        cwd: Where it runs.
        on_output: Receives what it writes, as it comes, in order for each pipe; it must not raise.
            The first may come before this returns.
        limits: What it, and each process that it starts, may use.
        stdin: Whether it has an input; else it is empty.
        descriptors: Those of this process that it gets, by the same numbers.
        sandbox: What it may reach; all that its user may if None.

    Raises:
        LaunchFailed: It cannot be started; the message says what to do and shows no argument.
    """

    def receive(name: PipeName, data: bytes) -> None:
        if data:
            on_output(name, data)

    program = Program(
        argv[0],
        argv[1:],
        cwd=Path(cwd),
        limits=limits,
        descriptors=descriptors,
        sandbox=sandbox,
    )
    return RunningCommand(
        await StartedProcess.start(program, env, "command", on_output=receive, has_stdin=stdin)
    )


@asynccontextmanager
async def run_command(  # noqa: PLR0913 - as `start_command`
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    on_output: Callable[[PipeName, bytes], None],
    limits: ProgramLimits = _DEFAULT_LIMITS,
    stdin: bool = False,
    descriptors: Sequence[int] = (),
    sandbox: SandboxConfig | None = None,
) -> AsyncIterator[RunningCommand]:
    """Run a command as `start_command` does; everything of it has ended with the block."""
    command = await start_command(
        argv,
        env=env,
        cwd=cwd,
        on_output=on_output,
        limits=limits,
        stdin=stdin,
        descriptors=descriptors,
        sandbox=sandbox,
    )
    try:
        yield command
    finally:
        await command.aclose()
