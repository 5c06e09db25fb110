"""Calls that wait for a person: the client's own user is asked where it may settle them.

Two ways: a client with a session is asked while its call waits. One of 2026-07-28 gets the question
as the result of its request: the call is cancelled, and made again with the answer, at any replica.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

import mcp_types as types
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError

from toolbus.bounded_logging import bounded_logger
from toolbus.client.held_calls import HeldCall
from toolbus.errors import ApprovalDenied, Executed, InvalidArguments, RoomException, Unavailable
from toolbus.room.holds import HoldInfo
from toolbus.room.room_client import RoomClient
from toolbus_gateway.forms import Form
from toolbus_gateway.results import error_result

__all__ = ["CallResult", "ClientQuestions", "QuestionRounds", "SessionQuestions", "Waits"]

CallResult: TypeAlias = types.CallToolResult | types.InputRequiredResult

MAX_ASKED_AGAIN = 3
"""How often one question is asked again: a client that answers without its user would go on."""
_ENDED_S, _LOOK_S = 5.0, 0.05
"""How long, and how often, it is looked whether a hold has ended at another node."""
_logger = bounded_logger(__name__)


class Waits:
    """What one call waits for; it is the call's `on_held`."""

    def __init__(self) -> None:
        self.open: dict[str, HeldCall] = {}
        self.tools: dict[str, str] = {}
        """The tool of each, also of what does not wait any more."""
        self._changed = asyncio.Event()

    def note(self, held: HeldCall) -> None:
        """Note that the call waits, or goes on."""
        if held.is_open:
            self.open[held.id] = held
        else:
            self.open.pop(held.id, None)
        self._changed.set()

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
        self._changed.clear()


class ClientQuestions(Protocol):
    """How the user of one client is asked about one call."""

    call_id: str
    """The id of the call."""

    @property
    def refusal(self) -> types.CallToolResult | None:
        """The result of a call that its user has refused: it is not made."""

    async def ask(
        self, room: RoomClient, hold: HoldInfo, *, is_repeatable: bool
    ) -> CallResult | None:
        """Ask about a hold, and settle it.

        Args:
            room: That of the user.
            hold: What waits, read with its body.
            is_repeatable: Whether the call can be made again before it is settled.

        Returns:
            The result of the request, if the call has to be cancelled for it; else None.
        """


async def run_asking(
    questions: ClientQuestions,
    room: RoomClient,
    call: Coroutine[Any, Any, types.CallToolResult],
    waits: Waits,
    *,
    is_idempotent: bool,
) -> CallResult:
    """Run a call, and ask its user about what it waits for."""
    running = asyncio.create_task(call)
    asking: asyncio.Task[CallResult | None] | None = None
    asked: set[str] = set()
    current = ""
    try:
        while not running.done():
            if asking is not None and (asking.done() or current not in waits.open):
                result = await _asked(asking)
                asking = None
                if result is not None:
                    return await _withdrawn(room, current, running, result)
            if asking is None:
                wanted = [held for held in waits.open.values() if held.may_settle]
                current = next((held.id for held in wanted if held.id not in asked), "")
                if current:
                    asked.add(current)
                    asking = asyncio.create_task(
                        _ask(questions, room, current, is_idempotent=is_idempotent)
                    )
            await _first(running, asking, asyncio.create_task(waits.change()))
        return running.result()
    finally:
        await _end(running, asking)


async def _first(running: asyncio.Task[Any], *others: asyncio.Task[Any] | None) -> None:
    """Wait until one of them ends; the last one is not needed any more."""
    tasks = [running, *(task for task in others if task is not None)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        tasks[-1].cancel()


async def _end(*tasks: asyncio.Task[Any] | None) -> None:
    pending = [task for task in tasks if task is not None and not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)


async def _asked(asking: asyncio.Task[CallResult | None]) -> CallResult | None:
    """Return what a question has led to; None if it is settled, or was settled elsewhere."""
    await _end(asking)
    if asking.cancelled():
        return None
    try:
        return asking.result()
    except (RoomException, MCPError) as error:  # it stays open for others, until it expires
        _logger.info("a question was not settled through its client: %s", error)
        return None


async def _ask(
    questions: ClientQuestions, room: RoomClient, hold_id: str, *, is_idempotent: bool
) -> CallResult | None:
    hold = await room.hold(hold_id)
    # A function that asks in its middle would run its beginning again, and so would what has called
    # another tool: of a call within this one the id is another.
    is_first = hold.kind == "approve" or (hold.body is not None and hold.body.is_result)
    is_repeatable = hold.call_id == questions.call_id and (is_first or is_idempotent)
    return await questions.ask(room, hold, is_repeatable=is_repeatable and not hold.is_own)


async def _withdrawn(
    room: RoomClient,
    hold_id: str,
    running: asyncio.Task[types.CallToolResult],
    result: CallResult,
) -> CallResult:
    """Cancel a call that waits, and return the question; or how it ended, if it did meanwhile."""
    await _end(running)
    if not running.cancelled():
        return running.result()
    outcome = "open"
    try:
        async with asyncio.timeout(_ENDED_S):
            while outcome == "open":
                outcome = (await room.hold(hold_id)).outcome
                if outcome == "open":
                    await asyncio.sleep(_LOOK_S)
    except (RoomException, TimeoutError) as error:
        _logger.info("whether a cancelled call waited to its end is not known: %s", error)
    if outcome in ("cancelled", "lost", "denied", "expired"):
        return result
    # Whoever approved it in this moment let it run: it is not made again.
    text = "the call was cancelled to ask its user, and may have been approved at that moment"
    return error_result(Unavailable(text, executed="maybe", retryable=False))


@dataclass(slots=True)
class SessionQuestions:
    """Asks a client that can be asked while its call waits: by `elicitation/create`."""

    session: ServerSession
    request_id: types.RequestId | None
    call_id: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def refusal(self) -> types.CallToolResult | None:
        """None: the call waits while its user is asked."""
        return None

    async def ask(
        self, room: RoomClient, hold: HoldInfo, *, is_repeatable: bool
    ) -> CallResult | None:
        """Ask until the answer fits."""
        wrong = ""
        for _ in range(1 + MAX_ASKED_AGAIN):
            form = Form.of(hold, wrong)
            if form is None:
                return None
            answer = await self.session.elicit_form(form.message, form.schema, self.request_id)
            if answer.action != "accept":
                await room.deny(hold, _refused(answer.action))
                return None
            try:
                await form.settle(room, hold, answer.content or {})
            except InvalidArguments as error:
                wrong = error.message
            else:
                return None
        return None


def _refused(action: str) -> str:
    done = "declined" if action == "decline" else "dismissed"
    return f"the user of the MCP client has {done} it"


@dataclass(frozen=True, slots=True)
class _Rounds:
    """What has been asked about one call, as the client brings it back: nobody else can make it."""

    call_id: str
    digest: str
    """Of what was shown last, and how often the same was answered before."""
    key: str
    """What names the question in the client's answers."""
    is_approval: bool
    executed: Executed
    """Whether the tool ran before it was asked."""
    again: int = 0
    """How often something was asked again that had not been settled."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """What was answered before, by the digest: a function that asks twice asks both again."""


def _shown_digest(hold: HoldInfo) -> str:
    """Return the hash of what an answer is about: the hold's own, and what its tool shows of it."""
    body = hold.body
    shown = None if body is None else [body.message, body.preview, body.reaches]
    return sha256(hold.digest + json.dumps([hold.kind, shown]).encode()).hexdigest()


def _executed_of(hold: HoldInfo) -> Executed:
    """Return whether a call has run that ends with a question."""
    if hold.kind == "approve":
        return "no"
    # Who else has read what a tool without code is called with may have acted.
    return "maybe" if hold.body is not None and hold.body.is_result else "yes"


class QuestionRounds:
    """Asks a client of 2026-07-28: by the result of its request, which it then makes again.

    Args:
        state: What the last round gave the client, verified; None in the first one.
        responses: What the client's user has answered.
        can_ask: Whether the client shows forms.
    """

    def __init__(
        self, state: str | None, responses: types.InputResponses | None, *, can_ask: bool
    ) -> None:
        self._rounds = None if state is None else _Rounds(**json.loads(state))
        self._can_ask = can_ask
        self._answers: dict[str, Any] = {}
        self._answer: types.ElicitResult | None = None
        self._is_settled = False
        """Whether what was asked about last has its answer: what follows is another question."""
        self._given: dict[str, Any] = {}
        """Answers that came with the call itself, by the name of what its tool will ask."""
        self._answered: Counter[str] = Counter()
        """How often each question was answered in this request, by the hash of what was shown."""
        self.call_id: str = secrets.token_hex(16)
        if self._rounds is None:
            for key, given in (responses or {}).items():
                if isinstance(given, types.ElicitResult) and given.action == "accept":
                    self._given[key] = given.content or {}
            return
        self.call_id = self._rounds.call_id
        self._answers |= self._rounds.answers
        answer = (responses or {}).get(self._rounds.key)
        if isinstance(answer, types.ElicitResult):
            self._answer = answer
            self._answers[self._rounds.digest] = answer.content or {}

    @property
    def refusal(self) -> types.CallToolResult | None:
        """The result of a call that its user has refused.

        It is not made again to be denied: its host may not ask this time, and would run it.
        """
        answer, rounds = self._answer, self._rounds
        if answer is None or rounds is None:
            return None
        if answer.action == "accept":
            is_denied = rounds.is_approval and (answer.content or {}).get("approve") is False
            if not is_denied:
                return None
        reason = _refused("decline" if answer.action == "accept" else answer.action)
        return error_result(ApprovalDenied(reason, executed=rounds.executed))

    async def ask(
        self, room: RoomClient, hold: HoldInfo, *, is_repeatable: bool
    ) -> CallResult | None:
        """Settle a hold that was asked about, else return the question for the client."""
        form = Form.of(hold)
        if form is None:
            return None
        shown = _shown_digest(hold)
        # A function may ask the same again, since it cannot use the answer.
        digest = f"{shown}-{self._answered[shown]}"
        # Of a call within this one another tool asks, which may use the same name.
        if form.is_named and form.key in self._given and hold.call_id == self.call_id:
            self._answers[digest] = self._given.pop(form.key)
        elif not is_repeatable:
            return None
        if digest in self._answers:
            is_last = self._rounds is not None and self._rounds.digest == digest
            try:
                # The call goes on before the reply is there.
                self._is_settled |= is_last
                await form.settle(room, hold, self._answers[digest])
            except InvalidArguments as error:
                self._is_settled &= not is_last
                del self._answers[digest]
                form = Form.of(hold, error.message)
            else:
                if not form.is_approval:
                    self._answered[shown] += 1
                return None
        if form is None or not (is_repeatable and self._can_ask):
            return None
        return self._question(hold, form, digest)

    def _question(self, hold: HoldInfo, form: Form, digest: str) -> CallResult:
        again = 0 if self._rounds is None else self._rounds.again + (not self._is_settled)
        executed = _executed_of(hold)
        if again > MAX_ASKED_AGAIN:
            text = f"asked again {MAX_ASKED_AGAIN} times, it had changed or was not answered"
            return error_result(ApprovalDenied(text, executed=executed))
        rounds = _Rounds(
            self.call_id, digest, form.key, form.is_approval, executed, again, self._answers
        )
        params = types.ElicitRequestFormParams(message=form.message, requested_schema=form.schema)
        return types.InputRequiredResult(
            input_requests={form.key: types.ElicitRequest(params=params)},
            request_state=json.dumps(asdict(rounds)),
        )
