"""A file that is received: its bytes go into a draft, which takes its place when it is complete."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable

from toolbus import ToolContext
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.files.seen import Seen
from toolbus_toolkits.workspace import Draft

__all__ = ["Upload"]

_BLOCK_BYTES = 1024 * 1024


class _GivenUp(Exception):
    """Nobody waits for the upload any more."""


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
        self._hash = hashlib.blake2b(digest_size=12)
        self._expected: str | None = None
        self._is_given_up = False
        self.size = 0
        """Bytes until now."""
        self.is_committing = False
        """Whether the file may have been replaced."""
        with files.at(path, context) as location:
            self._real_path = location.path
            if location.status is not None:
                seen = files.seen.of(context, location.path)
                self._expected = token or (seen.token if seen and seen.is_whole else None)
                if self._expected is None:
                    text = f"{path} exists, and you have not seen all of it: read or get it first"
                    raise failure("never_read", text)
                # Here too, so that nobody sends a large file in vain.
                descriptor = location.open_file()
                try:
                    self._compare(descriptor)
                finally:
                    os.close(descriptor)
            self._draft = Draft(location)
            try:
                self._draft.write(b"")  # raises here what does so at each write
            except BaseException:
                self._draft.discard()
                raise

    def write(self, pieces: Iterable[bytes]) -> None:
        """Append to it. Raises `ToolFailed`."""
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
            self._files.seen.add(self._context, self._real_path, Seen.whole(version))
            return version

    def give_up(self) -> None:
        """Let nothing be changed from now on, if it is not being so; see `is_committing`."""
        self._is_given_up = True

    def discard(self) -> None:
        """Remove what was received, if it was not committed."""
        with self._lock:
            self._draft.discard()

    def _check(self, descriptor: int | None) -> None:
        if (descriptor is None) != (self._expected is None):
            became = "was deleted" if descriptor is None else "was made by others"
            raise failure("changed", f"{self._path} {became} meanwhile")
        if descriptor is not None:
            self._compare(descriptor)
        # In this order: whoever gives up sets one and then reads the other.
        self.is_committing = True
        if self._is_given_up:
            raise _GivenUp

    def _compare(self, descriptor: int) -> None:
        """Raise `ToolFailed` if a file is not the version that was seen."""
        found = hashlib.blake2b(digest_size=12)
        while block := os.read(descriptor, _BLOCK_BYTES):
            if self._is_given_up or self._context.cancelled:
                raise _GivenUp
            found.update(block)
        if found.hexdigest() != self._expected:
            text = f"{self._path} has changed since you have seen it: read or get it again"
            raise failure("changed", text)
