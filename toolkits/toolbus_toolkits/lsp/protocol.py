"""The wire of the Language Server Protocol: JSON-RPC 2.0 messages, each after a head with its size.

Nothing here does I/O. The format is that of the specification, "Base Protocol".
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ProtocolError", "Reader", "to_bytes"]

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A message is read as a whole, on the event loop: one of this size takes it for a tenth of a
second."""
_MAX_HEAD_BYTES = 4 * 1024
_HEAD_END = b"\r\n\r\n"


class ProtocolError(ValueError):
    """What a server writes is no message; why, as a clause."""


def to_bytes(message: dict[str, Any]) -> bytes:
    """Return a message with its head."""
    body = msgspec.json.encode({"jsonrpc": "2.0", **message})
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Reader:
    """Makes messages of bytes as they come."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._size: int | None = None

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes, and return the messages that are complete by now. Raises `ProtocolError`."""
        self._data += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> dict[str, Any] | None:
        if self._size is None:
            end = self._data.find(_HEAD_END)
            if end < 0:
                if len(self._data) > _MAX_HEAD_BYTES:
                    raise ProtocolError("what it writes is no message of the protocol")
                return None
            self._size = _size_in(bytes(self._data[:end]))
            del self._data[: end + len(_HEAD_END)]
        if len(self._data) < self._size:
            return None
        body = bytes(self._data[: self._size])
        del self._data[: self._size]
        self._size = None
        try:
            message = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"it wrote what is no JSON: {error}") from None
        if not isinstance(message, dict):
            raise ProtocolError("it wrote JSON that is no message")
        return message


def _size_in(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        digits = value.strip()
        if name.strip().lower() == b"content-length" and digits.isdigit() and len(digits) < 12:
            if int(digits) > _MAX_MESSAGE_BYTES:
                raise ProtocolError(f"it wrote a message of {int(digits):,} bytes")
            return int(digits)
    raise ProtocolError("what it writes is no message of the protocol")
