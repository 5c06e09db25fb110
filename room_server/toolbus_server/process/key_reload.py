"""Reloads keys while a server runs: their files are read again when they have changed.

The keys that are read replace all trusted ones. A file that is missing or not valid changes
nothing: the reason is logged once, and the trusted keys stay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from toolbus.auth.keys import KeyRing
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus_server.process.key_files import check_writers

__all__ = ["KeyFiles", "KeyReloader", "read_key_files"]

_POLL_INTERVAL_S = 1.0
_KEY_THREADS = WorkerThreads("keys", 1)  # the files are read one poll after the other
_logger = bounded_logger(__name__)


class _FileVersion(NamedTuple):
    """Identifies a version of a file: it differs for another file, and after each write."""

    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int


_Versions: TypeAlias = tuple[_FileVersion | str, ...]


def read_key_files(paths: Iterable[Path]) -> KeyRing:
    """Read the keys of several files, in this order.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not a valid `keys.toml`, or other users can change it, or two keys
            have the same id, or one of several issuers has no alias of its own.
    """
    paths = list(paths)
    for path in paths:
        check_writers(path)
    keys = KeyRing([key for path in paths for key in KeyRing.load(path)])
    try:
        keys.aliases()
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, paths))}: {error}") from None
    return keys


class KeyFiles:
    """The files with the trusted keys, and the keys that were read last.

    Args:
        paths: The files.
        trusted: The keys that were read from them.
    """

    def __init__(self, paths: Iterable[Path], trusted: KeyRing) -> None:
        self._paths = tuple(paths)
        self._trusted = list(trusted)
        # The first poll reads the files: they may have changed since they were read.
        self._versions: _Versions | None = None

    def poll(self, *, force: bool = False) -> KeyRing | None:
        """Read the files if they have changed, and return the keys if they differ from the last.

        It blocks while it reads.

        Args:
            force: Read and return the keys in any case.
        """
        versions = tuple(_version_of(path) for path in self._paths)
        if versions == self._versions and not force:
            return None
        self._versions = versions
        try:
            keys = read_key_files(self._paths)
        except (OSError, ValueError) as error:
            _logger.warning("the keys were not reloaded: %s", error)
            return None
        if list(keys) == self._trusted and not force:
            return None
        self._trusted = list(keys)
        return keys


class KeyReloader:
    """Passes on the keys of some files whenever the files have changed.

    Args:
        files: The files.
        trust: Called with all keys to trust from now on; in the loop.
    """

    def __init__(self, files: KeyFiles, trust: Callable[[KeyRing], None]) -> None:
        self._files = files
        self._trust = trust
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Reload the keys at once, and log them even if they are the same."""
        self._requested.set()

    async def follow(self) -> None:
        """Poll once a second, until cancelled. Files are read on a thread, as disks may be slow."""
        while True:
            is_requested = await self._wait()
            keys = await _KEY_THREADS.run(partial(self._files.poll, force=is_requested))
            if keys is not None:
                self._trust(keys)
                # A warning, so that it is logged: an operator who changed a file waits for it.
                _logger.warning("trusted keys: %s", ", ".join(repr(key.kid) for key in keys))

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(_POLL_INTERVAL_S):
                await self._requested.wait()
        except TimeoutError:
            return False
        self._requested.clear()
        return True


def _version_of(path: Path) -> _FileVersion | str:
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.errno)
    return _FileVersion(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )
