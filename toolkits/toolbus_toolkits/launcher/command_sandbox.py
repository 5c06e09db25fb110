"""What confines the commands of a toolkit, and which judgements count on that.

A command that was allowed because its sandbox protects secrets and settings must start protected,
or it fails: another program may run in the same folders by then. So the id of the call is
remembered. The command waits for those of its toolkit in the foreground, since models call several
tools at a time. For a call that goes on with a command that runs, such as an interpreter, its start
counts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias
from weakref import WeakKeyDictionary

from toolbus import ToolContext, ToolFailed
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus_toolkits.callers import Asker, LastUsed, asker_of
from toolbus_toolkits.launcher.command import RunningCommand
from toolbus_toolkits.launcher.process import LaunchFailed
from toolbus_toolkits.sandbox import (
    Backend,
    SandboxConfig,
    SandboxUnavailable,
    backend_for,
    confinement,
    would_protect,
)
from toolbus_toolkits.sandbox.plan import is_below_any
from toolbus_toolkits.sandbox.protection import CONFINED_FOLDERS, FoldersInUse
from toolbus_toolkits.workspace import resolve

__all__ = ["CommandSandbox", "Run", "Start", "wait_or_raise"]

Start: TypeAlias = Callable[..., Coroutine[object, object, RunningCommand]]
"""`start_command` with all of its arguments but `sandbox`; so is `Run` of `run_command`."""
Run: TypeAlias = Callable[..., AbstractAsyncContextManager[RunningCommand]]

_THREADS = WorkerThreads("probes of sandboxes", 2)
_MAX_JUDGED = 10_000
"""Calls that were judged and may still be attempted, each 100 bytes; far more than a host runs."""


class CommandSandbox:
    """What confines the commands of one toolkit.

    Args:
        config: What they may reach, beside the working directories.
        directory: The working directory of the toolkit, a real path.
        path: `PATH` of a command, of absolute folders.
        programs: Folders that a command needs to be started; they may be read, as the system is.
    """

    def __init__(
        self, config: SandboxConfig, directory: str, path: str, programs: Sequence[str] = ()
    ) -> None:
        self._config = config
        self._directory = directory
        self._path = path
        self._programs = tuple(dict.fromkeys(resolve(folder, "/") for folder in programs))
        self._lock = threading.Lock()  # commands are assessed on other threads than they are run on
        self._judged = LastUsed[tuple[Asker, str], bool](_MAX_JUDGED)
        """By asker and id, each call that has to be kept within: whether it was started once."""
        self._within = WeakKeyDictionary[RunningCommand, tuple[str, ...]]()
        """Commands that were started so that they keep within, with further working directories."""
        self._in_foreground = 0
        """Commands that start or run, and whose callers wait for their ends."""

    @property
    def confines(self) -> bool:
        """Whether it does more than to set limits."""
        return self._config.backend != "subprocess"

    def hidden_path(self) -> list[str]:
        """Return the folders of PATH that commands do not see."""
        plan = confinement(self._with_workdirs(()), self._directory)
        folders = self._path.split(os.pathsep)
        return [
            path for path in folders if os.path.isdir(path) and not plan.shows(resolve(path, "/"))
        ]

    async def probe(self) -> Backend:
        """Return what confines the commands. Raises `SandboxUnavailable` if nothing does."""
        return await _THREADS.run(backend_for, self._with_workdirs(()))

    def shows(self, directory: str, workdirs: tuple[str, ...]) -> bool:
        """Whether a command of a call with these working directories can start in a directory."""
        try:
            return confinement(self._with_workdirs(workdirs), directory).shows(directory)
        except (SandboxUnavailable, ValueError):
            return False

    def begin_judging(self, context: ToolContext) -> None:
        """Forget what was said of an earlier call with this id: models may number their calls."""
        with self._lock:
            if self._judged.get(_call(context)):
                del self._judged[_call(context)]

    def keeps_within(self, context: ToolContext, running: RunningCommand | None = None) -> bool:
        """Whether a command changes nothing outside of the working directories if it starts now.

        Nor does it reach the network, secrets, or settings that other programs obey. Then it has to
        start so, as `_config_for` has it.

        Args:
            context: The call.
            running: A command that the call would go on with, in place of a start.
        """
        allowed = self._config
        reaches_more = allowed.network or allowed.unix_sockets or allowed.read or allowed.write
        hides_less = allowed.hide is not None or allowed.protect is False
        # By a question of another participant it is not known which call will follow.
        if not context.call_id or reaches_more or hides_less:
            return False
        if running is not None:
            if self._within.get(running) != context.workdirs:
                return False
        else:
            try:
                config = self._protecting(context.workdirs)
                if not would_protect(config, awaited=self._in_foreground):
                    return False
            except (SandboxUnavailable, ValueError):
                return False
        with self._lock:
            self._judged[_call(context)] = False
        return True

    def must_keep_within(self, context: ToolContext) -> bool:
        """Whether `keeps_within` was said of a call, which is started now."""
        with self._lock:
            if _call(context) not in self._judged:
                return False
            self._judged[_call(context)] = True
            return True

    async def start(self, context: ToolContext, start: Start, *, within: bool) -> RunningCommand:
        """Start the command of a call.

        Args:
            context: The call.
            start: Starts it.
            within: What `must_keep_within` returned for the call. It is asked once: a later call
                may have the same id.

        Raises `LaunchFailed`, and `ToolFailed` for a working directory that has gone.
        """
        process = await start(sandbox=self._config_for(context, within=within))
        if within:
            self._within[process] = context.workdirs
        return process

    def go_on(self, context: ToolContext, running: RunningCommand, *, within: bool) -> None:
        """Check that a call may go on with a command that runs, in place of a start.

        Raises `LaunchFailed` if it has to keep within, and that one was not started so.
        """
        if within and self._within.get(running) != context.workdirs:
            raise LaunchFailed("what it goes on with is another one by now")

    @asynccontextmanager
    async def run(
        self, context: ToolContext, run: Run, *, within: bool
    ) -> AsyncIterator[RunningCommand]:
        """Run the command of a call in the foreground while the block runs; as `start`."""
        config = self._config_for(context, within=within)
        with self._lock:
            self._in_foreground += 1
        try:
            async with run(sandbox=config) as process:
                yield process
        finally:
            with self._lock:
                self._in_foreground -= 1

    async def has_waited(self, context: ToolContext, error: LaunchFailed, ends_at: float) -> bool:
        """Wait for the commands in the foreground that kept one from being started.

        Returns:
            Whether they have ended until `ends_at`, a time of the event loop. False at once if
            others run in its folders, or it was not started for another reason.
        """
        folders = self._config_for(context, within=True).write
        is_busy = isinstance(error.__cause__, FoldersInUse)
        if not is_busy or CONFINED_FOLDERS.count(folders) > self._in_foreground:
            return False
        try:
            async with asyncio.timeout_at(ends_at):
                await CONFINED_FOLDERS.wait_until_free(folders)
        except TimeoutError:
            return False
        return True

    def _config_for(self, context: ToolContext, *, within: bool) -> SandboxConfig:
        """Return what the command of a call may reach that starts now."""
        try:
            if within:
                return self._protecting(context.workdirs)
            return self._with_workdirs(context.workdirs)
        except ValueError as error:
            raise ToolFailed(f"the command cannot be confined: {error}") from None

    def _with_workdirs(self, workdirs: tuple[str, ...]) -> SandboxConfig:
        config = self._config.with_roots([self._directory, *filter(os.path.isdir, workdirs)])
        # What lies in a folder that may be changed can be read too; named again, it could not be
        # changed.
        programs = [path for path in self._programs if not is_below_any(path, config.write)]
        return config.model_copy(update={"read": (*config.read, *programs)})

    def _protecting(self, workdirs: tuple[str, ...]) -> SandboxConfig:
        config = self._with_workdirs(workdirs)
        # What changes a program in PATH changes what later commands do, which are judged by name.
        programs = []
        for folder in self._path.split(os.pathsep):
            real = resolve(folder, "/")
            if is_below_any(folder, config.write) and not (folder == real and os.path.isdir(real)):
                raise ValueError(f"a command could put another folder in place of {folder!a}")
            if is_below_any(real, config.write):
                programs.append(real)
        return config.model_copy(update={"read": (*config.read, *programs), "protect": True})


async def wait_or_raise(
    sandbox: CommandSandbox | None,
    context: ToolContext,
    error: LaunchFailed,
    *,
    within: bool,
    ends_at: float,
) -> None:
    """Return once a command that was not started may be started again.

    Raises `ToolFailed` where that is not so until `ends_at`, a time of the event loop.
    """
    if sandbox is None or not within:
        raise ToolFailed(str(error)) from None
    if not await sandbox.has_waited(context, error, ends_at):
        # Not `retryable`: a client would repeat it by itself, and judge nothing again.
        raise ToolFailed(
            f"{error}; it was allowed because its sandbox would protect secrets and settings:"
            " nothing was run, call it again",
            details={"reason": "changed"},
        ) from None


def _call(context: ToolContext) -> tuple[Asker, str]:
    return asker_of(context), context.call_id
