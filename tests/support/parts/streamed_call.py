"""A stream at a router without sockets: its chunks, and the credit that each side knows."""

from __future__ import annotations

from typing import Any

from support.parts.manual_clock import RecordingPort
from support.parts.router_harness import RouterHarness, port_of
from toolbus.wire import Credit, Result, StreamChunk, pack_body

BODY = pack_body([1, "x"])
WINDOW: dict[str, Any] = {"credit_chunks": 256, "credit_bytes": 1024 * 1024}


class StreamedCall:
    """A stream from a host to a caller, with the credit that each of them knows."""

    def __init__(self, harness: RouterHarness, number: int = 1, **options: Any) -> None:
        self.harness = harness
        name = f"host{number}"
        self.host = harness.host(name, f"t{number}")
        self.alice = harness.named("alice")
        self.id = number
        call = WINDOW | options
        harness.call(self.alice, number, f"t{number}.run", ms=None, **call)
        self.dispatch = self.at_host.take_dispatch()
        self.bodies: list[bytes] = []

    @property
    def sent(self) -> int:
        return len(self.bodies)

    @property
    def ahead(self) -> int:
        """How many bytes the host has credit for."""
        given = [frame.bytes for frame in self.at_host.sent if isinstance(frame, Credit)]
        most = max([self.dispatch.header["credit_bytes"], *given])
        return int(most) - sum(map(len, self.bodies))

    @property
    def may_send(self) -> bool:
        """Whether the host has credit."""
        given = [frame.chunks for frame in self.at_host.sent if isinstance(frame, Credit)]
        return self.sent < max([256, *given]) and self.ahead > 0

    @property
    def at_host(self) -> RecordingPort:
        return port_of(self.host)

    @property
    def at_caller(self) -> RecordingPort:
        return port_of(self.alice)

    def chunk(self, body: bytes = BODY) -> None:
        self.bodies.append(body)
        self.harness.router.streams.chunk(self.host, StreamChunk(self.dispatch.id, self.sent, body))

    def credit(self, chunks: int, most_bytes: int) -> None:
        given = Credit(self.id, False, chunks, most_bytes)
        self.harness.router.streams.credit(self.alice, given)

    def end(self) -> None:
        self.harness.router.answer(self.host, Result(self.dispatch.id, pack_body([0])))
