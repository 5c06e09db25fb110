"""The spans of an agent's turn: `invoke_agent`, and below it each request to a model and each call.

    INTERNAL invoke_agent helper
      CLIENT chat gpt-5                       a request to a model
      INTERNAL execute_tool write           a tool in this process
      INTERNAL execute_tool forecast        a tool elsewhere
        INTERNAL hold                       the wait for a person who decides about it
        CLIENT weather.forecast             its call, as any caller records it

A turn that is not sampled is not sampled as a whole: its calls begin no traces of their own. The
span of a request has what the GenAI conventions require of a client and the tokens, and nothing of
what was asked or answered.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextvars import Token
from pathlib import PurePath

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind

from toolbus.errors import Executed, RoomException
from toolbus.telemetry.attributes import (
    CHAT,
    ERROR_TYPE,
    EXECUTE_TOOL,
    GEN_AI_OPERATION_NAME,
    GEN_AI_PROVIDER_NAME,
    GEN_AI_REQUEST_MODEL,
    GEN_AI_TOOL_CALL_ID,
    GEN_AI_USAGE_INPUT_TOKENS,
    GEN_AI_USAGE_OUTPUT_TOKENS,
    INVOKE_AGENT,
    MAX_NAME_CHARS,
    OTHER,
    SharedAttributes,
    decision_attributes,
    record_outcome,
    sendable,
    turn_attributes,
    turn_call_attributes,
)
from toolbus.telemetry.recorder import SpanRecorder
from toolbus.telemetry.tracing import Tracing

__all__ = ["ModelSpan", "TurnCallSpan", "TurnSpan"]


class TurnCallSpan:
    """The span of one call of a turn."""

    __slots__ = ("_span", "recorder")

    def __init__(self, span: trace.Span, recorder: SpanRecorder) -> None:
        self._span = span
        self.recorder: SpanRecorder = recorder
        """Records what is below it."""

    def set_decision(self, behavior: str, decided_by: str) -> None:
        """Record what the permissions of the turn said, and what decided so."""
        self._span.set_attributes(decision_attributes(behavior, decided_by))

    def end(self, error: RoomException | None, executed: Executed) -> None:
        """End it with the call's outcome, recorded as that of every call."""
        if self._span.is_recording():
            record_outcome(self._span, error, executed)
            self._span.end()


class TurnSpan:
    """The span of a turn. Made by `begin`."""

    def __init__(self, recorder: SpanRecorder, span: trace.Span) -> None:
        self._recorder = recorder
        self._span = span
        self._trace_id = span.get_span_context().trace_id
        self._context = trace.set_span_in_context(span)
        self._token: Token[Context] | None = None
        self._tools: dict[tuple[str, str], SharedAttributes] = {}

    @classmethod
    def begin(
        cls, tracing: Tracing, agent: str, room: str, on_behalf_of: str | None
    ) -> TurnSpan | None:
        """Start the span below the current one and make it current; None if nothing records.

        The names are those of the agent, of its room, empty without one, and of the participant for
        whom the turn calls, if not for the agent itself.
        """
        recorder = tracing.recorder()
        if recorder is None:
            return None
        name = f"{INVOKE_AGENT} {agent[:MAX_NAME_CHARS]}"
        attributes = turn_attributes(agent, room, on_behalf_of)
        parent = trace.get_current_span().get_span_context()
        span: trace.Span | None
        if not parent.is_valid:
            span = recorder.start_root(name, SpanKind.INTERNAL, attributes)
        elif parent.trace_flags.sampled:
            span = recorder.start_span(name, SpanKind.INTERNAL, (attributes,))
        else:
            span = trace.NonRecordingSpan(parent)
        turn = cls(recorder, span or _unsampled())
        turn._token = otel_context.attach(turn._context)
        return turn

    def begin_call(
        self, toolkit: str, tool: str, call_id: str, *, mcp_server: object = None
    ) -> TurnCallSpan:
        """Start the span of a call and make it current for the rest of this task.

        Its parent is the current span if that belongs to the turn, else the turn's own.
        """
        current = trace.get_current_span().get_span_context()
        context = None if current.trace_id == self._trace_id else self._context
        if not self._span.is_recording():
            span: trace.Span = trace.INVALID_SPAN
            entered = context
        else:
            shared = self._tools.get((toolkit, tool))
            if shared is None:
                shared = self._tools[toolkit, tool] = turn_call_attributes(
                    toolkit, tool, mcp_server
                )
            attributes = shared, {GEN_AI_TOOL_CALL_ID: sendable(call_id)}
            name = f"{EXECUTE_TOOL} {tool[:MAX_NAME_CHARS]}"
            span = self._recorder.start_span(name, SpanKind.INTERNAL, attributes, context)
            entered = trace.set_span_in_context(span, context)
        if entered is not None:
            otel_context.attach(entered)
        return TurnCallSpan(span, self._recorder)

    def start_request(self, name: str, attributes: Mapping[str, str]) -> trace.Span | None:
        """Start the span of a request to a model; None if the turn is not recorded.

        It does not become current: a generator that asks a model may be left in another context.
        """
        if not self._span.is_recording():
            return None
        return self._recorder.start_span(name, SpanKind.CLIENT, (attributes,), self._context)

    def end(self, error: BaseException | None) -> None:
        """End it. An exception that is not toolbus's is recorded without its name."""
        token, self._token = self._token, None
        # A turn may be left by another task than entered it: then the context stays as it is.
        if token is not None and otel_context.get_current() is self._context:
            otel_context.detach(token)
        if not self._span.is_recording():
            return
        if isinstance(error, RoomException):
            record_outcome(self._span, error, error.executed)
        elif isinstance(error, Exception):
            self._span.set_attribute(ERROR_TYPE, OTHER)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


def _unsampled() -> trace.Span:
    """Return a root that is not recorded, so that nothing below it is."""
    ids = int.from_bytes(secrets.token_bytes(16)) or 1, int.from_bytes(secrets.token_bytes(8)) or 1
    return trace.NonRecordingSpan(SpanContext(*ids, is_remote=False))


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
        provider = sendable(_PROVIDERS.get(prefix, prefix))
        if not colon:
            provider, rest = OTHER, model
        name = sendable(rest)
        attributes = {
            GEN_AI_OPERATION_NAME: CHAT,
            GEN_AI_REQUEST_MODEL: name,
            GEN_AI_PROVIDER_NAME: provider,
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
