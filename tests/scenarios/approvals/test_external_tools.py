"""Tools without code: `ExternalTool`, whose calls are answered by whoever may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes.approval_parts import program
from support.rooms.approvals import Person, person_in
from toolbus import (
    ExternalTool,
    FileChunk,
    InvalidArguments,
    MixedChunk,
    Records,
    RoomClient,
    RoomException,
    TextChunk,
    ToolContext,
    Toolkit,
)
from toolbus.errors import ApprovalDenied, ApprovalExpired, HostLost, TooLarge, Unavailable
from toolbus_server.testing import TestServer

TEXT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
MARK = {"type": "integer", "minimum": 1, "maximum": 6}
ARGUMENTS = {"text": "a\nb"}


@asynccontextmanager
async def reviewing(
    server: TestServer, **options: Any
) -> AsyncIterator[tuple[RoomClient, Person, RoomClient]]:
    """Host `desk.review`; give its caller, who answers, and the host."""
    records = options.pop("records", None)
    review = ExternalTool("review", TEXT, description="Review a text.", **options)
    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(Toolkit("desk", [review], records=records)),
        person_in(ann) as person,
    ):
        yield ann, person, host


def calling(ann: RoomClient, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(ann.invoke("desk.review", ARGUMENTS, **options))


async def error_of(call: asyncio.Task[Any]) -> RoomException:
    with pytest.raises(RoomException) as caught:
        await call
    return caught.value


PICTURE = FileChunk(b"\x89PNG", "a.png", "image/png")


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        (["good"], "good"),
        ([{"mark": 1}], {"mark": 1}),
        ([], None),
        ([PICTURE], PICTURE),
        (["see", PICTURE], MixedChunk((TextChunk("see"), PICTURE))),
    ],
)
async def test_answer_of_a_person_is_the_result_of_the_call(
    server: TestServer, answers: list[Any], value: Any
) -> None:
    records = Records.memory()
    async with reviewing(server, records=records) as (ann, person, _):
        tool = (await ann.toolkit("desk")).tool("review")
        assert (tool.external, tool.description) == (True, "Review a text.")
        seen: list[tuple[str, str]] = []
        call = calling(ann, on_held=lambda held: seen.append((held.kind, held.outcome)))
        hold = await person.asked()
        assert hold.body is not None
        assert (hold.kind, hold.body.is_result, hold.body.arguments) == ("answer", True, ARGUMENTS)
        assert hold.body.question == ""
        await ann.answer(hold, *answers)
        chunk = await call
        assert value in (chunk, chunk.value)
        assert seen == [("answer", "open"), ("", "answered")]
    (record,) = records.calls()
    assert (record.tool, record.executed) == ("desk.review", "yes")


async def test_file_of_an_answer_is_read_and_a_large_one_refused(
    server: TestServer, tmp_path: Path
) -> None:
    for name, size in (("small", 1_000), ("large", 300_000)):
        (tmp_path / name).write_bytes(bytes(size))
    async with reviewing(server) as (ann, person, _):
        call = calling(ann)
        hold = await person.asked()
        with pytest.raises(TooLarge, match="as a link"):
            await ann.answer(hold, FileChunk.from_path(tmp_path / "large"))
        with pytest.raises(FileNotFoundError):
            await ann.answer(hold, FileChunk.from_path(tmp_path / "missing"))
        await ann.answer(hold, FileChunk.from_path(tmp_path / "small"))
        answered = await call
        assert (answered.name, answered.data) == ("small", bytes(1_000))


async def test_answer_is_held_to_the_output_schema(server: TestServer) -> None:
    async with reviewing(server, output_schema=MARK) as (ann, person, _):
        call = calling(ann)
        hold = await person.asked()
        for wrong in (["good"], [7], [PICTURE], []):
            with pytest.raises(InvalidArguments):
                await ann.answer(hold, *wrong)
        await ann.answer(hold, 6)
        assert (await call).value == 6


@pytest.mark.parametrize(
    ("reads", "end", "expected"),
    [
        (False, "expires", (ApprovalExpired, "no")),
        (True, "expires", (ApprovalExpired, "maybe")),
        (True, "is denied", (ApprovalDenied, "no")),
        (True, "loses its host", (HostLost, "maybe")),
    ],
)
async def test_call_may_have_been_carried_out_once_somebody_has_read_it(
    server: TestServer, reads: bool, end: str, expected: tuple[type[RoomException], str]
) -> None:
    """HOLD-17: a person who refuses says that nothing was done."""
    waits_s = 0.3 if end == "expires" else 300
    async with reviewing(server, approval_timeout_s=waits_s) as (ann, person, host):
        call = calling(ann)
        hold = await (person.asked() if reads else person.added())
        if end == "is denied":
            await ann.deny(hold, "not mine")
        elif end == "loses its host":
            await host.aclose()
        error = await error_of(call)
        assert (type(error), error.executed) == expected
        assert error.retryable is False


async def test_call_that_nobody_has_read_is_made_again_at_another_host(server: TestServer) -> None:
    async with reviewing(server) as (ann, person, host):
        call = calling(ann)
        lost = await person.added()
        async with server.room("host") as other:
            review = ExternalTool("review", TEXT, description="Review a text.")
            async with other.host(Toolkit("desk", [review])):
                await host.aclose()
                assert (await person.settled()).id == lost.id
                hold = await person.asked()
                assert hold.call_id == lost.call_id
                await ann.answer(hold, "good")
                assert (await call).value == "good"


async def test_answerer_that_was_killed_lists_what_is_open_and_goes_on(server: TestServer) -> None:
    async with reviewing(server) as (ann, person, _):
        call = calling(ann)
        await person.added()
        async with program(server, "ann", "decide", 1, 600, ["answer"]) as first:
            again = calling(ann)
            assert (await first.next())[0] == "asked"  # it has read it, and thinks
            first.kill()
        async with program(server, "ann", "answer", "good") as second:
            assert await second.next() == "answered"
        assert [(await waiting).value for waiting in (call, again)] == ["good", "good"]


async def test_call_may_have_been_carried_out_by_an_answerer_that_was_killed(
    server: TestServer,
) -> None:
    """HOLD-17: nobody else answers it."""
    async with reviewing(server) as (ann, _, host):
        async with program(server, "ann", "decide", 1, 600, ["answer"]) as reader:
            call = calling(ann)
            assert (await reader.next())[0] == "asked"
            reader.kill()
        await host.aclose()
        error = await error_of(call)
        assert (error.executed, error.retryable) == ("maybe", False)


async def test_call_is_approved_before_it_is_answered(server: TestServer) -> None:
    async with reviewing(server, approval=True) as (ann, person, _):
        call = calling(ann)
        hold = await person.asked()
        assert hold.kind == "approve"
        await ann.approve(hold, {"text": "b"})
        await person.settled()
        hold = await person.asked()
        assert hold.body is not None
        assert (hold.kind, hold.body.arguments) == ("answer", {"text": "b"})
        await ann.answer(hold, "good")
        assert (await call).value == "good"


async def test_tool_without_a_room_is_answered_by_its_test_alone() -> None:
    desk = Toolkit("desk", [ExternalTool("review", TEXT, output_schema=MARK)])

    async def answer(question: Any) -> int:
        assert question.schema == MARK
        return 3

    chunk = await desk.execute(ToolContext(answer=answer), "review", ARGUMENTS)
    assert chunk.value == 3
    with pytest.raises(Unavailable) as refused:
        await desk.execute(ToolContext(), "review", ARGUMENTS)
    assert refused.value.executed == "no"


async def test_record_of_a_cancelled_call_says_that_it_may_have_been_done(
    server: TestServer,
) -> None:
    """Who answers may have read it: the server knows that, and the host does not."""
    records = Records.memory()
    async with reviewing(server, records=records) as (ann, person, _):
        call = calling(ann)
        await person.asked()
        call.cancel()
        await person.settled()
        with pytest.raises(asyncio.CancelledError):
            await call
    (record,) = records.calls()
    assert (record.outcome, record.executed) == ("cancelled", "maybe")
