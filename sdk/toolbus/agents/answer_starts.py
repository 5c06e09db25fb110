"""How an answer of an agent begins: with a question, or with the results of parked uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from toolbus.agents.agent_events import AgentEvent, result_events
from toolbus.agents.answer_progress import progress_of
from toolbus.agents.conversation import Conversation
from toolbus.agents.model_requests import model_identity
from toolbus.chunks.chunk_types import FileChunk
from toolbus.chunks.json_values import shown
from toolbus.errors import InvalidArguments, RoomException, TooLarge
from toolbus.models.adapter import Model, Plain
from toolbus.turns.turn import Turn

__all__ = ["AnswerStart", "QuestionStart", "ResumedStart", "invalid_argument"]

MAX_FILE_BYTES = 16 * 2**20
"""Of a file for the model. Some APIs take more in one request, and Gemini's 15 MiB; but a file is
held in memory, and in the conversation again as Base64."""


class QuestionStart:
    """Begins an answer with a question."""

    waits_for = "question"

    def __init__(self, text: str, files: Iterable[FileChunk]) -> None:
        self._text = text
        self._files = files
        self._question: Plain = {}

    async def check(self, model: Model) -> None:
        """Make the message. Raises `InvalidArguments`."""
        text = self._text
        if not isinstance(text, str):
            raise invalid_argument("/text", f"must be text, not {shown(text)}")
        whole = [await _in_memory(file) for file in self._files]
        try:
            self._question = model.adapter.user(text, whole)
        except ValueError as error:
            raise invalid_argument("/attachment" if whole else "/text", str(error)) from error

    async def enter(
        self, turn: Turn, conversation: Conversation, model: Model
    ) -> list[AgentEvent | FileChunk]:
        """Append the message; return the first events."""
        conversation.begin(model.adapter, self._question, model_identity(model))
        reason = conversation.dropped
        return [{"type": "dropped", "reason": reason}] if reason else []


class ResumedStart:
    """Goes on with an answer, with results of parked uses."""

    waits_for = "results"

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = results

    async def check(self, model: Model) -> None:
        """Raise `TypeError` for what is not a mapping."""
        if not isinstance(self._results, Mapping):
            raise TypeError(f"results must be a mapping of ids, not {shown(self._results)}")

    async def enter(
        self, turn: Turn, conversation: Conversation, model: Model
    ) -> list[AgentEvent | FileChunk]:
        """Settle the uses; return the events of their results."""
        conversation.resume(progress_of(turn), model.adapter, model_identity(model))
        given: dict[str, tuple[Sequence[Any], RoomException | None]] = {
            use_id: ((), value) if isinstance(value, RoomException) else ((value,), None)
            for use_id, value in self._results.items()
        }
        results = await turn.settle_all(given)
        return [event for result in results for event in result_events(result)]


AnswerStart: TypeAlias = QuestionStart | ResumedStart


async def _in_memory(file: FileChunk) -> FileChunk:
    if not isinstance(file, FileChunk):
        raise invalid_argument("/attachment", f"must be a FileChunk, not {shown(file)}")
    data = bytearray()
    async for piece in file.pieces():
        data += piece
        if len(data) > MAX_FILE_BYTES:
            text = f"a file for an agent has at most {MAX_FILE_BYTES:,} bytes"
            raise TooLarge(text, executed="no", retryable=False)
    return FileChunk(bytes(data), file.name, file.mime_type)


def invalid_argument(path: str, message: str) -> InvalidArguments:
    """Return the error for an argument of a question, by its path."""
    text = f"{path}: {message}"
    return InvalidArguments(text, details={"path": path, "message": message})
