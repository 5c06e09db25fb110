"""Says what a call of these tools would do, before it runs."""

from __future__ import annotations

from toolbus import Assessment, ToolContext
from toolbus_toolkits.files.reached import ReachedFiles

__all__ = ["Assessor"]


class Assessor:
    """What says before a call what it would do.

    Args:
        files: The files.
    """

    def __init__(self, files: ReachedFiles) -> None:
        self._files = files

    def reading(self, context: ToolContext, path: str) -> Assessment:
        """Return what is said of a call that reads one file."""
        with self._files.at(path) as location:
            reason = self._files.sensitive.reason(location.path, writes=False)
        if reason:
            return Assessment("ask", immune=True, message=f"`{path}` {reason}")
        return Assessment("pass", read_only=True)

    def writing(self, context: ToolContext, path: str) -> Assessment:
        """Return what is said of a call that changes one file."""
        with self._files.at(path) as location:
            reason = self._files.sensitive.reason(location.path, writes=True)
        if reason:
            return Assessment("ask", immune=True, message=f"`{path}` {reason}")
        return Assessment("ask", within_workdir=True, message=f"writes `{path}`")
