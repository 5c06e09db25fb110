"""The heartbeat of a worker: its event loop writes to a pipe, so that one that hangs is noticed.

The kernel goes on to give a hanging process its share of the new connections of the port.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

__all__ = ["HEARTBEAT", "HEARTBEAT_S", "SILENCE_S", "is_silent", "send_heartbeats"]

HEARTBEAT = b"\n"
"""An empty line; a worker writes other lines too."""
HEARTBEAT_S = 1.0
"""Seconds between two heartbeats."""
SILENCE_S = 15.0
"""Seconds without a heartbeat after which a worker hangs; its lease has expired by then."""
_CHECKS = 5


def send_heartbeats(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """Write heartbeats to a pipe until its reader closes it; from the loop alone."""
    os.set_blocking(descriptor, False)  # a supervisor that does not read must not stop the worker

    def beat() -> None:
        with suppress(BlockingIOError):
            try:
                os.write(descriptor, HEARTBEAT)
            except BrokenPipeError:
                return
        loop.call_later(HEARTBEAT_S, beat)

    beat()


async def is_silent(lines: asyncio.StreamReader) -> bool:
    """Wait for the end of a worker's output, or for its silence; return whether it is silent.

    Checks are counted, not time: a machine that was suspended has not waited.
    """
    has_beaten, checks = False, 0
    while checks < _CHECKS:
        try:
            async with asyncio.timeout(SILENCE_S / _CHECKS):
                if not await lines.readline():
                    return False
        except TimeoutError:
            checks += has_beaten
        else:
            has_beaten, checks = True, 0
    return True
