"""Whether a call that failed may be tried again, when, and with what.

A call that certainly did not run may be; one that perhaps ran only if its tool is idempotent, and
only after a loss. The server says so itself with its errors. Where the caller's own connection was
lost there is no such word, and the caller must know by itself: it asks for a toolkit's description
once, beside the first call to it, and before trying again makes sure that the definition is still
the one it knows. It sends nothing but that question.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from toolbus.call_ends import object_in
from toolbus.errors import (
    ConnectionLost,
    HostLost,
    NoHost,
    NotFound,
    PermissionDenied,
    RoomException,
    Unavailable,
)
from toolbus.wire import Describe, Result

__all__ = ["MAX_ATTEMPTS", "History", "Known", "Plan", "Retries", "ToolkitKey"]

MAX_ATTEMPTS = 3
"""Of one call, the first included."""
_BACKOFF_S = 0.05
_NO_HOST_S = 1.0
# A link comes back within 5 s and a little (`Link`): so long are others waited for.
_HOMECOMING_S = 6.0
_LOOK_AGAIN_S = 0.2
_ASKING_S = 30.0
_MAX_KNOWN = 1_024
_logger = logging.getLogger(__name__)
_LOSSES = (HostLost, ConnectionLost, Unavailable)

ToolkitKey: TypeAlias = tuple[str, str | None]
"""A toolkit's name, and the owner's where the call names one."""
Request: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]


class Plan(Struct, eq=False):
    """One call as it was asked for; every attempt of it sends the same."""

    toolkit: str
    tool: str
    arguments: bytes
    options: dict[str, Any]
    call_id: str
    drawn: int
    """The lower 64 bits of `call_id`, drawn for this call; samplers go by them."""
    deadline_at: float
    """By the loop's clock; infinity where there is none."""
    retry: bool
    key: ToolkitKey
    traceparent: str | None = None
    """Of the call's trace, the same for every attempt; set once, before the first."""

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.toolkit}.{self.tool}"


class Known(NamedTuple):
    """What was read of a toolkit before it was called."""

    digest: str
    idempotent: frozenset[str]


class Retries:
    """What one participant knows of toolkits, and what it concludes from that.

    Args:
        now: The loop's clock.
        request: Asks the server, as `Caller.request` does.
        returned_at: When the link last came back, by that clock.
    """

    def __init__(
        self,
        now: Callable[[], float],
        request: Request,
        returned_at: Callable[[], float] = lambda: float("-inf"),
    ) -> None:
        self.now = now
        self.request = request
        self._returned_at = returned_at
        self.known: dict[ToolkitKey, Known | None] = {}
        """By toolkit; None while it is asked for, or where it may not be read."""
        self.on_description: Callable[[ToolkitKey, dict[str, Any]], None] = lambda _key, _body: None
        """Told of every description that is read."""
        self.on_error: Callable[[Plan, RoomException], bool] = lambda _plan, _error: False
        """Told of a call's first error; whether it can be made anew with what was learned of it."""

    @property
    def others_may_be_late(self) -> bool:
        """Whether this side came back so lately that hosts may still be on their way."""
        return self.now() - self._returned_at() < _HOMECOMING_S

    def begin(self, plan: Plan) -> History:
        """Begin to count the failures of a call."""
        return History(self, plan)

    def expect(self, key: ToolkitKey, answer: asyncio.Future[Result]) -> None:
        """Take note that a toolkit is asked for, and of what is answered when that is there."""
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[key] = None
        answer.add_done_callback(partial(self._learn, key))

    def _learn(self, key: ToolkitKey, answer: asyncio.Future[Result]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or error is not None:
            # Ask again at the next call, unless the answer would be the same.
            if not isinstance(error, PermissionDenied):
                self.known.pop(key, None)
            return
        try:
            self.note(key, object_in(answer.result()))
        except (RoomException, LookupError, TypeError) as broken:
            _logger.error("the description of %s cannot be read: %r", key[0], broken)

    def note(self, key: ToolkitKey, body: dict[str, Any]) -> None:
        """Remember which tools of a described toolkit are idempotent."""
        tools = body["manifest"]["tools"]
        idempotent = frozenset(tool["name"] for tool in tools if tool["idempotent"])
        self.known[key] = Known(body["toolkit"]["digest"], idempotent)
        self.on_description(key, body)


class History:
    """The failures of one call so far."""

    def __init__(self, retries: Retries, plan: Plan) -> None:
        self._retries = retries
        self._plan = plan
        self._began = retries.now()
        self._attempts = 0
        self._pin: str | None = None
        """What may have run once runs again only as this definition, which is idempotent."""
        self._may_have_run = False
        self._has_failed = False

    async def after(self, error: RoomException) -> dict[str, Any]:
        """Wait until the next attempt is due and return the options it is made with.

        Raises:
            RoomException: The error, made to speak for all attempts, if there shall be no other.
        """
        is_first, self._has_failed = not self._has_failed, True
        if is_first and self._retries.on_error(self._plan, error):
            return self._plan.options
        if self._waits_for_hosts(error):
            await _before_looking_again()
            return self._options()
        self._attempts += 1
        delay_s = self._delay(error)
        options = None if delay_s is None else await self._next_options(error)
        if delay_s is None or options is None:
            raise self.final(error)
        self._may_have_run = self._may_have_run or error.executed != "no"
        await asyncio.sleep(delay_s)
        return options

    def _waits_for_hosts(self, error: RoomException) -> bool:
        """Whether a toolkit that was there before the link was lost may just not be back yet."""
        retries, plan = self._retries, self._plan
        return (
            plan.retry
            and isinstance(error, NotFound | NoHost)
            and retries.known.get(plan.key) is not None
            and retries.others_may_be_late
            and retries.now() + _LOOK_AGAIN_S < plan.deadline_at
        )

    def _options(self) -> dict[str, Any]:
        """Give what the next attempt sends beside the call."""
        options = dict(self._plan.options)
        if self._attempts:
            options["attempt"] = self._attempts
        if self._pin is not None:
            options["pin"] = self._pin
        return options

    def final(self, error: RoomException) -> RoomException:
        """Make an error speak for all attempts: one that says "no" knows only of its own."""
        if self._may_have_run and error.executed == "no":
            error.executed = "maybe"
            error.retryable = False
        return error

    def _delay(self, error: RoomException) -> float | None:
        """How long to wait before the next attempt; None if there shall be none."""
        if not self._plan.retry or self._attempts >= MAX_ATTEMPTS:
            return None
        backoff_s = _BACKOFF_S * 2 ** (self._attempts - 1)
        # The named pause is a floor; the jitter comes on top, so that refused callers spread out.
        pause_s = max(backoff_s, error.retry_after_s or 0.0)
        delay_s: float = pause_s + random.uniform(0, backoff_s)
        again_at = self._retries.now() + delay_s
        if again_at >= self._plan.deadline_at:
            return None
        if isinstance(error, NoHost) and again_at - self._began > _NO_HOST_S:
            return None
        return delay_s

    async def _next_options(self, error: RoomException) -> dict[str, Any] | None:
        """Say what the next attempt sends beside the call; None where it could do harm."""
        if not (error.retryable and error.executed == "no"):
            self._pin = await self._definition_to_repeat(error)
            if self._pin is None:
                return None
        return self._options()

    async def _definition_to_repeat(self, error: RoomException) -> str | None:
        """Tell which definition may run what may have run already; None if none may."""
        if error.retryable and isinstance(error, _LOSSES):
            digest = error.details.get("digest")
            if isinstance(digest, str):
                return digest
        known = self._retries.known.get(self._plan.key)
        if not isinstance(error, ConnectionLost) or known is None:
            return None
        if self._plan.tool not in known.idempotent or not await self._is_unchanged(known):
            return None
        return known.digest

    async def _is_unchanged(self, known: Known) -> bool:
        """Ask whether the definition is still the one that is known to be idempotent."""
        toolkit, participant = self._plan.key
        options = {"participant": participant, "digest": known.digest}
        while True:
            left_s = min(max(0.0, self._plan.deadline_at - self._retries.now()), _ASKING_S)
            try:
                body = await self._retries.request(Describe, toolkit, options, timeout_s=left_s)
            except RoomException as error:
                if not self._waits_for_hosts(error):
                    return False
                await _before_looking_again()
            else:
                break
        if body.get("unchanged"):
            return True
        self._retries.note(self._plan.key, body)
        return False


async def _before_looking_again() -> None:
    await asyncio.sleep(random.uniform(0.5, 1) * _LOOK_AGAIN_S)
