"""Runs scripts of skills, always in a sandbox."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from shlex import join

from toolbus import Assessment, Rule, ScriptResult, ToolContext, ToolFailed
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.permissions.rule import MAX_MATCH_CHARS
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.callers import seconds_to_answer
from toolbus_toolkits.launcher import LaunchFailed, program_environment, run_command
from toolbus_toolkits.launcher.output import CommandOutput
from toolbus_toolkits.sandbox import (
    SandboxConfig,
    SandboxPolicy,
    read_sandbox,
)
from toolbus_toolkits.skills.files import UnreadableFile, file_parts, inside, why_unreadable
from toolbus_toolkits.skills.skill import Skill

__all__ = ["ScriptRunner"]

_INTERPRETERS = {".py": "python3", ".sh": "bash", ".js": "node"}
"""What runs a file that is not executable: archives and bundles lose that mark."""

_FOLDERS = WorkerThreads("folders of scripts", 4)


_TOOL = "skills.run"


class ScriptRunner:
    """Runs scripts.

    Args:
        sandbox: What they may reach beside the folder of their skill; of a policy, what it
            recommends for `skills.run`.

    Raises `ValueError` for one that confines nothing.
    """

    def __init__(self, sandbox: SandboxConfig | SandboxPolicy | str) -> None:
        config: SandboxConfig | None
        if isinstance(sandbox, SandboxPolicy):
            config, self._max_s = sandbox.recommend_command(_TOOL)
        else:
            config, self._max_s = read_sandbox(sandbox), None
        if config is None or config.backend == "subprocess":
            raise ValueError("scripts of skills are always confined: name another backend")
        self._config = config

    def assess(self, skill: Skill, script: str, args: Sequence[str]) -> Assessment:
        """Return what a run would be. Raises `ToolFailed` for one that is refused."""
        _command(skill, script)
        line = one_line(join([script, *args]), SHOWN_CHARS)
        network = ", with network" if self._config.network else ""
        covered = f"{skill.name}/{script}"
        is_plain = not set(covered) & set("*?[") and len(covered) <= MAX_MATCH_CHARS
        rules = [Rule(behavior="allow", tool=_TOOL, match=covered)] if is_plain else []
        return Assessment(
            "ask",
            message=f"runs a script of the skill {skill.name}, confined{network}: {line}",
            suggestions=tuple(rules),
        )

    async def run(
        self, context: ToolContext, skill: Skill, script: str, args: Sequence[str], timeout_s: float
    ) -> ScriptResult:
        """Run a script. Raises `ToolFailed` if it cannot be started."""
        seconds = seconds_to_answer(context, min(timeout_s, self._max_s or timeout_s))
        output = CommandOutput()
        status: int | None = None
        command = _command(skill, script)
        async with _scratch_folder() as folder:
            # Both are real paths. One that is replaced by a symlink is refused at the start.
            own = {"read": str(skill.base_dir), "write": folder}
            added = {name: (*getattr(self._config, name), path) for name, path in own.items()}
            config = self._config.model_copy(update=added)
            try:
                async with (
                    asyncio.timeout(seconds),
                    run_command(
                        [*command, *args],
                        env=program_environment(),
                        cwd=folder,
                        on_output=output.receive,
                        sandbox=config,
                    ) as running,
                ):
                    output.process = running
                    context.enter()
                    status = await running.wait()
            except TimeoutError:
                if output.process is None:
                    raise ToolFailed("the script could not be started in time") from None
            except LaunchFailed as error:
                raise ToolFailed(str(error)) from None
        timed_out = status is None
        if output.is_killed:
            status = None
        stdout, stderr, truncated = output.texts()
        return ScriptResult(
            exit=128 - status if status is not None and status < 0 else status,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            truncated=truncated,
            sandbox=str(running.confined_by),
        )


def _command(skill: Skill, script: str) -> list[str]:
    """Return the words that run a script. Raises `ToolFailed` if it is not one of the skill."""
    named = f"{one_line(script, SHOWN_CHARS)} of the skill {skill.name}"
    parts = file_parts(skill.name, script)
    if "/".join(parts) != script:  # or a rule about a script would not cover it by another name
        raise ToolFailed(f"{named}: write {'/'.join(parts)!a}")
    path = skill.base_dir.joinpath(*parts)
    try:
        if inside(path, skill.base_dir) != path:
            raise UnreadableFile("is a link, or is reached by one")
        mode = path.stat().st_mode
    except UnreadableFile as error:
        raise ToolFailed(f"{named} {error}") from None
    except OSError as error:
        raise ToolFailed(f"{named} {why_unreadable(error)}") from None
    if not stat.S_ISREG(mode):
        raise ToolFailed(f"{named} is not a regular file")
    if mode & 0o111:
        return [str(path)]
    interpreter = _INTERPRETERS.get(path.suffix)
    if interpreter is None:
        endings = ", ".join(_INTERPRETERS)
        raise ToolFailed(f"{named} is not executable, and its name does not end with {endings}")
    return [interpreter, str(path)]


@asynccontextmanager
async def _scratch_folder() -> AsyncIterator[str]:
    made = await _FOLDERS.run(_new_folder, undo=tempfile.TemporaryDirectory.cleanup)
    try:
        yield made.name
    finally:
        await _FOLDERS.finish(made.cleanup)


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(
            prefix="toolbus-skill-",
            dir=os.path.realpath(tempfile.gettempdir()),
            ignore_cleanup_errors=True,
        )
    except OSError as error:
        raise ToolFailed(f"there is no folder for the script: {error}") from None
