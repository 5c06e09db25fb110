"""Chunks as the bodies that travel one after another: mostly one each, of a large file several.

Says how a file is cut for the way (PROTOCOL.md, STREAM-9). Who may send how much at a time is not
decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

from toolbus.chunks import FileChunk, file_piece_to_wire
from toolbus.file_pieces import cut_in_pieces
from toolbus.wire import pack_body

__all__ = ["OutgoingBody", "file_bodies"]

OutgoingBody: TypeAlias = tuple[bytes, bool]
"""A packed chunk, and whether it is the last."""
_NAMELESS = FileChunk(b"", "", "")


async def file_bodies(file: FileChunk, whole_bytes: int = 0) -> AsyncGenerator[OutgoingBody, None]:
    """Pack a file: as one body where it has at most `whole_bytes`, else as one for each piece.

    Begins once it is known which of the two: with 0 a piece goes once there is another one. An
    empty file is one body. Raises what reading the file raises.
    """
    waiting: deque[bytes] = deque()
    size, begun = 0, False
    head = file
    async with aclosing(file.pieces()) as pieces:
        async for piece in pieces:
            waiting.extend(cut_in_pieces(piece))
            size += len(piece)
            while len(waiting) > 1 and (begun or size > whole_bytes):
                yield pack_body(file_piece_to_wire(head, waiting.popleft(), more=True)), False
                # Name and type are those of the first piece.
                head, begun = _NAMELESS, True
    yield pack_body(file_piece_to_wire(head, b"".join(waiting), more=False)), True
