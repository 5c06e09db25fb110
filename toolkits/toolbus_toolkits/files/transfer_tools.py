"""The tools that send, receive and watch files: `get`, `put`, `watch`."""

from __future__ import annotations

import asyncio
import mimetypes
from contextlib import aclosing
from functools import partial
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import FileChunk, FunctionTool, RoomException, Tool, ToolContext
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.reached import ReachedFiles
from toolbus_toolkits.files.receiving import Upload
from toolbus_toolkits.files.seen import Seen
from toolbus_toolkits.files.sending import OpenedFile

__all__ = ["PutResult", "TransferTools"]

_BLOCK_BYTES = 1024 * 1024
"""As much is received before it is written: handing work to a thread costs more than a piece."""

Path = Annotated[str, Field(min_length=1, max_length=4096)]
Token = Annotated[str, Field(min_length=1, max_length=64)]


class PutResult(TypedDict):
    """What became of a file."""

    token: str
    """Its version now."""
    size: int
    """Its bytes."""


class TransferTools:
    """The tools that send, receive and watch files of any size.

    Args:
        files: The files.
        assessor: What says before a call what it would do.
    """

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self.reading: list[Tool] = [
            FunctionTool(
                self._get, name="get", affinity="caller", read_only=True, assess=assessor.reading
            )
        ]
        self.writing: list[Tool] = [
            FunctionTool(self._put, name="put", affinity="caller", assess=assessor.writing)
        ]
        for tool in self.writing:
            tool.marks_entry = True  # by `enter`: before, nothing was changed

    async def _get(self, context: ToolContext, path: Path) -> FileChunk:
        """Send a file of any size.

        When all of it was sent, you have seen it as a whole.

        Args:
            context: The call.
            path: The file, from the root, or absolute.
        """
        return await FILE_THREADS.run(self._open, context, path)

    def _open(self, context: ToolContext, path: str) -> FileChunk:
        with self._files.at(path, context) as location:

            def note(version: str) -> None:
                self._files.seen.add(context, location.path, Seen.whole(version))

            source = OpenedFile(location.open_file(), note)
            return FileChunk.from_source(
                source, one_line(location.name), _media_type(location.name)
            )

    async def _put(
        self,
        context: ToolContext,
        path: Path,
        attachment: FileChunk,
        token: Token | None = None,
    ) -> PutResult:
        """Receive a file of any size. One that exists must have been seen as a whole before.

        The file is there when all of it has arrived.

        Args:
            context: The call.
            path: The file, from the root, or absolute. Folders that are missing are made.
            attachment: Its bytes.
            token: The version that is replaced; by default that which you have seen last.
        """
        try:
            begin = partial(Upload, self._files, context, path, token)
            upload = await FILE_THREADS.run(begin, undo=Upload.discard)
            version = await _received(upload, context, attachment)
        except RoomException as error:
            error.executed = "no"
            raise context.refuse(error) from error.__cause__
        context.enter()
        return PutResult(token=version, size=upload.size)


async def _received(upload: Upload, context: ToolContext, file: FileChunk) -> str:
    """Receive all of a file, and return its version. Whatever happens, no draft is left."""
    try:
        waiting: list[bytes] = []
        size = 0
        async with aclosing(file.pieces()) as pieces:
            async for piece in pieces:
                waiting.append(piece)
                size += len(piece)
                if size >= _BLOCK_BYTES:
                    await FILE_THREADS.run(upload.write, waiting)
                    waiting = []
                    size = 0
        await FILE_THREADS.run(upload.write, waiting)
        return await FILE_THREADS.run(upload.commit)
    except BaseException as error:
        upload.give_up()
        if upload.is_committing and isinstance(error, asyncio.CancelledError):
            context.enter()
        await FILE_THREADS.finish(upload.discard)
        raise


def _media_type(name: str) -> str | None:
    """Return the media type of the bytes of a file, by its name; None if that tells nothing."""
    kind, encoding = mimetypes.guess_type(name)
    if encoding is None:
        return kind
    return "application/gzip" if encoding == "gzip" else None
