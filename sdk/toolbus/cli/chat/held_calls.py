"""The calls elsewhere that wait while a question is answered, and what the user decides on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.approvals.questions import question_of, settle
from toolbus.cli.chat.agents import ChatAgent
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import RoomException, Unavailable
from toolbus.room.room_client import RoomClient
from toolbus.turns.approvals import ApprovalDecision
from toolbus.turns.terminal_approvals import ask_in_terminal

__all__ = ["HeldCalls", "answer_hold"]

_logger = bounded_logger(__name__)
Quiet: TypeAlias = Callable[
    [Callable[[], Awaitable[ApprovalDecision]]], Awaitable[ApprovalDecision]
]
"""Asks while nothing else is printed."""


async def answer_hold(room: RoomClient, hold_id: str, quiet: Quiet) -> None:
    """Ask in the terminal about a call that waits, and tell the room what the person decides.

    Without a terminal it waits on: it may be approved elsewhere. An error is logged.
    """
    try:
        hold = await room.hold(hold_id)
        if hold.body is not None:  # else it was settled meanwhile
            decision = await quiet(partial(ask_in_terminal, question_of(hold)))
            await settle(room, hold, decision)
    except Unavailable:
        return
    except RoomException as error:
        _logger.warning("the approval %s: %s", hold_id, error.message)


class HeldCalls:
    """The calls that wait while one question is answered: the user is asked about each in turn.

    Args:
        agent: Who is asked; its room is where they wait.
        quiet: Asks while nothing else is printed.
    """

    def __init__(self, agent: ChatAgent, quiet: Quiet) -> None:
        self._agent = agent
        self._quiet = quiet
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def follow(self, event: Mapping[str, Any]) -> None:
        """Take an event: ask about what waits, and ask no more about what does not."""
        hold_id = event.get("hold")
        if not isinstance(hold_id, str):
            return
        if event.get("type") == "resumed":
            if task := self._asking.pop(hold_id, None):
                task.cancel()
        elif event.get("type") == "held" and event.get("may_settle") is True:
            answering = answer_hold(self._agent.room, hold_id, self._quiet)
            self._asking[hold_id] = task = asyncio.ensure_future(answering)
            task.add_done_callback(retrieve_error)
