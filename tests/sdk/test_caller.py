"""When a call is tried again, when not, and what is said in the end; on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, cast

import pytest

from support.virtual_clock import on_virtual_clock
from toolbus.call_table import CallTable
from toolbus.calls import GRACE_S, Caller
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    DefinitionChanged,
    HostLost,
    InvalidArguments,
    NoHost,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RoomException,
    TooLarge,
    ToolFailed,
    Unavailable,
)
from toolbus.link import Link
from toolbus.retries import Plan
from toolbus.telemetry import Tracing
from toolbus.transport import Ticket
from toolbus.wire import (
    Call,
    Cancel,
    Describe,
    Frame,
    Result,
    StreamChunk,
    decode_from_client,
    encode,
    failed,
    pack_body,
)

VALUE = pack_body([1, "value"])


class Server:
    """Both the link and what is behind it: answers each attempt with the next of its answers."""

    def __init__(self, *answers: RoomException | Callable[[], None] | None) -> None:
        self.answers = list(answers)
        self.attempts: list[Call] = []
        self.at: list[float] = []
        self.cancels: list[Cancel] = []
        self.idempotent = False
        self.digest = "d1"
        self.is_ready = True
        self.is_open = True
        self.returned_at = float("-inf")
        self.up = asyncio.Event()
        self.up.set()
        self.loop = asyncio.get_running_loop()
        self.table = CallTable(self.loop)
        self.caller = Caller(cast(Link, self), self.table, Tracing())

    # What a link has

    @property
    def connection(self) -> Server | None:
        return self if self.up.is_set() else None

    async def ready(self) -> None:
        await self.up.wait()
        self.is_ready = True

    def send(self, frame: Frame) -> None:
        self.send_message(encode(frame))

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        if ticket is not None:
            ticket.written = True
        frame = decode_from_client(data)
        match frame:
            case Call():
                self.attempts.append(frame)
                self.at.append(self.loop.time())
                answer = self.answers.pop(0) if self.answers else None
                self.loop.call_soon(self._answer, frame, answer)
            case Describe():
                self.loop.call_soon(self._describe, frame)
            case Cancel():
                self.cancels.append(frame)
        return True

    def _answer(self, call: Call, answer: RoomException | Callable[[], None] | None) -> None:
        if isinstance(answer, RoomException):
            self.table.settle(failed(call.id, answer))
        elif answer is None:
            self.table.settle(Result(call.id, VALUE))
        else:
            answer()

    def _describe(self, request: Describe) -> None:
        body: dict[str, Any] = {"toolkit": {"digest": self.digest}}
        if request.options.get("digest") == self.digest:
            body["unchanged"] = True
        else:
            body["manifest"] = {"tools": [{"name": "run", "idempotent": self.idempotent}]}
        self.table.settle(Result(request.id, pack_body(body)))

    def lose(self, again_after_s: float = 0.5) -> None:
        """Lose the connection; it comes back by itself."""
        self.up.clear()
        self.is_ready = False
        self.table.lose_all()
        self.loop.call_later(again_after_s, self.up.set)

    # What a test does

    async def call(self, *, timeout_s: float = 10.0, retry: bool = True, **options: Any) -> Any:
        deadline_at = self.loop.time() + timeout_s
        plan = Plan("t", "run", b"\x80", options, "c1", 1, deadline_at, retry, ("t", None))
        chunk = await self.caller.call(plan)
        return chunk.value

    async def fail(self, **options: Any) -> RoomException:
        with pytest.raises(RoomException) as caught:
            await self.call(**options)
        return caught.value

    @property
    def pins(self) -> list[str | None]:
        """What each attempt was pinned to."""
        return [(call.options or {}).get("pin") for call in self.attempts]

    @property
    def tries(self) -> list[int]:
        """What each attempt said of its number."""
        return [(call.options or {}).get("attempt", 0) for call in self.attempts]


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a test run on the virtual clock, and leave no request behind."""

    @wraps(test)
    def run(**parameters: Any) -> None:
        on_virtual_clock(test(**parameters))

    return run


# What may be tried again


@pytest.mark.parametrize(
    "error", [Overloaded(), QuotaExceeded(), NoHost(), Unavailable(executed="no")], ids=str
)
@virtual
async def test_what_did_not_run_and_may_come_later_is_tried_again_under_its_id(
    error: RoomException,
) -> None:
    server = Server(error, error, None)
    assert await server.call() == "value"
    assert server.tries == [0, 1, 2]
    assert {call.call_id for call in server.attempts} == {"c1"}
    assert len({call.id for call in server.attempts}) == 3
    times = [call.timeout_ms or 0 for call in server.attempts]
    assert times == sorted(times, reverse=True)
    assert len(server.table) == 0


@virtual
async def test_there_are_three_attempts_at_most_with_growing_pauses() -> None:
    server = Server(*[Overloaded() for _ in range(5)])
    error = await server.fail()
    assert (error.code, error.executed) == ("overloaded", "no")
    first, second, third = server.at
    assert 0.05 <= second - first <= 0.11
    assert 0.1 <= third - second <= 0.21


@virtual
async def test_a_pause_that_the_other_side_names_is_kept() -> None:
    server = Server(Overloaded(retry_after_s=2.0), None)
    await server.call()
    assert server.at[1] - server.at[0] >= 2.0


@virtual
async def test_nobody_is_waited_for_longer_than_a_second() -> None:
    server = Server(*[NoHost(retry_after_s=0.6) for _ in range(5)])
    error = await server.fail()
    assert error.code == "no_host"
    assert len(server.at) == 2
    assert server.loop.time() - server.at[0] <= 1.0


@virtual
async def test_the_second_for_a_host_begins_when_there_is_a_connection() -> None:
    server = Server(NoHost(), None)
    server.lose(again_after_s=3.0)
    assert await server.call() == "value"
    assert server.tries == [0, 1]


@virtual
async def test_there_is_no_attempt_behind_the_deadline() -> None:
    server = Server(Overloaded(retry_after_s=2.0), None)
    error = await server.fail(timeout_s=1.0)
    assert error.code == "overloaded"
    assert len(server.at) == 1
    assert server.loop.time() == server.at[0]


NEVER = [
    ToolFailed(),
    ToolFailed(retryable=True),
    NotFound(),
    PermissionDenied(),
    InvalidArguments(),
    DefinitionChanged(),
    DeadlineExceeded(executed="maybe"),
    Cancelled(executed="maybe"),
    HostLost(executed="maybe"),
    Unavailable(executed="maybe"),
]


@pytest.mark.row(49, 51)
@pytest.mark.parametrize("error", NEVER, ids=repr)
@virtual
async def test_nothing_else_is_tried_again(error: RoomException) -> None:
    server = Server(error, None)
    assert (await server.fail()).code == error.code
    assert server.tries == [0]


@pytest.mark.parametrize("error", [Overloaded(), HostLost(executed="maybe", retryable=True)])
@virtual
async def test_whoever_wants_no_retry_gets_none(error: RoomException) -> None:
    server = Server(error, None)
    assert (await server.fail(retry=False)).code == error.code
    assert server.tries == [0]


@virtual
async def test_a_connection_that_just_closes_is_no_attempt_and_the_next_one_is_waited_for() -> None:
    """As when the server's close has come, and its end has not: the link is still ready."""
    server = Server(None)
    take = server.send_message

    def closing(data: bytes, ticket: Ticket | None = None) -> bool:
        return False

    def gone() -> None:
        server.is_ready = False
        server.up.clear()
        server.send_message = take  # type: ignore[method-assign]
        server.loop.call_later(0.5, server.up.set)

    async def ready() -> None:
        server.loop.call_soon(gone)
        await asyncio.sleep(0)
        await Server.ready(server)

    server.ready = ready  # type: ignore[method-assign]

    server.send_message = closing  # type: ignore[method-assign]
    assert await server.call(retry=False) == "value"
    assert server.tries == [0]


@virtual
async def test_each_call_ends_at_its_own_time_however_many_wait() -> None:
    server = Server(*[lambda: None] * 40)
    began_at = server.loop.time()
    times = [0.1 * (1 + number * 7 % 40) for number in range(40)]

    async def end_of(timeout_s: float) -> float:
        error = await server.fail(timeout_s=timeout_s, retry=False)
        assert error.code == "deadline_exceeded"
        return server.loop.time() - began_at - timeout_s

    late = await asyncio.gather(*map(end_of, times))
    assert all(GRACE_S - 0.01 <= each <= GRACE_S + 0.05 for each in late)
    assert len(server.table) == 0


# Losses


def lost_while_it_ran() -> HostLost:
    return HostLost(executed="maybe", retryable=True, details={"digest": "d1"})


@pytest.mark.row(51)
@virtual
async def test_a_lost_host_is_followed_by_another_try_where_the_server_allows_it() -> None:
    server = Server(lost_while_it_ran(), None)
    assert await server.call() == "value"
    assert server.tries == [0, 1]


@pytest.mark.row(51)
@virtual
async def test_what_may_have_run_runs_again_only_as_the_definition_that_allows_it() -> None:
    server = Server(lost_while_it_ran(), NoHost(), None)
    assert await server.call() == "value"
    assert server.pins == [None, "d1", "d1"]


@virtual
async def test_loss_that_names_no_definition_is_not_followed_by_another_try() -> None:
    server = Server(HostLost(executed="maybe", retryable=True), None)
    assert (await server.fail()).code == "host_lost"
    assert server.tries == [0]


@virtual
async def test_the_last_error_speaks_for_all_attempts() -> None:
    server = Server(lost_while_it_ran(), NotFound())
    error = await server.fail()
    assert (error.code, error.executed, error.retryable) == ("not_found", "maybe", False)


@pytest.mark.parametrize("idempotent", [False, True])
@virtual
async def test_a_call_on_a_lost_connection_goes_again_only_if_the_tool_is_idempotent(
    idempotent: bool,
) -> None:
    server = Server()
    server.idempotent = idempotent
    await server.call()
    server.answers = [server.lose, None]
    if idempotent:
        assert await server.call() == "value"
        assert server.tries[1:] == [0, 1]
        assert (server.attempts[-1].options or {})["pin"] == "d1"
    else:
        error = await server.fail()
        assert (error.code, error.executed, error.retryable) == ("connection_lost", "maybe", False)
        assert len(server.tries) == 2


@virtual
async def test_a_tool_that_changed_meanwhile_is_not_called_again() -> None:
    server = Server()
    server.idempotent = True
    await server.call()

    def lose_and_change() -> None:
        server.digest = "d2"
        server.lose()

    server.answers = [lose_and_change, None]
    error = await server.fail()
    assert (error.code, error.executed) == ("connection_lost", "maybe")
    assert len(server.tries) == 2


@virtual
async def test_a_lost_connection_that_stays_away_ends_with_what_happened() -> None:
    server = Server()
    server.idempotent = True
    await server.call()
    server.answers = [lambda: server.lose(again_after_s=99)]
    error = await server.fail(timeout_s=3.0)
    assert (error.code, error.executed) == ("connection_lost", "maybe")
    assert server.loop.time() - server.at[-1] <= 3.1


# Waiting


@virtual
async def test_a_call_made_while_the_link_is_down_waits_for_it() -> None:
    server = Server()
    server.lose(again_after_s=4.0)
    assert await server.call(timeout_s=5.0) == "value"
    assert (server.attempts[0].timeout_ms or 0) <= 1_000


@virtual
async def test_a_link_that_stays_down_past_the_deadline_is_unavailable() -> None:
    server = Server()
    server.lose(again_after_s=60)
    began = server.loop.time()
    error = await server.fail(timeout_s=5.0)
    assert (error.code, error.executed) == ("unavailable", "no")
    assert server.loop.time() - began == pytest.approx(5.0)
    assert server.attempts == []


@pytest.mark.row(52)
@virtual
async def test_the_servers_word_is_waited_for_a_quarter_of_a_second_past_the_deadline() -> None:
    server = Server(lambda: None)
    began = server.loop.time()
    error = await server.fail(timeout_s=5.0)
    assert (error.code, error.executed) == ("deadline_exceeded", "maybe")
    assert server.loop.time() - began == pytest.approx(5.25)
    assert len(server.table) == 0


@pytest.mark.row(53)
@virtual
async def test_whoever_stops_waiting_sends_one_cancel_and_a_late_answer_is_dropped() -> None:
    server = Server(lambda: None)
    task = asyncio.ensure_future(server.call())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [each.id for each in server.cancels] == [server.attempts[0].id]
    server.table.settle(Result(server.attempts[0].id, VALUE))
    assert server.table.dropped == 1


@virtual
async def test_a_chunk_for_a_caller_that_has_just_stopped_waiting_is_dropped_and_counted() -> None:
    """STREAM-6."""
    server = Server(lambda: None)
    task = asyncio.ensure_future(server.call())
    await asyncio.sleep(1)
    task.cancel()
    server.table.take(StreamChunk(server.attempts[0].id, 1, VALUE))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.table.dropped == 1
    assert len(server.cancels) == 1


@virtual
async def test_a_caller_cancelled_between_two_attempts_makes_no_other() -> None:
    server = Server(Overloaded(retry_after_s=2.0), None)
    task: Awaitable[Any] = asyncio.ensure_future(server.call())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await task
    await asyncio.sleep(5)
    assert server.tries == [0]


# What cannot be sent


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"participant": "x" * 100_000}, TooLarge),
        ({"caller_context": b"x" * 2**20}, TooLarge),
        ({"participant": "\ud800"}, InvalidArguments),
        ({"pin": object()}, InvalidArguments),
    ],
    ids=["header", "frame", "surrogate", "object"],
)
@virtual
async def test_what_the_server_would_close_the_connection_for_is_never_sent(
    options: dict[str, Any], kind: type[RoomException]
) -> None:
    server = Server()
    error = await server.fail(**options)
    assert (type(error), error.executed) == (kind, "no")
    assert server.attempts == []
    assert len(server.table) == 0
