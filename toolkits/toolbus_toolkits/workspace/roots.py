"""What a path names, and whether that is inside a working directory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Roots", "resolve"]


def resolve(text: str, directory: str) -> str:
    """Return the absolute path of what `text` names from a directory: `..` and symlinks resolved.

    What does not exist yet keeps its name. `~` is no special name here.
    """
    return os.path.realpath(os.path.join(directory, text))


class Roots:
    """Working directories.

    Args:
        folders: Their paths; relative ones are below the directory of this process.

    Raises `ValueError` for what is no folder.
    """

    def __init__(self, folders: Iterable[str | os.PathLike[str]]) -> None:
        self.folders: tuple[str, ...] = tuple(
            os.path.realpath(Path(folder).expanduser()) for folder in folders
        )
        """Their real paths."""
        for folder in self.folders:
            if not os.path.isdir(folder):
                raise ValueError(f"there is no such folder: {folder!r}")

    def contains(self, path: str) -> bool:
        """Whether a resolved path is inside a working directory, or is one."""
        return any(
            path == folder or path.startswith(folder.rstrip("/") + "/") for folder in self.folders
        )
