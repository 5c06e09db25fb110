"""Replaces a file as a whole: a reader sees the old one or the complete new one.

The new bytes go into a draft. Where the file system can (`O_TMPFILE`), the draft has no name until
it is complete, so nothing is left of it if this process is killed. Elsewhere it is a file beside
the target, which `is_draft` recognises; one that a killed process left stays, because to find it
every write would have to read its whole folder.

Between processes that write by this module no change is lost: the file that is replaced is locked
(`flock`), and `check` is asked about what is there then. Other programs take no such lock; what one
of them writes between `check` and the rename that follows it is lost.

Nothing is flushed to the disk: what a power failure leaves is up to the file system, as it is for
most editors.

A file that has other names (hard links) is replaced under this name alone. The others keep the old
bytes: they may lie outside of the working directories, where nothing may be changed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from toolbus_toolkits.workspace.locating import (
    MAX_TRIES,
    STEP,
    FolderMoved,
    Location,
    is_still_at,
    opened_file,
)

__all__ = ["Check", "Draft", "is_draft", "replaced"]

Check: TypeAlias = Callable[[int | None], None]
"""Is given a descriptor of the file that is there now, for reading from its start; None if nothing
is there. It raises to keep what is there. It may be called more than once."""

_LOCK_SECONDS = 5.0
"""How long another writer is waited for. It holds the lock only for `check` and a rename."""
_LOCK_PAUSES = (0.001, 0.05)
"""The first and the longest pause between two tries for a lock; each is twice the one before."""
_MAX_MISSING = 100
"""The most folders that one write makes; each is held open meanwhile."""
_TEMPORARY = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0
"""Such a file gets its name by a link from /proc."""
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_NO_TEMPORARY = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_ACCESS_LIST = "system.posix_acl_access"
_is_draft = re.compile(r"\.[0-9a-f]{16}\.part").fullmatch


def is_draft(name: str) -> bool:
    """Whether a file has the name of a draft: `.`, 16 hexadecimal digits, `.part`."""
    return _is_draft(name) is not None


def _new_draft_name() -> str:
    return f".{secrets.token_hex(8)}.part"


def replaced(location: Location, data: bytes, check: Check) -> None:
    """Write a file in one step; arguments and errors are those of `Draft`."""
    with Draft(location) as draft:
        draft.write(data)
        draft.commit(check)


class Draft:
    """The new bytes of a file, until they take the place of the old ones.

    Blocking; used on one thread at a time. It has its own descriptors, so it outlives the block of
    `located`. As a context manager it discards what was not committed.

    Nothing is made before the first `write` or `commit`. Folders that are missing are made by
    `commit`, and removed again if it fails. A file that is replaced keeps its permissions, and
    where the system allows its owner, group and access list. It loses the bits setuid and setgid,
    as the kernel clears them where a file is written in place: the new bytes are not those that
    were trusted with them. A new file has the permissions that the umask leaves.
    """

    def __init__(self, location: Location) -> None:
        self._path = location.path
        self._name = location.name
        self._missing = location.missing
        self._mode = 0o666
        if location.status is not None:
            # A draft that has a name must not be readable for more users than its file.
            self._mode &= location.status.st_mode
        # From the one of the draft to that of the file: more than one if some had to be made.
        self._folders = [os.dup(location.folder)]
        self._made: list[tuple[int, str]] = []
        self._file: int | None = None
        self._draft: str | None = None

    def write(self, data: bytes) -> None:
        """Append to the draft. Raises `OSError`: discard it then."""
        file = self._begun()
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]

    def commit(self, check: Check) -> None:
        """Put the draft in the place of what is there, unless `check` keeps that.

        Raises what `check` raises, `NoFile` if what is there is no regular file, `FolderMoved`,
        `PermissionError` for a file that this user may not write, `BlockingIOError` if others hold
        its lock for too long, and other `OSError`s. The file is as it was then, and the draft is
        discarded.
        """
        try:
            file = self._begun()
            # File systems of a network tell that the disk is full when a descriptor is closed.
            os.close(os.dup(file))
            if self._missing:
                check(None)
            for name in self._missing:
                folder = self._folders[-1]
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
                    self._made.append((folder, name))
                self._folders.append(os.open(name, STEP, dir_fd=folder))
            # Each fails only if others made the file after somebody had removed it.
            for _ in range(MAX_TRIES):
                if self._put(file, check):
                    self._made.clear()
                    return
            raise BlockingIOError(errno.EAGAIN, "it appears and vanishes", self._path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the draft, and folders that were made for it. Nothing happens a second time."""
        if self._draft is not None:
            with suppress(OSError):
                os.unlink(self._draft, dir_fd=self._folders[0])
            self._draft = None
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None
        while self._made:
            folder, name = self._made.pop()
            with suppress(OSError):  # others have put something there
                os.rmdir(name, dir_fd=folder)
        while self._folders:
            os.close(self._folders.pop())

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _begun(self) -> int:
        """Return a descriptor of the draft, which is made the first time."""
        if self._file is not None:
            return self._file
        if not self._folders:
            raise ValueError("the draft was committed or discarded")
        if len(self._missing) > _MAX_MISSING:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self._path)
        folder = self._folders[0]
        if not self._missing:
            with suppress(FileNotFoundError):  # what cannot be replaced is refused before all work
                os.close(self._opened_target())
        try:
            if _TEMPORARY:
                flags = _TEMPORARY | os.O_WRONLY | os.O_CLOEXEC
                self._file = os.open(".", flags, self._mode, dir_fd=folder)
                return self._file
        except OSError as error:
            if error.errno not in _NO_TEMPORARY:
                raise
        name = _new_draft_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(name, flags, self._mode, dir_fd=folder)
        self._draft = name
        return self._file

    def _put(self, file: int, check: Check) -> bool:
        """Try to give the draft the name. Returns False if a file appeared, which is to check."""
        folder = self._folders[-1]
        with self._locked() as current:
            check(current)
            # Much may have happened since it was found: a draft may be long in the making.
            if not is_still_at(os.path.dirname(self._path), folder):
                raise FolderMoved(errno.ESTALE, "its folder was moved", self._path)
            if current is None:
                return self._link(file)
            if self._draft is None:
                name = _new_draft_name()
                os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=self._folders[0])
                self._draft = name
            _keep_attributes(current, file)
            self._rename(self._draft)
            return True

    def _rename(self, draft: str) -> None:
        here = self._folders[0]
        there = self._folders[-1]
        os.rename(draft, self._name, src_dir_fd=here, dst_dir_fd=there)
        self._draft = None

    def _link(self, file: int) -> bool:
        """Try to make the file where none is; return whether there was none."""
        here = self._folders[0]
        there = self._folders[-1]
        try:
            if self._draft is None:
                os.link(f"/proc/self/fd/{file}", self._name, dst_dir_fd=there)
            else:
                os.link(
                    self._draft,
                    self._name,
                    src_dir_fd=here,
                    dst_dir_fd=there,
                    follow_symlinks=False,
                )
            return True
        except FileExistsError:
            return False
        except OSError as error:
            if self._draft is None or error.errno not in _NO_LINKS:
                raise
        # Such as vfat, which has no links. Writers of this module wait for each other at the lock
        # of the folder; for other programs a moment is left between the look and the rename.
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=there)
        try:
            self._lock(folder, time.monotonic() + _LOCK_SECONDS)
            with suppress(FileNotFoundError):
                os.stat(self._name, dir_fd=there, follow_symlinks=False)
                return False
            self._rename(self._draft)
            return True
        finally:
            os.close(folder)

    def _opened_target(self) -> int:
        """Open what is there for reading. Raises `PermissionError` if this user may not write it.

        It is not opened for writing: nobody could run it meanwhile.
        """
        folder = self._folders[-1]
        descriptor = opened_file(self._name, folder)
        if not os.access(self._name, os.W_OK, dir_fd=folder, effective_ids=True):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), self._path)
        return descriptor

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Lock what is there, and give a descriptor of it; None if nothing is."""
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            descriptor = None
            with suppress(FileNotFoundError):
                descriptor = self._opened_target()
            try:
                if descriptor is None or self._has_locked(descriptor, deadline):
                    yield descriptor
                    return
            finally:
                if descriptor is not None:
                    os.close(descriptor)
        raise self._lock_error()

    def _has_locked(self, descriptor: int, deadline: float) -> bool:
        """Lock a file; return whether it is still the one that is there."""
        self._lock(descriptor, deadline)
        try:
            now = os.stat(self._name, dir_fd=self._folders[-1], follow_symlinks=False)
        except FileNotFoundError:
            return False
        # Who held the lock before may have put another file there.
        return os.path.samestat(now, os.fstat(descriptor))

    def _lock(self, descriptor: int, deadline: float) -> None:
        pause, longest = _LOCK_PAUSES
        is_writable = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._lock_error() from None
                time.sleep(min(pause, left))
                pause = min(2 * pause, longest)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    return
                if error.errno != errno.EBADF or is_writable:
                    raise
                # NFS locks only what is open for writing.
                writable = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
                os.dup2(writable, descriptor, inheritable=False)
                os.close(writable)
                is_writable = True

    def _lock_error(self) -> OSError:
        return BlockingIOError(errno.EAGAIN, "others hold its lock", self._path)


def _keep_attributes(old: int, new: int) -> None:
    """Give a draft the owner, the permissions and the access list of the file that it replaces."""
    before = os.fstat(old)
    owner = (before.st_uid, before.st_gid)
    draft = os.fstat(new)
    if (draft.st_uid, draft.st_gid) != owner:
        try:
            os.fchown(new, *owner)
        except OSError:  # only root gives files away
            with suppress(OSError):
                os.fchown(new, -1, before.st_gid)
    mode = before.st_mode & 0o777
    if os.fstat(new).st_gid != before.st_gid:
        # Its permissions are those of another group: this one gets what all have.
        mode &= ~0o070 | (mode & 0o007) << 3
    if hasattr(os, "getxattr") and not _keep_access_list(old, new):
        mode &= ~0o070  # with a list, these bits are no permissions of the group
    if draft.st_mode & 0o7777 != mode or draft.st_gid != before.st_gid:
        os.fchmod(new, mode)


def _keep_access_list(old: int, new: int) -> bool:
    try:
        access = os.getxattr(old, _ACCESS_LIST)
    except OSError:  # it has none; the draft may have inherited one
        with suppress(OSError):
            os.removexattr(new, _ACCESS_LIST)
        return True
    with suppress(OSError):
        os.setxattr(new, _ACCESS_LIST, access)
        return True
    return False
