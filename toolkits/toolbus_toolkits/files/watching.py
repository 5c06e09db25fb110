"""A watch: the thread that reports what changes below a folder, or in one file."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from toolbus import ToolContext
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.workspace.watched_tree import (
    EventsLost,
    Notice,
    WaitingChanges,
    WatchedChange,
    WatchedTree,
)

__all__ = ["Watch"]

_QUIET_S = 0.05
"""After so long without an event the changes are reported. Most programs write a file by several
calls within less; each of them would be a change of its own."""
_LATEST_S = 0.5
"""So long after its first event a change is reported, whatever follows."""


class Watch:
    """A folder or a file that is watched.

    `on_change` is called on the thread of `run` when there is something to `take`.
    """

    def __init__(
        self,
        files: ReachedFiles,
        context: ToolContext,
        path: str,
        on_change: Callable[[], None],
    ) -> None:
        self._files = files
        self._context = context
        self._path = path
        self._on_change = on_change
        self._lock = threading.Lock()
        self._is_stopped = False
        self._wake: int | None = None
        self._changes = WaitingChanges(path, path)
        self._only: str | None = None
        self._status: os.stat_result | None = None

    def stop(self) -> None:
        """Let `run` end. From any thread."""
        with self._lock:
            self._is_stopped = True
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def waiting(self) -> WatchedChange:
        """Return what tells that there was no change for a while. From any thread."""
        return self._changes.waiting()

    def take(self) -> Iterator[WatchedChange]:
        """Return what is to be reported now. From any thread."""
        return self._changes.take()

    def run(self) -> None:
        """Watch until `stop` is called; on a thread of its own.

        Raises `ToolFailed`: what is watched does not exist, or not any more, or it is too much.
        """
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._lock:
            self._wake = wake
        try:
            with self._files.failing(self._path):
                self._find()
                notice: Notice | None = "watching"
                while not self._is_stopped:
                    with closing(WatchedTree(self._open_top, self._only, self._changes)) as tree:
                        notice = self._follow(tree, wake, notice)
        finally:
            with self._lock:
                self._wake = None
                os.close(wake)

    def _find(self) -> None:
        with self._files.at(self._path, self._context) as location:
            if location.status is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            watched = folder = self._files.path_of(location)
            self._status = location.status
            if not location.is_folder:
                os.close(location.open_file())  # raises for a FIFO and its like
                self._only = location.name
                self._status = os.fstat(location.folder)
                folder = os.path.dirname(watched)
            self._changes = WaitingChanges(watched, folder)

    def _open_top(self) -> int:
        """Open the folder that is watched, or that of the file; it is always the same one."""
        with self._files.at(self._path) as location:
            if self._only is None:
                top = location.open_folder()
            else:
                top = os.dup(location.folder)
        if self._status is None or not os.path.samestat(self._status, os.fstat(top)):
            os.close(top)
            raise failure("no_such_file", "what is watched was moved")
        return top

    def _follow(self, tree: WatchedTree, wake: int, notice: Notice | None) -> Notice | None:
        """Report what changes, after a notice that it is watched, until `stop` is called.

        Returns the notice that another tree has to begin with if events were lost.
        """
        poll = select.poll()
        poll.register(tree.inotify.descriptor, select.POLLIN)
        poll.register(wake, select.POLLIN)
        first: float | None = None
        latest = 0.0
        while not self._is_stopped:
            if not tree.to_scan:
                if notice is not None:
                    tree.check()
                    self._changes.announce(notice)
                    notice = None
                    self._on_change()
                left_ms = None
                if first is not None:
                    ends_at = min(latest + _QUIET_S, first + _LATEST_S)
                    left_ms = 1000 * (ends_at - time.monotonic())
                    if left_ms <= 0:
                        first = None
                        self._on_change()
                        continue
                poll.poll(left_ms)
            events = tree.inotify.read()
            if not events and not tree.to_scan:
                continue
            latest = time.monotonic()
            if notice is None and first is None:
                first = latest
            try:
                tree.handle(events)
            except EventsLost:
                return notice or "missed"
            if tree.to_scan:
                tree.scan()
        return notice
