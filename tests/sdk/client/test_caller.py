"""When a call is retried, when not, and with which error it ends; on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from itertools import pairwise
from math import inf
from typing import Any, cast

import pytest

from support.parts.virtual_clock import on_virtual_clock
from toolbus.client.caller import GRACE_S, Caller
from toolbus.client.pending_requests import PendingRequests
from toolbus.client.reconnecting_connection import ReconnectingConnection
from toolbus.client.retry import CallPlan
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
from toolbus.telemetry.tracing import Tracing
from toolbus.transport.websocket import Ticket
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
    """The connection and the server behind it: replies to each attempt with its next answer."""

    def __init__(self, *answers: RoomException | Callable[[], None] | None) -> None:
        self.answers = list(answers)
        self.attempts: list[Call] = []
        self.at: list[float] = []
        self.cancels: list[Cancel] = []
        self.idempotent = False
        self.digest = "d1"
        self.losses = 0
        """How many more times the connection is lost while a description is asked for."""
        self.is_ready = True
        self.is_open = True
        self.returned_at = float("-inf")
        self.failure = ""
        self.up = asyncio.Event()
        self.up.set()
        self.loop = asyncio.get_running_loop()
        self.pending = PendingRequests(self.loop)
        self.caller = Caller(cast(ReconnectingConnection, self), self.pending, Tracing())

    # The interface of a connection

    @property
    def websocket(self) -> Server | None:
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
            self.pending.settle(failed(call.id, answer))
        elif answer is None:
            self.pending.settle(Result(call.id, VALUE))
        else:
            answer()

    def _describe(self, request: Describe) -> None:
        if self.losses:
            self.losses -= 1
            self.lose()
            return
        body: dict[str, Any] = {"toolkit": {"digest": self.digest}}
        if request.options.get("digest") == self.digest:
            body["unchanged"] = True
        else:
            body["manifest"] = {"tools": [{"name": "run", "idempotent": self.idempotent}]}
        self.pending.settle(Result(request.id, pack_body(body)))

    def lose(self, again_after_s: float = 0.5) -> None:
        """Lose the connection; it reconnects by itself."""
        self.up.clear()
        self.is_ready = False
        self.pending.lose_all()
        self.loop.call_later(again_after_s, self.up.set)

    # For the tests

    async def call(
        self,
        *,
        timeout_s: float = 10.0,
        retry: bool = True,
        wait_for_host_s: float = 10.0,
        **options: Any,
    ) -> Any:
        deadline_at = self.loop.time() + timeout_s
        key = ("t", None)
        plan = CallPlan(
            "t", "run", b"\x80", options, "c1", deadline_at, retry, key, wait_for_host_s
        )
        chunk = await self.caller.call(plan)
        return chunk.value

    async def fail(self, **options: Any) -> RoomException:
        with pytest.raises(RoomException) as caught:
            await self.call(**options)
        return caught.value

    @property
    def pins(self) -> list[str | None]:
        """The pin of each attempt."""
        return [(call.options or {}).get("pin") for call in self.attempts]

    @property
    def tries(self) -> list[int]:
        """The attempt number that each attempt sent."""
        return [(call.options or {}).get("attempt", 0) for call in self.attempts]


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the virtual clock; check that no request is left."""

    @wraps(test)
    def run(**parameters: Any) -> None:
        on_virtual_clock(test(**parameters))

    return run


# Retries


@pytest.mark.parametrize("error", [Overloaded(), QuotaExceeded()], ids=str)
@virtual
async def test_call_that_did_not_run_is_retried_with_the_same_call_id(
    error: RoomException,
) -> None:
    """RETRY-1."""
    server = Server(error, error, None)
    assert await server.call() == "value"
    assert server.tries == [0, 1, 2]
    assert {call.call_id for call in server.attempts} == {"c1"}
    assert len({call.id for call in server.attempts}) == 3
    times = [call.timeout_ms or 0 for call in server.attempts]
    assert times == sorted(times, reverse=True)
    assert len(server.pending) == 0


@virtual
async def test_at_most_three_attempts_are_made_with_growing_pauses() -> None:
    """RETRY-1."""
    server = Server(*[Overloaded() for _ in range(5)])
    error = await server.fail()
    assert (error.code, error.executed) == ("overloaded", "no")
    first, second, third = server.at
    assert 0.05 <= second - first <= 0.11
    assert 0.1 <= third - second <= 0.21


@virtual
async def test_unavailable_server_is_waited_for_without_counting_until_the_deadline() -> None:
    away = [Unavailable(executed="no") for _ in range(200)]
    server = Server(*away[:15], None)
    assert await server.call(timeout_s=30.0) == "value"
    assert server.tries == [0] * 16
    pauses = [later - earlier for earlier, later in pairwise(server.at)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(1.0 <= pause <= 2.0 for pause in pauses[5:])

    server = Server(*away)
    assert (await server.fail(timeout_s=120.0)).executed == "no"
    assert 119.8 <= server.loop.time() - server.at[0] <= 120.0


@virtual
async def test_call_without_a_deadline_waits_a_minute_for_an_unavailable_server() -> None:
    server = Server(*[Unavailable(executed="no") for _ in range(100)])
    await server.fail(timeout_s=inf)
    assert 58.0 <= server.loop.time() - server.at[0] <= 60.0


@virtual
async def test_call_that_may_have_run_waits_for_an_unavailable_server_too() -> None:
    lost = Unavailable(executed="maybe", retryable=True, details={"digest": "d1"})
    server = Server(lost, *[Unavailable(executed="no") for _ in range(8)], None)
    assert await server.call(timeout_s=30.0) == "value"
    assert server.tries == [0, *[1] * 9]
    assert set(server.pins[1:]) == {"d1"}

    server = Server(lost, *[Unavailable(executed="no") for _ in range(100)])
    assert (await server.fail()).executed == "maybe"


@virtual
async def test_retry_after_of_the_error_is_respected() -> None:
    """RETRY-4."""
    server = Server(Overloaded(retry_after_s=2.0), None)
    await server.call()
    assert server.at[1] - server.at[0] >= 2.0


NO_HOST = partial(NoHost, "t has no host now", retry_after_s=0.2)


@pytest.mark.parametrize(
    ("wait_s", "timeout_s", "waited_s"),
    [(10.0, 60.0, 10.0), (2.0, 60.0, 2.0), (10.0, 3.0, 3.0), (30.0, inf, 30.0)],
)
@virtual
async def test_missing_host_is_waited_for_within_its_limit_and_the_deadline(
    caplog: pytest.LogCaptureFixture, wait_s: float, timeout_s: float, waited_s: float
) -> None:
    """RETRY-1, RETRY-4, guarantee "host is killed"."""
    server = Server(*[NO_HOST() for _ in range(100)])
    error = await server.fail(wait_for_host_s=wait_s, timeout_s=timeout_s)
    assert (error.code, error.executed, error.retryable) == ("no_host", "no", True)
    took_s = server.loop.time() - server.at[0]
    assert waited_s - 0.2 <= took_s < waited_s
    assert error.message == f"t has no host now (waited {took_s:.1f} s for one)"
    assert set(server.tries) == {0}
    (warning,) = caplog.messages
    assert warning.startswith("t has no host now; waiting up to ")
    pauses = [later - earlier for earlier, later in pairwise(server.at)]
    assert all(0.199 <= pause <= 2.0 for pause in pauses)


@virtual
async def test_wait_for_an_unknown_toolkit_says_that_it_was_not_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(*[NotFound("t not found", retryable=True) for _ in range(100)])
    await server.fail()
    (warning,) = caplog.messages
    assert warning.startswith("t not found; waiting up to ")


@pytest.mark.parametrize("options", [{"wait_for_host_s": 0.0}, {"retry": False}], ids=str)
@virtual
async def test_missing_host_is_not_waited_for_if_that_is_turned_off(
    options: dict[str, Any],
) -> None:
    server = Server(NO_HOST(), None)
    error = await server.fail(**options)
    assert (error.code, error.message) == ("no_host", "t has no host now")
    assert server.tries == [0]


@virtual
async def test_waits_for_a_host_and_for_a_server_are_counted_apart_and_are_no_attempts() -> None:
    away = [Unavailable(executed="no") for _ in range(10)]
    hosts = [NO_HOST() for _ in range(8)]
    server = Server(*away, *hosts[:4], *away, *hosts[4:], Overloaded(), Overloaded(), None)
    assert await server.call(timeout_s=120.0) == "value"
    assert server.tries == [0] * 29 + [1, 2]


@virtual
async def test_missing_host_is_waited_for_from_the_reconnect_on() -> None:
    server = Server(NO_HOST(), None)
    server.lose(again_after_s=30.0)
    assert await server.call(timeout_s=60.0) == "value"


@virtual
async def test_call_that_may_have_run_waits_for_a_host_with_the_same_definition() -> None:
    """RETRY-2, RETRY-5."""
    server = Server(host_lost_error(), *[NO_HOST() for _ in range(100)])
    error = await server.fail(timeout_s=60.0)
    assert (error.code, error.executed, error.retryable) == ("no_host", "maybe", False)
    assert set(server.tries[1:]) == {1}
    assert set(server.pins[1:]) == {"d1"}


@pytest.mark.parametrize(("wait_s", "attempts"), [(10.0, 2), (0.0, 1)])
@virtual
async def test_known_toolkit_that_is_missing_after_a_reconnect_is_waited_for(
    wait_s: float, attempts: int
) -> None:
    """RETRY-7."""
    server = Server()
    await server.call()
    server.answers = [NotFound(), None]
    server.returned_at = server.loop.time()
    calling = server.call(wait_for_host_s=wait_s)
    if attempts == 1:
        with pytest.raises(NotFound):
            await calling
    else:
        assert await calling == "value"
    assert server.tries[1:] == [0] * attempts


@virtual
async def test_no_attempt_is_made_after_the_deadline() -> None:
    """RETRY-4."""
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
    HostLost(executed="maybe", details={"digest": "d1"}),
    Unavailable(executed="maybe"),
    Unavailable(executed="no", retryable=False),
]


@pytest.mark.parametrize("error", NEVER, ids=repr)
@virtual
async def test_other_errors_are_not_retried(error: RoomException) -> None:
    """RETRY-1."""
    server = Server(error, None)
    assert (await server.fail()).code == error.code
    assert server.tries == [0]


@pytest.mark.parametrize(
    "error",
    [Overloaded(), Unavailable(executed="no"), HostLost(executed="maybe", retryable=True)],
)
@virtual
async def test_call_with_retry_off_is_not_retried(error: RoomException) -> None:
    server = Server(error, None)
    assert (await server.fail(retry=False)).code == error.code
    assert server.tries == [0]


@virtual
async def test_closing_connection_does_not_count_as_an_attempt() -> None:
    """The server's close was received, but the connection has not ended: it is still ready."""
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
async def test_each_call_ends_at_its_own_deadline_among_many() -> None:
    server = Server(*[lambda: None] * 40)
    began_at = server.loop.time()
    times = [0.1 * (1 + number * 7 % 40) for number in range(40)]

    async def end_of(timeout_s: float) -> float:
        error = await server.fail(timeout_s=timeout_s, retry=False)
        assert error.code == "deadline_exceeded"
        return server.loop.time() - began_at - timeout_s

    late = await asyncio.gather(*map(end_of, times))
    assert all(GRACE_S - 0.01 <= seconds <= GRACE_S + 0.05 for seconds in late)
    assert len(server.pending) == 0


# Losses


def host_lost_error() -> HostLost:
    return HostLost(executed="maybe", retryable=True, details={"digest": "d1"})


@virtual
async def test_lost_host_is_followed_by_a_retry_if_the_server_allows_it() -> None:
    """RETRY-2."""
    server = Server(host_lost_error(), None)
    assert await server.call() == "value"
    assert server.tries == [0, 1]


@virtual
async def test_call_that_may_have_run_is_retried_only_with_the_same_definition() -> None:
    """RETRY-2."""
    server = Server(host_lost_error(), NoHost(), None)
    assert await server.call() == "value"
    assert server.pins == [None, "d1", "d1"]


@virtual
async def test_loss_is_reported_if_another_definition_serves_when_it_is_retried() -> None:
    """RETRY-2: the caller has pinned nothing."""
    server = Server(host_lost_error(), DefinitionChanged())
    error = await server.fail()
    assert (error.code, error.executed, server.tries) == ("host_lost", "maybe", [0, 1])
    assert "the definition has changed" in str(error)


@virtual
async def test_loss_without_a_definition_is_not_retried() -> None:
    server = Server(HostLost(executed="maybe", retryable=True), None)
    assert (await server.fail()).code == "host_lost"
    assert server.tries == [0]


@pytest.mark.parametrize("later", [[NotFound()], [Overloaded(), Overloaded()]], ids=str)
@virtual
async def test_last_error_covers_all_attempts(later: list[RoomException]) -> None:
    """RETRY-5."""
    server = Server(host_lost_error(), *later)
    error = await server.fail()
    assert (error.code, error.executed, error.retryable) == (later[0].code, "maybe", False)


@pytest.mark.parametrize("idempotent", [False, True])
@virtual
async def test_call_on_a_lost_connection_is_retried_only_if_idempotent(
    idempotent: bool,
) -> None:
    """Guarantee "caller's connection is lost"."""
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
async def test_idempotent_call_is_retried_although_the_connection_is_lost_again() -> None:
    """RETRY-3: the server is lost once more while it is asked for the definition."""
    server = Server()
    server.idempotent = True
    await server.call()
    server.answers, server.losses = [server.lose, None], 2
    assert await server.call() == "value"
    assert server.tries[1:] == [0, 1]


@virtual
async def test_tool_that_changed_meanwhile_is_not_called_again() -> None:
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
async def test_connection_that_stays_lost_ends_the_call_with_its_last_error() -> None:
    server = Server()
    server.idempotent = True
    await server.call()
    server.answers = [lambda: server.lose(again_after_s=99)]
    error = await server.fail(timeout_s=3.0)
    assert (error.code, error.executed) == ("connection_lost", "maybe")
    assert server.loop.time() - server.at[-1] <= 3.1


# Waiting


@virtual
async def test_call_waits_for_a_lost_connection() -> None:
    """Guarantee "caller's connection is lost"."""
    server = Server()
    server.lose(again_after_s=4.0)
    assert await server.call(timeout_s=5.0) == "value"
    assert (server.attempts[0].timeout_ms or 0) <= 1_000


@virtual
async def test_connection_lost_past_the_deadline_is_unavailable() -> None:
    server = Server()
    server.lose(again_after_s=60)
    began = server.loop.time()
    error = await server.fail(timeout_s=5.0)
    assert (error.code, error.executed) == ("unavailable", "no")
    assert server.loop.time() - began == pytest.approx(5.0)
    assert server.attempts == []


@virtual
async def test_servers_error_may_arrive_a_quarter_of_a_second_after_the_deadline() -> None:
    """RETRY-6."""
    server = Server(lambda: None)
    began = server.loop.time()
    error = await server.fail(timeout_s=5.0)
    assert (error.code, error.executed) == ("deadline_exceeded", "maybe")
    assert server.loop.time() - began == pytest.approx(5.25)
    assert len(server.pending) == 0


@virtual
async def test_cancelled_call_sends_one_cancel_and_a_late_reply_is_dropped() -> None:
    """RETRY-6."""
    server = Server(lambda: None)
    task = asyncio.ensure_future(server.call())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [cancel.id for cancel in server.cancels] == [server.attempts[0].id]
    server.pending.settle(Result(server.attempts[0].id, VALUE))
    assert server.pending.dropped == 1


@virtual
async def test_chunk_for_a_cancelled_call_is_dropped_and_counted() -> None:
    """STREAM-6."""
    server = Server(lambda: None)
    task = asyncio.ensure_future(server.call())
    await asyncio.sleep(1)
    task.cancel()
    server.pending.receive(StreamChunk(server.attempts[0].id, 1, VALUE))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.pending.dropped == 1
    assert len(server.cancels) == 1


@virtual
async def test_call_cancelled_between_two_attempts_is_not_retried() -> None:
    server = Server(Overloaded(retry_after_s=2.0), None)
    task: Awaitable[Any] = asyncio.ensure_future(server.call())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await task
    await asyncio.sleep(5)
    assert server.tries == [0]


# Requests that cannot be sent


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
async def test_request_that_would_close_the_connection_is_never_sent(
    options: dict[str, Any], kind: type[RoomException]
) -> None:
    server = Server()
    error = await server.fail(**options)
    assert (type(error), error.executed) == (kind, "no")
    assert server.attempts == []
    assert len(server.pending) == 0
