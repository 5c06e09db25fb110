"""What a process holds: the tasks, the objects of calls, descriptors, memory. To be compared.

A process that `answer_looks` serves writes it as one line of JSON for each line that it reads.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from toolbus import RoomClient
from toolbus.deadlines import Deadlines

__all__ = ["OF_CALLS", "answer_looks", "entries_of", "forget_ended", "look"]

OF_CALLS = frozenset(
    {
        "CallFlow",
        "ChunkReader",
        "ChunkStream",
        "Exchange",
        "Flight",
        "HostedCall",
        "HostedInput",
        "HostedStream",
        "Inflow",
        "InputSender",
        "InputStream",
        "Lane",
        "LiveCall",
        "Outflow",
        "Pending",
        "ReceivedFile",
        "ThreadItems",
    }
)
"""Types of ours of which none is there once no call is under way."""


def look() -> dict[str, Any]:
    """Count what this process has; what is garbage goes first."""
    gc.collect()
    everything = gc.get_objects()
    objects = Counter(map(type, everything))
    tasks = Counter(_name_of(task) for task in asyncio.all_tasks() if not task.done())
    process = psutil.Process()
    return {
        "objects": {kind.__name__: n for kind, n in objects.items() if _is_of_calls(kind)},
        "tasks": dict(tasks),
        "futures": sum(type(each) is asyncio.Future and not each.done() for each in everything),
        "descriptors": process.num_fds(),
        "memory": process.memory_info().rss,
    }


def _is_of_calls(kind: type) -> bool:
    return kind.__name__ in OF_CALLS and str(kind.__module__).startswith("toolbus")


def _name_of(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task))


def entries_of(room: RoomClient) -> int:
    """Count what waits for an answer in one participant's table."""
    parts = room._parts
    if parts is None:
        return 0
    return len(parts.table)


def forget_ended(deadlines: Deadlines[Any]) -> None:
    """Drop now what has ended; by itself that is done when it is much."""
    deadlines._forget_ended()


async def answer_looks(more: Callable[[], dict[str, Any]] = dict) -> None:
    """Write what is here for each line on stdin, until that ends.

    Args:
        more: What else to write.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        facts = more()
        print(json.dumps({**look(), **facts}), flush=True)  # noqa: T201 - the parent reads it
