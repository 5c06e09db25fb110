"""The tools of a test's host process: they write to a file when they begin and when they end.

Run as `python hosted_tools.py WITNESS [hold]`; it prints "ready" once its toolkit is registered.
With `hold`, `wait` and `wait_again` return only when they are cancelled, and write that too.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toolbus import RemoteToolkit, RoomClient, Toolkit, tool
from toolbus.service.remote_toolkit import serve_toolkits


def toolkit_of(witness: Path, hold: bool) -> RemoteToolkit:
    """Make the toolkit `work`."""
    file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def run(name: str) -> str:
        os.write(file, f"began {name}\n".encode())
        if hold:
            try:
                await asyncio.Event().wait()
            finally:
                os.write(file, f"left {name}\n".encode())
        os.write(file, f"ended {name}\n".encode())
        return "hold" if hold else "free"

    @tool
    async def wait() -> str:
        return await run("wait")

    @tool(idempotent=True)
    async def wait_again() -> str:
        return await run("wait_again")

    @tool
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @tool
    async def blob(kib: int) -> str:
        return "x" * (kib * 1024)  # a file would come in pieces, for as much as there is room

    return RemoteToolkit("work", [wait, wait_again, nap, blob])


class _Announced(RoomClient):
    """Prints "ready" once it hosts something."""

    @asynccontextmanager
    async def host(self, toolkit: Toolkit, **options: Any) -> AsyncIterator[Toolkit]:
        async with super().host(toolkit, **options):
            print("ready", flush=True)  # noqa: T201 - the parent reads it
            yield toolkit


def main() -> None:
    """Host until SIGTERM."""
    toolkit: Toolkit = toolkit_of(Path(sys.argv[1]), "hold" in sys.argv[2:])
    asyncio.run(serve_toolkits([toolkit], _Announced()))


if __name__ == "__main__":
    main()
