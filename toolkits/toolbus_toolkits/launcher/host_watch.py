"""A small process beside a started program, which ends the program when this process is killed.

It reads a pipe that only this process can write to, so that it sees the end of this process however
that came. It is a shell, which is on every system and costs a millisecond and a megabyte. It ends
the process group of the program; what has left that group goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from toolbus.bounded_logging import bounded_logger

__all__ = ["host_watch"]

_SHELL = "/bin/sh"
# The end of this process has closed the program's stdin. What follows is as in `stop`; without a
# process in the group `kill` fails, and nothing is left to do.
_SCRIPT = """
read -r group || exit
read -r rest
sleep 1
kill -TERM "-$group" || exit
sleep 1
kill -KILL "-$group"
"""

_logger = bounded_logger(__name__)


@asynccontextmanager
async def host_watch() -> AsyncIterator[Callable[[int], None]]:
    """Watch this process until the end of the block.

    Yields what is called with the process group of the program, once it is started. The group has
    ended before the block does.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            _SHELL,
            "-c",
            _SCRIPT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath},
            cwd="/",
            start_new_session=True,  # a signal to the group of this process does not end it
        )
    except OSError as error:
        _logger.warning("a program is not ended if this process is killed: %s", error)
        yield lambda _: None
        return
    stdin = process.stdin
    assert stdin is not None
    try:
        yield lambda group: stdin.write(f"{group}\n".encode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # before the pipe is closed
        await process.wait()
