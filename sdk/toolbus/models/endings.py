"""Why a reply ended, and whether that is a failure: one rule for all APIs. Pure."""

from __future__ import annotations

from typing import NamedTuple

from toolbus.models.model_error import ModelError
from toolbus.untrusted_text import one_line

__all__ = ["Ending", "check_ending", "first_cut", "is_cut"]

_COMPLETE = frozenset(
    {"", "stop", "end_turn", "stop_sequence", "completed", "eos", "eos_token"}
    | {"complete", "tool_calls", "tool_call", "tool_use", "function_call"}
    | {"finish_reason_unspecified"}
)
"""Reasons of a reply that the model ended itself, in lower case."""
_PERMANENT = frozenset(
    {"length", "max_tokens", "model_length", "max_output_tokens", "max_completion_tokens"}
    | {"model_context_window_exceeded", "content_filter", "refusal", "safety", "sensitive"}
)
"""Reasons that the same request would meet again."""
_FAILED = frozenset({"error", "abort", "aborted", "network_error", "insufficient_system_resource"})
"""Reasons of a reply that the server ended: what came of it is no answer, also where it has text.
OpenRouter, vLLM, Z.ai and DeepSeek give them."""
_PAUSED = "pause_turn"


class Ending(NamedTuple):
    """Why a reply ended, and whether it has anything for the user."""

    reason: str
    """The provider's word for it; empty if it gave none."""
    is_empty: bool
    """Whether the reply has no text, use or other content; reasoning is none."""

    @property
    def is_paused(self) -> bool:
        """Whether the provider goes on with this reply when it is asked again.

        Then the messages of the reply are appended, and the conversation is sent as it is. The text
        of the answer begins in this reply. Anthropic does so while a tool of its own runs.
        """
        return self.reason == _PAUSED


def is_cut(reason: object) -> bool:
    """Whether a reply may have ended within a call: the model did not end it itself."""
    return isinstance(reason, str) and reason.lower() not in (*_COMPLETE, _PAUSED)


def first_cut(earlier: object, later: object) -> object:
    """Return the reason that counts where a stream has two: the first one that is a cut."""
    return later if later and not is_cut(earlier) else earlier


def check_ending(ending: Ending, *, needs_answer: bool) -> None:
    """Raise `ModelError` for a reply that is not an answer.

    With `needs_answer` it has to say something: no reply before it did.
    """
    reason = ending.reason.lower()
    has_none = ending.is_empty and (needs_answer or reason not in _COMPLETE)
    if ending.is_paused or not (has_none or reason in _FAILED):
        return
    shown = one_line(ending.reason, 100) or "without a reason"
    what = "before the model said anything" if ending.is_empty else "before it was complete"
    raise ModelError(f"the reply ended ({shown}) {what}", retryable=reason not in _PERMANENT)
