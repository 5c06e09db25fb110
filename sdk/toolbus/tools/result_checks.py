"""Whether a result, or what a person answers in its place, matches the output schema."""

from __future__ import annotations

from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, LinkChunk, MixedChunk
from toolbus.errors import InvalidResult
from toolbus.schemas.validation import JsonCheck, Violation

__all__ = ["check_result", "result_violation"]


def check_result(check: JsonCheck, chunk: Chunk) -> None:
    """Raise `InvalidResult` if a result, or an item of a stream, breaks the output schema."""
    violation = result_violation(check, chunk)
    if violation is not None:
        message = f"the result breaks its schema at {violation.path or '/'}: {violation.message}"
        raise InvalidResult(message, details=violation.details)


def result_violation(check: JsonCheck, chunk: Chunk) -> Violation | None:
    """Return where a result breaks the output schema; None if it matches.

    Of several chunks, the one JSON value among them has to match. A place that is text because JSON
    cannot carry its value is not checked; beyond the places that the chunk names, nothing is.
    """
    if isinstance(chunk, MixedChunk):
        chunk = next((part for part in chunk.chunks if isinstance(part, JsonChunk)), chunk)
    if isinstance(chunk, FileChunk | LinkChunk | MixedChunk):
        return Violation("", "the tool must return a JSON value")
    if not chunk.as_text:
        return check.violation(chunk.value)
    if chunk.more_as_text:
        return None
    return check.violation_except(chunk.value, frozenset(chunk.as_text))
