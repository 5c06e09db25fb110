"""A file that is received: its bytes go into a draft, which takes its place when it is complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from toolbus import ToolContext
from toolbus.chunks.file_io import FILE_BLOCK_BYTES
from toolbus_toolkits.files.planning import Commit, proven
from toolbus_toolkits.files.reached import ReachedFiles, cancelled, failure
from toolbus_toolkits.files.seen import Seen
from toolbus_toolkits.files.text import token_hash
from toolbus_toolkits.workspace import Draft, Location

__all__ = ["Upload"]


class Upload:
    """One file that is received. Blocking; its methods wait for each other.

    Args:
        files: The files.
        context: The call.
        path: Where the file is to be.
        token: The version that it replaces; by default that which the caller has seen last.

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
