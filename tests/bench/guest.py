"""A participant without a client library, so that one process can hold thousands.

The server serves it as any other: it joins with a token, gets its welcome, and answers pings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import DATA_OPCODES, Frame, Opcode

from toolbus.wire import (
    SUBPROTOCOL,
    Register,
    Result,
    Welcome,
    decode_from_server,
    encode,
    pack_body,
)

JOIN_TIMEOUT_S = 30.0
REGISTER_TIMEOUT_S = 50.0


class Guest(ClientConnection):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pings = 0
        self._is_welcome = asyncio.Event()
        self._unconfirmed = 0
        self._confirmed = asyncio.Event()
        self._refusal = ""

    @classmethod
    async def join(cls, url: str, room: str, token: str, instance: str = "") -> Self:
        """Connect and wait for the welcome."""
        connecting = connect(
            f"{url}/rooms/{room}?instance={instance}&epoch=1",
            additional_headers={"Authorization": f"Bearer {token}"},
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            create_connection=cls,
            compression=None,
            proxy=None,
            ping_interval=None,
        )
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            guest = await connecting
            assert isinstance(guest, cls)
            await guest._is_welcome.wait()
        return guest

    async def register(self, manifests: Sequence[dict[str, object]]) -> None:
        """Host toolkits; ConnectionError if one is refused."""
        self._unconfirmed = len(manifests)
        for number, manifest in enumerate(manifests, 1):
            self.protocol.send_binary(encode(Register(number, pack_body(manifest), {})))
            self.send_data()
        async with asyncio.timeout(REGISTER_TIMEOUT_S):
            while self._unconfirmed and not self._refusal:
                self._confirmed.clear()
                await self._confirmed.wait()
        if self._refusal:
            raise ConnectionError(f"a toolkit was refused: {self._refusal}")

    def process_event(self, event: Any) -> None:
        """Count pings, which websockets answers, and read the server's replies."""
        if type(event) is not Frame:
            super().process_event(event)
        elif event.opcode is Opcode.PING:
            self.pings += 1
        elif event.opcode in DATA_OPCODES:
            self._read(bytes(event.data))

    def _read(self, data: bytes) -> None:
        frame = decode_from_server(data)
        if isinstance(frame, Welcome):
            self._is_welcome.set()
        elif self._unconfirmed:
            self._unconfirmed -= 1
            if not isinstance(frame, Result):
                self._refusal = repr(frame)
            self._confirmed.set()
