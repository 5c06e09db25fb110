"""The tools that send, receive and watch files: `get`, `put`, `watch`."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from functools import partial
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import FileChunk, FunctionTool, RoomException, Tool, ToolContext
from toolbus.chunks.chunk_types import media_type_of
from toolbus.chunks.file_io import FILE_BLOCK_BYTES, FILE_THREADS, cut_in_pieces
from toolbus.concurrency.tasks import retrieve_error
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.untrusted_text import one_line
from toolbus_toolkits.callers import Asker, Commit, asker_of, seconds_to_answer
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.planning import CHANGE_THREADS, proven
from toolbus_toolkits.files.reached import Path, ReachedFiles, Token, cancelled, failure
from toolbus_toolkits.files.reading import MAX_UNKNOWN_BYTES
from toolbus_toolkits.files.seen import Seen
from toolbus_toolkits.files.text import token_hash
from toolbus_toolkits.files.watching import Watch
from toolbus_toolkits.workspace import Draft, Location
from toolbus_toolkits.workspace.watched_tree import WatchedChange

__all__ = ["PutResult", "TransferTools", "Upload"]


class Upload:
    """One file that is received. Blocking; its methods wait for each other.

    Without a token it replaces the version that the caller has seen last.

    Raises `ToolFailed` if the caller may not replace what is there.
    """

    def __init__(
        self, files: ReachedFiles, context: ToolContext, path: str, token: str | None
    ) -> None:
        self._files = files
        self._context = context
        self._path = path
        self._lock = threading.Lock()
        self._hash = token_hash()
        self._expected: str | None = None
        self._commit = Commit()
        self.size = 0
        """Bytes until now."""
        with files.at(path, context) as location:
            self._real_path = location.path
            self._name = files.name_of(location)
            # Here too, so that nobody sends a large file in vain.
            if location.status is not None:
                self._expected = self._proven(location, token)
            elif token is not None:
                raise failure("changed", f"{self._name} does not exist any more")
            self._draft = Draft(location)
            try:
                self._draft.write(b"")  # raises here what does so at each write
            except BaseException:
                self._draft.discard()
                raise

    def _proven(self, location: Location, token: str | None) -> str:
        """Return the version that is there, if the caller may replace it."""
        descriptor = location.open_file()
        try:
            found = Seen.whole(self._version_of(descriptor))
        finally:
            os.close(descriptor)
        if not proven(self._files, self._context, location, found, token).is_whole:
            text = f"{self._name} has lines that you have not read: read or get all of it"
            raise failure("never_read", text)
        return found.token

    def write(self, pieces: Iterable[bytes]) -> None:
        """Append to the draft; blocking. Raises `ToolFailed`."""
        with self._lock, self._files.failing(self._path):
            for piece in pieces:
                self._draft.write(piece)
                self._hash.update(piece)
                self.size += len(piece)

    def commit(self) -> str:
        """Put it in its place, and return its version. Raises `ToolFailed`: nothing was changed."""
        with self._lock, self._files.failing(self._path):
            self._draft.commit(self._check)
            version = self._hash.hexdigest()
            self._files.seen.replace(self._context, self._real_path, Seen.whole(version))
            return version

    def give_up(self) -> bool:
        """Let the file not be replaced, unless that has begun; return whether it has."""
        return self._commit.give_up()

    def discard(self) -> None:
        """Remove what was received, if it was not committed."""
        with self._lock:
            self._draft.discard()

    def _check(self, descriptor: int | None) -> None:
        found = None if descriptor is None else self._version_of(descriptor)
        if found != self._expected:
            text = f"{self._name} was changed by another one meanwhile: read or get it again"
            raise failure("changed", text)
        self._commit.begin()

    def _version_of(self, descriptor: int) -> str:
        found = token_hash()
        os.lseek(descriptor, 0, os.SEEK_SET)
        while block := os.read(descriptor, FILE_BLOCK_BYTES):
            if self._commit.is_given_up or self._context.cancelled:
                raise cancelled()
            found.update(block)
        return found.hexdigest()


class OpenedFile:
    """The source of a `FileChunk`: an open file, which is read once and closed then.

    It sends as many bytes as the file had when it was opened: one that is appended to meanwhile
    does not grow under its reader. It is closed too where it is never read.

    Args:
        descriptor: Of the file; owned from here on.
        failing: Turns what the block raises into `ToolFailed`.
        on_sent: Receives the version of the file when all of it was read.
    """

    def __init__(
        self,
        descriptor: int,
        failing: Callable[[], AbstractContextManager[None]],
        on_sent: Callable[[str], None],
    ) -> None:
        # Its lock keeps `close` from a descriptor that a thread still reads.
        self._file = os.fdopen(descriptor, "rb")
        self._size = os.fstat(descriptor).st_size
        self._failing = failing
        self._on_sent = on_sent
        self._hash = token_hash()
        self._is_read = False

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give the bytes.

        Raises `ToolFailed` if the file became shorter or cannot be read, and `RuntimeError` if it
        was read before.
        """
        if self._is_read:
            raise RuntimeError("the pieces of this file can be read only once and were read before")
        self._is_read = True
        left = self._size or MAX_UNKNOWN_BYTES
        try:
            while block := await FILE_THREADS.run(self._read, min(left, FILE_BLOCK_BYTES)):
                left -= len(block)
                for piece in cut_in_pieces(block):
                    yield piece
            self._on_sent(self._hash.hexdigest())
        finally:
            await FILE_THREADS.finish(self.close)

    def _read(self, size: int) -> bytes:
        with self._failing():
            block = self._file.read(size)
        if size and not block and os.fstat(self._file.fileno()).st_size < self._size:
            # What was sent is neither the old file nor the new one.
            raise failure("changed", "the file became shorter while it was sent")
        self._hash.update(block)
        return block

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        self.close()


_MAX_WATCHES = 32
"""In this process. Each has a thread, and one of the 128 instances of inotify of this user."""
_MAX_WATCHES_OF_ONE = 8
"""One caller would take all of them from the others."""
_GRACE_S = 0.25
"""How long the end of a watch waits for its thread, which may be listing a large folder."""
_WAITING_S = 10.0
"""Seconds without a change, after which `waiting` is sent. By default a stream ends as stalled
after 30 s: so one of these may be late."""
_WATCH_SLOTS = threading.BoundedSemaphore(_MAX_WATCHES)
# Twice as many: the thread of a watch that has ended may still be listing a folder.
_WATCH_THREADS = WorkerThreads("watches", 2 * _MAX_WATCHES, may_take_long=True)


class PutResult(TypedDict):
    """What became of a file."""

    token: str
    """Its version now."""
    size: int
    """Its bytes."""


class TransferTools:
    """The tools that send, receive and watch files of any size."""

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self.reading: list[Tool] = [
            FunctionTool(
                self._get, name="get", affinity="caller", read_only=True, assess=assessor.reading
            ),
            FunctionTool(
                self._watch,
                name="watch",
                read_only=True,
                assess=assessor.watching,
                affinity="caller",
            ),
        ]
        self._watches: Counter[Asker] = Counter()
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
        self._files.seen.prepare(context)
        return await FILE_THREADS.run(self._open, context, path)

    def _open(self, context: ToolContext, path: str) -> FileChunk:
        with self._files.at(path, context) as location:

            def note(version: str) -> None:
                self._files.seen.add(context, location.path, Seen.whole(version))

            source = OpenedFile(location.open_file(), partial(self._files.failing, path), note)
            media_type = media_type_of(location.name)
            return FileChunk.from_source(source, one_line(location.name), media_type)

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
        self._files.seen.prepare(context)
        try:
            begin = partial(Upload, self._files, context, path, token)
            slot = self._files.whole.for_caller(context)
            async with slot:
                upload = await FILE_THREADS.run(begin, undo=Upload.discard)
            version = await _received(upload, context, attachment, slot)
        except RoomException as error:
            error.executed = "no"
            raise context.refuse(error) from error.__cause__
        context.enter()
        return PutResult(token=version, size=upload.size)

    async def _watch(
        self,
        context: ToolContext,
        path: Path = ".",
        timeout_s: Annotated[float, Field(gt=0)] | None = None,
    ) -> AsyncIterator[WatchedChange]:
        """Stream the changes below a folder, or those of one file, until you leave the stream.

        What is changed after a value with the change `watching` is told: as `added`, `modified`
        and `deleted`; a file that is written several times at once is told once. `missed` says that
        more has changed than could be told: look at all of it again. `waiting` comes every 10 s
        without a change. Folders of version control are left out; symlinks are not followed.

        Args:
            context: The call.
            path: The folder, from the root, or absolute; or a file.
            timeout_s: Seconds until it ends; by default a second before the deadline of the call,
                if that has one.
        """
        with self._watch_slot(asker_of(context)):
            loop = asyncio.get_running_loop()
            has_changed = asyncio.Event()

            def tell() -> None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(has_changed.set)

            watch = Watch(self._files, context, path, tell)
            running = asyncio.ensure_future(_WATCH_THREADS.run(watch.run))
            running.add_done_callback(retrieve_error)
            running.add_done_callback(lambda _: has_changed.set())
            try:
                ends_at = loop.time() + seconds_to_answer(context, timeout_s or math.inf)
                while not running.done():
                    left_s = ends_at - loop.time()
                    try:
                        async with asyncio.timeout(min(left_s, _WAITING_S)):
                            await has_changed.wait()
                    except TimeoutError:
                        if left_s > _WAITING_S:
                            yield watch.waiting()
                            continue
                    has_changed.clear()
                    for change in watch.take():
                        yield change
                    if loop.time() >= ends_at:
                        return
                await running
            finally:
                watch.stop()
                await asyncio.wait([running], timeout=_GRACE_S)

    @contextmanager
    def _watch_slot(self, asker: Asker) -> Iterator[None]:
        if self._watches[asker] >= _MAX_WATCHES_OF_ONE:
            raise failure(
                "too_many", f"{_MAX_WATCHES_OF_ONE} watches of yours run: end one of them"
            )
        if not _WATCH_SLOTS.acquire(blocking=False):
            raise failure("too_many", f"this host runs {_MAX_WATCHES} watches, and no more")
        self._watches[asker] += 1
        try:
            yield
        finally:
            _WATCH_SLOTS.release()
            self._watches[asker] -= 1
            if not self._watches[asker]:
                del self._watches[asker]


async def _received(
    upload: Upload, context: ToolContext, file: FileChunk, slot: asyncio.Semaphore
) -> str:
    """Receive all of a file, and return its version. Whatever happens, no draft is left."""
    try:
        waiting: list[bytes] = []
        size = 0
        async with aclosing(file.pieces()) as pieces:
            async for piece in pieces:
                waiting.append(piece)
                size += len(piece)
                if size >= FILE_BLOCK_BYTES:
                    await FILE_THREADS.run(upload.write, waiting)
                    waiting = []
                    size = 0
        await FILE_THREADS.run(upload.write, waiting)
        async with slot:
            return await CHANGE_THREADS.run(upload.commit)
    except BaseException as error:
        may_be_replaced = upload.give_up()
        if may_be_replaced and isinstance(error, asyncio.CancelledError):
            context.enter()
        await FILE_THREADS.finish(upload.discard)
        raise
