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
from toolbus.tools.policy import warn_of_policies
from toolbus.tools.toolkit import Toolkit

__all__ = ["PolicyFile"]

_POLL_INTERVAL_S = 1.0
_logger = bounded_logger(__name__)


class PolicyFile:
    """The policy of a file, and the toolkits that it binds.

    Raises `RuleFileError` if it cannot be read now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._seen = _version_of(path)
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
        """Read the file again if it has changed since it was read, or tried, last.

        Only the second call reads a change, unless there was another one between the two: a program
        that writes the file in parts has not ended before, and a part of it may lack its denials.
        """
        policy = await FILE_THREADS.run(self._changed)
        if policy is not None:
            self._policy = policy
            for toolkit in tuple(self._bound):
                toolkit.operator_policy = policy
            _logger.warning("the policy was read again: %s", self._path)
            for toolkit in tuple(self._bound):
                warn_of_policies(toolkit.manifest(), toolkit.tools, toolkit.policies)

    def _changed(self) -> Permissions | None:
        version = _version_of(self._path)
        if version != self._seen:
            self._seen = version
            return None
        if version == self._version:
            return None
        # Before it is read: what is written meanwhile is another version.
        self._version = version
        try:
            return Permissions.from_toml(self._path)
        except Exception as error:  # whatever it is, later changes have to be read
            _logger.error("the policy was not read again, the former rules stay: %s", error)
            return None


def _version_of(path: Path) -> tuple[int, ...]:
    """Return what differs after each write, and for another file of the same name."""
    try:
        facts = os.stat(path)
    except OSError:
        return ()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
