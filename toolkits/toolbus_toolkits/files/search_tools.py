"""The tools that find files: `list`, `glob`, `grep`."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import FunctionTool, Tool, ToolContext
from toolbus.chunks.file_io import FILE_THREADS
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.reached import ReachedFiles

__all__ = ["ListResult", "SearchTools"]

Path = Annotated[str, Field(min_length=1, max_length=4096)]


class ListResult(TypedDict):
    """What a folder has."""

    entries: list[str]


class SearchTools:
    """The tools that find files.

    Args:
        files: The files.
        assessor: What says before a call what it would do.
    """

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self.reading: list[Tool] = [
            FunctionTool(self._list, name="list", read_only=True, assess=assessor.reading)
        ]
        self.writing: list[Tool] = []

    async def _list(self, context: ToolContext, path: Path = ".") -> ListResult:
        """List a folder.

        Args:
            context: The call.
            path: The folder, from the root, or absolute.
        """
        return await FILE_THREADS.run(self._list_now, context, path)

    def _list_now(self, context: ToolContext, path: str) -> ListResult:
        with self._files.at(path, context) as location:
            folder = location.open_folder()
            try:
                return ListResult(entries=sorted(os.listdir(folder)))
            finally:
                os.close(folder)
