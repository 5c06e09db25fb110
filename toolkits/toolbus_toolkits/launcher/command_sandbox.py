"""What confines the commands of a toolkit, and which judgements count on that.

A command that is judged as one that cannot leave the working directories has to start so. Whether
it can is known at a moment only: another program may run in the same folders by its start. So the
id of the call is remembered, and its command starts with all that was counted on, or not at all. It
waits for those of its toolkit in the foreground, since models call several tools at a time. For a
call that goes on with a command that runs, such as an interpreter, its start counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
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
from toolbus_toolkits.sandbox.protection import CONFINED_FOLDERS, FoldersInUse
from toolbus_toolkits.workspace import is_same_or_below, resolve

__all__ = ["CommandSandbox", "not_started"]

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
        directory: The working directory of the toolkit.
        path: `PATH` of a command, of absolute folders.
        programs: Folders that a command needs to be started; they may be read, as the system is.
    """

    def __init__(
        self, config: SandboxConfig, directory: str, path: str, programs: Sequence[str] = ()
    ) -> None:
        self._config = config
        self._directory = directory
        self._path = path
        self._programs = programs
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

    async def probe(self) -> Backend:
        """Return what confines the commands. Raises `SandboxUnavailable` if nothing does."""
        return await _THREADS.run(backend_for, self._with_workdirs(()))

    def shows(self, directory: str) -> bool:
        """Whether a command can start in a directory."""
        try:
            return confinement(self._with_workdirs(()), directory).shows(directory)
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

    def has_to_keep_within(self, context: ToolContext) -> bool:
        """Whether `keeps_within` was said of a call."""
        with self._lock:
            return _call(context) in self._judged

    def go_on(self, context: ToolContext, running: RunningCommand) -> None:
        """Note that a call goes on with a command that runs, in place of a start.

        Raises `LaunchFailed` if it has to keep within, and that one was not started so.
        """
        with self._lock:
            if _call(context) not in self._judged:
                return
            self._judged[_call(context)] = True
        if self._within.get(running) != context.workdirs:
            raise LaunchFailed("what it goes on with is another one by now")

    async def start(self, context: ToolContext, start: Start) -> RunningCommand:
        """Start the command of a call.

        Raises `LaunchFailed`, and `ToolFailed` for a working directory that has gone.
        """
        while True:
            config = self._config_for(context)
            try:
                process = await start(sandbox=config)
            except LaunchFailed as error:
                if not self._can_wait(context, config, error):
                    raise
            else:
                if self.has_to_keep_within(context):
                    self._within[process] = context.workdirs
                return process
            await CONFINED_FOLDERS.wait_until_free(config.write)

    @asynccontextmanager
    async def run(self, context: ToolContext, run: Run) -> AsyncIterator[RunningCommand]:
        """Run the command of a call while the block runs; raises as `start`."""
        while True:
            config = self._config_for(context)
            async with AsyncExitStack() as stack:
                stack.enter_context(self._counted())
                try:
                    process = await stack.enter_async_context(run(sandbox=config))
                except LaunchFailed as error:
                    if not self._can_wait(context, config, error, own=1):
                        raise
                else:
                    yield process
                    return
            await CONFINED_FOLDERS.wait_until_free(config.write)

    def _can_wait(
        self, context: ToolContext, config: SandboxConfig, error: LaunchFailed, *, own: int = 0
    ) -> bool:
        """Whether a command did not start because of others in the foreground, which end.

        `own` is 1 if it is counted among these itself.
        """
        if not (isinstance(error.__cause__, FoldersInUse) and self.has_to_keep_within(context)):
            return False
        return CONFINED_FOLDERS.count(config.write) <= self._in_foreground - own

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._in_foreground += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_foreground -= 1

    def _config_for(self, context: ToolContext) -> SandboxConfig:
        """Return what the command of a call may reach that starts now."""
        try:
            if self.has_to_keep_within(context):
                with self._lock:
                    self._judged[_call(context)] = True
                return self._protecting(context.workdirs)
            return self._with_workdirs(context.workdirs)
        except ValueError as error:
            raise ToolFailed(f"the command cannot be confined: {error}") from None

    def _with_workdirs(self, workdirs: tuple[str, ...]) -> SandboxConfig:
        config = self._config.with_roots([self._directory, *filter(os.path.isdir, workdirs)])
        # What lies in a folder that may be changed can be read too; named again, it could not be
        # changed.
        programs = [
            folder
            for folder in self._programs
            if not any(is_same_or_below(resolve(folder, "/"), root) for root in config.write)
        ]
        if not programs:
            return config
        given = {name: getattr(config, name) for name in config.model_fields_set}
        return SandboxConfig(**given | {"read": (*config.read, *programs)})

    def _protecting(self, workdirs: tuple[str, ...]) -> SandboxConfig:
        config = self._with_workdirs(workdirs)
        # What changes a program in PATH changes what later commands do, which are judged by name.
        folders = self._path.split(os.pathsep)
        programs = [
            folder
            for folder in folders
            if os.path.isdir(folder)
            and any(is_same_or_below(resolve(folder, "/"), root) for root in config.write)
        ]
        given = {name: getattr(config, name) for name in config.model_fields_set}
        return SandboxConfig(**given | {"read": (*config.read, *programs), "protect": True})


def _call(context: ToolContext) -> tuple[Asker, str]:
    return asker_of(context), context.call_id


def not_started(
    sandbox: CommandSandbox | None, context: ToolContext, error: LaunchFailed
) -> ToolFailed:
    """Return the error of a call whose command was not started."""
    if sandbox is None or not sandbox.has_to_keep_within(context):
        return ToolFailed(str(error))
    text = f"{error}; it was judged when its sandbox could hold that: nothing was run, call it"
    # Not `retryable`: a client would repeat it by itself, and judge nothing again.
    return ToolFailed(f"{text} again", details={"reason": "changed"})
