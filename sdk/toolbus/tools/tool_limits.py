"""How many calls of a tool may run at a time, and for how long.

The slots of a tool with `max_concurrency` go to its callers in turn. A slot is never refused: calls
wait for one. The next free slot goes to the waiting caller that holds the fewest, so that a caller
with many waiting calls delays another one by one call and not by all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple, Protocol, TypeAlias

from toolbus.tools.tool import Tool

__all__ = ["NO_LIMITS", "Identity", "SlotUser", "ToolLimits", "ToolSlots", "limits_of"]

Identity: TypeAlias = tuple[str, str]
"""Issuer and name of a caller."""
SYNC_CALLS = 8
"""How many calls of a sync tool run at a time by default.

A sync function mostly waits, for a disk or a server, so one at a time would let its callers queue
for nothing; without a limit one tool could take every thread of its host.
"""


class SlotUser(Protocol):
    """A call that holds or wants a slot."""

    @property
    def identity(self) -> Identity:
        """Its caller; read only where calls wait."""


class ToolSlots:
    """Slots for `count` calls at a time.

    A caller that is alone may hold all of them. Of callers that hold equally few, the one that was
    served least recently is next, and of its calls the first.
    """

    __slots__ = ("_users", "_waiting", "count")

    def __init__(self, count: int) -> None:
        self.count: int = count
        self._users: set[SlotUser] = set()
        self._waiting: dict[Identity, dict[SlotUser, asyncio.Future[None]]] = {}

    async def acquire(self, user: SlotUser) -> None:
        """Wait for a slot; a cancelled call leaves the queue. At once if there is a free one."""
        if len(self._users) < self.count:
            self._users.add(user)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user.identity, {})[user] = turn
        try:
            await turn
        except asyncio.CancelledError:
            if user in self._users:  # it was given a slot, and cancelled before it continued
                self.release(user)
            else:
                self._remove(user)
            raise

    def release(self, user: SlotUser) -> None:
        """Give the slot of a call to the next one that waits, if there is any."""
        self._users.remove(user)
        if not self._waiting:
            return
        if queue := self._waiting.pop(user.identity, None):
            self._waiting[user.identity] = queue  # behind the others
        while self._waiting:
            caller = self._next_caller()
            queue = self._waiting.pop(caller)
            next_user = next(iter(queue))
            turn = queue.pop(next_user)
            if queue:
                self._waiting[caller] = queue
            if not turn.done():  # else it is cancelled, and its task has not run since
                self._users.add(next_user)
                turn.set_result(None)
                return

    def _next_caller(self) -> Identity:
        """Return the waiting caller that holds the fewest slots, the first of equals."""
        if len(self._waiting) == 1:
            return next(iter(self._waiting))
        held = Counter(user.identity for user in self._users)
        return min(self._waiting, key=held.__getitem__)

    def _remove(self, user: SlotUser) -> None:
        queue = self._waiting.get(user.identity, {})
        queue.pop(user, None)
        if not queue:
            self._waiting.pop(user.identity, None)


class ToolLimits(NamedTuple):
    """Limits of a tool: concurrent calls and seconds per call; None means unlimited."""

    slots: ToolSlots | None
    timeout_s: float | None


NO_LIMITS = ToolLimits(None, None)
"""The limits of a tool that sets none."""


def limits_of(tool: Tool) -> ToolLimits:
    """Return the tool's own limits; a sync tool has one by default."""
    limit = tool.max_concurrency
    if limit is None and not tool.is_async:
        # The tool's own option, not the manifest's value, which is that of `read_only` by default:
        # only an author who says so has a function that must run alone.
        limit = 1 if tool.concurrency_safe is False else SYNC_CALLS
    return ToolLimits(None if limit is None else ToolSlots(limit), tool.timeout_s)
