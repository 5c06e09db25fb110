"""What a refused frame says, and what it costs to refuse it."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from toolbus.wire import BadFrame, decode_from_client

# One limit for all refusals: ten times what a slow machine needs, a thousandth of what would hurt.
REFUSED_WITHIN_S = 0.1
REFUSED_WITHIN_BYTES = 4 * 1024 * 1024


def refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    """Have bytes refused as a frame."""
    with pytest.raises(BadFrame):
        decode(data)


def least_seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """Measure what work costs this process: the least of three, as the machine may be busy."""
    times = []
    for _ in range(3):
        started = time.process_time()
        work(*arguments)
        times.append(time.process_time() - started)
    return min(times)


def code_of(data: bytes, decode: Callable[[bytes], Any] = decode_from_client) -> int:
    """Return the close code of a refusal, after a look at what it cost."""
    with pytest.raises(BadFrame) as refusal:
        decode(data)
    assert len(refusal.value.reason.encode()) <= 123  # what a close frame can carry
    assert least_seconds(refused, decode, data) < REFUSED_WITHIN_S
    tracemalloc.start()
    refused(decode, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < REFUSED_WITHIN_BYTES + 2 * len(data)
    return refusal.value.close_code


def in_options(value: bytes) -> bytes:
    """A call with raw bytes as the value of an option."""
    whole = msgpack.packb([16, 7, "c", "t", "t", None, b"", {"x": "HERE"}])
    return bytes(whole).replace(msgpack.packb("HERE"), value)
