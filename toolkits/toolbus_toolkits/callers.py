"""Whose a call is, how long it may work, and whether a cancelled one has changed something.

What a toolkit keeps for one asker is not given to another one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

from toolbus import ToolContext, ToolFailed

__all__ = [
    "MAX_ASKERS",
    "MAX_ASSESSED",
    "Asker",
    "Commit",
    "LastUsed",
    "PerCallerSemaphore",
    "asker_of",
    "seconds_to_answer",
]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_ASKERS = 1_000
"""Of so many something is remembered; names cost nothing, so that one program may be any number."""
MAX_ASSESSED = 64
"""Of so many texts of one asker it is remembered how they were assessed; each may be long."""
_ANSWER_S = 1.0

Asker: TypeAlias = tuple[tuple[str, str] | None, ...]
"""Those behind a call, each by issuer and name."""


def asker_of(context: ToolContext) -> Asker:
    """Return those behind a call: its caller, its principal, and whom it was forwarded for.

    What an agent runs for one user is nothing of another, nor of itself.
    """
    principal = context.on_behalf_of
    participants = (context.caller, principal, *context.forwarded_for)
    return tuple(
        None if participant is None else (participant.issuer, participant.name)
        for participant in participants
    )


def seconds_to_answer(context: ToolContext, most: float) -> float:
    """Return how long a call may work so that its caller gets what there is until then.

    It ends a second before its deadline; of less than two seconds, half is left for the answer.

    Args:
        context: The call.
        most: How long it may work if no deadline comes before.
    """
    left_s = context.deadline
    if left_s is None:
        return most
    return min(most, max(left_s - _ANSWER_S, left_s / 2))


class Commit:
    """Whether a change is being made: known to its thread, and to the task that waits for it.

    Each of them sets its own flag before it reads the other one. So of a cancelled call it is known
    whether it may have changed something.
    """

    def __init__(self) -> None:
        self._has_begun = False
        self.is_given_up = False
        """Whether the change must not be made."""

    def begin(self) -> None:
        """Say that the change is made from now on. Raises `ToolFailed` if it was given up."""
        self._has_begun = True
        if self.is_given_up:
            raise ToolFailed("the call was cancelled")

    def give_up(self) -> bool:
        """Let it not be made, unless that has begun; return whether it has."""
        self.is_given_up = True
        return self._has_begun


class LastUsed(OrderedDict[_Key, _Value]):
    """What was set last, oldest first: beyond a number of keys the oldest one is forgotten."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)


class PerCallerSemaphore:
    """A semaphore for each asker, so that none takes all threads or processes of a host.

    Args:
        limit: How many calls of one asker may hold its semaphore at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By event loop and asker; an entry is gone when no call uses it.
        self._semaphores = WeakValueDictionary[tuple[int, Asker], asyncio.Semaphore]()

    def for_caller(self, context: ToolContext | None) -> asyncio.Semaphore:
        """Return the semaphore of the asker of a call; for None, one that all calls share."""
        asker = () if context is None else asker_of(context)
        key = (id(asyncio.get_running_loop()), asker)
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = asyncio.Semaphore(self._limit)
        return semaphore
