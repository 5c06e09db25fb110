"""Ready-made middlewares for the requests to a model: `ModelLog`, `ModelRetries`, `ModelBudget`.

    Agent(room, model, model_middlewares=[ModelRetries(), ModelBudget(1_000_000), ModelLog()])

The first is the outermost. In this order each attempt is counted and logged, and no other
middleware has to know `RESTART`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from toolbus.agents.model_requests import RESTART, CallNextModel, RequestToModel, outcome_of
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import shown
from toolbus.concurrency.backoff import backoff_pause_s
from toolbus.middlewares.outcomes import checked_count, checked_seconds, quoted, shortened
from toolbus.models.model_error import ModelError
from toolbus.models.token_usage import estimated_tokens
from toolbus.untrusted_text import SHOWN_CHARS

__all__ = ["ModelBudget", "ModelLog", "ModelRetries"]

_MAX_ASKERS = 10_000
"""Everybody who asks is remembered for a window, a day by default: some 3 MB for so many."""

_logger = bounded_logger("toolbus.models")
_Per: TypeAlias = Literal["agent", "asker"]
_Events: TypeAlias = AsyncGenerator[Mapping[str, Any], None]


class ModelLog:
    """A middleware that logs one line when a request begins, and one when it ends.

        request began: model="openai:gpt-5" asker="ada" step=1
        request ended: model="openai:gpt-5" asker="ada" step=1 outcome=ok input_tokens=310
        output_tokens=24 duration_ms=812.4

    `outcome` is "ok", "cancelled", "closed" if the asker left, the HTTP status of a `ModelError` or
    "model_error", the code of another error of toolbus, or the class of any other exception. Tokens
    are those that the provider counts. Lines are escaped and have at most 2,000 characters. They
    have nothing of what was asked or answered, nor the key.

    Args:
        name: The name of the logger.
        level: The level of both lines, such as `logging.INFO`.
        contents: Whether the first line has the request and the second one the text of the reply,
            shortened, or the words of the error.

    Raises `TypeError` for a name or a level of another type.
    """

    def __init__(
        self, name: str = "toolbus.requests", *, level: int = logging.INFO, contents: bool = False
    ) -> None:
        if not isinstance(name, str) or type(level) is not int:
            raise TypeError("ModelLog takes the name of a logger, and level=logging.INFO")
        self._logger = bounded_logger(name)
        self._level = level
        self._contents = contents

    async def __call__(self, call: RequestToModel, next: CallNextModel, /) -> _Events:
        """Log the beginning and the end of a request; events pass unchanged."""
        if not self._logger.isEnabledFor(self._level):
            async with aclosing(next(call)) as events:
                async for event in events:
                    yield event
            return
        began_s = time.monotonic()
        before = call.usage.reported
        asker = quoted(call.turn.asker.full_name)
        label = f"model={quoted(call.model_name)} asker={asker} step={call.step}"
        asked = ""
        if self._contents:
            asked = f" request={shortened(call.request)}"
        self._logger.log(self._level, "request began: %s%s", label, asked)
        text = ""
        raised: BaseException | None = None
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    if self._contents and len(text) < SHOWN_CHARS:
                        text += call.model.adapter.text_of(event)
                    yield event
        except BaseException as error:
            raised = error
            raise
        finally:
            quote = ""
            if self._contents:
                words = str(raised) if isinstance(raised, Exception) else text
                quote = f" text={quoted(words)}"
            after = call.usage.reported
            self._logger.log(
                self._level,
                "request ended: %s outcome=%s input_tokens=%d output_tokens=%d duration_ms=%.1f%s",
                label,
                outcome_of(raised),
                after.input - before.input,
                after.output - before.output,
                (time.monotonic() - began_s) * 1000,
                quote,
            )


class ModelRetries:
    """A middleware that asks the model again after a failure that may pass.

    Only a `ModelError` that is `retryable` may pass. A reply that broke off in the middle is asked
    for anew: its text so far is void, and the asker sees the event `restart`. No tool has run
    then, since tools run when a reply is whole.

    Pauses double and have jitter. None is shorter than the provider asks for; if it asks for more
    than `max_wait_s`, or if the call of the question has to end before, the error is raised at
    once.

    A model of `open_model` sends a request again by itself, up to `max_retries` times. It does not
    inside of this middleware, which decides alone: there are at most `attempts` requests.

    Args:
        attempts: Attempts in all, the first included.
        backoff_s: Seconds of the first pause.
        max_backoff_s: Seconds of the longest pause where the provider asks for none.
        max_wait_s: Seconds of the longest pause that the provider may ask for.

    Raises `TypeError` or `ValueError` for other values.
    """

    def __init__(
        self,
        attempts: int = 3,
        *,
        backoff_s: float = 0.5,
        max_backoff_s: float = 8.0,
        max_wait_s: float = 60.0,
    ) -> None:
        self._attempts = checked_count("attempts", attempts)
        self._first_s = checked_seconds("backoff_s", backoff_s, zero=True)
        self._longest_s = checked_seconds("max_backoff_s", max_backoff_s, zero=True)
        self._max_wait_s = checked_seconds("max_wait_s", max_wait_s, zero=True)

    async def __call__(self, call: RequestToModel, next: CallNextModel, /) -> _Events:
        """Ask the model, again if need be."""
        number = 1
        call = replace(call, retries=False)
        while True:
            has_event = False
            try:
                async with aclosing(next(call)) as events:
                    async for event in events:
                        has_event = True
                        yield event
                return
            except ModelError as error:
                pause_s = self._pause_s(call, number, error)
                if pause_s is None:
                    raise
                _logger.warning(
                    "%s failed (attempt %d of %d), and is asked again in %.1f s: %s",
                    *(call.model_name, number, self._attempts, pause_s, error),
                )
            if has_event:
                yield RESTART
            await asyncio.sleep(pause_s)
            number += 1

    def _pause_s(self, call: RequestToModel, number: int, error: ModelError) -> float | None:
        """Return the pause before the next attempt; None if there is none."""
        if number >= self._attempts or not error.retryable:
            return None
        if (error.retry_after_s or 0.0) > self._max_wait_s:
            return None
        pause_s = backoff_pause_s(
            number, error.retry_after_s, first_s=self._first_s, longest_s=self._longest_s
        )
        left_s = call.turn.deadline
        return pause_s if left_s is None or pause_s < left_s else None


@dataclass(slots=True)
class _Window:
    """What one key has used since its window began."""

    ends_at: float
    used: int = 0
    running: int = 0
    """Estimates of the requests that run."""


class ModelBudget:
    """A middleware that limits how many tokens all questions use together within a time.

    A request counts with its tokens and those of its reply, as the provider counts them; where it
    counts none, as bytes / 4. While it runs it counts with an estimate of the request alone, so
    that questions side by side do not all begin with the same rest. The request that reaches the
    limit is answered: a budget may be exceeded by it.

    Above it a request is a `ModelError` that is `retryable`, with the seconds until there is budget
    again as `retry_after_s`. A window begins with the first request of a key and is forgotten at
    its end. Counts are held in this process, for the last 10,000 askers; a restart forgets them.

    Args:
        tokens: How many tokens.
        per: What is counted apart: each "asker", which is for whom the question is asked, or
            nothing: "agent" is all that ask through this object.
        window_s: Seconds of a window.
        clock: A monotonic clock in seconds.

    Raises `TypeError` or `ValueError` for other values.
    """

    def __init__(
        self,
        tokens: int,
        *,
        per: _Per = "agent",
        window_s: float = 86_400.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if per not in get_args(_Per):
            raise ValueError(f'per must be "agent" or "asker", not {shown(per)}')
        self._tokens = checked_count("tokens", tokens)
        self._window_s = checked_seconds("window_s", window_s)
        self._per: _Per = per
        self._clock = clock
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()
        """In the order in which they end."""

    async def __call__(self, call: RequestToModel, next: CallNextModel, /) -> _Events:
        """Ask the model if there is budget left, and count what it used."""
        window = self._window(call)
        if window.used + window.running >= self._tokens:
            raise self._refusal(window)
        estimate = estimated_tokens(call.request)
        window.running += estimate
        before = sum(call.usage.counted)
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    yield event
        finally:
            window.running -= estimate
            # Counted in the window in which it began, also where that has ended meanwhile.
            window.used += sum(call.usage.counted) - before

    def _window(self, call: RequestToModel) -> _Window:
        asker = call.turn.asker
        key = ("", "")
        if self._per == "asker":
            key = (asker.issuer, asker.name)
        now = self._clock()
        for old in list(self._windows):  # up to the first that has not ended
            if self._windows[old].ends_at > now:
                break
            del self._windows[old]
        if key not in self._windows:
            if len(self._windows) >= _MAX_ASKERS:
                self._windows.popitem(last=False)  # the one that would end first
            self._windows[key] = _Window(now + self._window_s)
        return self._windows[key]

    def _refusal(self, window: _Window) -> ModelError:
        budget = f"the budget of this {self._per}, {self._tokens:,} tokens in {self._window_s:g} s,"
        if window.used < self._tokens:
            return ModelError(
                f"{budget} may be used up by requests that run now: try again when they have ended",
                retryable=True,
            )
        left_s = max(window.ends_at - self._clock(), 0.001)
        return ModelError(
            f"{budget} is used up: try again in {left_s:.0f} s",
            retryable=True,
            retry_after_s=left_s,
        )
