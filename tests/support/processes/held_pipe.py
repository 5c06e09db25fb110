"""A named pipe that tells when the last of some processes has ended, wherever they went."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["held_pipe"]


@asynccontextmanager
async def held_pipe(path: Path) -> AsyncIterator[asyncio.StreamReader]:
    """Make a named pipe; what is read of it ends when no process has it open for writing any more.

    A command that begins with `exec >PATH` has it open, and all that it starts.
    """
    os.mkfifo(path)
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        yield reader
    finally:
        transport.close()
