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
from toolbus.untrusted_text import SHOWN_CHARS, one_line, visible
from toolbus_toolkits.callers import seconds_to_answer
from toolbus_toolkits.launcher import LaunchFailed, RunningCommand, program_environment, run_command
from toolbus_toolkits.launcher.process import PipeName
from toolbus_toolkits.sandbox import (
    SandboxConfig,
    SandboxPolicy,
    read_sandbox,
)
from toolbus_toolkits.skills.files import UnreadableFile, file_parts, inside, why_unreadable
from toolbus_toolkits.skills.skill import Skill

__all__ = ["MAX_CHARS", "ScriptRunner"]

MAX_CHARS = 30_000
"""Of one result, as models read it: some 8,000 tokens."""
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""What writes more writes by mistake."""
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
        output = _Output()
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
        return output.result(status, str(running.confined_by))


class _Stream:
    """The beginning and the end of what a script writes to one pipe."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        room = MAX_CHARS - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[:-MAX_CHARS]
        self.size += len(data)

    def text(self, limit: int) -> tuple[str, bool]:
        """Return it as a model may read it, within a limit of characters; whether that cut it."""
        data = self._head + self._tail
        shown = visible(data.decode(errors="replace"))
        if len(shown) <= limit and len(data) == self.size:
            return shown, False
        half = limit // 2 - 50
        note = f"\n[the middle of {self.size:,} bytes is left out]\n"
        return f"{shown[:half]}{note}{shown[-half:]}", True


class _Output:
    """What a script writes; one that writes too much is killed."""

    def __init__(self) -> None:
        self._streams = {"stdout": _Stream(), "stderr": _Stream()}
        self.process: RunningCommand | None = None
        self._is_killed = False

    def receive(self, name: PipeName, data: bytes) -> None:
        self._streams[name].add(data)
        size = sum(stream.size for stream in self._streams.values())
        if size > _MAX_OUTPUT_BYTES and self.process is not None:
            self._is_killed = True
            self.process.kill()

    def result(self, status: int | None, sandbox: str) -> ScriptResult:
        """Return it with the exit status, which is None if the time has passed."""
        # Each stream has half of the characters, and what the other one does not need.
        wanted = len(self._streams["stdout"].text(MAX_CHARS)[0])
        stderr, is_cut = self._streams["stderr"].text(max(MAX_CHARS // 2, MAX_CHARS - wanted))
        stdout, is_stdout_cut = self._streams["stdout"].text(MAX_CHARS - len(stderr))
        timed_out = status is None
        if self._is_killed:
            status = None
            stderr += f"[it was ended: it wrote more than {_MAX_OUTPUT_BYTES:,} bytes]\n"
        return ScriptResult(
            exit=128 - status if status is not None and status < 0 else status,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            truncated=is_cut or is_stdout_cut,
            sandbox=sandbox,
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
