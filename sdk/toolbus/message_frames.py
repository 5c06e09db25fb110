"""Whole binary messages as websocket frames, cut and made in one step; pure, without I/O.

Nearly every frame on the bus is the same: final and binary. Those are cut out of what arrived, or
put together of the pieces in which they arrive, and made for what is sent right here, in a fraction
of the time that a general reader needs for them. Everything else (control frames, fragments, text,
messages beyond the limit, frames whose head arrives in pieces, and whatever breaks a rule) is for
websockets, at once and with exactly its own bytes: its reader stands at the beginning of a frame
whenever one is cut here, and its word on the rules is the only one. Source of the format: RFC 6455,
section 5.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

# The compiled one, where there is one.
from websockets.frames import apply_mask  # type: ignore[attr-defined]

__all__ = ["FrameCutter", "Other", "masking", "unmasked"]

_END_OF_HEAD: Final = b"\r\n\r\n"
_FINAL: Final = 0x80
_FINAL_BINARY: Final = 0x82
_CONTROL: Final = 0x08
_MASKED: Final = 0x80
_IN_TWO_BYTES: Final = 126
_IN_EIGHT_BYTES: Final = 127
_MAX_IN_TWO_BYTES: Final = 2**16 - 1
_MASK_BYTES: Final = 4
_MASKS_AT_ONCE: Final = 256
_MAX_IN_EIGHT_BYTES: Final = 2**63 - 1
_LENGTH_BYTES: Final = {_IN_TWO_BYTES: 2, _IN_EIGHT_BYTES: 8}
_MAX_HEAD_BYTES: Final = 2 + 8  # without a mask

_medium_head = Struct("!BBH").pack
_large_head = Struct("!BBQ").pack
_UNMASKED_HEADS: Final = tuple(bytes((_FINAL_BINARY, size)) for size in range(_IN_TWO_BYTES))
_MASKED_HEADS: Final = tuple(bytes((_FINAL_BINARY, _MASKED | n)) for n in range(_IN_TWO_BYTES))


class Other(NamedTuple):
    """Bytes for websockets: a frame, or a piece of one."""

    data: bytes
    """As they arrived, masked if they were."""


class FrameCutter:
    """Follows what arrives at one end of a connection, from its first byte on, and cuts it.

    All that arrives goes through `skip` or `cut`, in order and in whatever pieces it comes: through
    `skip` until the handshake has ended, through either from then on.

    Args:
        from_client: Whether a client sends it, and so has to mask it.
        max_bytes: Larger messages are for websockets, which refuses those beyond its limit; None
            where there is no limit.
    """

    __slots__ = (
        "_begun",
        "_head",
        "_head_bytes",
        "_held",
        "_in_fragments",
        "_in_handshake",
        "_left",
        "_mask_bit",
        "_max_bytes",
    )

    def __init__(self, *, from_client: bool, max_bytes: int | None) -> None:
        self._mask_bit = _MASKED if from_client else 0
        self._head_bytes = 2 + (_MASK_BYTES if from_client else 0)
        self._max_bytes = _MAX_IN_EIGHT_BYTES if max_bytes is None else max_bytes
        self._in_handshake = True
        self._in_fragments = False
        # Of what has not ended: how many bytes are still to come, or, as long as its first ones do
        # not say that, those.
        self._left = 0
        self._begun = b""
        # Of a message that has not wholly come: its head, and what there is of the rest.
        self._head = b""
        self._held = bytearray()

    @property
    def wanted(self) -> int:
        """How many bytes a message still lacks that is being put together; 0 where none is."""
        return self._left if self._head else 0

    def release(self) -> bytes:
        """Give up a message that is being put together, and return what came of it.

        The rest of it is no longer cut, only followed.
        """
        held = self._head + self._held
        self._head, self._held = b"", bytearray()
        return held

    def skip(self, data: bytes) -> None:
        """Follow what goes to websockets whole: a handshake, frames that nobody reads yet.

        What was being put together has to be released before.
        """
        start = self._end_of_begun(data)
        while start < len(data):
            start = self._end_of_frame(data, start)

    def cut(self, data: bytes) -> list[bytes | Other]:
        """Take what arrived behind the handshake.

        Returns:
            Messages, unmasked, and all else, in order: each frame by itself, so that what follows
            one that ends the connection is not read, however it arrived. A message that has begun
            and not ended is held.
        """
        parts: list[bytes | Other] = []
        start, size = 0, len(data)
        if self._left or self._begun:
            start = self._go_on(data, parts)
        while start < size:
            body = start + self._head_bytes
            if data[start] == _FINAL_BINARY and body <= size and not self._in_fragments:
                # Masked where it may not be, or the other way, gives no length of this kind.
                length = data[start + 1] - self._mask_bit
                if length == _IN_TWO_BYTES and start + 3 < size:
                    length = data[start + 2] << 8 | data[start + 3]
                    body += 2
                elif length == _IN_EIGHT_BYTES and start + 9 < size:
                    length = int.from_bytes(data[start + 2 : start + 10])
                    body += 8
                elif length >= _IN_TWO_BYTES:
                    length = -1
                end = body + length
                if 0 <= length <= self._max_bytes and body <= size:
                    if end > size:
                        self._head, self._left = data[start:body], end - size
                        self._held += data[body:]
                        return parts
                    message = data[body:end]
                    if self._mask_bit:
                        message = apply_mask(message, data[body - _MASK_BYTES : body])
                    parts.append(message)
                    start = end
                    continue
            end = self._end_of_frame(data, start)
            parts.append(Other(data[start:end]))
            start = end
        return parts

    def _go_on(self, data: bytes, parts: list[bytes | Other]) -> int:
        """Take what belongs to a frame that began earlier; return where that ends."""
        if not self._head:
            end = self._end_of_begun(data)
            parts.append(Other(data[:end]))
            return end
        end = min(self._left, len(data))
        self._left -= end
        self._held += data if end == len(data) else data[:end]
        if not self._left:
            head, held = self._head, self._held
            self._head, self._held = b"", bytearray()
            parts.append(apply_mask(held, head[-_MASK_BYTES:]) if self._mask_bit else bytes(held))
        return end

    def _end_of_begun(self, data: bytes) -> int:
        """Return where something ends that began earlier, or how far it goes."""
        if self._left:
            end = min(self._left, len(data))
            self._left -= end
            return end
        begun, self._begun = self._begun, b""
        known = begun + data
        if not self._in_handshake:
            return self._end_of_frame(known, 0) - len(begun)
        head_end = known.find(_END_OF_HEAD)
        if head_end < 0:
            self._begun = known[1 - len(_END_OF_HEAD) :]
            return len(data)
        self._in_handshake = False
        return head_end + len(_END_OF_HEAD) - len(begun)

    def _end_of_frame(self, data: bytes, start: int) -> int:
        """Return where the frame ends that begins there, or how far it goes."""
        head = data[start : start + _MAX_HEAD_BYTES]
        length_bytes = _LENGTH_BYTES.get(head[1] & ~_MASKED, 0) if len(head) > 1 else 0
        if len(head) < 2 + length_bytes:
            self._begun = head
            return len(data)
        length = int.from_bytes(head[2 : 2 + length_bytes]) if length_bytes else head[1] & ~_MASKED
        mask_bytes = _MASK_BYTES if head[1] & _MASKED else 0
        if not head[0] & _CONTROL:
            self._in_fragments = not head[0] & _FINAL
        frame_end = start + 2 + length_bytes + mask_bytes + length
        end = min(frame_end, len(data))
        self._left = frame_end - end
        return end


def unmasked(message: bytes) -> bytes:
    """Make a frame as a server sends it."""
    size = len(message)
    if size < _IN_TWO_BYTES:
        return _UNMASKED_HEADS[size] + message
    if size <= _MAX_IN_TWO_BYTES:
        return _medium_head(_FINAL_BINARY, _IN_TWO_BYTES, size) + message
    return _large_head(_FINAL_BINARY, _IN_EIGHT_BYTES, size) + message


def masking() -> Callable[[bytes], bytes]:
    """Return what makes frames as a client sends them, each with a mask that nobody can foresee.

    It is for one connection. So it needs no lock between threads, and no care of a fork: two
    processes that draw from one source are two that write to one socket, which is lost anyway.
    """
    masks = _strong_masks()

    def masked(message: bytes) -> bytes:
        size, mask = len(message), next(masks)
        if size < _IN_TWO_BYTES:
            return b"".join((_MASKED_HEADS[size], mask, apply_mask(message, mask)))
        if size <= _MAX_IN_TWO_BYTES:
            head = _medium_head(_FINAL_BINARY, _MASKED | _IN_TWO_BYTES, size)
        else:
            head = _large_head(_FINAL_BINARY, _MASKED | _IN_EIGHT_BYTES, size)
        return b"".join((head, mask, apply_mask(message, mask)))

    return masked


def _strong_masks() -> Iterator[bytes]:
    """Give masks from the system's source of randomness, asking it for many at a time."""
    while True:
        drawn = os.urandom(_MASKS_AT_ONCE * _MASK_BYTES)
        for at in range(0, len(drawn), _MASK_BYTES):
            yield drawn[at : at + _MASK_BYTES]
