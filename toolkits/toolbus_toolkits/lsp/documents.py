"""What one server knows of the files: those that are open in it, and what has changed since.

Before each question it is told what changed. The kernel has noted that by then, so an answer is
about the files as they are: also about those that were written a moment before.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
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

_MAX_FILE_BYTES = 4 * 1024 * 1024
"""Of one file: its text is sent as a whole, and servers take seconds for larger ones."""
_MAX_OPEN = 64
"""Servers keep the text and the syntax tree of each open file in memory."""
_MAX_CHANGES = 20_000
"""Beyond so many a server is started again: that takes less time than to tell it all of them."""
_LINE_END = re.compile(r"\r\n|\n|\r")  # those of the protocol, and no others
_KINDS = {"added": 1, "modified": 2, "replaced": 2, "deleted": 3}  # `FileChangeType`


class ChangesLost(Exception):
    """It is not known any more what has changed."""


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
    """What changed below a folder, by path from there; the last change of each."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.is_lost = False

    def note(self, path: str, change: str, *, is_folder: bool) -> None:
        """Add a change. That of a folder says that it has come, with files that are noted too."""
        if not is_folder or change == "deleted":
            self.found[path] = change
            self.is_lost |= len(self.found) > _MAX_CHANGES


class Documents:
    """The files that one server has open. Its methods are not called at the same time.

    Args:
        files: The files of the toolkit.
        root: The folder of the server.
        language: Its language, which names the ends of its files.

    Raises `ToolFailed` if the folder cannot be watched. It blocks.
    """

    def __init__(self, files: ReachedFiles, root: str, language: str) -> None:
        self._files = files
        self._root = root
        self._language = language
        self._open = OrderedDict[str, Document]()
        self._changes = _Changes()
        self._tree = WatchedTree(self._open_root, None, self._changes)
        try:
            self._tree.catch_up()
        except BaseException:
            self._tree.close()
            raise

    def close(self) -> None:
        """End the watch."""
        self._tree.close()

    async def follow(self, server: LanguageServer, path: str | None) -> Document | None:
        """Tell a server what has changed, and open a file in it.

        Args:
            server: The server, always the same one.
            path: The real path of the file; None for none.

        Returns the file as the server has it from now on.

        Raises `ToolFailed` for a file that cannot be read, and `ChangesLost`.
        """
        texts = await THREADS.run(self._look, path)
        for opened, text in texts.items():
            self._tell(server, opened, text)
        found = [
            {"uri": Path(self._root, name).as_uri(), "type": _KINDS[change]}
            for name, change in self._changes.found.items()
        ]
        self._changes.found.clear()
        if found:
            server.notify("workspace/didChangeWatchedFiles", {"changes": found})
        if path is None:
            return None
        self._open.move_to_end(path)
        while len(self._open) > _MAX_OPEN:
            self._close(server, next(iter(self._open)))
        return self._open[path]

    def repeat(self, server: LanguageServer, path: str) -> None:
        """Tell a server the text of an open file again, so that it tells its diagnostics again."""
        self._change(server, self._open[path].path, self._open[path].text)

    def _look(self, path: str | None) -> dict[str, str | None]:
        """Read the files whose text a server may have to be told; None for what is gone."""
        try:
            self._tree.catch_up()
        except EventsLost:
            raise ChangesLost from None
        if self._changes.is_lost:
            raise ChangesLost
        texts: dict[str, str | None] = {}
        if path is not None:
            texts[path] = read_text(self._files, path)
        for opened in self._open:
            if opened not in texts and self._has_changed(opened):
                try:
                    texts[opened] = read_text(self._files, opened)
                except ToolFailed:
                    texts[opened] = None
        return texts

    def _has_changed(self, path: str) -> bool:
        """Whether a file was changed, or a folder that it is in has left."""
        name = os.path.relpath(path, self._root)
        while name:
            if name in self._changes.found:
                return True
            name = os.path.dirname(name)
        return False

    def _tell(self, server: LanguageServer, path: str, text: str | None) -> None:
        known = self._open.get(path)
        if text is None:
            self._close(server, path)
        elif known is None:
            document = self._open[path] = Document(path, text, 1)
            item = {"uri": document.uri, "version": 1, "text": text}
            item["languageId"] = language_id(self._language, path)
            server.notify("textDocument/didOpen", {"textDocument": item})
        elif known.text != text:
            self._change(server, path, text)

    def _change(self, server: LanguageServer, path: str, text: str) -> None:
        document = self._open[path] = Document(path, text, self._open[path].version + 1)
        of = {"uri": document.uri, "version": document.version}
        params = {"textDocument": of, "contentChanges": [{"text": text}]}
        server.notify("textDocument/didChange", params)

    def _close(self, server: LanguageServer, path: str) -> None:
        document = self._open.pop(path)
        server.notify("textDocument/didClose", {"textDocument": {"uri": document.uri}})
        server.forget(document.uri)

    def _open_root(self) -> int:
        with self._files.at(os.fsencode(self._root)) as location:
            return location.open_folder()
