"""A host whose tools record that they ran, in its own process, to be killed at any moment.

Each tool appends one line when its function is entered and one when it ends, with a single write to
a file opened for appending, so that lines written before a SIGKILL persist.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from toolbus import FunctionTool, RemoteToolkit, RoomException, ToolContext, ToolFailed, tool
from toolbus.tools.options import ToolOptions


class Witness:
    """The file of runs."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @contextlib.contextmanager
    def run(self, key: int) -> Iterator[None]:
        os.write(self._file, f"S {key}\n".encode())
        try:
            yield
        finally:
            os.write(self._file, f"E {key}\n".encode())


def ledger(path: str) -> RemoteToolkit:
    witness = Witness(path)

    async def count(key: int, work_s: float = 0.0) -> int:
        with witness.run(key):
            await asyncio.sleep(work_s)
            return key

    count_approved = FunctionTool(count, ToolOptions(name="count_approved", approval=True))
    count_again = FunctionTool(count, ToolOptions(name="count_again", idempotent=True))

    @tool(max_concurrency=4)
    def count_in_thread(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with witness.run(key):
            until = time.monotonic() + work_s
            while time.monotonic() < until and not context.cancelled:
                time.sleep(0.001)
            return key

    @tool
    async def fail(key: int, words: bool) -> int:
        with witness.run(key):
            raise ToolFailed("as asked", retryable=True) if words else KeyError(key)

    @tool
    async def nest(
        context: ToolContext, key: int, inner_key: int, good: bool, inner: str = "count"
    ) -> int:
        """Propagate the inner call's error: this function ran, the inner one did not."""
        with witness.run(key):
            value = inner_key if good else "no number"
            return int(await context.room.call(f"ledger.{inner}", key=value))

    @tool(max_concurrency=1, timeout_s=0.05)
    async def hurry(key: int, work_s: float) -> int:
        with witness.run(key):
            with contextlib.suppress(RoomException):
                await asyncio.sleep(work_s)
            return key

    tools: list[Any] = [count, count_approved, count_again, count_in_thread, fail, nest, hurry]
    return RemoteToolkit("ledger", tools)


if __name__ == "__main__":
    ledger(sys.argv[1]).run()
