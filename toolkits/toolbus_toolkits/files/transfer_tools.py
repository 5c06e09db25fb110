"""The tools that send, receive and watch files: `get`, `put`, `watch`."""

from __future__ import annotations

from toolbus import Tool
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.reached import ReachedFiles

__all__ = ["TransferTools"]


class TransferTools:
    """The tools that send, receive and watch files of any size.

    Args:
        files: The files.
        assessor: What says before a call what it would do.
    """

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self._assessor = assessor
        self.reading: list[Tool] = []
        self.writing: list[Tool] = []
