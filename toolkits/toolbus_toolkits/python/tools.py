"""The tools of the toolkit `python`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, cast

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import (
    Assessment,
    FileChunk,
    JsonChunk,
    MixedChunk,
    ToolContext,
    ToolFailed,
)
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.untrusted_text import one_line, visible
from toolbus_toolkits.callers import seconds_to_answer
from toolbus_toolkits.launcher import LaunchFailed, RunningCommand, run_command, start_command
from toolbus_toolkits.launcher.command_config import command_environment
from toolbus_toolkits.launcher.command_sandbox import CommandSandbox, wait_or_raise
from toolbus_toolkits.launcher.command_tools import CommandTool, CommandTools
from toolbus_toolkits.launcher.output import CommandOutput, OutputProgress
from toolbus_toolkits.python.config import PythonConfig, folders_of
from toolbus_toolkits.python.interpreter import Interpreter, Reply
from toolbus_toolkits.python.sessions import PythonSessions
from toolbus_toolkits.python.written import MAX_NAMES, files_of, now_ns, written_since

__all__ = ["CodeResult", "ConfinedCodeResult", "PythonTools", "ResetResult"]

_MAX_TIMEOUT_S = 600
_MAX_START_S = 30
"""A host waits so long at its start, on a busy machine; a program may never say anything."""
_MAX_CODE_CHARS = 100_000
"""A person and a model read it; what is larger belongs into a file."""
_MAX_AT_A_TIME = 16
"""Each may have 16 MiB of files."""
_MAX_SHOWN_CHARS = 20_000
"""Of a value or an error: the runner sends half of it, before characters without a shape are
escaped."""
_ENDED = "the interpreter has ended, and its names with it"

_THREADS = WorkerThreads("files of code", 4)

Code = Annotated[str, Field(min_length=1, max_length=_MAX_CODE_CHARS)]
Seconds = Annotated[float, Field(gt=0, le=_MAX_TIMEOUT_S)]


class CodeResult(TypedDict):
    """What code did."""

    stdout: str
    stderr: str
    value: str | None
    """The `repr` of its last expression; None without one, and if that is None."""
    error: str | None
    """The traceback of what it raised, or how the interpreter ended."""
    files: list[str]
    """What was written below the working directory while it ran."""
    timed_out: bool
    truncated: bool
    """Whether a part of a text, or of the names, is left out."""


class ConfinedCodeResult(CodeResult):
    """What confined code did."""

    sandbox: str | None
    """What confined it."""
    protected: bool
    """Whether secrets and settings in the working directories were kept from it."""


class ResetResult(TypedDict):
    """What `reset` did."""

    ended: bool
    """Whether there was an interpreter."""


class PythonTools(CommandTools):
    """The tools of one toolkit.

    Args:
        config: Its config.
        max_timeout_s: Seconds that one call may take; None means as many as its caller gives it.
    """

    def __init__(self, config: PythonConfig, max_timeout_s: float | None) -> None:
        self._max_s: float = max_timeout_s or _MAX_TIMEOUT_S
        self._interpreter = config.interpreter
        self._workdir = str(config.workdir)
        self._looked_ns = 0
        """When files were last looked for."""
        self._limits = config.limits()
        self._variables = command_environment(config.env, config.inherit)
        # So `python` of a command that the code runs is the same one.
        path = f"{config.interpreter.parent}{os.pathsep}{self._variables['PATH']}"
        self._variables["PATH"] = path
        confinement = config.confinement
        self.sandbox: CommandSandbox | None = (
            None
            if confinement is None
            else CommandSandbox(
                confinement, self._workdir, path, tuple(folders_of(config.interpreter))
            )
        )
        """What confines code, if anything does."""
        self.sessions: PythonSessions = PythonSessions(self._started, self._check)
        run = CommandTool(
            self._run if self.sandbox is None else self._run_confined,
            name="run",
            affinity="caller",
            max_concurrency=_MAX_AT_A_TIME,
            open_world=True,
            destructive=True,
            assess=self._assess_run,
        )
        run.marks_entry = True  # by `enter`: before, no code has run
        reset = CommandTool(self._reset, name="reset", affinity="caller", assess=_assess_reset)
        self.all: list[CommandTool] = [run, reset]
        for tool in self.all:
            tool.group = self

    async def end_all(self) -> None:
        """End all interpreters."""
        await self.sessions.end_all()

    async def check_interpreter(self) -> None:
        """Start an interpreter, and end it. Raises `LaunchFailed` if it cannot run code."""
        try:
            async with asyncio.timeout(_MAX_START_S), self._fresh(ToolContext(), within=False):
                pass
        except TimeoutError:
            text = f"{self._interpreter} was not ready to run code after {_MAX_START_S} s"
            raise LaunchFailed(text) from None

    async def _run(
        self, context: ToolContext, code: Code, timeout_s: Seconds = 120, keep: bool = False
    ) -> CodeResult:
        """Run Python code, and return what it wrote, the value of its last expression, its error.

        It is ended after `timeout_s`, and a second before the deadline of the call; what it wrote
        until then is returned. Its input is empty. Files that it writes below the working directory
        are named in `files`, and come with the result, up to 16 MiB in all. stdout and stderr have
        at most 30,000 characters; of more, the middle is left out.

        Args:
            context: The call.
            code: The code; the working directory is in `sys.path`.
            timeout_s: Seconds that it may take.
            keep: Run it in an interpreter that stays: names live until the next call with `keep`,
                until `reset`, 10 minutes without a call, or a time-out.
        """
        return cast(CodeResult, await self._ran(context, code, timeout_s, keep))

    async def _run_confined(
        self, context: ToolContext, code: Code, timeout_s: Seconds = 120, keep: bool = False
    ) -> ConfinedCodeResult:
        return cast(ConfinedCodeResult, await self._ran(context, code, timeout_s, keep))

    _run_confined.__doc__ = _run.__doc__

    async def _ran(
        self, context: ToolContext, code: str, timeout_s: float, keep: bool
    ) -> JsonChunk | MixedChunk:
        within = self.sandbox is not None and self.sandbox.must_keep_within(context)
        seconds = seconds_to_answer(context, min(timeout_s, self._max_s))
        ends_at = asyncio.get_running_loop().time() + seconds
        try:
            while True:
                try:
                    run = await self._ran_once(context, code, keep, within, ends_at)
                    break
                except LaunchFailed as error:
                    await wait_or_raise(
                        self.sandbox, context, error, within=within, ends_at=ends_at
                    )
        except ToolFailed as error:
            error.executed = "no"
            context.refuse(error)
            raise
        return await self._result(run)

    async def _ran_once(
        self, context: ToolContext, code: str, keep: bool, within: bool, ends_at: float
    ) -> _Run:
        """Run code. Raises `LaunchFailed` and `ToolFailed`; then it was not started."""
        run = _Run()
        opened = (self.sessions.opened if keep else self._fresh)(context, within)
        try:
            async with asyncio.timeout_at(ends_at), opened as (interpreter, notes):
                # The clock of files lags behind by up to two steps of at most 10 ms: what the last
                # call wrote may have this time too. A clock that was set back is not waited for.
                for _ in range(20):
                    run.start_ns = now_ns()
                    if run.start_ns > self._looked_ns:
                        break
                    await asyncio.sleep(0.001)
                run.interpreter, run.output, run.notes = interpreter, interpreter.output, notes
                context.enter()
                with closing(OutputProgress(context, interpreter.output)):
                    run.reply = await interpreter.run(code, is_last=not keep)
                    if run.reply is None or not keep:
                        await interpreter.process.wait()
                if run.reply is None and keep:
                    run.notes.append(_ENDED)
        except TimeoutError:
            if run.interpreter is None:
                raise ToolFailed("the code was not started in its time: call it again") from None
            run.timed_out = True
            if keep:
                run.notes.append(_ENDED)
        return run

    @asynccontextmanager
    async def _fresh(
        self, context: ToolContext, within: bool
    ) -> AsyncIterator[tuple[Interpreter, list[str]]]:
        """Give an interpreter that ends with the block."""
        with closing(Interpreter()) as interpreter:
            run = self._start(run_command, interpreter)
            opened: AbstractAsyncContextManager[RunningCommand]
            if self.sandbox is None:
                opened = run()
            else:
                opened = self.sandbox.run(context, run, within=within)
            async with opened as process:
                await self._attach(interpreter, process)
                yield interpreter, []

    async def _started(self, context: ToolContext, within: bool) -> Interpreter:
        """Start an interpreter that stays."""
        interpreter = Interpreter()
        try:
            start = self._start(start_command, interpreter)
            if self.sandbox is None:
                process = await start()
            else:
                process = await self.sandbox.start(context, start, within=within)
            try:
                await self._attach(interpreter, process)
            except BaseException:
                await process.aclose()
                raise
        except BaseException:
            interpreter.close()
            raise
        return interpreter

    def _check(self, context: ToolContext, interpreter: Interpreter, within: bool) -> None:
        if self.sandbox is not None:
            self.sandbox.go_on(context, interpreter.process, within=within)

    def _start(self, function: Any, interpreter: Interpreter) -> Any:
        """Return a function that starts an interpreter; for `run_command` or `start_command`."""
        return partial(
            function,
            interpreter.words(self._interpreter),
            env=self._variables,
            cwd=self._workdir,
            on_output=interpreter.receive,
            limits=self._limits,
            descriptors=(interpreter.descriptor,),
        )

    async def _attach(self, interpreter: Interpreter, process: RunningCommand) -> None:
        if await interpreter.attach(process):
            return
        await process.aclose()
        stderr = interpreter.output.texts()[1].strip()
        text = f"{self._interpreter} did not start as Python 3.9 or newer"
        raise LaunchFailed(f"{text}: {stderr.splitlines()[-1]}" if stderr else text)

    async def _result(self, run: _Run) -> JsonChunk | MixedChunk:
        interpreter = run.interpreter
        assert interpreter is not None
        names: list[str] = []
        files: list[FileChunk] = []
        more = 0
        self._looked_ns = time.time_ns()
        written = await _THREADS.run(written_since, self._workdir, run.start_ns)
        if written is None:
            run.notes.append("files are not listed: there are too many in the working directory")
        else:
            names, files = await _THREADS.run(files_of, self._workdir, written)
            more = max(0, len(written) - MAX_NAMES)
        if len(files) < len(names):
            sent = {file.name for file in files}
            rest = ", ".join(name for name in names if name not in sent)
            run.notes.append(f"only named, and not sent: {one_line(rest, 1_000)}")
        if more:
            run.notes.append(f"{more:,} more files were written")
        stdout, stderr, is_cut = run.output.texts(run.notes)
        reply = run.reply
        error = reply["error"] if reply is not None else None
        if reply is None and not run.timed_out:
            error = interpreter.ending()
        result = CodeResult(
            stdout=stdout,
            stderr=stderr,
            value=_shown(reply["value"]) if reply and reply["value"] is not None else None,
            error=None if error is None else _shown(error),
            files=names,
            timed_out=run.timed_out,
            truncated=is_cut or more > 0 or bool(reply and reply["is_cut"]),
        )
        if self.sandbox is not None:
            process = interpreter.process
            result = ConfinedCodeResult(
                **result, sandbox=process.confined_by, protected=process.is_protected
            )
        chunk = JsonChunk(result)
        return MixedChunk((chunk, *files)) if files else chunk

    def _assess_run(self, context: ToolContext, code: str, keep: bool = False) -> Assessment:
        message = "It runs Python code, which may do whatever the user of its host may."
        within = False
        if self.sandbox is not None and self.sandbox.confines:
            self.sandbox.begin_judging(context)
            running = self.sessions.running(context) if keep else None
            within = self.sandbox.keeps_within(context, running.process if running else None)
            message = "It runs Python code. It is confined."
            if within:
                message = "It runs Python code. It is confined to the working directories, without"
                message += " network."
        return Assessment("ask", within_workdir=within, message=message, preview=code)

    async def _reset(self, context: ToolContext) -> ResetResult:
        """End your interpreter that stays, with all its names, also while it runs code.

        Args:
            context: The call.
        """
        return ResetResult(ended=await self.sessions.end(context))


def _shown(text: str) -> str:
    shown = visible(text)
    if len(shown) <= _MAX_SHOWN_CHARS:
        return shown
    return f"{shown[:_MAX_SHOWN_CHARS]}\n[the rest is left out]"


@dataclass(slots=True)
class _Run:
    """What is known of one run of code."""

    interpreter: Interpreter | None = None
    """Set once code may have run."""
    output: CommandOutput = field(default_factory=CommandOutput)
    notes: list[str] = field(default_factory=list)
    start_ns: int = 0
    reply: Reply | None = None
    timed_out: bool = False


def _assess_reset() -> Assessment:
    return Assessment("allow", message="ends your interpreter, with its names")
