"""Who answers what tools in the process of a turn ask: `Turn(answer=...)`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.json_values import shown
from toolbus.client.held_calls import HeldCall, report_held
from toolbus.errors import ApprovalExpired, RoomException
from toolbus.room.room import Room, ask_before_call

if TYPE_CHECKING:  # few tools ask
    from toolbus.tools.observed_hold import ObservedHold
    from toolbus.tools.questions import Answerer, ToolQuestion
    from toolbus.turns.turn_calls import TurnCall

__all__ = ["Answer", "TurnAnswers", "checked_answer", "turn_answers"]

Answer: TypeAlias = "Answerer | Literal['room']"
"""Who answers: a function, or in the room of the turn those who may."""
_IN_ROOM = "room"
TurnAnswers: TypeAlias = "Callable[[TurnCall, ToolQuestion], Awaitable[Chunk]]"
"""Asks what the tool of a call asks, and returns the answer once it fits."""


def checked_answer(answer: Answer | None) -> Answer | None:
    """Return the option of a turn. Raises `TypeError` for what is neither a function nor "room"."""
    if answer is None or answer == _IN_ROOM or callable(answer):
        return answer
    raise TypeError(f'answer must be an async function, or "room", not {shown(answer)}')


def turn_answers(
    answer: Answer | None, view: Callable[[None], Room | None], *, approves_in_room: bool
) -> TurnAnswers | None:
    """Return what asks for a turn; None if nobody can be asked.

    Args:
        answer: The option of the turn.
        view: Returns the room of the turn.
        approves_in_room: Whether `approve` is "room": then so is `answer` by default.
    """
    if answer is None and not approves_in_room:
        return None
    if answer is None or isinstance(answer, str):
        return lambda call, question: _ask_in_room(view(None), call, question)

    async def ask(call: TurnCall, question: ToolQuestion) -> Chunk:
        from toolbus.tools.questions import answered_by

        with _observed(call) as observed:
            chunk = await answered_by(answer, question)
            observed.answered()
        return chunk

    return ask


def _observed(call: TurnCall) -> ObservedHold:
    from toolbus.tools.observed_hold import ObservedHold

    recorder = None if call.span is None else call.span.recorder
    return ObservedHold(call.recording, recorder, "answer")


async def _ask_in_room(room: Room | None, call: TurnCall, question: ToolQuestion) -> Chunk:
    """Ask those in a room who may answer (PROTOCOL.md, HOLD-12).

    The time of the call that the turn serves stands still meanwhile.
    """
    from toolbus.tools.questions import answer_of

    assert room is not None, "as the options were checked"
    dispatch, options = call.entry.dispatch, call.options
    about: dict[str, Any] = {"tool": call.entry.info.name, "call_id": call.id}
    about |= {"definition": dispatch.digest, **dispatch.asked_as}
    if options.purpose is not None:
        about["purpose"] = options.purpose

    async def ask(asked: ToolQuestion) -> Mapping[str, Any]:
        kind, digest, body, named = asked.to_wire(dispatch.digest)
        with _observed(call) as observed:
            reply = await ask_before_call(room, kind, digest, body, named | about)
            observed.read(reply)
        return reply

    held = HeldCall("", about["tool"], kind="answer")
    outcome = "cancelled"
    report_held(options.on_held, held)
    try:
        answer = await answer_of(question, ask)
        outcome = "answered"
        return answer
    except ApprovalExpired:
        outcome = "expired"
        raise
    except RoomException as error:
        outcome = "denied" if error.code == "approval_denied" else outcome
        raise
    finally:
        report_held(options.on_held, replace(held, outcome=outcome, kind=""))
