"""What a process holds: its tasks, the objects of calls, descriptors and memory, to be compared.

A process that runs `report_holdings` prints it as one line of JSON for each line that it reads.
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

from toolbus import ChunkStream, InputStream, RoomClient
from toolbus.chunks.chunk_sender import ChunkSender
from toolbus.chunks.chunk_sequences import ChunkReader, ReceivedFile
from toolbus.chunks.receive_credit import ReceiveBuffer
from toolbus.client.input_sender import InputSender
from toolbus.client.pending_requests import InboundStream, PendingRequest
from toolbus.client.streaming_call import StreamingCall
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.concurrency.timers import Deadlines
from toolbus.errors import Unavailable
from toolbus.hosting.hosted_call import HostedCall
from toolbus.hosting.output_stream import InputReceiver, OutputStream
from toolbus.room.room import connection_of
from toolbus_server.calls.call_state import (
    CallStreams,
    CallWait,
    InFlightCall,
    StreamDirection,
)

__all__ = [
    "CALL_TYPES",
    "entries_of",
    "forget_ended",
    "holdings",
    "report_holdings",
    "settled_holdings",
]

CALL_TYPES: frozenset[type] = frozenset(
    {
        CallStreams,
        CallWait,
        ChunkReader,
        ChunkStream,
        ChunkSender,
        HostedCall,
        InFlightCall,
        InboundStream,
        InputReceiver,
        InputSender,
        InputStream,
        OutputStream,
        PendingRequest,
        ReceiveBuffer,
        ReceivedFile,
        StreamDirection,
        StreamingCall,
        ThreadIterator,
    }
)
"""Types of toolbus that have no instances while no call is in flight."""


def holdings() -> dict[str, Any]:
    """Count what this process holds, after a garbage collection."""
    gc.collect()
    everything = gc.get_objects()
    objects = Counter(map(type, everything))
    tasks = Counter(_name_of(task) for task in asyncio.all_tasks() if not task.done())
    process = psutil.Process()
    return {
        "objects": {kind.__name__: n for kind, n in objects.items() if kind in CALL_TYPES},
        "tasks": dict(tasks),
        "futures": sum(type(each) is asyncio.Future and not each.done() for each in everything),
        "descriptors": process.num_fds(),
        "memory": process.memory_info().rss,
    }


async def settled_holdings() -> dict[str, Any]:
    """Count as `holdings` does, after each task whose wait is over has gone on to its next one.

    Otherwise the number of futures depends on the moment: timers of many connections end together.
    """
    for _ in range(3):
        await asyncio.sleep(0)
    return holdings()


def _name_of(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task))


def entries_of(room: RoomClient) -> int:
    """Count the unanswered requests in one participant's table."""
    connection = connection_of(room)
    try:
        return 0 if connection.has_left else len(connection._pending)
    except Unavailable:  # it was never entered
        return 0


def forget_ended(deadlines: Deadlines[Any]) -> None:
    """Drop ended entries now; normally that is done when there are many."""
    deadlines._remove_ended()


async def report_holdings(more: Callable[[], dict[str, Any]] = dict) -> None:
    """Print what this process holds for each line on stdin, until stdin ends.

    Args:
        more: Further entries.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        facts = {**await settled_holdings(), **more()}
        print(json.dumps(facts), flush=True)  # noqa: T201 - the parent reads it
