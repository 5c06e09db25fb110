"""Uses that wait for a result from outside, with the results of the other uses of their step.

A step is parked as a whole, since a model gets the results of one reply together. An `AgentState`
has it, as JSON too, so that another process can go on.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from toolbus.chunks.carried_values import repaired
from toolbus.chunks.chunk_types import (
    Chunk,
    FileChunk,
    MixedChunk,
    TextChunk,
    chunk_from_wire,
    chunks_of,
    one_chunk,
    result_chunk,
)
from toolbus.chunks.json_values import plain_json
from toolbus.errors import (
    ERRORS,
    Executed,
    InvalidResult,
    RoomException,
    TooLarge,
    ToolFailed,
)
from toolbus.tools.toolkit import MAX_MIXED_BYTES, MAX_RESULT_BYTES
from toolbus.turns.tool_use import ResultState, ToolResult, file_label
from toolbus.turns.turn_calls import in_memory, packed_size
from toolbus.wire import BadBody, pack_body, unpack_body

__all__ = ["AnswerProgress", "ParkedStep", "ParkedUse", "given_result"]

_Count: TypeAlias = Annotated[int, Meta(ge=0)]


class ParkedUse(
    Struct,
    frozen=True,
    tag="open",
    tag_field="is",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A use that waits for its result: what whoever gives the result has to know."""

    id: str
    """The id of the use, by which `Turn.settle` knows it."""
    tool: str
    """`toolkit.tool`."""
    arguments: dict[str, Any]
    """The arguments that were let through, after middlewares and permissions."""
    has_changed: bool = False
    """Whether these are others than the model's."""


class AnswerProgress(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How far the loop of an agent has come, and which reply a parked step belongs to."""

    steps: _Count = 0
    """How many replies the model gave."""
    text: str = ""
    """The last reply of the model with a text."""
    paused: str = ""
    """The text of a reply that goes on in the next one."""
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    counted_tokens: _Count = 0
    """Those that count for `max_tokens`."""
    reply: dict[str, Any] = msgspec.field(default_factory=dict)
    """The reply that the parked uses are of, in the words of its adapter."""
    messages: _Count = 0
    """How many messages at the end of the conversation stand for this step until it goes on."""
    is_portable: bool = False
    """Whether it goes on without its thoughts, as for another model."""

    @property
    def tokens(self) -> dict[str, int]:
        """The tokens as the provider counts them."""
        return {"input": self.input_tokens, "output": self.output_tokens}


class _StoredError(Struct, forbid_unknown_fields=True, omit_defaults=True):
    code: str
    message: str
    executed: Executed
    retryable: bool
    details: dict[str, Any]
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: RoomException) -> _StoredError:
        details: dict[str, Any] = {}
        with suppress(InvalidResult):  # of a tool in this process, which may put anything there
            details = plain_json(error.details)
        return cls(
            error.code,
            repaired(error.message),
            error.executed,
            error.retryable,
            details,
            error.retry_after_s,
        )

    def restored(self) -> RoomException:
        return ERRORS.get(self.code, RoomException)(
            self.message,
            executed=self.executed,
            retryable=self.retryable,
            details=self.details,
            retry_after_s=self.retry_after_s,
        )


class _StoredResult(
    Struct, tag="result", tag_field="is", forbid_unknown_fields=True, omit_defaults=True
):
    id: str
    tool: str
    state: ResultState
    chunks: list[str]
    """Each packed, in Base64."""
    executed: Executed
    error: _StoredError | None = None
    changed_arguments: dict[str, Any] | None = None
    streaming: bool = False
    omitted: _Count = 0

    @classmethod
    def of(cls, result: ToolResult) -> _StoredResult:
        changed = result.changed_arguments
        return cls(
            result.id,
            result.tool,
            result.state,
            [b64encode(pack_body(_storable(chunk).to_wire())).decode() for chunk in result.chunks],
            result.executed,
            None if result.error is None else _StoredError.of(result.error),
            None if changed is None else dict(changed),
            result.streaming,
            result.omitted,
        )

    def restored(self) -> ToolResult:
        """Return it as it was. Raises `ValueError` for chunks that are none."""
        try:
            packed = [b64decode(chunk, validate=True) for chunk in self.chunks]
            chunks = tuple(chunk_from_wire(unpack_body(body, binary=True)) for body in packed)
        except (BadBody, RoomException) as error:
            raise ValueError("a chunk of a result cannot be read") from error
        return ToolResult(
            self.id,
            self.tool,
            self.state,
            chunks,
            None if self.error is None else self.error.restored(),
            self.executed,
            self.changed_arguments,
            self.streaming,
            self.omitted,
        )


def _storable(chunk: Chunk) -> Chunk:
    """Return a chunk as it is stored: of a file that is not in memory the label, as models get."""
    if isinstance(chunk, FileChunk) and not chunk.is_whole:
        return TextChunk(file_label(chunk))
    return chunk


class _StoredStep(Struct, forbid_unknown_fields=True, omit_defaults=True):
    uses: list[ParkedUse | _StoredResult]
    progress: AnswerProgress | None = None


@dataclass(slots=True)
class ParkedStep:
    """The uses of one step, in order: those that are parked, and the results of the others."""

    uses: list[ParkedUse | ToolResult]
    progress: AnswerProgress | None = None
    """What the loop of an agent needs to go on; None where a program ran the uses."""

    @property
    def open(self) -> tuple[ParkedUse, ...]:
        """The uses that wait for their results."""
        return tuple(use for use in self.uses if isinstance(use, ParkedUse))

    @property
    def results(self) -> list[ToolResult]:
        """The results that there are."""
        return [use for use in self.uses if isinstance(use, ToolResult)]

    def settle(self, parked: ParkedUse, result: ToolResult) -> None:
        """Let a result take the place of a use that is open."""
        at = next(at for at, use in enumerate(self.uses) if use is parked)
        self.uses[at] = result

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        uses = [use if isinstance(use, ParkedUse) else _StoredResult.of(use) for use in self.uses]
        plain: dict[str, Any] = msgspec.to_builtins(_StoredStep(uses, self.progress))
        return plain

    @classmethod
    def from_plain(cls, plain: Any) -> ParkedStep:
        """Read what `to_plain` returned. Raises `ValueError` for anything else."""
        stored = msgspec.convert(plain, _StoredStep)
        uses = [use if isinstance(use, ParkedUse) else use.restored() for use in stored.uses]
        return cls(uses, stored.progress)


async def given_result(
    tool: str, chunks: Sequence[Any], error: RoomException | str | None
) -> Chunk | RoomException:
    """Return what a parked use is given, within the limits of any result.

    Args:
        tool: The tool of the use.
        chunks: Values that a tool may return: none for an empty result.
        error: The error in place of a result; a text is a `ToolFailed`.

    Raises `InvalidResult` for what cannot be sent, and `TooLarge`.
    """
    if error is not None:
        if chunks:
            raise TypeError("a use is settled with chunks or with an error, not with both")
        if isinstance(error, RoomException):
            return error
        if not isinstance(error, str):
            raise TypeError(f"error must be a RoomException or text, not {type(error).__name__}")
        return ToolFailed(error)
    parts: list[Chunk] = []
    for value in chunks:
        for chunk in chunks_of(result_chunk(value)):
            if isinstance(chunk, FileChunk) and not chunk.is_whole:
                chunk = await in_memory(chunk, MAX_MIXED_BYTES, tool)
            parts.append(chunk)
    mixed = MixedChunk(tuple(parts))
    packed_size(tool, mixed)
    if mixed.value_bytes > MAX_RESULT_BYTES:
        text = f"the result has {mixed.value_bytes} bytes, at most {MAX_RESULT_BYTES} can be sent"
        raise TooLarge(text)
    return one_chunk(parts)
