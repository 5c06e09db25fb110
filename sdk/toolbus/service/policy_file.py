"""A rule file as the policy of what a process hosts: read again whenever it has changed.

A file that has a mistake, or is missing, changes nothing: the rules in force stay, and the reason
is logged once.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from weakref import WeakSet

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.rule_file import RuleFileError
from toolbus.tools.toolkit import Toolkit

__all__ = ["PolicyFile"]

_POLL_INTERVAL_S = 1.0
_MAX_NAMED = 20
_logger = bounded_logger(__name__)


class PolicyFile:
    """The policy of a file, and the toolkits that it binds.

    Args:
        path: The file.

    Raises `RuleFileError` if it cannot be read now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = _version_of(path)
        self._policy = Permissions.from_toml(path)
        self._bound: WeakSet[Toolkit] = WeakSet()

    def bind(self, toolkit: Toolkit) -> None:
        """Let the policy bind all calls of a toolkit that begin from now on."""
        toolkit.operator_policy = self._policy
        self._bound.add(toolkit)

    async def watch(self) -> None:
        """Read the file again whenever it has changed, until this is cancelled."""
        seen = self._version
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            # While a file is written it may have a part of its rules: it has to stand still.
            version = await FILE_THREADS.run(_version_of, self._path)
            if version == seen:
                await self.reload()
            seen = version

    async def reload(self) -> None:
        """Read the file again if it has changed since it was read, or tried, last."""
        policy = await FILE_THREADS.run(self._changed)
        if policy is not None:
            self._policy = policy
            for toolkit in tuple(self._bound):
                toolkit.operator_policy = policy
            _logger.warning("the policy was read again: %s", self._path)

    def _changed(self) -> Permissions | None:
        # Before it is read: what is written meanwhile is another version.
        version = _version_of(self._path)
        if version == self._version:
            return None
        self._version = version
        try:
            return Permissions.from_toml(self._path)
        except RuleFileError as error:
            _logger.error("the policy was not read again, the former rules stay: %s", error)
            return None


def _version_of(path: Path) -> tuple[int, ...]:
    """Return what differs after each write, and for another file of the same name."""
    try:
        facts = os.stat(path)
    except OSError:
        return ()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
