"""The span of one request to a model, below that of the turn: `chat MODEL`.

It has what the GenAI conventions require of a client and the tokens, and nothing of what was asked
or answered.
"""

from __future__ import annotations

from pathlib import PurePath

from opentelemetry import trace

from toolbus.telemetry.attributes import (
    CHAT,
    ERROR_TYPE,
    GEN_AI_OPERATION_NAME,
    GEN_AI_PROVIDER_NAME,
    GEN_AI_REQUEST_MODEL,
    GEN_AI_USAGE_INPUT_TOKENS,
    GEN_AI_USAGE_OUTPUT_TOKENS,
    OTHER,
    sendable,
)
from toolbus.telemetry.turn_spans import TurnSpan

__all__ = ["ModelSpan"]

_PROVIDERS = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "gemini": "gcp.gemini",
}
"""The name of a provider by the conventions, where it is not that of `open_model`."""


class ModelSpan:
    """The span of one request. Made by `begin`."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @classmethod
    def begin(cls, turn: TurnSpan, model: str) -> ModelSpan | None:
        """Start it below the span of a turn; None if that is not recorded.

        Args:
            turn: The turn whose tools are in the request.
            model: The name of the model as `open_model` takes it, `PROVIDER:NAME`, or another.
        """
        prefix, colon, rest = model.partition(":")
        if prefix == "scripted":
            rest = PurePath(rest).name  # the folders of this machine are nobody's business
        name = sendable(rest if colon else model)
        attributes = {
            GEN_AI_OPERATION_NAME: CHAT,
            GEN_AI_REQUEST_MODEL: name,
            GEN_AI_PROVIDER_NAME: sendable(_PROVIDERS.get(prefix, prefix)) if colon else OTHER,
        }
        span = turn.start_request(f"{CHAT} {name}", attributes)
        return None if span is None else cls(span)

    def end(
        self, input_tokens: int, output_tokens: int, error: str | None, *, failed: bool
    ) -> None:
        """End it.

        Args:
            input_tokens: As the provider counts them; 0 is not recorded.
            output_tokens: The same of the reply.
            error: What ended the request early: a status, the code of an error, or a class.
            failed: Whether that is a failure; who cancels a request did not see it fail.
        """
        counts = {
            GEN_AI_USAGE_INPUT_TOKENS: input_tokens,
            GEN_AI_USAGE_OUTPUT_TOKENS: output_tokens,
        }
        self._span.set_attributes({name: count for name, count in counts.items() if count})
        if error is not None:
            self._span.set_attribute(ERROR_TYPE, sendable(error))
        if failed:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()
