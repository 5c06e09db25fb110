"""`Toolkit.execute` with the context of a test raises what a call in a room raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.patience import PATIENCE_S
from toolbus import (
    CallNext,
    Chunk,
    FileChunk,
    InputStream,
    InvalidArguments,
    InvalidResult,
    NotFound,
    PermissionDenied,
    Permissions,
    Records,
    RoomException,
    Rule,
    TooLarge,
    ToolCall,
    ToolContext,
    ToolFailed,
    Toolkit,
    tool,
)
from toolbus_server.testing import room_of


@tool
async def fails() -> None:
    raise ValueError("secret")


@tool(errors="text")
async def fails_with_text() -> None:
    raise ValueError("words")


@tool
def fails_on_a_thread() -> None:
    raise KeyError("secret")


@tool
async def says_why() -> None:
    raise ToolFailed("no such account", retryable=True, details={"account": 7})


@tool
async def exits() -> None:
    raise SystemExit(3)


@tool
async def cancels() -> None:
    raise asyncio.CancelledError


@tool
async def calls_another() -> None:
    raise NotFound("secret")


@tool
async def gives_no_json() -> Any:
    return object()


@tool
async def gives_too_much() -> str:
    return "x" * 2**25


@tool
async def doubled(number: int) -> int:
    return 2 * number


async def refuse(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    raise PermissionDenied("not now")
    yield


@tool(middlewares=[refuse])
async def refused() -> None: ...


@tool
async def denied() -> None: ...


TOOLS: list[Callable[..., Any]] = [
    fails,
    fails_with_text,
    fails_on_a_thread,
    says_why,
    exits,
    cancels,
    calls_another,
    gives_no_json,
    gives_too_much,
    doubled,
    refused,
    denied,
]


class Overriding(Toolkit):
    """An override that answers for one kind of failure, and refuses or fails before the tool."""

    async def execute(
        self, context: ToolContext, name: str, arguments: dict[str, Any], attachment: Any = None
    ) -> Chunk:
        if arguments.get("number") == 13:
            raise context.refuse(PermissionDenied("not this number"))
        if arguments.get("number") == 14:
            raise ValueError("secret")
        try:
            return await super().execute(context, name, arguments, attachment)
        except KeyError as error:  # raised by the tool itself
            raise ToolFailed("no such key") from error


class Inherited(Overriding):
    """A subclass of an override."""


def plain() -> Toolkit:
    return Toolkit("t", TOOLS)


def recorded() -> Toolkit:
    return Toolkit("t", TOOLS, records=Records.memory())


def overriding() -> Toolkit:
    return Inherited("t", TOOLS)


class Outcome(NamedTuple):
    kind: type[RoomException]
    message: str
    executed: str
    retryable: bool
    details: dict[str, Any]

    @classmethod
    def of(cls, error: RoomException) -> Outcome:
        return cls(type(error), error.message, error.executed, error.retryable, error.details)


@pytest.mark.parametrize("make", [plain, recorded, overriding])
@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("fails", {}, ToolFailed),
        ("fails_with_text", {}, ToolFailed),
        ("fails_on_a_thread", {}, ToolFailed),
        ("says_why", {}, ToolFailed),
        ("exits", {}, ToolFailed),
        ("cancels", {}, ToolFailed),
        ("calls_another", {}, ToolFailed),
        ("gives_no_json", {}, InvalidResult),
        ("gives_too_much", {}, TooLarge),
        ("doubled", {"number": "x"}, InvalidArguments),
        ("doubled", {"number": 13}, PermissionDenied),
        ("doubled", {"number": 14}, ToolFailed),
        ("refused", {}, PermissionDenied),
        ("denied", {}, PermissionDenied),
    ],
)
async def test_a_test_without_a_room_gets_the_error_of_a_call(
    make: Callable[[], Toolkit], name: str, arguments: dict[str, Any], kind: type[RoomException]
) -> None:
    toolkit = make()
    toolkit.policy = Permissions("bypass", [Rule(behavior="deny", tool="t.denied")])
    async with asyncio.timeout(PATIENCE_S), room_of("host", "ann") as lab:
        async with lab["host"].host(toolkit):
            outcomes: list[Any] = []
            for call in (
                lab["ann"].call(f"t.{name}", arguments),
                toolkit.execute(ToolContext(), name, arguments),
            ):
                try:
                    outcomes.append(await call)
                except RoomException as error:
                    outcomes.append(Outcome.of(error))
    there, here = outcomes
    if arguments in ({"number": 13}, {"number": 14}) and make is not overriding:
        assert (there, here.value) == (2 * arguments["number"],) * 2
    else:
        assert here == there
        assert there.kind is kind


async def test_what_the_function_raised_is_the_cause_of_the_failure() -> None:
    for toolkit in (plain(), overriding()):
        with pytest.raises(ToolFailed) as raised:
            await toolkit.execute(ToolContext(), "fails", {})
        assert isinstance(raised.value.__cause__, ValueError)


async def test_one_context_serves_many_calls_each_with_its_own_outcome() -> None:
    context, toolkit = ToolContext(), plain()
    assert (await toolkit.execute(context, "doubled", {"number": 1})).value == 2
    with pytest.raises(InvalidArguments) as refusal:  # the first call has entered its function
        await toolkit.execute(context, "doubled", {})
    assert refusal.value.executed == "no"
    calls = (toolkit.execute(context, "fails", {}) for _ in range(3))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ToolFailed] * 3


async def test_a_tool_that_runs_another_with_its_context_gets_what_that_one_raises() -> None:
    inner = plain()

    @tool
    async def outer(context: ToolContext) -> str:
        try:
            await inner.execute(context, "fails", {})
        except ValueError as error:
            return str(error)
        return "nothing"

    kit = Toolkit("outer", [outer])
    async with room_of("host", "ann") as lab, lab["host"].host(kit):
        there = await lab["ann"].call("outer.outer")
    assert there == (await kit.execute(ToolContext(), "outer", {})).value == "secret"


async def test_a_file_that_cannot_be_read_is_an_os_error_as_in_a_call(tmp_path: Path) -> None:
    async def size(attachment: FileChunk) -> int:
        return len(await attachment.read())

    kit, absent = Toolkit("t", [size]), tmp_path / "absent"
    with pytest.raises(FileNotFoundError):
        await kit.execute(ToolContext(), "size", {}, attachment=absent)
    async with room_of("host", "ann") as lab, lab["host"].host(kit):
        with pytest.raises(FileNotFoundError):
            await lab["ann"].invoke("t.size", attachment=absent)


async def test_tools_that_were_run_with_the_context_itself_change_no_later_call() -> None:
    context, toolkit = ToolContext(), plain()
    with pytest.raises(KeyError):
        await toolkit.get_tool("fails_on_a_thread").execute(context)
    with pytest.raises(NotFound) as missing:
        await toolkit.execute(context, "no_such_tool", {})
    assert missing.value.executed == "no"


@tool
async def total(numbers: InputStream[int]) -> int:
    return sum([number async for number in numbers])


async def test_bad_value_of_a_file_as_an_input_is_as_in_a_call() -> None:
    kit, outcomes = Toolkit("t", [total]), []
    async with room_of("host", "ann") as lab, lab["host"].host(kit):
        for call in (
            lab["ann"].invoke("t.total", attachment=b"1"),
            kit.execute(ToolContext(), "total", {}, b"1"),
        ):
            with pytest.raises(InvalidArguments) as refusal:
                await call
            outcomes.append(Outcome.of(refusal.value))
    assert outcomes[0] == outcomes[1]


async def test_bad_input_that_a_tool_makes_for_another_is_no_error_of_its_own_caller() -> None:
    inner = Toolkit("inner", [total])

    @tool
    async def outer(context: ToolContext) -> Any:
        return await inner.execute(context, "total", {}, InputStream([1, "x"]))

    kit, outcomes = Toolkit("t", [outer]), []
    async with room_of("host", "ann") as lab, lab["host"].host(kit):
        for call in (lab["ann"].call("t.outer"), kit.execute(ToolContext(), "outer", {})):
            with pytest.raises(ToolFailed) as failure:
                await call
            outcomes.append(Outcome.of(failure.value))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("kind", [Toolkit, Inherited])
@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("gives_too_much", {}, "too_large"),
        ("cancels", {}, "tool_failed"),
        ("doubled", {"number": "x"}, "invalid_arguments"),
    ],
)
async def test_the_record_of_a_call_has_the_error_that_the_call_raises(
    kind: type[Toolkit], name: str, arguments: dict[str, Any], outcome: str
) -> None:
    records = Records.memory()
    with pytest.raises(RoomException) as raised:
        await kind("t", TOOLS, records=records).execute(ToolContext(), name, arguments)
    (record,) = records.calls()
    assert (record.outcome, record.executed) == (outcome, raised.value.executed)


async def test_a_refusal_of_an_override_is_recorded() -> None:
    records = Records.memory()
    kit = Inherited("t", TOOLS, records=records)
    with pytest.raises(PermissionDenied):
        await kit.execute(ToolContext(), "doubled", {"number": 13})
    assert [record.outcome for record in records.calls()] == ["permission_denied"]
