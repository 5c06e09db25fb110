"""The calls elsewhere that wait while a question is answered, and what the user decides on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.approvals.questions import ask_about, outcome_text, settle
from toolbus.cli.chat.agents import ChatAgent
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import RoomException, Unavailable
from toolbus.room.room_client import RoomClient
from toolbus.turns.approvals import ApprovalDecision
from toolbus.turns.terminal_questions import TypedAnswer

__all__ = ["HeldCalls", "answer_hold"]

_logger = bounded_logger(__name__)
_READ_S = 1.0
"""What the end of an answer waits for that; the connection may be lost."""
_Decided: TypeAlias = ApprovalDecision | TypedAnswer | None
Quiet: TypeAlias = Callable[[Callable[[], Awaitable[_Decided]]], Awaitable[_Decided]]
"""Asks while nothing else is printed."""


async def answer_hold(room: RoomClient, hold_id: str, quiet: Quiet) -> None:
    """Ask in the terminal about a call that waits, and tell the room what the person decides.

    Without a terminal, or an answer, it waits on: it may be approved elsewhere. An error is logged.
    """
    try:
        hold = await room.hold(hold_id)
        if hold.body is not None:  # else it was settled meanwhile
            from toolbus.cli.approvals.editing import edited_json  # few calls wait

            decision = await quiet(partial(ask_about, hold, edit=edited_json))
            if decision is not None:
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
        self._ends: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ends:  # whose dialogs are about to show by whom they were settled
            await asyncio.wait(self._ends, timeout=_READ_S)
        tasks = [*self._asking.values(), *self._ends]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, hold_id: str, asking: asyncio.Task[None]) -> None:
        """End the dialog about a call that was settled; it shows by whom."""
        outcome = ""
        try:
            outcome = outcome_text(await self._agent.room.hold(hold_id))
        except RoomException as error:
            outcome = error.message
        finally:
            asking.cancel(outcome)

    def follow(self, event: Mapping[str, Any]) -> None:
        """Take an event: ask about what waits, and ask no more about what does not."""
        hold_id = event.get("hold")
        if not isinstance(hold_id, str):
            return
        if event.get("type") == "resumed":
            task = self._asking.pop(hold_id, None)
            if task is not None and not task.done():
                self._ends.append(asyncio.ensure_future(self._end(hold_id, task)))
        elif event.get("type") == "held" and event.get("may_settle") is True:
            answering = answer_hold(self._agent.room, hold_id, self._quiet)
            self._asking[hold_id] = task = asyncio.ensure_future(answering)
            task.add_done_callback(retrieve_error)
