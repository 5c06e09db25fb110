"""The toolkits that one participant has registered, kept so that a new connection has them too.

The server's answer may be lost, and a new connection is given what the one before it hosted: what
was taken back without an answer is taken back again. What cannot be registered again for now, as
where a server cannot ask the others, is tried again while the connection lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import uniform
from typing import Any

from toolbus.calls import Caller
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    RoomException,
    Unavailable,
)
from toolbus.hosted_toolkit import HostedToolkit, OfferMistake, check_shares
from toolbus.toolkit import Toolkit
from toolbus.wire import Register, Unregister

__all__ = ["Registration", "Registrations", "settled_offer"]

_logger = logging.getLogger(__name__)
_FIRST_ANSWER_S, _ANSWER_S = 30.0, 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


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


def settled_offer(
    toolkit: Toolkit, public: bool | None, shared_with: Sequence[str] | None
) -> tuple[bool, list[str]]:
    """Say to whom a toolkit is offered: to all, or to whom beside its owner.

    Args:
        toolkit: Says it itself where the others are None.
        public: Whether the whole room sees it.
        shared_with: Who else sees a private one.

    Raises:
        OfferMistake: A public one is shared, or these are no such values.
    """
    is_public = getattr(toolkit, "public", True) if public is None else public
    shares = getattr(toolkit, "shared_with", ()) if shared_with is None else shared_with
    if not isinstance(is_public, bool):
        raise OfferMistake(f"toolkit {toolkit.name!r}: public is True or False")
    if not _are_texts(shares):
        raise OfferMistake(f"toolkit {toolkit.name!r}: shared_with is a list of texts")
    if is_public and shares:
        raise OfferMistake(f"toolkit {toolkit.name!r} is public: sharing is for private ones")
    check_shares(toolkit.name, shares)
    return is_public, [str.__str__(share) for share in shares]


def _are_texts(values: Any) -> bool:
    is_list = isinstance(values, Collection) and not isinstance(values, str | bytes)
    return is_list and all(isinstance(value, str) for value in values)


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
        self._adding: list[tuple[str, bool]] = []
        """What is being registered for the first time, in the same way."""
        self._trying: dict[Registration, asyncio.Task[None]] = {}
        """What could not be registered again on the connection that is there now."""
        self.is_draining: bool = False
        """Set when this participant takes no more calls, for good: from then on nothing is

        registered, and nothing taken back, so that names are kept for whoever comes next.
        """

    async def add(self, registration: Registration) -> None:
        """Register a toolkit, on the next connection where the one that there is goes meanwhile.

        Raises:
            RoomException: The server refuses it, or none answers within 30 s.
        """
        if self.is_draining:
            raise Unavailable("this participant is draining", executed="no", retryable=False)
        self._adding.append(registration.hosted.key)
        try:
            body = await self._register(registration)
        finally:
            self._adding.remove(registration.hosted.key)
        self._withdrawn.discard(registration.hosted.key)
        registration.generation = body["generation"]
        self._standing.append(registration)

    async def _register(self, registration: Registration) -> dict[str, Any]:
        """Ask until there is an answer; to ask twice is as good as once."""
        deadline_at = self._loop.time() + _FIRST_ANSWER_S
        while True:
            left_s = deadline_at - self._loop.time()
            try:
                return await self._caller.request(
                    Register, registration.manifest, registration.options, timeout_s=left_s
                )
            except ConnectionLost:
                if self._loop.time() >= deadline_at:
                    raise

    async def withdraw(self, registration: Registration, *, is_ready: bool) -> None:
        """Take a toolkit back: now where the link is ready, else on the next connection."""
        if registration in self._standing:
            self._standing.remove(registration)
        if self.is_draining:
            return
        if is_ready:
            await self._unregister(registration.hosted.key)
        else:
            self._withdrawn.add(registration.hosted.key)

    def end(self) -> None:
        """Try nothing again any more."""
        for trying in self._trying.values():
            trying.cancel()
        self._trying.clear()

    async def register_again(self, deadline_at: float) -> None:
        """Let the connection that is there now host what the one before it did."""
        self.end()
        for registration in list(self._standing):
            # It may be withdrawn, or all of them drained, while others are registered.
            if registration in self._standing and not self.is_draining:
                if not await self._is_settled(registration, deadline_at):
                    name = registration.hosted.toolkit.name
                    _logger.warning("toolkit %s is not hosted yet: trying again", name)
                    task = self._loop.create_task(self._try_again(registration))
                    self._trying[registration] = task

    async def withdraw_again(self) -> None:
        """Take back what the server gave a new connection and nobody hosts any more."""
        for key in list(self._withdrawn):
            await self._unregister(key)

    async def _try_again(self, registration: Registration) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await asyncio.sleep(uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if registration not in self._standing or self.is_draining:
                break
            if await self._is_settled(registration, self._loop.time() + _ANSWER_S):
                if not self._is_wanted(registration.hosted.key):  # withdrawn meanwhile
                    await self._unregister(registration.hosted.key)
                break
        self._trying.pop(registration, None)

    def _is_wanted(self, key: tuple[str, bool]) -> bool:
        return key in self._adding or any(each.hosted.key == key for each in self._standing)

    async def _is_settled(self, registration: Registration, deadline_at: float) -> bool:
        """Register once more; return whether that has an end, good or bad."""
        try:
            body = await self._caller.ask(
                Register, registration.manifest, registration.options, deadline_at=deadline_at
            )
            registration.generation = body["generation"]
        except RoomException as error:
            if error.retryable or isinstance(error, ConnectionLost | DeadlineExceeded):
                return False
            name = registration.hosted.toolkit.name
            _logger.error("toolkit %s is hosted no more: %s", name, error)
        return True

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
