"""Values that no signature allows, from programs and from tools: each call ends with a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from support.clients.refusals import steps_of
from toolbus import RemoteToolkit, RoomClient, ToolFailed, Toolkit, tool
from toolbus.client.retry import RetryPolicy
from toolbus.errors import DeadlineExceeded, InvalidArguments, PermissionDenied, RoomException
from toolbus.room.hosting import packed_manifest
from toolbus.room.room import connection_of
from toolbus.schemas.foreign import usable_schema
from toolbus.tools.omission import entries_in
from toolbus.wire import Result, pack_body
from toolbus_server.registry.toolkit_definition import read_definition
from toolbus_server.testing import TestServer


class NoTruth:
    """As arrays and tables have none."""

    def __bool__(self) -> bool:
        raise ValueError("no truth value")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no equality")

    __hash__ = None  # type: ignore[assignment]  # unhashable, too


class Slippery(str):
    """A text whose methods return nonsense."""

    def __getitem__(self, key: Any) -> Any:
        raise ValueError("no part")

    def __str__(self) -> str:
        raise ValueError("no text")


class Forgetful(ToolFailed):
    """It does not call its base's constructor."""

    def __init__(self) -> None:
        pass


ODD_ERRORS: dict[str, Any] = {
    "retryable": lambda: ToolFailed("x", retryable=NoTruth()),  # type: ignore[arg-type]
    "details": lambda: ToolFailed("x", details=NoTruth()),  # type: ignore[arg-type]
    "a list as details": lambda: ToolFailed("x", details=[1]),  # type: ignore[arg-type]
    "message": lambda: ToolFailed(Slippery("x")),
    "retry_after_s": lambda: ToolFailed("x", retry_after_s=NoTruth()),  # type: ignore[arg-type]
    "executed": lambda: ToolFailed("x", executed=NoTruth()),  # type: ignore[arg-type]
    "no constructor": Forgetful,
}


@tool
async def fail(how: str) -> None:
    error = ODD_ERRORS[how]()
    if isinstance(error, ToolFailed) and how == "details":
        error.details = NoTruth()  # type: ignore[assignment]
    raise error


@tool
async def say(text: str) -> str:
    return text


@pytest.fixture
async def alice(server: TestServer) -> AsyncIterator[RoomClient]:
    async with server.room("host") as host, host.host(Toolkit("echo", [say, fail])):
        async with server.room("alice") as alice:
            assert await alice.call("echo.say", text="x") == "x"
            yield alice


@pytest.mark.parametrize("how", ODD_ERRORS)
async def test_whatever_stands_in_a_tools_error_the_call_is_answered(
    alice: RoomClient, how: str
) -> None:
    with pytest.raises(ToolFailed) as caught:
        await alice.invoke("echo.fail", {"how": how}, timeout_s=5, retry=False)
    assert caught.value.executed == "yes"
    assert await alice.call("echo.say", text="y") == "y"


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
ODD_VALUES = [CIRCLE, ["x"], {"a": 1}, {1}, bytearray(b"x"), b"x", 7, date(2026, 1, 1), NoTruth()]
ODD_TIMES = ["5", timedelta(1), Decimal(5), b"5", -(10**400), float("nan"), 10**400, NoTruth()]


@pytest.mark.parametrize("name", ["participant", "pin", "on_behalf_of"])
@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: type(value).__name__)
async def test_an_option_that_is_no_text_is_refused_and_leaves_nothing(
    alice: RoomClient, name: str, value: Any
) -> None:
    options = {name: value}
    with pytest.raises(InvalidArguments) as refused:
        await alice.invoke("echo.say", {"text": "x"}, **options)
    assert refused.value.executed == "no"
    assert len(connection_of(alice)._pending) == 0


@pytest.mark.parametrize("value", ODD_TIMES, ids=lambda value: type(value).__name__)
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(
    alice: RoomClient, value: Any
) -> None:
    with pytest.raises(InvalidArguments):
        await alice.invoke("echo.say", {"text": "x"}, timeout_s=value)


async def test_a_search_or_owner_that_cannot_be_sent_is_refused_and_leaves_nothing(
    alice: RoomClient,
) -> None:
    for value in (CIRCLE, object(), {1}):
        odd: Any = value
        with pytest.raises(InvalidArguments):
            await anext(alice.toolkits(odd))
        with pytest.raises(InvalidArguments):
            await alice.toolkit("echo", odd)
        with pytest.raises(InvalidArguments):
            await alice.toolkit(odd)
    assert len(connection_of(alice)._pending) == 0


async def test_text_of_another_class_is_text(alice: RoomClient) -> None:
    class Name(str):
        pass

    assert (await alice.invoke(f"{Name('echo')}.{Name('say')}", {"text": "x"})).value == "x"
    assert (await alice.invoke("echo.say", {"text": "x"}, participant=Name("host"))).value == "x"


ODD_OFFERS = [
    {"shared_with": 5},
    {"shared_with": "bob"},
    {"shared_with": [None]},
    {"public": "yes"},
]


@pytest.mark.parametrize("odd", ODD_OFFERS)
async def test_an_offer_of_odd_values_is_refused_and_the_name_stays_usable(
    alice: RoomClient, odd: dict[str, Any]
) -> None:
    mine = Toolkit("mine", [say])
    with pytest.raises(ValueError, match="mine"):
        async with alice.host(mine, **{"public": False, **odd}):
            pass
    async with alice.host(mine, public=False):
        assert await alice.call("mine.say", text="x") == "x"


@pytest.mark.parametrize("shares", [None, [None], 5])
def test_a_toolkit_that_is_shared_with_odd_values_is_refused(shares: Any) -> None:
    with pytest.raises(ValueError, match="'a': shared_with must be a list of strings"):
        RemoteToolkit("a", [], public=False, shared_with=shares)


@pytest.mark.parametrize("odd", [print, None, [Toolkit("a")]])
async def test_only_a_toolkit_can_be_hosted(alice: RoomClient, odd: Any) -> None:
    with pytest.raises(TypeError, match=r"host takes one Toolkit\(name, tools\), not"):
        async with alice.host(odd):
            pass


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


async def test_a_definition_that_is_accepted_can_be_described(alice: RoomClient) -> None:
    """BODY-1: the description carries it one level deeper."""
    async with alice.host(Toolkit("deep", [say], annotations={"x": nested(29)}), public=False):
        described = await alice.toolkit("deep")
        assert described.manifest.annotations == {"x": nested(29)}
        assert await alice.call("deep.say", text="x") == "x"
    with pytest.raises(InvalidArguments) as refused:
        async with alice.host(Toolkit("deeper", [say], annotations={"x": nested(30)})):
            pass
    assert refused.value.details["path"].startswith("/annotations/x/a")


@pytest.mark.parametrize(
    ("name", "parts", "draft"),
    [
        ("$id", "$defs", "https://json-schema.org/draft/2020-12/schema"),
        ("id", "definitions", "http://json-schema.org/draft-04/schema#"),
    ],
)
def test_a_schema_of_a_thousand_resources_is_registered_and_read_in_linear_time(
    name: str, parts: str, draft: str
) -> None:
    count = 1_000
    ring = {
        str(n): {name: f"http://a/{n}", "$ref": f"http://a/{(n + 1) % count}"} for n in range(count)
    }
    schema = {"$schema": draft, parts: ring, "allOf": [{"$ref": "http://a/0"}]}
    packed = pack_body({"name": "t", "tools": [{"name": "run", "input_schema": schema}]})
    assert read_definition(packed).manifest.name == "t"
    assert steps_of(lambda: read_definition(packed)) < 200 * count
    assert steps_of(lambda: usable_schema(schema)) < 1_000 * count


def test_values_that_look_like_resources_are_none() -> None:
    values = [{"$id": f"v{n}", "id": f"v{n}"} for n in range(100)]
    schema = {"type": "object", "examples": values, "properties": {"v": {"enum": values}}}
    packed = pack_body({"name": "t", "tools": [{"name": "run", "input_schema": schema}]})
    assert read_definition(packed).manifest.name == "t"


async def test_a_missing_description_is_requested_again() -> None:
    async def never(*_: Any, **__: Any) -> dict[str, Any]:
        raise AssertionError

    retries = RetryPolicy(lambda: 0.0, never, lambda: float("-inf"))
    errors: list[RoomException] = [DeadlineExceeded(), PermissionDenied()]
    for error in errors:
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        retries.expect_description(("echo", None), answer)
        answer.set_exception(error)
        await asyncio.wait([answer])
        assert (("echo", None) in retries.known) is isinstance(error, PermissionDenied)


def fine(count: int, seed: int = 2**64) -> str:
    return f"{count} {seed}"


@tool(args_schema={"type": "object", "properties": {"value": {"enum": [2**64, 1]}}})
def huge(**arguments: Any) -> None: ...


@tool(annotations={"size": 2**64})
def noted() -> None: ...


DEEP: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
for _ in range(40):
    DEEP = {"type": "object", "not": DEEP}


@tool(args_schema=DEEP)
def deep(**arguments: Any) -> None: ...


@pytest.mark.parametrize("odd", [huge, noted, deep])
async def test_tool_that_no_room_takes_is_left_out_and_named_and_the_others_are_hosted(
    odd: Any, server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=f"no room takes its tools: {odd.__name__}: "):
        packed_manifest(Toolkit("t", [odd]))
    toolkit = Toolkit("t", [fine, odd])
    async with server.room("host") as host, host.host(toolkit), server.room("b") as caller:
        assert await caller.call("t.fine", count=1) == f"1 {2**64}"
        annotations = (await caller.toolkit("t")).manifest.annotations
    assert [entry.name for entry in entries_in(annotations, "left_out")[0]] == [odd.__name__]
    assert f"left out: {odd.__name__}: " in caplog.text
