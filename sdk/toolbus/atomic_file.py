"""Writing a file in one step: a reader sees the old file or the complete new one."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["AtomicFile", "write_atomically"]


class AtomicFile:
    """A draft beside `path` that replaces it in one step. Blocking; used on one thread at a time.

    As a context manager it commits at the end of the block, and discards the draft where the block
    raises. A path that is not a regular file, such as a pipe, is written directly, without a draft.
    A symbolic link stays: the file that it points to is replaced.

    Args:
        path: The file to write.
        mode: Permissions of the new file. By default it keeps those of the old file, which must be
            writable; without an old file the umask decides.
        sync: Flush the data to the disk before the file is replaced.
        replace: Whether an old file may be replaced; if not, `commit` raises FileExistsError.

    Raises:
        OSError: The file cannot be written; the error names `path`.
    """

    __slots__ = ("_replace", "_sync", "draft", "file", "target")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: int | None = None,
        sync: bool = False,
        replace: bool = True,
    ) -> None:
        self.target: Path = Path(os.path.realpath(path))
        """The file that is replaced, with symbolic links resolved."""
        self._sync = sync
        self._replace = replace
        self.draft: Path | None = None
        """The file that is written; None where the target is written directly."""
        self.file: BinaryIO
        """The open draft."""
        try:
            if self.target.exists() and not self.target.is_file():
                self.file = open(self.target, "wb")
            else:
                self.draft = self.target.with_name(f".{secrets.token_hex(8)}.part")
                self.file = _create(self.draft, self.target, mode)
        except OSError as error:
            error.filename = os.fspath(path)
            raise

    def write(self, data: bytes) -> None:
        """Append data to the draft."""
        self.file.write(data)

    def commit(self) -> None:
        """Put the draft in the place of the target. Where that fails, the draft is discarded."""
        try:
            if self._sync and self.draft is not None:
                self.file.flush()
                os.fsync(self.file.fileno())
            self.file.close()
            if self.draft is not None and self._replace:
                os.replace(self.draft, self.target)
            elif self.draft is not None:
                os.link(self.draft, self.target)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the draft; the old file stays as it was."""
        with suppress(OSError):  # what is still buffered is not needed
            self.file.close()
        if self.draft is not None:
            self.draft.unlink(missing_ok=True)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()


def write_atomically(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    mode: int | None = None,
    sync: bool = False,
    replace: bool = True,
) -> None:
    """Write `data` to a file in one step; arguments and errors are those of `AtomicFile`."""
    try:
        with AtomicFile(path, mode=mode, sync=sync, replace=replace) as file:
            file.write(data)
    except OSError as error:
        if error.filename is None:  # such as no space left on the device
            error.filename = os.fspath(path)
        raise


def _create(draft: Path, target: Path, mode: int | None) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    if mode is not None:
        return open(os.open(draft, flags, mode), "wb")
    if not target.exists():
        return open(draft, "xb")
    if not os.access(target, os.W_OK):
        open(target, "ab").close()  # raises the error that explains why
    file = open(draft, "xb")
    try:
        os.chmod(draft, target.stat().st_mode & 0o777)
    except BaseException:
        file.close()
        draft.unlink(missing_ok=True)
        raise
    return file
