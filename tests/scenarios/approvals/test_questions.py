"""What a tool asks a person in its middle: `context.ask`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.rooms.approvals import Person, person_in
from toolbus import (
    HoldInfo,
    InvalidArguments,
    RoomClient,
    RoomException,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolQuestion,
    tool,
)
from toolbus.errors import (
    AlreadyExists,
    ApprovalDenied,
    ApprovalExpired,
    InvalidResult,
    NotFound,
    TooLarge,
    Unavailable,
)
from toolbus.wire import Settle, pack_body
from toolbus_server.testing import TestServer

DAYS = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1}
_NOBODY = {"type": "integer", "minimum": 2, "maximum": 1}


@asynccontextmanager
async def asking(
    server: TestServer, function: Callable[..., Any], **options: Any
) -> AsyncIterator[tuple[RoomClient, Person]]:
    """Host a toolkit `trip` with one tool; give its caller, who answers."""
    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(Toolkit("trip", [function], **options)),
        person_in(ann) as person,
    ):
        yield ann, person


def asker(*asked: Any, **options: Any) -> Callable[..., Any]:
    """Make a tool that asks one question, and returns the answer."""

    @tool
    async def plan(context: ToolContext) -> Any:
        return await context.ask(*asked, **options)

    return plan


@pytest.mark.parametrize(
    ("options", "answers", "value"),
    [
        ({}, ["two\n"], "two\n"),
        ({}, [{"days": 2}], {"days": 2}),
        ({}, [], None),
        ({"schema": DAYS}, [[1, 2]], [1, 2]),
        ({"options": ["red", "blue"]}, ["blue"], "blue"),
        ({"schema": {"type": "string"}, "options": ["red"]}, ["red"], "red"),
    ],
)
async def test_function_goes_on_with_the_answer_of_a_person(
    server: TestServer, options: dict[str, Any], answers: list[Any], value: Any
) -> None:
    async with asking(server, asker("How long?", **options)) as (ann, person):
        call = asyncio.create_task(ann.call("trip.plan"))
        hold = await person.asked()
        assert (hold.kind, hold.tool, hold.asked_for) == ("answer", "trip.plan", "ann")
        assert hold.body is not None
        assert (hold.body.question, hold.body.schema) == ("How long?", options.get("schema"))
        assert (list(hold.body.options), hold.body.arguments) == (options.get("options", []), {})
        await ann.answer(hold, *answers)
        assert await call == value
        assert (await person.settled()).outcome == "answered"


@pytest.mark.parametrize(
    ("options", "answers", "error"),
    [
        ({"schema": DAYS}, ["two"], "the answer does not fit: "),
        ({"schema": DAYS}, [[1, 0]], "the answer does not fit: at /1: "),
        ({"schema": DAYS}, [b"file"], "the answer does not fit: the tool must return a JSON value"),
        ({"schema": _NOBODY}, [1], "the answer does not fit: "),
        ({"options": ["red", "blue"]}, ["green"], 'it must be one of "red", "blue"'),
        ({}, ["a", "b"], "one value is asked for"),
        ({}, [float("nan")], "NaN"),
        ({}, [object()], "object"),
        ({}, ["a" * 1024 * 1024], "at most 262144 bytes"),
    ],
)
async def test_answer_that_does_not_fit_is_refused_and_the_question_stays_open(
    server: TestServer, options: dict[str, Any], answers: list[Any], error: str
) -> None:
    """A schema that nobody can satisfy too: then the question is denied."""
    async with asking(server, asker("How long?", **options)) as (ann, person):
        call = asyncio.create_task(ann.call("trip.plan"))
        hold = await person.asked()
        for answered in (hold, hold.id, (await ann.holds())[0]):
            with pytest.raises((InvalidArguments, TooLarge)) as refused:
                await ann.answer(answered, *answers)
            assert error in refused.value.message
        assert [waiting.id for waiting in await ann.holds()] == [hold.id]
        await ann.deny(hold, "there is none")
        with pytest.raises(ToolFailed) as failed:
            await call
        assert (failed.value.executed, failed.value.details["code"]) == ("yes", "approval_denied")


class ForeignClient:
    """Answers without looking at what is asked."""

    def __init__(self, room: RoomClient) -> None:
        self._room = room

    async def answer(self, hold: HoldInfo, chunk: bytes) -> None:
        await self._room._joined.caller.request(
            Settle, hold.id, "answer", hold.digest, {"chunk": chunk}
        )


async def test_wrong_answer_of_a_foreign_client_is_asked_for_again_with_the_reason(
    server: TestServer,
) -> None:
    """HOLD-16."""
    async with asking(server, asker("How long?", schema=DAYS)) as (ann, person):
        client = ForeignClient(ann)
        call = asyncio.create_task(ann.call("trip.plan"))
        reasons = []
        for chunk in (pack_body([1, [0]]), b"\xc1"):
            hold = await person.asked()
            assert hold.body is not None
            reasons.append(hold.body.reason)
            await client.answer(hold, chunk)
            await person.settled()
        last = await person.asked()
        assert last.body is not None
        reasons.append(last.body.reason)
        assert [reason[:35] for reason in reasons] == [
            "",
            "the answer of ann does not fit: at ",
            "the answer of ann does not fit: it ",
        ]
        await ann.answer(last, [1])
        assert await call == [1]
        # Three of them, and it is over.
        call = asyncio.create_task(ann.call("trip.plan"))
        for _ in range(3):
            await person.settled()
            await client.answer(await person.asked(), pack_body([0]))
        with pytest.raises(ToolFailed) as failed:
            await call
        assert failed.value.details["code"] == "invalid_result"


async def test_question_is_answered_once_and_by_whom_it_is_for(server: TestServer) -> None:
    async with (
        asking(server, asker("How long?")) as (ann, person),
        server.room("eve") as eve,
    ):
        call = asyncio.create_task(ann.call("trip.plan"))
        hold = await person.asked()
        with pytest.raises(NotFound):
            await eve.answer(hold, "never")
        with pytest.raises(InvalidArguments):
            await ann.approve(hold)
        await ann.answer(hold, "long")
        await ann.answer(hold, "long")
        with pytest.raises(AlreadyExists) as late:
            await ann.answer(hold, "short")
        assert late.value.details["outcome"] == "answered"
        assert await call == "long"


@pytest.mark.parametrize(
    ("ask", "of_tool", "of_toolkit", "approvers"),
    [
        ({}, [], ["role:user"], ("role:user",)),
        ({}, ["name:ann"], ["role:user"], ("name:ann",)),
        ({"to": ["name:bob"]}, ["name:ann"], [], ("name:bob",)),
    ],
)
async def test_question_goes_to_whom_it_names_else_to_the_approvers_of_the_tool(
    server: TestServer,
    ask: dict[str, Any],
    of_tool: list[str],
    of_toolkit: list[str],
    approvers: tuple[str, ...],
) -> None:
    function = tool(approvers=of_tool)(asker("How long?", **ask))
    async with (
        asking(server, function, approvers=of_toolkit) as (ann, _),
        server.room("bob") as bob,
        person_in(bob if "to" in ask else ann) as person,
    ):
        call = asyncio.create_task(ann.call("trip.plan"))
        hold = await person.asked()
        assert hold.body is not None
        assert hold.body.approvers == approvers
        await person.room.answer(hold, "long")
        assert await call == "long"


async def test_questions_end_in_errors_that_the_function_may_catch(server: TestServer) -> None:
    ends: list[str] = []

    @tool
    async def plan(context: ToolContext) -> list[str]:
        for timeout_s in (0, 0.05, 300):
            try:
                await context.ask("How long?", timeout_s=timeout_s)
            except (ApprovalDenied, ApprovalExpired) as error:
                ends.append(f"{error.code}: {error.message}")
        with pytest.raises(TooLarge):
            await context.ask("x" * 300_000)
        with pytest.raises(ValueError, match="type"):
            await context.ask("How long?", schema={"type": "day"})
        wrongs: list[dict[str, Any]] = [{"options": "red"}, {"schema": "red"}, {"to": "eve"}]
        for wrong in wrongs:
            with pytest.raises(TypeError, match="ask"):
                await context.ask("How long?", **wrong)
        return ends

    async with asking(server, plan) as (ann, person):
        call = asyncio.create_task(ann.call("trip.plan"))
        assert (await person.added()).left_s is not None
        await person.settled()
        await ann.deny(await person.asked(), "not now")
        assert await call == ends
    assert ends == [
        "approval_expired: the call does not wait for a person",
        "approval_expired: nobody has answered in time",
        'approval_denied: a person refused to answer, and says: "not now"',
    ]


async def test_sync_function_asks_on_its_thread_and_is_cancelled_with_its_call(
    server: TestServer,
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    def plan(context: ToolContext) -> str:
        try:
            return f"{context.ask_sync('How long?')} weeks"
        finally:
            loop.call_soon_threadsafe(ended.set)

    async with asking(server, plan) as (ann, person):
        call = asyncio.create_task(ann.call("trip.plan"))
        await ann.answer(await person.asked(), "two")
        assert await call == "two weeks"
        await person.settled()
        ended.clear()
        call = asyncio.create_task(ann.call("trip.plan"))
        hold = await person.asked()
        call.cancel()
        assert (await person.settled()).id == hold.id
        await ended.wait()


async def test_function_that_asks_leaves_its_slot_and_its_time_to_others(
    server: TestServer,
) -> None:
    """Two questions of one call are asked one after another."""

    @tool(max_concurrency=1, timeout_s=1)
    async def plan(context: ToolContext, asks: bool) -> Any:
        if not asks:
            return []
        return await asyncio.gather(context.ask("How long?"), context.ask("Where?"))

    async with asking(server, plan) as (ann, person):
        call = asyncio.create_task(ann.invoke("trip.plan", {"asks": True}, timeout_s=1))
        first = await person.asked()
        assert await ann.call("trip.plan", {"asks": False}) == []
        await asyncio.sleep(1.2)  # more than each of the time-outs
        await ann.answer(first, "two weeks")
        assert (await person.settled()).id == first.id
        await ann.answer(await person.asked(), "here")
        assert (await call).value == ["two weeks", "here"]


async def test_test_answers_in_the_place_of_a_person() -> None:
    questions: list[ToolQuestion] = []

    async def answer(question: ToolQuestion) -> Any:
        questions.append(question)
        return question.options[0] if question.options else 0

    async def plan(options: dict[str, Any], context: ToolContext | None = None) -> Any:
        toolkit = Toolkit("trip", [asker("How long?", **options)])
        chunk = await toolkit.execute(context or ToolContext(answer=answer), "plan", {})
        return chunk.value

    assert await plan({"options": ["a week"]}) == "a week"
    assert questions[0].text == "How long?"
    for options, context, code in (
        ({"schema": DAYS}, None, InvalidResult),
        ({"timeout_s": 0}, None, ApprovalExpired),
        ({}, ToolContext(), Unavailable),
    ):
        with pytest.raises(ToolFailed) as failed:
            await plan(options, context)
        assert isinstance(failed.value.__cause__, code)
        assert isinstance(failed.value, RoomException)
