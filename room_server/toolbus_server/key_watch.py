"""Keys that change while a server runs: their files are read again when they have changed.

What is read takes the place of all that was trusted before. A file that is missing or broken
changes nothing: why is logged, once, and what was trusted stays so. Knows nothing of tokens or of
who is connected.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from toolbus.keys import KeyRing

__all__ = ["LOOK_EVERY_S", "KeyFiles", "KeyWatch", "read_key_files", "say_trusted"]

LOOK_EVERY_S = 1.0
"""How long a change of a file may go unnoticed, in seconds."""
_logger = logging.getLogger(__name__)


class _Look(NamedTuple):
    """What tells a file from what it was: another file, or one that was written to."""

    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int


_Stamp: TypeAlias = tuple[_Look | str, ...]


def read_key_files(paths: Iterable[Path]) -> KeyRing:
    """Read the keys of several files, as one ring and in this order.

    Raises:
        OSError: A file cannot be read.
        ValueError: One is no `keys.toml`, or two keys have one id.
    """
    return KeyRing([key for path in paths for key in KeyRing.load(path)])


class KeyFiles:
    """The files that trusted keys lie in, and what was read from them last.

    Args:
        paths: The files.
        trusted: What was read from them before.
    """

    def __init__(self, paths: Iterable[Path], trusted: KeyRing) -> None:
        self._paths = tuple(paths)
        self._trusted = list(trusted)
        # The first look reads: the files may have changed since they were read before.
        self._seen: _Stamp | None = None

    def look(self, *, is_asked: bool = False) -> KeyRing | None:
        """Read the files if they have changed, and return the keys if they are others than before.

        Blocks as long as the disk does.

        Args:
            is_asked: Read and return them in any case.
        """
        stamp = tuple(_look_at(path) for path in self._paths)
        if stamp == self._seen and not is_asked:
            return None
        self._seen = stamp
        try:
            keys = read_key_files(self._paths)
        except (OSError, ValueError) as error:
            _logger.warning("the keys stay as they were: %s", error)
            return None
        if list(keys) == self._trusted and not is_asked:
            return None
        self._trusted = list(keys)
        return keys


def say_trusted(keys: KeyRing) -> None:
    """Log which keys count from now on."""
    # No word of an error, and yet what an operator waits for who has changed a file.
    _logger.warning("trusted from now on: %s", ", ".join(repr(key.kid) for key in keys))


class KeyWatch:
    """Hands the keys of some files over whenever the files have changed.

    Args:
        files: The files.
        trust: Told all keys that count from now on; called in the loop.
    """

    def __init__(self, files: KeyFiles, trust: Callable[[KeyRing], None]) -> None:
        self._files = files
        self._trust = trust
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the files at once, and say what is trusted even if that is what it was."""
        self._asked.set()

    async def follow(self) -> None:
        """Look once a second, until cancelled. Files are read on a thread: some disks are slow."""
        while True:
            is_asked = await self._wait()
            keys = await asyncio.to_thread(self._files.look, is_asked=is_asked)
            if keys is not None:
                self._trust(keys)
                say_trusted(keys)

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True


def _look_at(path: Path) -> _Look | str:
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.errno)
    return _Look(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
