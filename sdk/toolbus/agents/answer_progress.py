"""How far an answer has come, in the loop of an agent and across a parked step."""

from __future__ import annotations

from toolbus.agents.model_requests import RequestToModel
from toolbus.errors import Unavailable
from toolbus.models.adapter import Adapter, Plain
from toolbus.turns.parking import AnswerProgress
from toolbus.turns.turn import Turn

__all__ = [
    "add_reply",
    "begun_answer",
    "complete_step",
    "keep_progress",
    "limit_of",
    "progress_of",
]


def begun_answer(
    turn: Turn, adapter: Adapter, conversation: list[Plain]
) -> tuple[AnswerProgress, str]:
    """Return the answer so far, and "parked" if it has to wait on.

    A step that an earlier loop has parked, perhaps in another process, is completed if its uses are
    settled. Raises as `progress_of`.
    """
    if turn.state.parked is None:
        return AnswerProgress(), ""
    answer = progress_of(turn)
    if turn.parked:
        return answer, "parked"
    complete_step(turn, adapter, conversation)
    return answer, ""


def add_reply(
    answer: AnswerProgress, call: RequestToModel, reply: Plain, words: str, *, counts: bool
) -> str:
    """Add a reply to what the answer has so far; return "done" for the last one."""
    adapter = call.model.adapter
    answer.text = words if words.strip() else answer.text  # may be empty, after one with calls
    answer.input_tokens += call.usage.reported.input
    answer.output_tokens += call.usage.reported.output
    is_paused = adapter.ending(reply).is_paused
    answer.paused = words if is_paused else ""
    if not is_paused and not adapter.uses(reply):
        return "done"
    if counts:
        answer.counted_tokens += sum(call.usage.counted)
    return ""


def limit_of(answer: AnswerProgress, max_steps: int, max_tokens: int | None) -> str:
    """Return which limit an answer has reached; empty for none."""
    if max_tokens is not None and answer.counted_tokens >= max_tokens:
        return "max_tokens"
    return "max_steps" if answer.steps >= max_steps else ""


def progress_of(turn: Turn) -> AnswerProgress:
    """Return how far the loop had come that has parked a step.

    Raises `Unavailable` if a program has parked it, which has the reply itself.
    """
    step = turn.state.parked
    if step is None or step.progress is None:
        text = "no loop has parked this step: give Turn.take_results to the model yourself"
        raise Unavailable(text, executed="no", retryable=False)
    return step.progress


def complete_step(turn: Turn, adapter: Adapter, conversation: list[Plain]) -> None:
    """Put the results of a parked step into the conversation, in place of what stood for them.

    Raises as `progress_of`, and `Unavailable` while a use of it is parked.
    """
    answer = progress_of(turn)
    made = adapter.messages(answer.reply, turn.take_results())
    at = max(0, len(conversation) - answer.messages)
    conversation[at:] = adapter.portable(made) if answer.is_portable else made


def keep_progress(
    answer: AnswerProgress, turn: Turn, call: RequestToModel, reply: Plain, messages: int
) -> None:
    """Keep with a parked step what it takes to go on, perhaps in another process."""
    if turn.state.parked is None:
        return
    answer.reply = reply
    answer.messages = messages
    answer.is_portable = call.is_of_another_model
    turn.state.parked.progress = answer
