"""Whose a call is, and how long it may work.

What a toolkit keeps for one asker, no other one gets.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias
from weakref import WeakValueDictionary

from toolbus import ToolContext

__all__ = ["Asker", "PerCallerSemaphore", "asker_of", "seconds_to_answer"]

_ANSWER_S = 1.0

Asker: TypeAlias = tuple[tuple[str, str] | None, ...]
"""Those behind a call, each by issuer and name."""


def asker_of(context: ToolContext) -> Asker:
    """Return those behind a call: its caller, its principal, and whom it was forwarded for.

    What an agent runs for one user is nothing of another, nor of itself.
    """
    principal = context.on_behalf_of
    behind = (context.caller, principal, *context.forwarded_for)
    return tuple(None if each is None else (each.issuer, each.name) for each in behind)


def seconds_to_answer(context: ToolContext, most: float) -> float:
    """Return how long a call may work so that its caller gets what there is until then.

    It ends a second before its deadline; of less than two seconds, half is left for the answer.

    Args:
        context: The call.
        most: How long it may work if no deadline comes before.
    """
    left_s = context.deadline
    return most if left_s is None else min(most, max(left_s - _ANSWER_S, left_s / 2))


class PerCallerSemaphore:
    """So many places for each asker: none takes all threads or processes of a host.

    Args:
        most: How many each has at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Of each event loop and asker; it is gone when nobody uses it.
        self._by_asker = WeakValueDictionary[tuple[int, Asker], asyncio.Semaphore]()

    def of(self, context: ToolContext | None) -> asyncio.Semaphore:
        """Return what the calls of the asker of a call have to acquire; of None, all calls."""
        asker = () if context is None else asker_of(context)
        key = (id(asyncio.get_running_loop()), asker)
        place = self._by_asker.get(key)
        if place is None:
            place = self._by_asker[key] = asyncio.Semaphore(self._most)
        return place
