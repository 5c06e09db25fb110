"""The wire of the Language Server Protocol: JSON-RPC 2.0 messages, each after a head with its size.

Nothing here does I/O. The format is that of the specification, "Base Protocol".
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Message", "ProtocolError", "Reader", "decoded", "to_bytes"]

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A message is read as a whole before it is known what it is."""
_MAX_DECODED_BYTES = 2 * 1024 * 1024
"""Of a part of a message, which is decoded on the event loop: so many empty lists take it for half
a second."""
_MAX_HEAD_BYTES = 4 * 1024
"""A program that writes no messages would be read until the memory is full."""
_HEAD_END = b"\r\n\r\n"


class ProtocolError(ValueError):
    """What a server writes is no message; why, as a clause."""


def to_bytes(message: dict[str, Any]) -> bytes:
    """Return a message with its head."""
    body = msgspec.json.encode({"jsonrpc": "2.0", **message})
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Message(msgspec.Struct):
    """A message, with its parts as they came: most are of no interest, and are not decoded."""

    id: Any = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_MESSAGES = msgspec.json.Decoder(Message)


def decoded(part: msgspec.Raw) -> Any:
    """Return a part of a message as a JSON value; None where it is missing.

    Raises `ProtocolError`, also for one that is too large.
    """
    if len(part) > _MAX_DECODED_BYTES:
        raise ProtocolError(f"a part of its message has {len(part):,} bytes")
    try:
        return msgspec.json.decode(part) if part else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"it wrote what is no JSON: {error}") from None


class Reader:
    """Makes messages of bytes as they come."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._size: int | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, and return the messages that are complete by now. Raises `ProtocolError`."""
        self._data += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
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
            return _MESSAGES.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"it wrote JSON that is no message: {error}") from None


def _size_in(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        digits = value.strip()
        if name.strip().lower() == b"content-length" and digits.isdigit() and len(digits) < 12:
            if int(digits) > _MAX_MESSAGE_BYTES:
                raise ProtocolError(f"it wrote a message of {int(digits):,} bytes")
            return int(digits)
    raise ProtocolError("what it writes is no message of the protocol")
