"""Nodes as people run them: each a `toolbus serve` in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from support.server_process import ServerProcess, server_process

__all__ = ["IMPATIENT", "SHORT_LEASES", "node_processes"]

_AS_TOOLBUS = ("-m", "toolbus")
SHORT_LEASES = (
    "-c",
    """
from toolbus_server.nodes import node
node.LEASE_S, node.BEAT_S = 3.0, 0.5
from toolbus_command import main
main()
""",
)
"""As `toolbus`, with leases that end sooner: nobody has to wait for the whole of one."""
IMPATIENT = (
    "-c",
    """
from dataclasses import replace
from toolbus_server import server as module
plain = module.RoomServer
module.RoomServer = lambda settings: plain(
    replace(settings, ping_interval_s=0.4, ping_timeout_s=1.2)
)
from toolbus_command import main
main()
""",
)
"""As `toolbus`, with less patience for participants that are silent."""


@asynccontextmanager
async def node_processes(
    folder: Path, *urls: str, program: tuple[str, str] = _AS_TOOLBUS
) -> AsyncIterator[list[ServerProcess]]:
    """Run a server for each URL of their Redis."""
    async with AsyncExitStack() as stack:
        running = (server_process(folder, "--redis", url, program=program) for url in urls)
        yield [await stack.enter_async_context(each) for each in running]
