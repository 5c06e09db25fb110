"""A connection as the server counts it, with what was decided about it at the door."""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Hashable
from typing import Any

from websockets.datastructures import Headers

from toolbus.transport import ServerTransport
from toolbus_server.admission import Admitted, Refusal
from toolbus_server.crowd import Crowd, LineCounts, address_of
from toolbus_server.forwarding import TrustedProxies
from toolbus_server.session import Session

__all__ = ["CountedConnection"]

_SLOW_CONSUMER = 4430


class CountedConnection(ServerTransport):
    """A connection with what was decided about it at the door, counted from its first moment."""

    # With these in its dict it would have too many attributes for dicts that share their keys.
    __slots__ = ("_counted", "_crowd", "_lines", "_proxies", "address", "decision")

    def __init__(
        self,
        *args: Any,
        crowd: Crowd,
        lines: LineCounts,
        proxies: TrustedProxies,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._proxies = proxies
        self.decision: Admitted | Refusal | None = None
        self._crowd = crowd
        self._lines = lines
        self._counted: list[Hashable] = []
        self.address = ""

    def count(self, key: Hashable) -> None:
        """Count the connection once more, under another name, for as long as it is there."""
        self._crowd.enter(key)
        self._counted.append(key)

    def connection_made(self, transport: BaseTransport) -> None:
        """Count it; of an address that floods the server it is dropped unheard."""
        super().connection_made(transport)
        if self._proxies.include(self._peer):
            return  # whose connection it is its request will say
        self.address = address_of((self._peer,))
        if self.address:
            self.count(self.address)
        if self._crowd.is_flooded(self.address):
            self._crowd.dropped += 1
            self.transport.abort()

    @property
    def _peer(self) -> str:
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    def find_address(self, headers: Headers) -> None:
        """Count a connection that a trusted proxy passes on, by the address that it names."""
        if not self._counted and self._proxies.include(self._peer):
            forwarded = headers.get_all("X-Forwarded-For")
            self.address = self._proxies.client_of(self._peer, forwarded)
            self.count(self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        counted, self._counted = self._counted, []
        for key in counted:
            self._crowd.leave(key)
        super().connection_lost(exc)

    def closing(self) -> None:
        """Let the participant go as soon as it is given up: its socket may take 2 s more to end."""
        if isinstance(self.receiver, Session):  # one that the session closed is gone already
            self.loop.call_soon(self.receiver.on_close)

    async def drop(self) -> None:
        """End a connection on which no frame stood behind the request, without a word.

        websockets has given it up by then, and would call an answer a bug.
        """
        self.transport.abort()
        await self.wait_closed()

    def close_with(self, code: int, reason: str) -> None:
        """Say why and close; those who are too slow are counted."""
        if code == _SLOW_CONSUMER and self.is_open:
            self._lines.slow_consumers += 1
        super().close_with(code, reason)
