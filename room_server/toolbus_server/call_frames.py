"""Which hand of the router takes a frame of a call under way, from a connection or another node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from toolbus.wire import Cancel, Credit, Failed, Input, Progress, Result, StreamChunk
from toolbus_server.flights import Seat
from toolbus_server.routing import Router

__all__ = ["CALL_FRAMES", "Taker"]

Taker: TypeAlias = Callable[[Router, Seat, Any], None]
"""Takes a frame that comes from a seat."""
CALL_FRAMES: Mapping[type[Any], Taker] = {
    Result: Router.answer,
    Failed: Router.answer,
    Cancel: Router.cancel,
    StreamChunk: lambda router, seat, frame: router.streams.chunk(seat, frame),
    Input: lambda router, seat, frame: router.streams.input(seat, frame),
    Credit: lambda router, seat, frame: router.streams.credit(seat, frame),
    Progress: lambda router, seat, frame: router.streams.progress(seat, frame),
}
"""By the type of the frame."""
