"""Where conversations are kept: `StateStore` is the contract, `SqliteStates` a file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

__all__ = ["SqliteStates", "StateStore"]


class StateStore(Protocol):
    """Keeps the text of a state for each key. Called by one agent, for one key at a time."""

    async def load(self, key: str) -> str | None:
        """Return the text that was saved last; None if there is none."""

    async def save(self, key: str, text: str) -> None:
        """Keep a text in place of the former one. It is kept even if this task is cancelled."""

    async def delete(self, key: str) -> None:
        """Forget a text, if there is one."""

    async def aclose(self) -> None:
        """Wait until all is written."""


class SqliteStates:
    """States in a SQLite file, which only the user can read."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
