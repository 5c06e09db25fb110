"""Files as a toolkit: reading, changing, finding, sending and watching those of some folders.

The way of a call: `assessing` is asked first, where permissions or a policy judge it. Then a tool
of `text_tools`, `search_tools` or `transfer_tools` runs. Each finds its file by
`workspace.located`, which never leaves the roots, and writes it by `workspace.replaced`. What a
caller has seen of a file is in `seen`: only what was seen may be changed, and only in the version
that was seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from toolbus import Toolkit
from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.reached import FilesConfig, ReachedFiles, RootsConfig
from toolbus_toolkits.files.reading import ReadResult
from toolbus_toolkits.files.search_tools import (
    Entry,
    GlobResult,
    GrepResult,
    ListResult,
    SearchTools,
)
from toolbus_toolkits.files.text_tools import ChangeResult, TextTools
from toolbus_toolkits.files.transfer_tools import PutResult, TransferTools
from toolbus_toolkits.workspace.watched_tree import WatchedChange

if TYPE_CHECKING:
    from toolbus import Middleware, Permissions, Records

__all__ = [
    "ChangeResult",
    "Entry",
    "Files",
    "FilesConfig",
    "GlobResult",
    "GrepResult",
    "ListResult",
    "PutResult",
    "ReadResult",
    "RootsConfig",
    "WatchedChange",
    "files",
]

_logger = bounded_logger(__name__)


class Files(Toolkit):
    """Files below folders of this machine: reading, changing, finding, sending and watching them.

    Several turns, and a host, may share one object.

    Args:
        root: The folder whose files are read and changed; relative paths are below it.
        further_roots: Further folders, whose files are reached by absolute paths.
        read_only: Offer only the tools that change nothing.
        additional_dangerous_files: Further files that a person decides about, with `*` and `?`.
        additional_dangerous_directories: Further folders that a person decides about.
        name: The name of the toolkit.
        middlewares: As those of a `Toolkit`.
        records: As those of a `Toolkit`.
        policy: As that of a `Toolkit`. Without one, all its callers may change any file.

    Raises `ValueError` if a folder does not exist.
    """

    def __init__(  # noqa: PLR0913 - a toolkit's options, and those of its config
        self,
        root: str | PathLike[str] = ".",
        *,
        further_roots: Iterable[str | PathLike[str]] = (),
        read_only: bool = False,
        additional_dangerous_files: Iterable[str] = (),
        additional_dangerous_directories: Iterable[str] = (),
        name: str = "files",
        middlewares: Iterable[Middleware] = (),
        records: Records | None = None,
        policy: Permissions | None = None,
    ) -> None:
        if not isinstance(further_roots, str):  # of a text, `tuple` would make its letters
            further_roots = tuple(fspath(folder) for folder in further_roots)
        options: dict[str, Any] = {
            "root": fspath(root),
            "further_roots": further_roots,
            "read_only": read_only,
            "additional_dangerous_files": additional_dangerous_files,
            "additional_dangerous_directories": additional_dangerous_directories,
        }
        config = FilesConfig.model_validate(options)
        reached = ReachedFiles(config)
        assessor = Assessor(reached)
        self.text_tools = TextTools(reached, assessor)
        """For toolkits that write through this one, with its questions."""
        groups: list[TextTools | SearchTools | TransferTools] = [
            self.text_tools,
            SearchTools(reached, assessor),
            TransferTools(reached, assessor),
        ]
        tools = [tool for group in groups for tool in group.reading]
        if not read_only:
            tools += (tool for group in groups for tool in group.writing)
        super().__init__(
            name,
            tools,
            title="Files",
            description="Reads, changes and finds files below a folder.",
            rules=[
                "Read a file before you change it. A change needs the lines that you have seen.",
                "Where a file has changed since, read it again.",
            ],
            middlewares=middlewares,
            records=records,
            policy=policy,
        )
        self.workdirs = reached.roots.folders
        self.changes_files = not read_only
        """Whether it offers the tools that change files."""

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Warn where nothing limits what callers read and change."""
        if not self.policies:
            _logger.warning(
                "toolkit %s has no policy: whoever may call it %s any file below its roots, also"
                " those with secrets; `toolbus host --policy FILE` limits that",
                self.name,
                "changes" if self.changes_files else "reads",
            )
        yield


def files(config: FilesConfig) -> Toolkit:
    """Files below a folder: reading, changing, finding, sending and watching them.

    It is a factory: `toolbus host files --root PATH` hosts it, and `builder_of(files, root=...)`
    offers it to agents, which are remembered by their state from turn to turn.

    Args:
        config: Which folders it reaches.
    """
    return Files(**dict(config))
