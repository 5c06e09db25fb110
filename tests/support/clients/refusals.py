"""What refusing a frame costs, and the message of the refusal."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgpack
import pytest

from toolbus.wire import BadFrame, decode_from_client

# Limits for all refusals; both grow in proportion to the bytes.
REFUSED_WITHIN_STEPS = 2_000
REFUSED_WITHIN_BYTES = 4 * 1024 * 1024


def refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    """Decode bytes that must be refused as a frame."""
    with pytest.raises(BadFrame):
        decode(data)


def steps_of(work: Callable[..., Any], *arguments: Any) -> int:
    """Count the lines of Python that work runs, here and in what it calls.

    The cyclic garbage collector is off meanwhile: finalizers of objects that other tests left would
    count.
    """
    steps = 0

    def count(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    gc.disable()
    sys.settrace(count)
    try:
        work(*arguments)
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def code_of(data: bytes, decode: Callable[[bytes], Any] = decode_from_client) -> int:
    """Return the close code of a refusal, after a check of its cost."""
    with pytest.raises(BadFrame) as refusal:
        decode(data)
    assert len(refusal.value.reason.encode()) <= 123  # what a close frame can carry
    assert steps_of(refused, decode, data) < REFUSED_WITHIN_STEPS + len(data)
    tracemalloc.start()
    refused(decode, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < REFUSED_WITHIN_BYTES + 2 * len(data)
    return refusal.value.close_code


def in_options(value: bytes) -> bytes:
    """Make a call with raw bytes as the value of an option."""
    whole = msgpack.packb([16, 7, "c", "t", "t", None, b"", {"x": "HERE"}])
    return bytes(whole).replace(msgpack.packb("HERE"), value)
