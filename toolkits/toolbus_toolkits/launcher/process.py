"""A started process, its output and its end: what programs and commands have in common."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.launcher.host_watch import HOST_WATCH, Kind
from toolbus_toolkits.launcher.marks import MARKS
from toolbus_toolkits.sandbox import (
    ConfinedStart,
    SandboxConfig,
    confined_command,
)
from toolbus_toolkits.sandbox.starting import dropped_by_shells

__all__ = [
    "PIPE_BYTES",
    "LaunchFailed",
    "OutputPipe",
    "PipeName",
    "Program",
    "ProgramLimits",
    "StartedProcess",
    "to_the_end",
]

PIPE_BYTES = 64 * 1024
"""What a pipe holds, and what is read of one in one turn of the event loop."""
_LARGEST_PIPE_BYTES = 1024 * 1024
"""What a program without privileges may make a pipe hold."""
_REST_S = 0.2
"""So long without a byte after the end of a process, what it wrote has been read. A process that it
left behind may hold its pipes open for ever, so that their end would never come."""
_LONGEST_REST_S = 1.0
"""Nor is read for longer than this: what a process writes that was left behind is nobody's."""
_KILLED_S = 1.0
"""So long is waited until what was killed has ended; one that waits for a disk ends later."""
_UNKNOWN_STATUS = 255  # as asyncio has it
# A command waits for a line before it becomes what it is to be: by then it has its limits and its
# mark, and is watched, so that nothing of it can come before them.
_AT_THE_DOOR = 'read -r _ && exec "$@"'
_SHELL = "/bin/sh"

PipeName: TypeAlias = Literal["stdout", "stderr"]
OnOutput: TypeAlias = Callable[[PipeName, bytes], None]

_logger = bounded_logger(__name__)
_THREADS = WorkerThreads("starts of confined programs", 8)
"""A start looks through folders for secrets, and the first one of a config probes."""


class LaunchFailed(OSError):
    """A program cannot be started: it does not exist, or the system refuses it."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one program, and each one that it starts itself, may use; None means unlimited.

    Raises `ValueError` for a limit below 1.
    """

    memory_bytes: int | None = None
    """Address space (RLIMIT_AS). Programs on V8 or Go reserve many times what they use."""
    cpu_s: int | None = None
    """Seconds of processor time (RLIMIT_CPU)."""
    open_files: int | None = 1024
    """File descriptors (RLIMIT_NOFILE)."""
    file_bytes: int | None = None
    """The largest file that it may write (RLIMIT_FSIZE)."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "cpu_s", "open_files", "file_bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1")

    def rlimits(self) -> dict[int, int]:
        """Return the limits by the constants of `resource`."""
        limits = {
            resource.RLIMIT_CORE: 0,  # it would hold the environment, with credentials
            resource.RLIMIT_AS: self.memory_bytes,
            resource.RLIMIT_CPU: self.cpu_s,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_FSIZE: self.file_bytes,
        }
        return {kind: limit for kind, limit in limits.items() if limit is not None}

    def apply(self, pid: int) -> None:
        """Set the limits of a process that has just been started; those it starts inherit them."""
        if sys.platform != "linux":  # elsewhere only a process itself can set its limits
            return
        with contextlib.suppress(ProcessLookupError):
            for kind, limit in self.rlimits().items():
                _, hard = resource.prlimit(pid, kind)
                lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.prlimit(pid, kind, (lowest, lowest))


@dataclass(frozen=True, slots=True)
class Program:
    """What is started. Its values may hold secrets: they are never in its repr."""

    command: str
    """A path, or the name of a program in the folders of PATH."""
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that are set for it, beside those that every program gets."""
    cwd: Path | None = None
    limits: ProgramLimits = ProgramLimits()
    descriptors: Sequence[int] = ()
    """Descriptors of this process that it gets, by the same numbers; the others are closed."""
    sandbox: SandboxConfig | None = None
    """What it may reach; all that its user may if None. Without `cwd` it then starts in `/`."""


class OutputPipe(asyncio.ReadTransport):
    """One pipe that a process writes to, read by the event loop.

    It gives what a turn of the loop brings, at most 64 KiB, so that endless output leaves the loop
    its other work. `b""` is its end.
    """

    def __init__(self, pipe: Any, on_data: Callable[[bytes], None]) -> None:
        super().__init__()
        self._pipe = pipe
        self._descriptor: int = pipe.fileno()
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._is_ending = False
        self.is_paused = False
        os.set_blocking(self._descriptor, False)
        self._loop.add_reader(self._descriptor, self._read)

    def is_closing(self) -> bool:
        """Return whether nothing more is read."""
        return self._is_closed

    def is_reading(self) -> bool:
        """Return whether output is read as it comes."""
        return not (self._is_closed or self.is_paused)

    def pause_reading(self) -> None:
        """Leave what comes in the pipe."""
        if self.is_reading():
            self.is_paused = True
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        """Read on, after `pause_reading`."""
        if self._is_closed or not self.is_paused:
            return
        self.is_paused = False
        self._loop.add_reader(self._descriptor, self._read)
        if self._is_ending:
            self.read_rest()

    def end(self) -> None:
        """Read what is in the pipe, then close it; while reading is paused, once it goes on."""
        self._is_ending = True
        if not self.is_paused:
            self.read_rest()

    def read_rest(self) -> None:
        """Read what is in the pipe, also while reading is paused, then close it."""
        self.read_waiting()
        self.close()

    def read_waiting(self) -> None:
        """Read what is in the pipe now, also while reading is paused."""
        rest = _LARGEST_PIPE_BYTES  # a process may fill it while it is read
        while rest > 0 and not self._is_closed:
            length = self._read()
            if not length:
                break
            rest -= length

    def close(self) -> None:
        """Read nothing more, and report the end. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._descriptor)
        self._pipe.close()
        self._on_data(b"")

    def _read(self) -> int:
        try:
            data = os.read(self._descriptor, PIPE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()
        return len(data)


class StartedProcess:
    """A process, the leader of a group of its own, from its start to the end of all of it.

    When it has ended and its output was read, its group is killed and, for a command, what has left
    the group: then `closed` is set. No task does this, so that no cancellation prevents it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        mark: int | None,
        on_output: OnOutput,
        confined: ConfinedStart | None,
    ) -> None:
        self.pid = process.pid
        self.returncode: int | None = None
        self.ended = asyncio.Event()
        """Set when its exit status is known."""
        self.closed = asyncio.Event()
        """Set when nothing of it is left, and its output was read."""
        self.stdin: asyncio.StreamWriter | None = None
        self.confined = confined
        """What confines it, if anything does."""
        self._mark = mark
        self._started_at = time.monotonic()
        self._host = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._on_output = on_output
        self._is_killed = False
        self._is_over = False
        self._rest: asyncio.TimerHandle | None = None
        self._rest_ends_at = 0.0
        self._dying: set[int] = set()
        self._pidfd = _pidfd(self.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._on_end)
        else:
            threading.Thread(target=self._wait, name=f"wait-{self.pid}", daemon=True).start()
        self._unread = 2
        self.stdout = OutputPipe(process.stdout, lambda data: self._receive("stdout", data))
        self.stderr = OutputPipe(process.stderr, lambda data: self._receive("stderr", data))
        if confined is not None and confined.ready is not None:
            self._loop.add_reader(confined.ready, self._on_ready)

    @classmethod
    async def start(
        cls,
        program: Program,
        environment: Mapping[str, str],
        kind: Kind,
        *,
        on_output: OnOutput,
        has_stdin: bool = True,
    ) -> StartedProcess:
        """Start a process.

        Args:
            program: What is started; its own `env` is not looked at.
            environment: All its variables.
            kind: What left the group of a command ends with it; of a program it goes on.
            on_output: Receives what it writes, and `b""` at the end of each pipe.
            has_stdin: Whether it has an input; else it is empty.

        Raises:
            LaunchFailed: It cannot be started; the message says what to do and shows no argument.
        """
        confined = await _confined(program, environment)
        if confined is not None:
            argv, environment = confined.argv, confined.environment
        else:
            argv = [_find(program, environment), *program.args]
        mark = MARKS.new() if kind == "command" else None
        # Without a mark a program waits only in a sandbox, whose helpers start others before limits
        # could be set. /bin/sh may drop variables whose names it cannot use: then the program is
        # started at once, and marked a moment later.
        is_held = mark is not None or confined is not None
        is_held = is_held and dropped_by_shells(environment) is None
        if is_held:
            script = _AT_THE_DOOR if has_stdin else f"{_AT_THE_DOOR} </dev/null"
            argv = [_SHELL, "-c", script, "sh", *argv]
        try:
            popen = _spawn(program, confined, argv, environment, has_stdin=has_stdin or is_held)
        except LaunchFailed:
            if confined is not None:
                await _THREADS.finish(confined.end)
            raise
        popen.returncode = 0  # it is waited for here, and never by Popen
        HOST_WATCH.add(popen.pid, kind)
        if mark is not None:
            MARKS.set(popen.pid, mark)
        program.limits.apply(popen.pid)
        started = cls(popen, mark, on_output, confined)
        try:
            if is_held and popen.stdin is not None:
                with contextlib.suppress(OSError):  # it was killed
                    popen.stdin.write(b"\n")
            if has_stdin:
                # Not cancelled in its middle: uvloop would close the pipe beside its file object.
                await to_the_end(started._open_stdin(popen.stdin))
            elif popen.stdin is not None:
                popen.stdin.close()
        except BaseException:  # as a rule this task was cancelled
            await to_the_end(started.end())
            raise
        return started

    async def _open_stdin(self, pipe: Any) -> None:
        transport, protocol = await self._loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
        )
        self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its group, unless nothing of it is left."""
        # A forked child has a copy of this object, whose methods run where its frames are cleared.
        if self._is_over or self._host != os.getpid():
            return
        if number == signal.SIGKILL or not self._is_in_namespace:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            return
        # The first two of the group are bubblewrap: with one of them all would end at once.
        for first in _children(self.pid):
            for pid in _descendants(first):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getpgid(pid) == self.pid:
                        os.kill(pid, number)

    @property
    def _is_in_namespace(self) -> bool:
        return self.confined is not None and self.confined.backend == "bubblewrap"

    def kill(self) -> None:
        """Kill its group and what has left it, without waiting; what it wrote is still read.

        Idempotent.
        """
        if self.closed.is_set() or self._host != os.getpid():
            return
        self._is_killed = True
        self.signal(signal.SIGKILL)
        for descriptor in self._kill_marked():
            os.close(descriptor)
        if self.ended.is_set():
            self._read_rest()

    async def end(self) -> None:
        """Kill it, and wait until all of it has ended."""
        self.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _KILLED_S):
                await self.closed.wait()
        if not self.closed.is_set():
            _logger.warning("pid %d was killed, and has not ended yet", self.pid)
        if self.stdin is not None:
            with contextlib.suppress(OSError, TimeoutError):  # else asyncio logs that it was lost
                async with asyncio.timeout(_KILLED_S):
                    await self.stdin.wait_closed()

    def _receive(self, name: PipeName, data: bytes) -> None:
        if not data:
            self._unread -= 1
        try:
            self._on_output(name, data)
        except Exception as error:  # all of the process ends nevertheless
            text = f"output of pid {self.pid} was not taken"
            self._loop.call_exception_handler({"message": text, "exception": error})
        # Who kills it for its output lets the rest be read, and maybe all end, in that call.
        if not self.ended.is_set() or self._is_over:
            return
        if not self._unread:
            self._finish()
        elif data and self._rest is not None:
            self._await_rest()

    def _on_end(self) -> None:
        """Note the exit status. Until all has ended the process stays, and its id with it."""
        try:
            state = self._wait_id(os.WNOWAIT)
        except ChildProcessError:  # something else in this process waited for it
            self._set_ended(_UNKNOWN_STATUS)
            return
        if state is not None:
            has_exited = state.si_code == os.CLD_EXITED
            self._set_ended(state.si_status if has_exited else -state.si_status)

    def _wait_id(self, options: int) -> Any:
        # By its pidfd: if something else waited for it, its id may be that of another child.
        return os.waitid(os.P_PIDFD, self._pidfd or 0, os.WEXITED | os.WNOHANG | options)

    def _wait(self) -> None:
        """Wait for its end on a thread, where there is no pidfd."""
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            status = _UNKNOWN_STATUS
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_ended, status)

    def _set_ended(self, returncode: int) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self.returncode = returncode
        self.ended.set()
        if not self._unread:
            self._finish()
        elif self._is_killed:
            self._read_rest()
        else:
            self._rest_ends_at = self._loop.time() + _LONGEST_REST_S
            self._await_rest()

    def _await_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        rest_ends_at = min(self._loop.time() + _REST_S, self._rest_ends_at)
        self._rest = self._loop.call_at(rest_ends_at, self._end_output)

    def _end_output(self) -> None:
        self._rest = None
        self.stdout.end()
        self.stderr.end()

    def _read_rest(self) -> None:
        self.stdout.read_rest()
        self.stderr.read_rest()

    def _finish(self) -> None:
        """End what it left behind, then forget it."""
        if self._rest is not None:
            self._rest.cancel()
        self.signal(signal.SIGKILL)
        self._is_over = True
        HOST_WATCH.remove(self.pid)
        if self._pidfd is not None:
            with contextlib.suppress(ChildProcessError):
                self._wait_id(0)
            os.close(self._pidfd)
        if self.stdin is not None:
            transport = self.stdin.transport
            # One that closes waits for its reader, which may be a process that was left behind.
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.abort()
        self._rest = self._loop.call_later(_KILLED_S, self._give_up)
        self._end_marked()

    def _end_marked(self) -> None:
        """Kill what has its mark; again when that has ended, as it may have started more."""
        self._dying = set(self._kill_marked())
        for descriptor in self._dying:
            self._loop.add_reader(descriptor, self._on_end_of_marked, descriptor)
        if not self._dying:
            self._close()

    def _on_end_of_marked(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._dying.discard(descriptor)
        if not self._dying:
            self._end_marked()

    def _kill_marked(self) -> list[int]:
        if self._mark is None:
            return []
        return MARKS.kill(self._mark, self.pid, time.monotonic() - self._started_at)

    def _give_up(self) -> None:
        _logger.warning("%d processes of pid %d do not end", len(self._dying), self.pid)
        for descriptor in self._dying:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._close()

    def _close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        if self.confined is None:
            self.closed.set()
            return
        self._on_ready()
        # On a thread: it removes the files that the program left in its own folder.
        cleaning = self._loop.create_task(_THREADS.finish(self.confined.end))
        cleaning.add_done_callback(lambda _: self.closed.set())

    def _on_ready(self) -> None:
        if self.confined is not None:
            if self.confined.ready is not None:
                self._loop.remove_reader(self.confined.ready)
            self.confined.set_up()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that goes on if this task is cancelled meanwhile; then raise that."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once a process has ended; None where there are none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:  # grows while it is gone over
        found += _children(child)
    return found


def _spawn(
    program: Program,
    confined: ConfinedStart | None,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    has_stdin: bool,
) -> subprocess.Popen[bytes]:
    """Start a process, and close here what it got of its sandbox. Raises `LaunchFailed`."""
    try:
        # As asyncio does, this waits for a millisecond until the program is executed.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            cwd=program.cwd if confined is None else confined.cwd,
            pass_fds=(*program.descriptors, *(confined.descriptors if confined else ())),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _cannot_start(program, getattr(error, "strerror", None) or str(error)) from None
    if confined is not None:
        confined.close_descriptors()
        try:
            confined.add(process.pid)
        except OSError as error:  # its control group has gone
            process.kill()
            process.communicate()
            raise _cannot_start(program, str(error)) from None
    return process


async def _confined(program: Program, environment: Mapping[str, str]) -> ConfinedStart | None:
    """Return what starts a program in its sandbox; None if it has none. Raises `LaunchFailed`."""
    sandbox = program.sandbox
    if sandbox is None:
        return None
    if sandbox.backend != "docker":  # whose programs are not those of this machine
        _find(program, environment)  # raises
    elif any((program.limits.memory_bytes, program.limits.cpu_s, program.limits.file_bytes)):
        # The engine runs it, which limits set here do not reach.
        raise _cannot_start(program, "docker takes no limit of memory, processor time and files")
    argv = (program.command, *program.args)
    try:
        return await _THREADS.run(
            confined_command, sandbox, argv, environment, program.cwd, undo=ConfinedStart.end
        )
    except OSError as error:
        raise _cannot_start(program, error.strerror or str(error)) from error


def _cannot_start(program: Program, why: str) -> LaunchFailed:
    return LaunchFailed(f"cannot start {one_line(program.command, SHOWN_CHARS)}: {why}")


def _find(program: Program, environment: Mapping[str, str]) -> str:
    command = program.command
    if program.cwd is not None and not program.cwd.is_dir():
        raise _cannot_start(
            program, f"there is no folder {one_line(str(program.cwd), SHOWN_CHARS)}"
        )
    found = shutil.which(command, path=environment.get("PATH"))
    if found is None:
        has_arguments = len(command.split()) > 1 and shutil.which(command.split()[0]) is not None
        hint = "write its arguments in args" if has_arguments else "install it, or name its path"
        raise _cannot_start(program, f"there is no such program in PATH; {hint}")
    return found
