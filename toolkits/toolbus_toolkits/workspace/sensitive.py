"""Files that hold secrets, and files that change what other programs do."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SensitivePaths"]


class SensitivePaths:
    """Which files and folders a person decides about, whatever the rules allow.

    Args:
        additional_files: Names or paths of further files, with `*` and `?`.
        additional_directories: Names or paths of further folders, with all that is below them.
    """

    def __init__(
        self, additional_files: Iterable[str] = (), additional_directories: Iterable[str] = ()
    ) -> None:
        self._files = tuple(additional_files)
        self._directories = tuple(additional_directories)

    def reason(self, path: str, *, writes: bool) -> str:
        """Return why a person decides about a path, to follow its name; empty if no one has to.

        Args:
            path: As it was written, or resolved.
            writes: Whether it is changed; what holds secrets counts also where it is read.
        """
        name = path.rpartition("/")[2]
        return "holds secrets" if name.startswith(".env") else ""
