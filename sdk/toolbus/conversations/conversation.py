"""The conversations of an agent: one for each asker and name, each with one question at a time.

An asker is a caller and the principal that it acts for: what an agent asks for one user is no part
of what it asks for another, or for itself.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolbus.agents.agent_state import AgentState
from toolbus.conversations.state_store import StateStore
from toolbus.tools.tool_run import Participant

__all__ = ["Conversation", "Conversations", "conversation_key"]

_MAX_KEPT = 1_000
"""Conversations in memory; the least recently used one is left out, and read again from a store."""


def conversation_key(caller: Participant, principal: Participant | None, name: str) -> str:
    """Return the key of a conversation: who asks, for whom, and its name."""
    asker = [caller.issuer, caller.name]
    for_whom = None if principal is None else [principal.issuer, principal.name]
    return json.dumps([asker, for_whom, name])


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation."""

    key: str
    state: AgentState
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a question of it is answered."""
    users: int = 0
    """Questions that are answered or wait for the lock."""


class Conversations:
    """All conversations of an agent.

    Args:
        store: Where their states are kept; without one they end with the agent.
    """

    def __init__(self, store: StateStore | None) -> None:
        self._store = store
        self._kept: OrderedDict[str, Conversation] = OrderedDict()

    @asynccontextmanager
    async def using(self, key: str) -> AsyncIterator[Conversation]:
        """Wait until no other question of the conversation is answered, and hold it."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = Conversation(key, AgentState())
        self._kept.move_to_end(key)
        found.users += 1
        try:
            async with found.lock:
                yield found
        finally:
            found.users -= 1
            self._leave_out()

    async def save(self, conversation: Conversation) -> None:
        """Store the state of a conversation, if there is a store."""
        if self._store is not None:
            await self._store.save(conversation.key, conversation.state.to_json())

    async def forget(self, conversation: Conversation) -> None:
        """Begin a conversation anew."""
        conversation.state = AgentState()
        if self._store is not None:
            await self._store.delete(conversation.key)

    def _leave_out(self) -> None:
        for key in list(self._kept):
            if len(self._kept) <= _MAX_KEPT:
                return
            if not self._kept[key].users:
                del self._kept[key]
