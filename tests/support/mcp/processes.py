"""MCP servers with an address, as processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

from toolbus_toolkits.launcher import Program, launch


@asynccontextmanager
async def listening(server: ModuleType, kind: str, port: int) -> AsyncIterator[None]:
    """Run a server, `--http` or `--sse`, in a process of its own, which accepts connections."""
    assert server.__file__ is not None
    program = Program(sys.executable, [server.__file__, kind, str(port)])
    async with asyncio.timeout(60), launch(program) as running:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert running.returncode is None, running.ending()
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield
