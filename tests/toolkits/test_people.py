"""The toolkit `people`: a tool that asks a person in the room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from support.rooms.approvals import Person, person_in
from toolbus import InvalidArguments, RoomClient, ToolContext, ToolFailed, ToolQuestion
from toolbus_server.testing import running_server
from toolbus_toolkits.people import PeopleConfig, people

IMPOSSIBLE: list[dict[str, Any]] = [
    {"enum": []},
    {"not": {}},
    {"type": "string", "const": 3},
    {"type": "string", "enum": [1, None]},
    {"type": "integer", "minimum": 2, "maximum": 1},
    {"type": "string", "minLength": 2, "maxLength": 1},
    {"allOf": [{"type": "string"}, {"enum": []}]},
    {"anyOf": [{"not": {}}, {"enum": []}]},
    {"type": "object", "required": ["a"], "properties": {"a": {"enum": []}}},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
]
NUMBER = {"type": "integer", "minimum": 2}


@asynccontextmanager
async def asking(
    name: str = "ann", **config: Any
) -> AsyncIterator[tuple[RoomClient, RoomClient, Person]]:
    """Host `people`; give ann, who calls, and the person of this name with what is asked."""
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server() as server,
        server.room("host") as host,
        server.room("ann") as ann,
        server.room(name) as room,
        host.host(people(PeopleConfig(**config))),
        person_in(room) as person,
    ):
        yield ann, room, person


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        ({}, "two weeks"),
        ({"options": []}, "two weeks"),
        ({"options": ["red", "blue"]}, "blue"),
        ({"schema": NUMBER}, 3),
        ({"schema": {"enum": ["red", 3]}, "options": ["red"]}, "red"),
    ],
)
async def test_answer_of_a_person_is_the_result(shape: dict[str, Any], answer: Any) -> None:
    async with asking() as (ann, room, person):
        call = asyncio.create_task(ann.call("people.ask", question="How long?", **shape))
        hold = await person.asked()
        assert hold.body is not None
        assert (hold.kind, hold.body.question) == ("answer", "How long?")
        assert (hold.body.options, hold.body.schema) == (
            tuple(shape.get("options", ())),
            shape.get("schema"),
        )
        await room.answer(hold, answer)
        assert await call == answer


@pytest.mark.parametrize("config", [{}, {"to": ["name:eve"]}])
async def test_question_is_for_whom_the_call_names_else_for_whom_the_host_names(
    config: dict[str, Any],
) -> None:
    to = {"to": ["name:bob"]} if not config else {}
    name = "eve" if config else "bob"
    async with asking(name, **config) as (ann, room, person):
        call = asyncio.create_task(ann.call("people.ask", question="How long?", **to))
        hold = await person.asked()
        assert hold.body is not None
        assert hold.body.approvers == (f"name:{name}",)
        assert await holds_of(ann) == []
        await room.answer(hold, "long")
        assert await call == "long"


async def holds_of(room: RoomClient) -> list[str]:
    return [hold.id for hold in await room.holds()]


async def test_caller_learns_why_there_is_no_answer() -> None:
    async with asking() as (ann, room, person):
        call = asyncio.create_task(ann.call("people.ask", question="How long?"))
        await room.deny(await person.asked(), "ask bob")
        with pytest.raises(ToolFailed, match='refused to answer, and says: "ask bob"') as failed:
            await call
        assert (failed.value.executed, failed.value.details["code"]) == ("yes", "approval_denied")
        with pytest.raises(ToolFailed, match="does not wait for a person") as failed:
            await ann.invoke("people.ask", {"question": "How long?"}, approval_timeout_s=0)
        assert (failed.value.executed, failed.value.details["code"]) == ("yes", "approval_expired")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"question": ""}, "/question: "),
        ({"question": "x" * 4_001}, "/question: "),
        ({"options": ["x"] * 51}, "/options: "),
        ({"options": [3]}, "/options/0: "),
        ({"to": ["bob"]}, "write role:x, name:x"),
        ({"schema": False}, "/schema: "),
        ({"schema": {"type": "strin"}}, "schema: at /type: it is not as JSON Schema"),
        ({"schema": {"type": "string", "pattern": "(?=a)"}}, "schema: at /pattern: "),
        ({"schema": {"description": "x" * 70_000}}, "more than 65,536 bytes"),
        ({"schema": NUMBER, "options": ["red"]}, 'options: "red" breaks schema: '),
        ({"schema": {"enum": ["a"]}, "options": ["a", "b"]}, 'options: "b" breaks schema: '),
        *(({"schema": schema}, "schema: no answer can match it") for schema in IMPOSSIBLE),
    ],
)
async def test_what_nobody_can_answer_is_refused_before_anybody_is_asked(
    arguments: dict[str, Any], error: str
) -> None:
    asked: list[ToolQuestion] = []

    async def answer(question: ToolQuestion) -> None:
        asked.append(question)

    context = ToolContext(answer=answer)
    with pytest.raises(InvalidArguments) as refused:
        await people().execute(context, "ask", {"question": "How long?"} | arguments)
    assert error in refused.value.message
    assert (refused.value.executed, asked) == ("no", [])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": False}}, {}),
        ({"required": ["a"], "properties": {"a": False}}, "text"),
        ({"type": "object", "required": ["a"]}, {"a": 1}),
        ({"anyOf": [{"enum": []}, {"type": "string"}]}, "text"),
        ({"minimum": 2, "maximum": 1}, "text"),
    ],
)
async def test_schema_that_some_answer_matches_is_asked_about(
    schema: dict[str, Any], value: Any
) -> None:
    async def answer(question: ToolQuestion) -> Any:
        return value

    arguments = {"question": "How long?", "schema": schema}
    answered = await people().execute(ToolContext(answer=answer), "ask", arguments)
    assert answered.value == value


def test_host_that_names_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="write role:x, name:x"):
        PeopleConfig(to=["bob"])


def test_command_hosts_it_and_another_answers(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    with here.serving() as (_, url), here.at(url).hosting("people", "--name", "bob"):
        toolbus = here.at(url)
        typed = ("call", "people.ask", "question=Which colour?", 'options=["red", "blue"]')
        with toolbus.start(*typed, "--name", "ann") as running:
            assert running.process.stderr is not None
            hold_id = running.process.stderr.readline().split()[-1]
            wrong = toolbus.run("approvals", "answer", hold_id, "green", "--name", "ann")
            assert (wrong.code, 'it must be one of "red", "blue"' in wrong.err) == (2, True)
            answered = toolbus.run("approvals", "answer", hold_id, "blue", "--name", "ann")
            assert answered.out == "people.ask (ann): answered by ann\n"
            assert running.ended().out == "blue\n"
