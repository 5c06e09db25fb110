"""Names the extra of a package that is not installed.

It serves programs that import the server; the command line has its own text for such errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["extra_named"]


@contextmanager
def extra_named() -> Iterator[None]:
    """Name the extra `server` in the error about a package that the block cannot import.

    Raises:
        ModuleNotFoundError: A package is missing; `name` is that of its module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("toolbus"):
            raise
        raise ModuleNotFoundError(
            f"the server needs {error.name}, which is not installed: pip install 'toolbus[server]'",
            name=error.name,
        ) from None
