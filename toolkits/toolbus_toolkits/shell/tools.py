"""The tools of the toolkit `shell`."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import Assessment, ToolContext, ToolFailed
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.callers import Asker, asker_of, seconds_to_answer
from toolbus_toolkits.launcher import LaunchFailed, RunningCommand, run_command, start_command
from toolbus_toolkits.launcher.command_sandbox import CommandSandbox, Run, Start, wait_or_raise
from toolbus_toolkits.launcher.command_tools import CommandTool, CommandTools
from toolbus_toolkits.launcher.output import OutputProgress
from toolbus_toolkits.shell.assessing import assess_line, reads_lines
from toolbus_toolkits.shell.config import ShellConfig, is_harmless, shell_environment
from toolbus_toolkits.shell.jobs import MAX_CHARS, Job, Jobs, WrittenLines
from toolbus_toolkits.shell.reading import MAX_LINE_LENGTH
from toolbus_toolkits.shell.sessions import ShellSessions, ShellState
from toolbus_toolkits.workspace import ProgramPaths, Roots, SensitivePaths

__all__ = [
    "CommandResult",
    "ConfinedResult",
    "JobInfo",
    "JobPage",
    "ShellTools",
    "WriteResult",
]

_MAX_TIMEOUT_S = 600
"""What takes longer is a job: its caller waits for nothing, and its output is read in parts."""
_MAX_COMMAND_BYTES = 120 * 1024
"""Linux takes at most 128 KiB as one argument, with a NUL."""
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Of a command in the foreground, 50 times what is kept of it: it writes by mistake. A job has no
such limit, since a server may write for months."""
_MAX_AT_A_TIME = 32
"""Commands in the foreground; each may keep 5 MB of output."""

Command = Annotated[str, Field(min_length=1, max_length=MAX_LINE_LENGTH)]
Seconds = Annotated[float, Field(gt=0, le=_MAX_TIMEOUT_S)]
JobId = Annotated[str, Field(min_length=1, max_length=32)]


class CommandResult(TypedDict):
    """What a command did."""

    exit: int | None
    """As bash tells it: 128 and more for a signal. None if it was ended here, or runs as a job."""
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool
    """Whether the middle of stdout or stderr is left out; `job` has it."""
    job: str | None


class ConfinedResult(CommandResult):
    """What a confined command did."""

    sandbox: str | None
    """What confined it; None if its time was over before it was started."""
    protected: bool
    """Whether secrets and settings in the working directories were kept from it."""


class JobInfo(TypedDict):
    """A job."""

    job: str
    command: str
    running: bool
    exit: int | None
    seconds: float
    bytes: int
    """That it has written."""


class JobPage(TypedDict):
    """A part of the output of a job."""

    text: str
    next: int
    """The offset of the next part."""
    size: int
    """Characters that it has written until now."""
    running: bool
    exit: int | None


class WriteResult(TypedDict):
    """What became of a text for a job."""

    waiting: bool
    """Whether the job has not read all of it yet; it may do so later."""


class ShellTools(CommandTools):
    """The tools of one shell.

    Args:
        config: Its config.
        name: The name of the toolkit.
        max_timeout_s: Seconds that one call may take; None means as many as its caller gives it.

    Raises `ValueError` where there is no bash.
    """

    def __init__(self, config: ShellConfig, name: str, max_timeout_s: float | None) -> None:
        self._name = name
        self._max_s: float = max_timeout_s or _MAX_TIMEOUT_S
        variables = shell_environment(config.env, config.inherit)
        if (confinement := config.confinement) is not None and not confinement.network:
            # Without a network package managers would try again for a minute.
            for name in ("npm_config_fetch_retries", "PIP_RETRIES", "UV_HTTP_RETRIES"):
                variables.setdefault(name, "0")
        bash = shutil.which("bash", path=variables["PATH"])
        if bash is None:
            raise ValueError(f"there is no bash in PATH ({variables['PATH']}): install it")
        self._bash: tuple[str, ...] = (bash, "--noprofile", "--norc", "-c")
        self._limits = config.limits()
        self._first = ShellState(str(config.workdir), variables)
        self.sandbox: CommandSandbox | None = (
            None
            if confinement is None
            else CommandSandbox(confinement, self._first.directory, variables["PATH"])
        )
        """What confines commands, if they have a sandbox."""
        if confinement is not None:
            self._bash = ("bash", *self._bash[1:])  # the first one that its sandbox shows
        shows = self.sandbox.shows if self.sandbox else None
        self._sessions = ShellSessions(self._first, keep=config.keep, shows=shows)
        self._dangerous = (
            config.additional_dangerous_files,
            config.additional_dangerous_directories,
        )
        self._paths = lru_cache(maxsize=16)(self._paths_of)
        self.jobs: Jobs = Jobs(config.max_jobs)
        self.all: list[CommandTool] = [
            CommandTool(
                self._run if self.sandbox is None else self._run_confined,
                name="run",
                affinity="caller",
                max_concurrency=_MAX_AT_A_TIME,
                open_world=True,
                destructive=True,
                assess=self._assess_run,
            ),
            CommandTool(self._list, name="jobs", affinity="caller", read_only=True),
            CommandTool(self._read, name="read", affinity="caller", read_only=True),
            CommandTool(self._write, name="write", affinity="caller", assess=self._assess_write),
            CommandTool(self._stop, name="stop", affinity="caller", assess=_assess_stop),
        ]
        for tool in self.all:
            tool.group = self
        self.all[0].marks_entry = True  # by `enter`: before, no command was started

    async def end_all(self) -> None:
        """End all jobs."""
        await self.jobs.end_all()

    async def _run(
        self,
        context: ToolContext,
        command: Command,
        timeout_s: Seconds = 120,
        background: bool = False,
    ) -> CommandResult:
        """Run a command line with bash, and return what it wrote.

        It is ended after `timeout_s`, and a second before the deadline of the call; what it wrote
        until then is returned. What it leaves running ends with it, unless `background` is set.
        The result has at most 30,000 characters; of more, the middle is left out: `read` has it.

        Args:
            context: The call.
            command: The command line, for `bash --noprofile --norc -c`. Its input is empty.
            timeout_s: Seconds that it may take; a job may only take so long to start.
            background: Return at once, with a job that goes on: see `read`, `write` and `stop`.
        """
        return (await self._ran(context, command, timeout_s, background))[0]

    async def _run_confined(
        self,
        context: ToolContext,
        command: Command,
        timeout_s: Seconds = 120,
        background: bool = False,
    ) -> ConfinedResult:
        result, process = await self._ran(context, command, timeout_s, background)
        return ConfinedResult(
            **result,
            sandbox=None if process is None else process.confined_by,
            protected=process is not None and process.is_protected,
        )

    _run_confined.__doc__ = _run.__doc__

    async def _ran(
        self, context: ToolContext, command: str, timeout_s: float, background: bool
    ) -> tuple[CommandResult, RunningCommand | None]:
        """Run a command line; also return its process, if one was started."""
        try:
            _check(command)
            asker = asker_of(context)
            begun = self._sessions.begin(asker, command, context.workdirs)
            seconds = seconds_to_answer(context, min(timeout_s, self._max_s))
            if background:
                job = await self._run_as_job(context, command, seconds, begun)
                result = CommandResult(
                    exit=None, stdout="", stderr="", timed_out=False, truncated=False, job=job.id
                )
                return result, job.process
            job = Job(command, _MAX_OUTPUT_BYTES)
            notes: list[str] = []
            with closing(OutputProgress(context, job)), self._sessions.dumping() as dump:
                bash = (*self._bash, command)
                if dump is not None:
                    bash = (*self._bash, dump.script, self._bash[0], command)
                held = () if dump is None or self.sandbox is None else (dump.descriptor,)
                timed_out = await self._run_job(context, job, begun, seconds, bash, held)
                if job.is_killed_for_output:
                    notes.append(f"it was ended: it wrote more than {_MAX_OUTPUT_BYTES:,} bytes")
                if dump is not None:
                    notes += self._sessions.save(asker, dump)
            return self._result(asker, job, timed_out, notes), job.process
        except ToolFailed as error:  # all of these come before a command is started
            error.executed = "no"
            context.refuse(error)
            raise

    async def _run_job(
        self,
        context: ToolContext,
        job: Job,
        begun: ShellState,
        seconds: float,
        bash: tuple[str, ...],
        descriptors: tuple[int, ...],
    ) -> bool:
        """Run a command in the foreground; return whether its time has passed."""
        run: Run = partial(
            run_command,
            bash,
            env=begun.variables,
            cwd=begun.directory,
            on_output=job.receive,
            limits=self._limits,
            descriptors=descriptors,
        )
        within = self.sandbox is not None and self.sandbox.must_keep_within(context)
        if self.sandbox is not None:
            run = partial(self.sandbox.run, context, run, within=within)
        ends_at = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                async with asyncio.timeout_at(ends_at), run() as process:
                    job.process = process
                    context.enter()
                    await job.ended()
                    return False
            except TimeoutError:
                job.close(None)
                return True
            except LaunchFailed as error:
                await wait_or_raise(self.sandbox, context, error, within=within, ends_at=ends_at)

    async def _run_as_job(
        self, context: ToolContext, command: str, seconds: float, begun: ShellState
    ) -> Job:
        job = Job(command)
        if reads_lines(command, begun.variables):
            job.lines = WrittenLines()
        start: Start = partial(
            start_command,
            (*self._bash, command),
            env=begun.variables,
            cwd=begun.directory,
            on_output=job.receive,
            limits=self._limits,
            stdin=True,
        )
        within = self.sandbox is not None and self.sandbox.must_keep_within(context)
        if self.sandbox is not None:
            start = partial(self.sandbox.start, context, start, within=within)
        ends_at = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await self.jobs.start(asker_of(context), job, start)
            except LaunchFailed as error:
                await wait_or_raise(self.sandbox, context, error, within=within, ends_at=ends_at)
            except asyncio.CancelledError:  # it may have begun
                context.enter()
                raise
            else:
                context.enter()
                return job

    def _result(self, asker: Asker, job: Job, timed_out: bool, notes: list[str]) -> CommandResult:
        wanted = job.stdout.wanted()
        truncated = wanted + job.stderr.wanted() > MAX_CHARS
        if truncated:
            self.jobs.keep(asker, job)
        # Each stream has half of the characters, and what the other one does not need.
        stderr = job.stderr.shown(max(MAX_CHARS // 2, MAX_CHARS - wanted), job.id)
        stdout = job.stdout.shown(MAX_CHARS - len(stderr), job.id)
        for note in notes:
            if stderr and not stderr.endswith("\n"):
                stderr += "\n"
            stderr += f"[{note}]\n"
        return CommandResult(
            exit=None if job.is_killed_for_output else job.exit,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            truncated=truncated,
            job=job.id or None,
        )

    def _assess_run(self, context: ToolContext, command: str) -> Assessment:
        begun = self._sessions.state_to_assess(asker_of(context), command)
        roots, sensitive = self._paths(context.workdirs)
        keeps_within = None
        if self.sandbox is not None and self.sandbox.confines:
            self.sandbox.begin_judging(context)
            keeps_within = partial(self.sandbox.keeps_within, context)
        assessment = assess_line(
            command,
            directory=begun.directory,
            environment=begun.variables,
            roots=roots,
            sensitive=sensitive,
            patterns=context.patterns,
            keeps_within=keeps_within,
        )
        changed = sorted(name for name in begun.changed if not is_harmless(name))
        if not changed or assessment.behavior == "deny" or assessment.immune:
            return assessment
        # What a command is and does depends on them, as on PATH: nothing known of it holds.
        names = one_line(", ".join(changed), SHOWN_CHARS)
        return Assessment(
            "ask",
            message=f"an earlier command has changed variables that may change it: {names}",
            matches=assessment.matches,
            parts=((),),
            uncertain=assessment.uncertain,
        )

    def _paths_of(self, workdirs: tuple[str, ...]) -> tuple[Roots, SensitivePaths]:
        """Return the working directories, also those of who judges the call, and what is apart."""
        further = filter(os.path.isdir, workdirs)
        roots = Roots([self._first.directory, *further])
        return roots, ProgramPaths(roots, self._first.variables, *self._dangerous)

    async def _list(self, context: ToolContext) -> list[JobInfo]:
        """List your jobs, also those that have ended, the oldest first."""
        return [_info(job) for job in self.jobs.of(asker_of(context))]

    async def _read(
        self, context: ToolContext, job: JobId, offset: Annotated[int, Field(ge=0)] = 0
    ) -> JobPage:
        """Read what a job wrote, stdout and stderr in the order of arrival.

        Returns at most 30,000 characters. Of a long output the first 262,144 and the last 1,048,576
        characters are kept; where a part is missing, the text says so.

        Args:
            context: The call.
            job: Its id.
            offset: The character to begin with: `next` of the part before.
        """
        found = self.jobs.get(asker_of(context), job)
        text, next_offset = found.output.page(offset)
        return JobPage(
            text=text,
            next=next_offset,
            size=found.output.size,
            running=found.is_running,
            exit=found.exit,
        )

    async def _write(
        self,
        context: ToolContext,
        job: JobId,
        text: Annotated[str, Field(max_length=MAX_LINE_LENGTH)],
    ) -> WriteResult:
        """Write to the input of a running job. An empty text ends the input.

        Args:
            context: The call.
            job: Its id.
            text: What it reads; most programs wait for the end of a line.
        """
        found = self.jobs.get(asker_of(context), job)
        if found.lines is not None:
            found.lines.write(text)
        return WriteResult(waiting=await found.write(text.encode(errors="replace")))

    async def _stop(self, context: ToolContext, job: JobId) -> JobInfo:
        """End a job, with all that it started, and return how it ended.

        Args:
            context: The call.
            job: Its id; of one that has ended, nothing changes.
        """
        found = self.jobs.get(asker_of(context), job)
        await self.jobs.stop(found)
        return _info(found)

    def _assess_write(self, context: ToolContext, job: str, text: str) -> Assessment:
        try:
            found = self.jobs.get(asker_of(context), job)
        except ToolFailed as error:
            return Assessment("ask", message=error.message)
        message = f"gives text to the job {job}: {found.command}"
        if found.lines is None:
            return Assessment("ask", message=message, preview=text)
        lines = found.lines.lines_to_assess(text)
        assessment = self._assess_run(context, lines) if lines.strip() else Assessment("pass")
        # Earlier lines may have changed its directory and what a command is: that a line only
        # reads, or changes files of the working directory alone, is not known.
        return replace(
            assessment,
            behavior="ask",
            read_only=False,
            within_workdir=False,
            message=f"{message}; as a line: {assessment.message or 'it only reads'}",
            preview=text,
            parts=assessment.parts or ((),),
            reaches=f"{self._name}.run",
        )


def _check(command: str) -> None:
    """Raise `ToolFailed` for what bash cannot be given."""
    if not command.strip():
        raise ToolFailed("the command is empty")
    if "\0" in command:
        raise ToolFailed("the command contains a NUL, which no program can be given")
    size = len(command.encode())
    if size > _MAX_COMMAND_BYTES:
        text = f"the command has {size:,} bytes, at most {_MAX_COMMAND_BYTES:,} can be given to"
        raise ToolFailed(f"{text} bash: write it into a file, and run that")


def _info(job: Job) -> JobInfo:
    return JobInfo(
        job=job.id,
        command=one_line(job.command, SHOWN_CHARS),
        running=job.is_running,
        exit=job.exit,
        seconds=round(job.seconds, 3),
        bytes=job.bytes,
    )


def _assess_stop(job: str) -> Assessment:
    return Assessment("allow", message=f"ends your job {job}")
