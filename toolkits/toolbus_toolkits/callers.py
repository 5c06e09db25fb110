"""Whose a call is: what a toolkit keeps for one of them, no other one gets."""

from __future__ import annotations

import asyncio
from typing import TypeAlias
from weakref import WeakValueDictionary

from toolbus import ToolContext

__all__ = ["Asker", "Places", "asker_of"]

Asker: TypeAlias = tuple[tuple[str, str] | None, ...]
"""Those behind a call, each by issuer and name."""


def asker_of(context: ToolContext) -> Asker:
    """Return those behind a call: its caller, its principal, and whom it was forwarded for.

    What an agent runs for one user is nothing of another, nor of itself.
    """
    principal = context.on_behalf_of
    behind = (context.caller, principal, *context.forwarded_for)
    return tuple(None if each is None else (each.issuer, each.name) for each in behind)


class Places:
    """So many places for each asker: none takes all threads or processes of a host.

    Args:
        most: How many each has at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Of each event loop and asker; it is gone when nobody uses it.
        self._by_asker = WeakValueDictionary[tuple[int, Asker], asyncio.Semaphore]()

    def of(self, context: ToolContext) -> asyncio.Semaphore:
        """Return what the calls of the asker of a call have to acquire."""
        key = (id(asyncio.get_running_loop()), asker_of(context))
        place = self._by_asker.get(key)
        if place is None:
            place = self._by_asker[key] = asyncio.Semaphore(self._most)
        return place
