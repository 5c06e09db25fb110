"""Repeats failed calls: decides whether, when and with which options, and pauses before it.

A call that certainly did not run may be retried; a call that perhaps ran only if its tool is
idempotent, and only after a loss. The server reports this with its errors. After the loss of the
caller's own connection there is no such report. So the caller requests a toolkit's description
once, beside the first call to it, and checks before a retry that the definition has not changed. It
sends no other requests.

Attempts are counted, with one exception: a server that cannot be reached and a host that is away
are waited for (`RetryHistory._wait_s`), as no attempt reaches a host meanwhile. All pauses follow
one rule (`_pause_s`).

Some tools route calls by the value of an argument. The server does not read arguments, so the
caller sends a short text made from the value. It gets the argument's name from the toolkit's
description, or from the error with which the server refuses the first call before it runs, and
keeps it until the definition changes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from toolbus.bounded_logging import bounded_logger
from toolbus.client.held_calls import HeldCall
from toolbus.client.local_errors import decode_reply
from toolbus.concurrency.backoff import backoff_pause_s
from toolbus.concurrency.pausable_clock import CallTime
from toolbus.errors import (
    ConnectionLost,
    DefinitionChanged,
    HostLost,
    InvalidArguments,
    NoHost,
    NotFound,
    PermissionDenied,
    RoomException,
    Unavailable,
)
from toolbus.wire import BadBody, Describe, Result, unpack_body

__all__ = [
    "DEFAULT_WAIT_FOR_HOST_S",
    "MAX_ATTEMPTS",
    "RECONNECT_GRACE_S",
    "AffinityCache",
    "CallPlan",
    "KnownDefinition",
    "RetryHistory",
    "RetryPolicy",
    "ToolkitKey",
    "affinity_text",
]

# A call that crashes its host takes at most three hosts with it. Waits are not counted, as no host
# had the call.
MAX_ATTEMPTS = 3
"""Attempts of one call, including the first; those that found no server or host do not count."""
# Longer than a host needs to reconnect (at most 5 s of backoff) and to register; shorter than the
# 30 s for which a server keeps the name, so that a host that stays away is reported as such.
DEFAULT_WAIT_FOR_HOST_S = 10.0
"""Seconds that a call waits in all for a host of its toolkit, unless it has another limit."""
# Both are promised (RETRY-4). A second at most, so that a call goes on at most that long (and its
# jitter) after a server or host has returned; waits end by their time, not by their number.
_MAX_BACKOFF_S = 1.0
_BACKOFF_S = 0.05
# Without a limit a call without a deadline would never report that its server is gone (RETRY-4).
_ENDLESS_WAIT_S = 60.0
"""Seconds that a call without a deadline waits for an unavailable server."""
# A host that is replaced in a deployment is often back within a second: a warning for each call
# made meanwhile would say nothing.
_SILENT_WAIT_S = 1.0
"""Seconds that a call waits for a host before the log has a warning."""
# As long as the time after its start in which a server marks `not_found` as retryable (CALL-24):
# both cover hosts that lost the same server at the same moment as this client.
RECONNECT_GRACE_S = 6.0
"""Seconds after a reconnect in which hosts may still be reconnecting: the longest backoff of
`ReconnectingConnection` is 5 s."""
_DESCRIBE_TIMEOUT_S = 30.0
# A client that calls toolkits of ever new names must not grow; one entry is a digest and the names
# of the idempotent tools, or of an argument.
_MAX_KNOWN = 1_024
_NO_ARGUMENT = ("none", "caller")
_logger = bounded_logger(__name__)
# Only after these may a call that may have run be repeated (RETRY-2): with any other error the host
# has answered, and that answer stands.
_LOSSES = (HostLost, ConnectionLost, Unavailable)

T = TypeVar("T")
ToolkitKey: TypeAlias = tuple[str, str | None]
"""A toolkit's name, and its owner if the call names one."""
Request: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]


class CallPlan(Struct, eq=False):
    """One call as requested; every attempt sends the same."""

    toolkit: str
    tool: str
    arguments: bytes
    options: dict[str, Any]
    call_id: str
    deadline_at: float
    """The deadline by the loop's clock; infinity for none."""
    retry: bool
    key: ToolkitKey
    wait_for_host_s: float = DEFAULT_WAIT_FOR_HOST_S
    """Seconds that it waits in all for a host."""
    traceparent: str | None = None
    """The call's trace context, the same for every attempt; set once, before the first."""
    patterns: list[str] | None = None
    """Those that the tool is asked about, if it is to assess the call and not to run it."""
    within: CallTime | None = None
    """The time of the call that it is made within, which stands still with it."""
    on_held: Callable[[HeldCall], None] | None = None
    """Gets what is known of each wait for a person, when it begins and when it ends."""

    @property
    def name(self) -> str:
        """The tool as users write it."""
        return f"{self.toolkit}.{self.tool}"


class KnownDefinition(NamedTuple):
    """What is known of a toolkit from its description."""

    digest: str
    idempotent: frozenset[str]


class RetryPolicy:
    """Decides about the retries of one participant's calls.

    Args:
        now: The loop's clock.
        request: Sends a request, as `Caller.request` does.
        returned_at: Returns when the connection was last made again, by that clock.
    """

    def __init__(
        self,
        now: Callable[[], float],
        request: Request,
        returned_at: Callable[[], float],
    ) -> None:
        self.now = now
        self.request = request
        self._returned_at = returned_at
        self.affinities: AffinityCache = AffinityCache()
        """The arguments that route calls."""
        self.known: dict[ToolkitKey, KnownDefinition | None] = {}
        """By toolkit; None while its description is requested, or if it may not be read."""
        self.on_error: Callable[[CallPlan, RoomException], bool] = self.affinities.record_error
        """Receives the first error of each call; returns whether the call can be made again with
        what was learned from that error."""
        self.on_failed_attempt: Callable[[RoomException], None] = lambda error: None
        """Receives the error of each attempt, before it is decided whether another follows."""

    @property
    def in_reconnect_grace(self) -> bool:
        """Whether this side reconnected so recently that hosts may not have reconnected yet."""
        return self.now() - self._returned_at() < RECONNECT_GRACE_S

    def begin(self, plan: CallPlan) -> RetryHistory:
        """Start the failure history of a call."""
        return RetryHistory(self, plan)

    def expect_description(self, key: ToolkitKey, reply: asyncio.Future[Result]) -> None:
        """Record the reply of a description request when it arrives."""
        # Cleared as a whole: an entry is read again with the next call of its toolkit, and an order
        # of use would cost something in each call.
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[key] = None
        reply.add_done_callback(partial(self._on_description_reply, key))

    def _on_description_reply(self, key: ToolkitKey, reply: asyncio.Future[Result]) -> None:
        # Calls do not wait for this reply. One that loses its connection before it has come is not
        # repeated (RETRY-3), as it is not known whether its tool is idempotent.
        error = None if reply.cancelled() else reply.exception()
        if reply.cancelled() or error is not None:
            # Request it again at the next call, unless the reply would be the same.
            if not isinstance(error, PermissionDenied):
                self.known.pop(key, None)
            return
        try:
            self.record_description(key, decode_reply(reply.result()))
        except (RoomException, LookupError, TypeError) as broken:
            _logger.error("the description of %s cannot be decoded: %r", key[0], broken)

    def record_description(self, key: ToolkitKey, body: dict[str, Any]) -> None:
        """Record which tools of a described toolkit are idempotent."""
        tools = body["manifest"]["tools"]
        idempotent = frozenset(tool["name"] for tool in tools if tool["idempotent"])
        self.known[key] = KnownDefinition(body["toolkit"]["digest"], idempotent)
        self.affinities.record_description(key, body)


class RetryHistory:
    """The failures of one call so far."""

    def __init__(self, policy: RetryPolicy, plan: CallPlan) -> None:
        self._policy = policy
        self._plan = plan
        self._began = policy.now()
        self._attempts = 0
        self._waits = 0
        """Waits for a server or a host."""
        self._waited_for_host_s = 0.0
        self._pin: str | None = None
        """A call that may have run is retried only with this idempotent definition."""
        self._loss: RoomException | None = None
        """The loss after which the call was pinned, if its caller has not pinned it."""
        self._may_have_run = False
        self._has_failed = False

    async def repeat(
        self, error: RoomException, attempt: Callable[[dict[str, Any]], Awaitable[T]]
    ) -> T:
        """Make further attempts after a failed one, until one succeeds; return its result.

        Args:
            error: That of the latest attempt.
            attempt: Makes one with these options of a call.

        Raises:
            RoomException: There is no further attempt; `executed` covers all attempts so far.
        """
        while True:
            options = await self.next_attempt(error)
            try:
                return await attempt(options)
            except RoomException as next_error:
                error = next_error

    async def next_attempt(self, error: RoomException) -> dict[str, Any]:
        """Wait until the next attempt is due and return its options.

        Raises:
            RoomException: There is no further attempt; `executed` covers all attempts so far.
        """
        self._policy.on_failed_attempt(error)
        is_first = not self._has_failed
        self._has_failed = True
        # Asked once a call: an error that comes back after what was learned from it would loop.
        if is_first and self._policy.on_error(self._plan, error):
            return self._plan.options
        pause_s: float | None = None
        if self._waits_for_server(error) or self._waits_for_host(error):
            pause_s = self._wait_s(error)
        else:
            self._attempts += 1
            if self._plan.retry and self._attempts < MAX_ATTEMPTS:
                pause_s = _pause_s(self._attempts, error)
                is_late = self._policy.now() + pause_s >= self._plan.deadline_at
                if is_late or not await self._may_repeat(error):
                    pause_s = None
        if pause_s is None:
            error = self.final_error(error)
            if isinstance(error, NoHost) and self._waited_for_host_s:
                error.message += f" (waited {self._waited_for_host_s:.1f} s for one)"
            raise error
        # Not before: `final_error` judges this error by itself, and only earlier ones by this.
        self._may_have_run = self._may_have_run or error.executed != "no"
        await asyncio.sleep(pause_s)
        options = dict(self._plan.options)
        if self._attempts:
            options["attempt"] = self._attempts
        if self._pin is not None:
            options["pin"] = self._pin
        return options

    def _wait_s(self, error: RoomException) -> float | None:
        """Return the pause before the same attempt is repeated, uncounted; None if it is not.

        Near the end pauses are shorter, so that the time is used and the limit is kept.
        """
        now = self._policy.now()
        left_s = self._plan.deadline_at - now
        is_for_server = self._waits_for_server(error)
        if not is_for_server:
            # Only the pauses count, not the time of attempts: a host that is busy for long and then
            # lost leaves the next wait its full time.
            left_s = min(left_s, self._plan.wait_for_host_s - self._waited_for_host_s)
        elif left_s == inf:
            left_s = self._began + _ENDLESS_WAIT_S - now
        # Not below what the refusing side asked for: an attempt before that is refused again.
        shortest_s = max(_BACKOFF_S, error.retry_after_s or 0.0)
        if left_s <= shortest_s:
            return None
        self._waits += 1
        pause_s = min(_pause_s(self._waits, error), max(left_s / 2, shortest_s))
        if not is_for_server:
            before_s = self._waited_for_host_s
            self._waited_for_host_s += pause_s
            if before_s < _SILENT_WAIT_S <= self._waited_for_host_s:  # true once a call
                is_unknown = isinstance(error, NotFound)  # it may be misspelled, too
                cause = error.message if is_unknown else f"{self._plan.toolkit} has no host now"
                _logger.warning("%s; waiting up to %.1f s more for one", cause, left_s)
        return pause_s

    def _waits_for_server(self, error: RoomException) -> bool:
        """Whether the call was not sent to a host, as a server cannot be reached or is leaving."""
        return self._plan.retry and _is_unsent(error) and isinstance(error, Unavailable)

    def _waits_for_host(self, error: RoomException) -> bool:
        """Whether the toolkit has no host now, or its host may not have reconnected yet.

        In the first seconds after its start a server marks `not_found` as retryable. A client
        assumes the same of a known toolkit after its own reconnect.
        """
        policy, plan = self._policy, self._plan
        if not (plan.retry and isinstance(error, NoHost | NotFound)):
            return False
        is_known = policy.known.get(plan.key) is not None
        is_early = isinstance(error, NotFound) and is_known and policy.in_reconnect_grace
        return is_early or _is_unsent(error)

    def final_error(self, error: RoomException) -> RoomException:
        """Make an error cover all attempts, not only the last one.

        A definition that changed after a loss is refused because of the pin that was added here:
        the error is then the loss.
        """
        if isinstance(error, DefinitionChanged) and self._loss is not None:
            self._loss.message += " (not retried: the definition has changed since)"
            return self._loss
        # "no" of the last attempt says nothing of those before (RETRY-5). A caller that trusts "no"
        # would make the call again, and run it twice.
        if self._may_have_run and error.executed == "no":
            error.executed = "maybe"
            error.retryable = False
        return error

    async def _may_repeat(self, error: RoomException) -> bool:
        """Whether another attempt does no harm; pin it if the call may have run."""
        if _is_unsent(error):
            return True
        # The pin stays for all further attempts: otherwise the next one could run another
        # definition, perhaps one that is not idempotent, after the first one has run.
        self._pin = await self._repeatable_definition(error)
        if self._pin is None:
            return False
        self._loss = None if self._plan.options.get("pin") else error
        return True

    async def _repeatable_definition(self, error: RoomException) -> str | None:
        """Return the digest of the definition that may run again; None if none may."""
        # The server knows which definition it had dispatched to, so its word comes first (RETRY-2).
        if error.retryable and isinstance(error, _LOSSES):
            digest = error.details.get("digest")
            if isinstance(digest, str):
                return digest
        # After the loss of its own connection, a client has only the description it read before.
        known = self._policy.known.get(self._plan.key)
        if not isinstance(error, ConnectionLost) or known is None:
            return None
        if self._plan.tool not in known.idempotent or not await self._is_unchanged(known):
            return None
        return known.digest

    async def _is_unchanged(self, known: KnownDefinition) -> bool:
        """Check at the server whether the definition is still the one known to be idempotent."""
        # The pin would refuse a changed definition too. Asked first, no arguments are sent for it,
        # and the new description is recorded for the next call.
        toolkit, participant = self._plan.key
        options = {"participant": participant, "digest": known.digest}
        while True:
            left_s = min(max(0.0, self._plan.deadline_at - self._policy.now()), _DESCRIBE_TIMEOUT_S)
            try:
                body = await self._policy.request(Describe, toolkit, options, timeout_s=left_s)
            except RoomException as error:
                is_lost = isinstance(error, ConnectionLost)  # to ask again does no harm
                pause_s = self._wait_s(error) if is_lost or self._waits_for_host(error) else None
                if pause_s is None:
                    return False
                await asyncio.sleep(pause_s)
            else:
                break
        if body.get("unchanged"):
            return True
        self._policy.record_description(self._plan.key, body)
        return False


def _is_unsent(error: RoomException) -> bool:
    """Whether the call certainly did not run, and may run later."""
    return error.retryable and error.executed == "no"


def _pause_s(number: int, error: RoomException) -> float:
    """Return the pause after a failure, of which this is the number, from 1."""
    return backoff_pause_s(
        number, error.retry_after_s, first_s=_BACKOFF_S, longest_s=_MAX_BACKOFF_S
    )


class AffinityCache:
    """The arguments that route calls, by toolkit and tool, as known to one participant."""

    def __init__(self) -> None:
        self.known: dict[tuple[ToolkitKey, str], str] = {}
        """By toolkit and tool, the name of the argument."""
        self._digests: dict[ToolkitKey, str] = {}

    def record_error(self, plan: CallPlan, error: RoomException) -> bool:
        """Record what an error says about a tool; return whether the call can be made again."""
        details = error.details
        if isinstance(details.get("digest"), str):
            self.record_digest(plan.key, details["digest"])
        if not isinstance(error, InvalidArguments) or details.get("path") != "/affinity":
            return False
        argument = details.get("argument")
        if not isinstance(argument, str):
            return False
        self._remember(plan.key, plan.tool, argument)
        return True

    def record_description(self, key: ToolkitKey, body: Mapping[str, Any]) -> None:
        """Replace what is known of a toolkit by its description."""
        self._forget(key)
        self._set_digest(key, body["toolkit"]["digest"])
        for tool in body["manifest"]["tools"]:
            argument = tool.get("affinity", "none")
            if argument not in _NO_ARGUMENT:
                self._remember(key, tool["name"], argument)

    def record_digest(self, key: ToolkitKey, digest: str) -> None:
        """Drop what is known of a toolkit unless it is for this definition."""
        if self._digests.get(key) != digest:
            self._forget(key)
        self._set_digest(key, digest)

    def record_event(self, name: str, owner: str, digest: str) -> None:
        """Record a definition from an event; the bare name may mean the same toolkit."""
        for key in ((name, None), (name, owner)):
            if key in self._digests:
                self.record_digest(key, digest)

    def _set_digest(self, key: ToolkitKey, digest: str) -> None:
        if len(self._digests) >= _MAX_KNOWN:
            self._digests.clear()
            self.known.clear()
        self._digests[key] = digest

    def _remember(self, key: ToolkitKey, tool: str, argument: str) -> None:
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[key, tool] = argument

    def _forget(self, key: ToolkitKey) -> None:
        for entry in [known for known in self.known if known[0] == key]:
            del self.known[entry]

    def with_affinity(
        self, options: dict[str, Any] | None, plan: CallPlan
    ) -> dict[str, Any] | None:
        """Add the affinity option if the tool is known to need it."""
        argument = self.known.get((plan.key, plan.tool))
        if argument is None:
            return options
        return {**(options or {}), "affinity": affinity_text(plan.arguments, argument)}


def affinity_text(arguments: bytes, argument: str) -> str:
    """Hash an argument's value to 32 characters, equal for values with equal JSON.

    The order of an object's keys does not matter; 1 and 1.0 differ.

    Args:
        arguments: All arguments, packed.
        argument: The argument's name; a missing argument counts as null.
    """
    try:
        values = unpack_body(arguments)
    except BadBody:
        values = None  # the host reports what is wrong with them
    value = values.get(argument) if isinstance(values, dict) else None
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
