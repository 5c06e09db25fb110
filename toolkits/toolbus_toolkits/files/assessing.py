"""Says what a call of these tools would do, before it runs."""

from __future__ import annotations

from dataclasses import replace

from toolbus import Assessment, ToolContext
from toolbus.permissions.plain import MAX_PREVIEW_BYTES
from toolbus_toolkits.files.changes import Change
from toolbus_toolkits.files.planning import preview
from toolbus_toolkits.files.reached import ReachedFiles
from toolbus_toolkits.workspace import Location

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
            return self._of_change(path, location)

    def changing(
        self, context: ToolContext, path: str, change: Change, token: str | None
    ) -> Assessment:
        """Return what is said of a call that changes the text of one file, with a diff."""
        with self._files.at(path) as location:
            shown = preview(
                self._files, context, location, change, token=token, max_chars=MAX_PREVIEW_BYTES
            )
            return replace(self._of_change(path, location), preview=shown)

    def _of_change(self, path: str, location: Location) -> Assessment:
        reason = self._files.sensitive.reason(location.path, writes=True)
        if reason:
            return Assessment("ask", immune=True, message=f"`{path}` {reason}")
        return Assessment("ask", within_workdir=True, message=f"writes `{path}`")
