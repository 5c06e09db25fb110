"""The tools of the toolkit `shell`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import Assessment, FunctionTool, ToolContext
from toolbus_toolkits.launcher import program_environment
from toolbus_toolkits.shell.assessing import assess_line
from toolbus_toolkits.workspace import Roots, SensitivePaths

__all__ = ["RunResult", "ShellTools"]


class RunResult(TypedDict):
    """What a command did."""

    exit: int | None
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool
    job: str | None


class ShellTools:
    """The tools of one shell."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = str(workdir)
        self._roots = Roots([workdir])
        self._sensitive = SensitivePaths()
        self.run = FunctionTool(self._run, name="run", assess=self._assess)

    async def _run(
        self,
        context: ToolContext,
        command: str,
        timeout_s: Annotated[float, Field(gt=0, le=600)] = 120,
        background: bool = False,
    ) -> RunResult:
        """Run a command with bash.

        Args:
            context: The call.
            command: The command line.
            timeout_s: Seconds that it may take.
            background: Return at once; the command goes on as a job.
        """
        process = await asyncio.create_subprocess_exec(
            *("bash", "--noprofile", "--norc", "-c", command),
            cwd=self._workdir,
            env=program_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        return RunResult(
            exit=process.returncode,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            timed_out=False,
            truncated=False,
            job=None,
        )

    def _assess(self, context: ToolContext, command: str, **_: Any) -> Assessment:
        return assess_line(
            command,
            directory=self._workdir,
            environment=os.environ,
            roots=self._roots,
            sensitive=self._sensitive,
            patterns=context.patterns,
        )
