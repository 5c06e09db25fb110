"""Parses and builds websocket frames that hold one whole binary message; pure, without I/O.

Nearly every frame on the bus is of one kind: final and binary. This module parses these from the
received bytes, or assembles them from the pieces in which they arrive, and builds them for sending,
in a fraction of the time that a general parser needs. Everything else goes to websockets unchanged
and at once: control frames, fragments, text, messages beyond the limit, frames whose head arrives
in pieces, and frames that break a rule. Its parser is at the start of a frame whenever a frame is
parsed here, and it alone enforces the rules of the protocol. Format: RFC 6455, section 5.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

# The compiled function, if there is one.
from websockets.frames import apply_mask  # type: ignore[attr-defined]

__all__ = ["FrameCutter", "Passthrough", "masking", "unmasked"]

_END_OF_HEAD: Final = b"\r\n\r\n"
_FINAL: Final = 0x80
_FINAL_BINARY: Final = 0x82
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_MASKS_AT_ONCE: Final = 256
# The head of a frame: RFC 6455, section 5.2.
_IN_TWO_BYTES: Final = 126
_IN_EIGHT_BYTES: Final = 127
_MAX_IN_TWO_BYTES: Final = 2**16 - 1
_MASK_BYTES: Final = 4
_MAX_IN_EIGHT_BYTES: Final = 2**63 - 1
_LENGTH_BYTES: Final = {_IN_TWO_BYTES: 2, _IN_EIGHT_BYTES: 8}
_MAX_HEAD_BYTES: Final = 2 + 8  # without a mask

_medium_head = Struct("!BBH").pack
_large_head = Struct("!BBQ").pack
_split_masks = Struct(f"{_MASK_BYTES}s").iter_unpack
_UNMASKED_HEADS: Final = tuple(bytes((_FINAL_BINARY, size)) for size in range(_IN_TWO_BYTES))
_MASKED_HEADS: Final = tuple(bytes((_FINAL_BINARY, _MASKED | n)) for n in range(_IN_TWO_BYTES))


class Passthrough(NamedTuple):
    """Bytes for websockets: a frame or a part of one."""

    data: bytes
    """As received, masked if they were."""


class FrameCutter:
    """Splits the bytes received at one end of a connection into frames, from the first byte on.

    All received bytes go through `skip` or `cut`, in order and in pieces of any size: through
    `skip` until the end of the handshake, through either method after that.

    Args:
        from_client: Whether a client sends the bytes, which must then be masked.
        max_bytes: Larger messages go to websockets, which refuses those beyond its own limit; None
            for no limit.
    """

    __slots__ = (
        "_head",
        "_head_bytes",
        "_held",
        "_in_fragments",
        "_in_handshake",
        "_mask_bit",
        "_max_bytes",
        "_partial_head",
        "_remaining",
    )

    def __init__(self, *, from_client: bool, max_bytes: int | None) -> None:
        self._mask_bit = _MASKED if from_client else 0
        self._head_bytes = 2 + (_MASK_BYTES if from_client else 0)
        self._max_bytes = _MAX_IN_EIGHT_BYTES if max_bytes is None else max_bytes
        self._in_handshake = True
        self._in_fragments = False
        # Of an unfinished frame: the number of bytes still to come, or its first bytes if these do
        # not yet include the length.
        self._remaining = 0
        self._partial_head = b""
        # Of an unfinished message: its head and the bytes received after that.
        self._head = b""
        self._held = bytearray()

    @property
    def wanted(self) -> int:
        """How many bytes of an unfinished message are still missing; 0 if there is none."""
        return self._remaining if self._head else 0

    def release(self) -> bytes:
        """Stop assembling a message and return what was received of it.

        The rest of it is passed through.
        """
        held = self._head + self._held
        self._head, self._held = b"", bytearray()
        return held

    def skip(self, data: bytes) -> None:
        """Track bytes that go to websockets unsplit: a handshake, frames that have no reader yet.

        Call `release` first if a message is being assembled.
        """
        start = self._end_of_partial(data)
        while start < len(data):
            start = self._end_of_frame(data, start)

    def cut(self, data: bytes) -> list[bytes | Passthrough]:
        """Split bytes received after the handshake.

        Returns:
            Unmasked messages, and all other bytes, in order. Each frame is an item of its own, so
            that nothing is read after a frame that ends the connection. An unfinished message is
            kept.
        """
        parts: list[bytes | Passthrough] = []
        start, size = 0, len(data)
        if self._remaining or self._partial_head:
            start = self._continue_frame(data, parts)
        while start < size:
            body = start + self._head_bytes
            if data[start] == _FINAL_BINARY and body <= size and not self._in_fragments:
                # A frame that is masked or unmasked against the rule gets an invalid length here.
                length = data[start + 1] - self._mask_bit
                if length >= _IN_TWO_BYTES:
                    if length == _IN_TWO_BYTES and body + 2 <= size:
                        length = data[start + 2] << 8 | data[start + 3]
                        body += 2
                    elif length == _IN_EIGHT_BYTES and body + 8 <= size:
                        length = int.from_bytes(data[start + 2 : start + 10])
                        body += 8
                    else:
                        length = -1
                end = body + length
                if 0 <= length <= self._max_bytes:
                    if end > size:
                        self._head, self._remaining = data[start:body], end - size
                        self._held += data[body:]
                        return parts
                    message = data[body:end]
                    if self._mask_bit:
                        message = apply_mask(message, data[body - _MASK_BYTES : body])
                    parts.append(message)
                    start = end
                    continue
            end = self._end_of_frame(data, start)
            parts.append(Passthrough(data[start:end]))
            start = end
        return parts

    def _continue_frame(self, data: bytes, parts: list[bytes | Passthrough]) -> int:
        """Take the bytes of a frame that began earlier; return where it ends."""
        if not self._head:
            end = self._end_of_partial(data)
            parts.append(Passthrough(data[:end]))
            return end
        end = min(self._remaining, len(data))
        self._remaining -= end
        self._held += data[:end]
        if not self._remaining:
            head, held = self._head, self._held
            self._head, self._held = b"", bytearray()
            parts.append(apply_mask(held, head[-_MASK_BYTES:]) if self._mask_bit else bytes(held))
        return end

    def _end_of_partial(self, data: bytes) -> int:
        """Return where a frame ends that began earlier, or the end of the data."""
        if self._remaining:
            end = min(self._remaining, len(data))
            self._remaining -= end
            return end
        begun, self._partial_head = self._partial_head, b""
        known = begun + data
        if not self._in_handshake:
            return self._end_of_frame(known, 0) - len(begun)
        head_end = known.find(_END_OF_HEAD)
        if head_end < 0:
            self._partial_head = known[1 - len(_END_OF_HEAD) :]
            return len(data)
        self._in_handshake = False
        return head_end + len(_END_OF_HEAD) - len(begun)

    def _end_of_frame(self, data: bytes, start: int) -> int:
        """Return where the frame ends that begins at `start`, or the end of the data."""
        head = data[start : start + _MAX_HEAD_BYTES]
        length = length_bytes = 0
        if len(head) > 1:
            length = head[1] & ~_MASKED
            length_bytes = _LENGTH_BYTES.get(length, 0)
        if len(head) < 2 + length_bytes:
            self._partial_head = head
            return len(data)
        if length_bytes:
            length = int.from_bytes(head[2 : 2 + length_bytes])
        if not head[0] & _CONTROL:
            self._in_fragments = not head[0] & _FINAL
        frame_end = start + 2 + length_bytes + length
        if head[1] & _MASKED:
            frame_end += _MASK_BYTES
        end = min(frame_end, len(data))
        self._remaining = frame_end - end
        return end


def unmasked(message: bytes) -> bytes:
    """Build a frame as a server sends it."""
    size = len(message)
    if size < _IN_TWO_BYTES:
        return _UNMASKED_HEADS[size] + message
    if size <= _MAX_IN_TWO_BYTES:
        return _medium_head(_FINAL_BINARY, _IN_TWO_BYTES, size) + message
    return _large_head(_FINAL_BINARY, _IN_EIGHT_BYTES, size) + message


def masking() -> Callable[[bytes], bytes]:
    """Return a function that builds frames as a client sends them, with unpredictable masks.

    It is for one connection. So it needs no lock between threads and no care about forks: two
    processes with one source of masks would also share one socket, which does not work anyway.
    """
    # Read from the system's random source in large blocks.
    blocks = iter(partial(os.urandom, _MASKS_AT_ONCE * _MASK_BYTES), b"")
    masks = chain.from_iterable(map(_split_masks, blocks))

    def masked(message: bytes) -> bytes:
        size, (mask,) = len(message), next(masks)
        if size < _IN_TWO_BYTES:
            return b"".join((_MASKED_HEADS[size], mask, apply_mask(message, mask)))
        if size <= _MAX_IN_TWO_BYTES:
            head = _medium_head(_FINAL_BINARY, _MASKED | _IN_TWO_BYTES, size)
        else:
            head = _large_head(_FINAL_BINARY, _MASKED | _IN_EIGHT_BYTES, size)
        return b"".join((head, mask, apply_mask(message, mask)))

    return masked
