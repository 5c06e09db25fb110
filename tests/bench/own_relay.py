"""The relay of `relay` on the transport of the bus, with the batched writes that the bus uses."""

from __future__ import annotations

from typing import Any

import msgpack

from bench.relay import OnFrame, roles_on
from bench.role import run_role
from toolbus.transport.websocket import WRITE_LIMIT_BYTES, ClientTransport, ServerTransport


class _Receiver:
    def __init__(self, on_frame: OnFrame) -> None:
        self._on_frame = on_frame

    def on_message(self, data: bytes) -> None:
        self._on_frame(msgpack.unpackb(data))

    def on_close(self) -> None:
        """Do nothing."""


class _Channel:
    """Gives a connection of the bus the two members of a relay's channel."""

    receiver: Any
    batches: bool

    def _set_on_frame(self, on_frame: OnFrame) -> None:
        self.receiver, self.batches = _Receiver(on_frame), True

    on_frame = property(None, _set_on_frame)

    def post(self: Any, frame: list[Any]) -> None:
        """Write a frame."""
        self.send_message(msgpack.packb(frame))


class ServerChannel(_Channel, ServerTransport):
    """The router's end of a connection."""


class ClientChannel(_Channel, ClientTransport):
    """The host's or caller's end of a connection."""


if __name__ == "__main__":
    run_role(roles_on(ServerChannel, ClientChannel, write_limit=WRITE_LIMIT_BYTES))
