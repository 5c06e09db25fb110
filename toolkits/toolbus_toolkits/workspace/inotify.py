"""Events of folders from the kernel: inotify(7) of Linux.

`watchfiles` and its like are not used: they watch what symlinks lead to, tell nothing where events
were lost, and miss what is made in a new folder before they watch it. `inotify_simple` would
replace this module alone, and be one more package to install.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Event", "Inotify"]

# <linux/inotify.h>
MODIFY = 0x2
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000
EXCL_UNLINK = 0x4000000
MASK_CREATE = 0x10000000
"""`add` raises `FileExistsError` for a folder that is watched already."""
ISDIR = 0x40000000

_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
"""More than a thousand events; the kernel holds those that come faster."""
_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    """An event in a watched folder."""

    watch: int
    """What `add` has returned for it; -1 for `Q_OVERFLOW`."""
    mask: int
    cookie: int
    """Equal for the two events of one rename."""
    name: str
    """Of the entry, as `os.fsdecode` gives it; empty if the event is about the folder itself."""


class Inotify:
    """Events of folders. Not safe for several threads.

    Raises `OSError` with `EMFILE` if this user has too many of them, or this process too many
    descriptors.
    """

    def __init__(self) -> None:
        self.descriptor: int = _called(_libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)
        """For `poll`: events can be read."""

    def add(self, folder: int, mask: int) -> int:
        """Watch an open folder, and return the number of the watch.

        Raises `OSError` with `ENOSPC` if this user watches too many folders, and
        `PermissionError` for a folder that may not be read.

        Args:
            folder: A descriptor: a path could lead elsewhere by now.
            mask: The events.
        """
        path = f"/proc/self/fd/{folder}".encode()
        return _called(_libc.inotify_add_watch, self.descriptor, path, mask)

    def remove(self, watch: int) -> None:
        """End a watch. Raises `OSError` if there is none."""
        _called(_libc.inotify_rm_watch, self.descriptor, watch)

    def read(self) -> list[Event]:
        """Return events that wait, without waiting for more."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        events = []
        at = 0
        while at < len(data):
            watch, mask, cookie, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size + size
            name = os.fsdecode(data[at - size : at].rstrip(b"\0"))
            events.append(Event(watch, mask, cookie, name))
        return events

    def close(self) -> None:
        """End all watches, and close the descriptor."""
        os.close(self.descriptor)


def _called(function: Callable[..., int], *arguments: object) -> int:
    found = function(*arguments)
    if found == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
