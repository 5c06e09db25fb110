"""The folders of PATH that commands may change: what stands there takes a command's place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from toolbus_toolkits.workspace.roots import Roots, is_same_or_below
from toolbus_toolkits.workspace.sensitive import SensitivePaths

__all__ = ["ProgramPaths"]


class ProgramPaths(SensitivePaths):
    """Files that a person decides about, and the folders of PATH in working directories.

    In a virtual environment of the project, `ls` would be the file that an accepted edit made.

    Args:
        roots: The working directories.
        environment: The variables of commands.
        additional_files: As those of `SensitivePaths`.
        additional_directories: As those of `SensitivePaths`.
    """

    def __init__(
        self,
        roots: Roots,
        environment: Mapping[str, str],
        additional_files: Iterable[str] = (),
        additional_directories: Iterable[str] = (),
    ) -> None:
        super().__init__(additional_files, additional_directories)
        self._roots = roots
        folders = environment.get("PATH", "").split(os.pathsep)
        both = {
            path
            for folder in folders
            for path in (os.path.normpath(folder), os.path.realpath(folder))
        }
        self._folders = [folder for folder in both if roots.contains(folder)]

    def reason(self, path: str, *, writes: bool) -> str:
        """Return why a person decides about a path, to follow its name; empty if no one has to.

        What has such a folder below it counts too, as it may be made or replaced with all in it;
        but no working directory, into which nearly every command writes.
        """
        if writes and not self._roots.is_root_or_above(path):
            for folder in self._folders:
                if is_same_or_below(path, folder) or is_same_or_below(folder, path):
                    return "is in PATH, where commands are found by their names"
        return super().reason(path, writes=writes)
