"""Makes calls: sends one, waits for its end, and tries again where that can do no harm.

A call that certainly did not run may be tried again; one that perhaps ran only if its tool is
idempotent, and only after a loss. The server says so itself with its errors; where the caller's own
connection was lost, there is no such word, and the caller must know by itself: it asks for a
toolkit's description once, beside the first call to it, and before trying again makes sure that the
definition is still the one it knows.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolbus.calls import CallTable, Pending
from toolbus.chunks import Chunk, chunk_from_wire
from toolbus.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    HostLost,
    InvalidArguments,
    InvalidResult,
    NoHost,
    NotFound,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.link import Link
from toolbus.telemetry import Tracing
from toolbus.wire import (
    MAX_FRAME_BYTES,
    BadBody,
    Call,
    Cancel,
    Describe,
    Frame,
    RequestId,
    Result,
    encode,
    pack_body,
    unpack_body,
)

__all__ = ["Caller", "Plan", "pack_arguments"]

DEFAULT_TIMEOUT_S = 60.0
"""The deadline of a call that names none."""
GRACE_S = 0.25
"""How long past a deadline the server's own word is waited for."""
MAX_ATTEMPTS = 3
_BACKOFF_S = 0.05
_NO_HOST_S = 1.0
_MAX_KNOWN = 1_024
_LOSSES = (HostLost, ConnectionLost, Unavailable)


@dataclass(frozen=True, slots=True)
class Plan:
    """One call as it was asked for; every attempt of it sends the same."""

    toolkit: str
    tool: str
    arguments: bytes
    options: dict[str, Any]
    call_id: str
    deadline_at: float
    """By the loop's clock."""
    retry: bool

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.toolkit}.{self.tool}"


class _Known(NamedTuple):
    """What was read of a toolkit before it was called."""

    digest: str
    idempotent: frozenset[str]


class Caller:
    """Makes the calls and requests of one participant.

    Args:
        link: The line to the server.
        table: Where answers are awaited.
        tracing: Records sampled calls.
    """

    def __init__(self, link: Link, table: CallTable, tracing: Tracing) -> None:
        self._link = link
        self._table = table
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._known: dict[tuple[str, str | None], _Known | None] = {}

    # Requests to the server itself

    async def request(self, build: Any, *fields: Any, timeout_s: float = 30.0) -> dict[str, Any]:
        """Send a request that is no call and return the body of its answer.

        Args:
            build: The frame's type; its first field is the id.
            fields: Its other fields.
            timeout_s: How long the answer may take; a link that is down is waited for within it.
        """
        deadline_at = self._loop.time() + timeout_s
        await self._wait_for_link(deadline_at)
        return await self.ask(build, *fields, deadline_at=deadline_at)

    async def ask(self, build: Any, *fields: Any, deadline_at: float) -> dict[str, Any]:
        """Send a request on the connection that is there now, ready or not."""
        pending = self._table.open()
        frame: Frame = build(pending.id, *fields)
        result = await self._exchange(pending, encode(frame), deadline_at)
        body = unpack_body(result.body, binary=True)
        if type(body) is not dict:
            raise InvalidResult("the server's answer is no object", executed="no")
        return body

    # Calls

    async def call(self, plan: Plan) -> Chunk:
        """Make a call and return its result.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
        """
        span = self._tracing.start_client(plan.name, plan.call_id)
        if span is not None:
            span.context.write_to(plan.options)
        error: RoomException | None = None
        try:
            return _chunk_of(await self._with_retries(plan))
        except RoomException as failure:
            error = failure
            raise
        except asyncio.CancelledError:
            error = Cancelled("the caller gave the call up")
            raise
        finally:
            if span is not None:
                span.end(error)

    async def _with_retries(self, plan: Plan) -> Result:
        attempt = 0
        options = plan.options
        began = self._loop.time()
        may_have_run = False
        while True:
            try:
                return await self._attempt(plan, options)
            except RoomException as error:
                attempt += 1
                delay_s = self._delay(plan, error, attempt, began)
                further = None if delay_s is None else await self._next(plan, error, attempt)
                if delay_s is None or further is None:
                    raise _with_history(error, may_have_run) from error.__cause__
                options = further
                may_have_run = may_have_run or error.executed != "no"
            await asyncio.sleep(delay_s)

    def _delay(self, plan: Plan, error: RoomException, attempt: int, began: float) -> float | None:
        """How long to wait before the next attempt; None if there shall be none."""
        if not plan.retry or attempt >= MAX_ATTEMPTS:
            return None
        backoff_s = _BACKOFF_S * 2 ** (attempt - 1)
        # The named pause is a floor; the jitter comes on top, so that refused callers spread out.
        pause_s = max(backoff_s, error.retry_after_s or 0.0)
        delay_s: float = pause_s + random.uniform(0, backoff_s)
        again_at = self._loop.time() + delay_s
        if again_at >= plan.deadline_at:
            return None
        if isinstance(error, NoHost) and again_at - began > _NO_HOST_S:
            return None
        return delay_s

    async def _next(self, plan: Plan, error: RoomException, attempt: int) -> dict[str, Any] | None:
        """Say what the next attempt sends beside the call; None where it could do harm."""
        options = {**plan.options, "attempt": attempt}
        if error.retryable and (error.executed == "no" or isinstance(error, _LOSSES)):
            return options
        if not isinstance(error, ConnectionLost):
            return None
        known = self._known.get((plan.toolkit, plan.options.get("participant")))
        if known is None or plan.tool not in known.idempotent:
            return None
        return await self._options_if_unchanged(plan, options, known)

    async def _options_if_unchanged(
        self, plan: Plan, options: dict[str, Any], known: _Known
    ) -> dict[str, Any] | None:
        """Pin the next attempt to the definition that is known to be idempotent."""
        participant = plan.options.get("participant")
        remaining_s = plan.deadline_at - self._loop.time()
        try:
            body = await self.request(
                Describe,
                plan.toolkit,
                {"participant": participant, "digest": known.digest},
                timeout_s=max(0.0, remaining_s),
            )
        except RoomException:
            return None
        if body.get("unchanged"):
            return {**options, "pin": known.digest}
        self.note_manifest(plan.toolkit, participant, body)
        return None

    async def _attempt(self, plan: Plan, options: dict[str, Any]) -> Result:
        if not self._link.is_ready:
            await self._wait_for_link(plan.deadline_at)
        remaining_s = plan.deadline_at - self._loop.time()
        if remaining_s <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        pending = self._table.open()
        data = encode(
            Call(
                pending.id,
                plan.call_id,
                plan.toolkit,
                plan.tool,
                max(1, round(remaining_s * 1000)),
                plan.arguments,
                options or None,
            )
        )
        if len(data) > MAX_FRAME_BYTES:
            self._table.give_up(pending)
            raise TooLarge(f"the call has {len(data)} bytes, more than one frame", executed="no")
        if (plan.toolkit, options.get("participant")) not in self._known:
            self._learn(plan.toolkit, options.get("participant"))
        return await self._exchange(pending, data, plan.deadline_at + GRACE_S)

    async def _exchange(self, pending: Pending, data: bytes, deadline_at: float) -> Result:
        """Send a request and wait for its one end."""
        if not self._link.send_ticketed(data, pending):
            self._table.give_up(pending)
            raise ConnectionLost("the connection was lost", executed="no")
        timer = self._loop.call_at(deadline_at, self._table.expire, pending)
        try:
            return await pending.future
        except asyncio.CancelledError:
            if self._table.give_up(pending) and pending.written:
                self._link.send(Cancel(RequestId(pending.id), "cancelled"))
            raise
        finally:
            timer.cancel()

    async def _wait_for_link(self, deadline_at: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_at):
                await self._link.ready()
        except TimeoutError:
            raise Unavailable("there was no connection in time", executed="no") from None

    # What is known of toolkits

    def _learn(self, toolkit: str, participant: str | None) -> None:
        """Ask what a toolkit is, once, beside the first call to it, waiting for nothing."""
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        key = (toolkit, participant)
        self._known[key] = None
        pending = self._table.open()
        options = {} if participant is None else {"participant": participant}
        pending.future.add_done_callback(lambda future: self._note(key, future))
        self._link.send(Describe(RequestId(pending.id), toolkit, options))

    def _note(self, key: tuple[str, str | None], future: asyncio.Future[Result]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or isinstance(error, NotFound | ConnectionLost):
            self._known.pop(key, None)
        if future.cancelled() or error is not None:
            return
        self.note_manifest(key[0], key[1], unpack_body(future.result().body, binary=True))

    def note_manifest(self, toolkit: str, participant: str | None, body: dict[str, Any]) -> None:
        """Remember which tools of a described toolkit are idempotent."""
        tools = body["manifest"]["tools"]
        idempotent = frozenset(tool["name"] for tool in tools if tool["idempotent"])
        self._known[toolkit, participant] = _Known(body["toolkit"]["digest"], idempotent)


def _with_history(error: RoomException, may_have_run: bool) -> RoomException:
    """Let the last error speak for all attempts: one that says "no" knows only of its own."""
    if may_have_run and error.executed == "no":
        error.executed = "maybe"
        error.retryable = False
    return error


def _chunk_of(result: Result) -> Chunk:
    try:
        return chunk_from_wire(unpack_body(result.body, binary=True))
    except (BadBody, ValueError, TypeError) as error:
        raise InvalidResult("the host's answer is no chunk", executed="yes") from error


def pack_arguments(arguments: dict[str, Any] | None) -> bytes:
    """Pack a call's arguments. Raises InvalidArguments for what cannot travel."""
    try:
        return pack_body(arguments if arguments is not None else {})
    except BadBody as error:
        raise InvalidArguments(error.reason, details={"path": error.path}) from error
