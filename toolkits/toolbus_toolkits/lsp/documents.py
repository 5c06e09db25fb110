"""What one server knows of the files: those that are open in it, and what has changed since.

Before each question it is told what changed. The kernel has noted that by then, so an answer is
about the files as they are: also about those that were written a moment before.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from toolbus import ToolFailed
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.lsp.languages import language_id
from toolbus_toolkits.lsp.server import LanguageServer
from toolbus_toolkits.workspace.watched_tree import EventsLost, WatchedTree

__all__ = ["THREADS", "ChangesLost", "Document", "Documents", "read_text", "split_lines"]

THREADS = WorkerThreads("files of language servers", 4)

_MAX_FILE_BYTES = 2 * 1024 * 1024
"""Of one file: its text is sent as a whole, and servers take seconds for larger ones."""
_MAX_OPEN = 64
"""Servers keep the text and the syntax tree of each open file in memory."""
_MAX_CHANGES = 5_000
"""Beyond so many a server is started again: that takes less time than to tell it all of them."""
_LINE_END = re.compile(r"\r\n|\n|\r")  # those of the protocol, and no others
_CREATED, _CHANGED, _DELETED = 1, 2, 3  # `FileChangeType`


class ChangesLost(Exception):
    """It is not known any more what has changed, or a server does not notice it."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, as the protocol counts them."""
    return _LINE_END.split(text)


@dataclass(frozen=True)
class Document:
    """A file that is open in a server."""

    path: str
    """Its real path."""
    text: str
    version: int

    @property
    def uri(self) -> str:
        """Its URI."""
        return Path(self.path).as_uri()

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return split_lines(self.text)


def read_text(files: ReachedFiles, path: str) -> str:
    """Read a file; blocking. Raises `ToolFailed`."""
    with files.at(os.fsencode(path)) as location:
        with open(location.open_file(), "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            text = f"{files.name_of(location)} is larger than {_MAX_FILE_BYTES:,} bytes"
            raise failure("too_large", text)
    # A byte that is no UTF-8 becomes one character, and so columns stay right.
    return data.decode("utf-8-sig", errors="replace")


class _Changes:
    """What changed below a folder."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, str]] = {}
        """By path from there, the first and the last change."""
        self.is_lost = False

    def note(self, path: str, change: str, *, is_folder: bool) -> None:
        """Add a change. That of a folder says that it has come, with files that are noted too."""
        if is_folder and change != "deleted":
            return
        first, _ = self.found.get(path, (change, ""))
        self.found[path] = (first, change)
        self.is_lost |= len(self.found) > _MAX_CHANGES


def _kinds(first: str, last: str) -> tuple[int, ...]:
    """Return what a server is told of a file by its first and its last change."""
    if last == "deleted":
        return (_DELETED,)
    if first == "added":
        return (_CREATED,)
    # One that was there and left meanwhile is told as two: what it was is not what it is.
    return (_CHANGED,) if first == "modified" == last else (_DELETED, _CREATED)


class Documents:
    """The files that one server has open. Its methods are not called at the same time.

    Args:
        files: The files of the toolkit.
        root: The folder of the server.
        language: Its language, which names the ends of its files.
        needs_restart: Whether a change of a path, from the folder, has to start the server again.

    Raises `ToolFailed` if the folder cannot be watched. It blocks.
    """

    def __init__(
        self,
        files: ReachedFiles,
        root: str,
        language: str,
        needs_restart: Callable[[str], bool],
    ) -> None:
        self._files = files
        self._root = root
        self._language = language
        self._needs_restart = needs_restart
        self._open = OrderedDict[str, Document]()
        self._changes = _Changes()
        self._lock = threading.Lock()  # a call that was cancelled may still look
        self._status: os.stat_result | None = None
        self._tree = WatchedTree(self._open_root, None, self._changes)
        try:
            self._tree.catch_up()
        except EventsLost:
            self._tree.close()
            text = f"{self._root} cannot be watched: files in it change too fast"
            raise failure("too_many", text) from None
        except BaseException:
            self._tree.close()
            raise

    def close(self) -> None:
        """End the watch; it blocks."""
        with self._lock:
            self._tree.close()

    async def follow(self, server: LanguageServer, path: str | None) -> Document | None:
        """Tell a server what has changed, and open a file in it.

        Args:
            server: The server, always the same one.
            path: The real path of the file; None for none.

        Returns the file as the server has it from now on.

        Raises `ToolFailed` for a file that cannot be read, and `ChangesLost`.
        """
        documents = await THREADS.run(self._look, path)
        for opened, document in documents.items():
            self._tell(server, opened, document)
            await server.drain()
        changes = [
            {"uri": Path(self._root, name).as_uri(), "type": kind}
            for name, (first, last) in self._changes.found.items()
            for kind in _kinds(first, last)
        ]
        self._changes.found.clear()
        if changes:
            server.notify("workspace/didChangeWatchedFiles", {"changes": changes})
        if path is None:
            return None
        self._open.move_to_end(path)
        while len(self._open) > _MAX_OPEN:
            self._close(server, next(iter(self._open)))
        return self._open[path]

    def repeat(self, server: LanguageServer, path: str) -> None:
        """Tell a server the text of an open file again, so that it tells its diagnostics again."""
        known = self._open[path]
        self._change(server, replace(known, version=known.version + 1))

    def _look(self, path: str | None) -> dict[str, Document | None]:
        """Read the files that a server may have to be told; None for what is gone."""
        with self._lock:
            try:
                os.close(self._open_root())
                self._tree.catch_up()
            except (EventsLost, ToolFailed, OSError):
                raise ChangesLost from None
            if self._changes.is_lost or any(map(self._needs_restart, self._changes.found)):
                raise ChangesLost
            found: dict[str, Document | None] = {}
            if path is not None:
                asked = found[path] = self._read(path)
                len(asked.lines)  # split here, and not on the event loop
            for opened in self._open:
                if opened not in found and self._has_changed(opened):
                    try:
                        found[opened] = self._read(opened)
                    except ToolFailed:
                        found[opened] = None
            return found

    def _read(self, path: str) -> Document:
        """Return a file as it is now: the one that is open, if that has this text."""
        text = read_text(self._files, path)
        known = self._open.get(path)
        if known is not None and known.text == text:
            return known
        return Document(path, text, 1 if known is None else known.version + 1)

    def _has_changed(self, path: str) -> bool:
        """Whether a file was changed, or a folder that it is in has left."""
        name = os.path.relpath(path, self._root)
        while name:
            if name in self._changes.found:
                return True
            name = os.path.dirname(name)
        return False

    def _tell(self, server: LanguageServer, path: str, document: Document | None) -> None:
        known = self._open.get(path)
        if document is None:
            self._close(server, path)
        elif known is None:
            self._open[path] = document
            item = {"uri": document.uri, "version": document.version, "text": document.text}
            item["languageId"] = language_id(self._language, path)
            server.notify("textDocument/didOpen", {"textDocument": item})
        elif known is not document:
            self._change(server, document)

    def _change(self, server: LanguageServer, document: Document) -> None:
        self._open[document.path] = document
        of = {"uri": document.uri, "version": document.version}
        params = {"textDocument": of, "contentChanges": [{"text": document.text}]}
        server.notify("textDocument/didChange", params)

    def _close(self, server: LanguageServer, path: str) -> None:
        document = self._open.pop(path, None)
        if document is None:
            return
        server.notify("textDocument/didClose", {"textDocument": {"uri": document.uri}})
        server.forget(document.uri)

    def _open_root(self) -> int:
        """Open the folder. Raises `ChangesLost` if another one is in its place."""
        with self._files.at(os.fsencode(self._root)) as location:
            folder = location.open_folder()
        status = os.fstat(folder)
        if self._status is not None and not os.path.samestat(self._status, status):
            os.close(folder)
            raise ChangesLost
        self._status = status
        return folder
