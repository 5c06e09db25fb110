"""Changes of files that wait to be reported, folded: one for each path."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Literal, TypeAlias

from typing_extensions import TypedDict

from toolbus.untrusted_text import one_line

__all__ = ["Kind", "Notice", "WaitingChanges", "WatchedChange"]

_MAX_WAITING = 20_000
"""With paths of usual length some 4 MB. A slow caller gets a notice that more are lost."""

Kind: TypeAlias = Literal["added", "modified", "deleted", "replaced"]
Notice: TypeAlias = Literal["watching", "missed"]

# A path and whether it is a folder. `gone` is a folder that came and left: it is not reported.
_Waiting: TypeAlias = "dict[tuple[str, bool], Kind | Literal['gone']]"


class WatchedChange(TypedDict):
    """What became of a file or a folder."""

    path: str
    """As it can be passed to the other tools; that of a folder ends with `/`."""
    change: Literal["watching", "added", "modified", "deleted", "missed", "waiting"]
    """`watching`: changes from now on are reported. `missed`: some changes are lost, look at all
    again. `waiting`: there was none for a while. These three have the path that is watched. A
    folder that is `deleted` is so with all below it."""


class WaitingChanges:
    """The changes below one folder, or of one file, that wait. Used on several threads.

    Args:
        watched: The path that is watched, as results have it.
        folder: That of the folder, which is another one if a file is watched.
    """

    def __init__(self, watched: str, folder: str) -> None:
        self._watched = watched
        self._folder = folder
        self._lock = threading.Lock()
        self._notices: list[Notice] = []
        # In the order of their latest events, so that a folder comes before what was made in it.
        self._waiting: _Waiting = {}

    def announce(self, notice: Notice) -> None:
        """Say that from now on all is reported, for the first time or again; drop what waits."""
        with self._lock:
            self._announce(notice)

    def _announce(self, notice: Notice) -> None:
        self._waiting = {}
        if notice not in self._notices:
            self._notices.append(notice)

    def note(self, path: str, change: Kind, *, is_folder: bool) -> None:
        """Add a change; together with an earlier one of the same path it is one or none.

        Args:
            path: From the folder.
            change: What became of it. Only a folder is `replaced`: its files are other ones.
            is_folder: Whether it is a folder.
        """
        key = (path, is_folder)
        with self._lock:
            earlier = self._waiting.pop(key, None)
            if earlier == "added":
                if change == "deleted":
                    if is_folder:
                        self._waiting[key] = "gone"
                    return
                change = "added"
            elif earlier in ("deleted", "replaced") and change == "added":
                change = "replaced" if is_folder else "modified"
            self._waiting[key] = change
            if len(self._waiting) > _MAX_WAITING:
                self._announce("missed")

    def waiting(self) -> WatchedChange:
        """Return what tells that there was no change for a while."""
        return WatchedChange(path=one_line(self._watched), change="waiting")

    def take(self) -> Iterator[WatchedChange]:
        """Return what is to be reported now."""
        with self._lock:
            notices = self._notices
            self._notices = []
            waiting = self._waiting
            self._waiting = {}
        for notice in notices:
            yield WatchedChange(path=one_line(self._watched), change=notice)
        for path, is_folder, change in _still_true(waiting):
            shown = one_line(os.path.normpath(os.path.join(self._folder, path)))
            if is_folder:
                shown += "/"
            if change == "replaced":
                yield WatchedChange(path=shown, change="deleted")
                change = "added"
            yield WatchedChange(path=shown, change=change)


def _still_true(waiting: _Waiting) -> list[tuple[str, bool, Kind]]:
    """Return what is to be reported: what a folder has taken along that left later is not there."""
    reported: list[tuple[str, bool, Kind]] = []
    later: set[str] = set()
    for (path, is_folder), change in reversed(waiting.items()):
        if change != "gone" and (change == "deleted" or not _is_below(path, later)):
            reported.append((path, is_folder, change))
        if is_folder:
            later.add(path)
    return reported[::-1]


def _is_below(path: str, folders: set[str]) -> bool:
    while folders and "/" in path:
        path = path.rpartition("/")[0]
        if path in folders:
            return True
    return False
