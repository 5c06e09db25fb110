"""The toolkits that one participant has registered, kept so that a new connection has them too.

The server's answer may be lost, and a new connection is given what the one before it hosted: what
was taken back without an answer is taken back again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from toolbus.calls import Caller
from toolbus.errors import NotFound, RoomException
from toolbus.hosted_toolkit import HostedToolkit
from toolbus.wire import Register, Unregister

__all__ = ["Registration", "Registrations"]

_logger = logging.getLogger(__name__)
_ANSWER_S = 10.0


@dataclass(slots=True, eq=False)
class Registration:
    """A toolkit as it is registered now and after every reconnect."""

    hosted: HostedToolkit
    """What is hosted."""
    manifest: bytes
    """Its description, packed."""
    shared_with: list[str]
    """Who else sees a private one."""
    generation: int | None = None
    """What the server said at the last registration."""

    @property
    def options(self) -> dict[str, Any]:
        """What the server is told beside the manifest."""
        options: dict[str, Any] = {"public": self.hosted.public}
        if self.shared_with:
            options["shared_with"] = self.shared_with
        if self.generation is not None:
            options["generation"] = self.generation
        return options


class Registrations:
    """What stands at the server, or shall.

    Args:
        caller: Asks the server.
        loop: Its clock is used.
    """

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop
        self._standing: list[Registration] = []
        self._withdrawn: set[tuple[str, bool]] = set()
        """What was taken back, by name and whether public, and may still stand at the server."""

    async def add(self, registration: Registration) -> None:
        """Register a toolkit. Raises RoomException where the server refuses it."""
        body = await self._caller.request(Register, registration.manifest, registration.options)
        self._withdrawn.discard(registration.hosted.key)
        registration.generation = body["generation"]
        self._standing.append(registration)

    async def withdraw(self, registration: Registration, *, is_ready: bool) -> None:
        """Take a toolkit back: now where the link is ready, else on the next connection."""
        if registration in self._standing:
            self._standing.remove(registration)
        if is_ready:
            await self._unregister(registration.hosted.key)
        else:
            self._withdrawn.add(registration.hosted.key)

    async def register_again(self, deadline_at: float) -> None:
        """Let the connection that is there now host what the one before it did."""
        for registration in list(self._standing):
            if registration in self._standing:  # it may be withdrawn while others are registered
                await self._register_again(registration, deadline_at)

    async def withdraw_again(self) -> None:
        """Take back what the server gave a new connection and nobody hosts any more."""
        for key in list(self._withdrawn):
            await self._unregister(key)

    async def _register_again(self, registration: Registration, deadline_at: float) -> None:
        try:
            body = await self._caller.ask(
                Register, registration.manifest, registration.options, deadline_at=deadline_at
            )
            registration.generation = body["generation"]
        except RoomException as error:
            name = registration.hosted.toolkit.name
            _logger.error("toolkit %s is hosted no more: %s", name, error)

    async def _unregister(self, key: tuple[str, bool]) -> None:
        """Take a toolkit back, or leave that for the next connection if this one fails."""
        self._withdrawn.add(key)
        deadline_at = self._loop.time() + _ANSWER_S
        try:
            await self._caller.ask(Unregister, *key, deadline_at=deadline_at)
        except NotFound:
            pass  # it is hosted here no more
        except RoomException:
            return
        self._withdrawn.discard(key)
