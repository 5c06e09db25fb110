"""All forms of a call: which are accepted, and which hint a wrong form gets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from toolbus import InvalidArguments, InvalidResult, RoomClient, Toolkit, Turn, tool
from toolbus_server.testing import room_of


@tool
async def count(text: str, top: int = 1) -> dict[str, int]:
    """Count words."""
    return {text: top}


@pytest.fixture
async def room() -> AsyncIterator[RoomClient]:
    async with room_of("ann") as (ann,), ann.host(Toolkit("words", [count])):
        yield ann


async def test_a_call_takes_a_mapping_or_keywords(room: RoomClient) -> None:
    proxy = await room.toolkit("words")
    async with Turn(room, always=[Toolkit("local", [count])]) as turn:
        values = [
            await room.call("words.count", text="a"),
            await room.call("words.count", {"text": "a"}),
            await proxy.count(text="a"),
            await proxy.count({"text": "a"}),
            await proxy.call("count", {"text": "a"}),
            await turn.call("local.count", text="a"),
            await turn.call("local.count", {"text": "a"}),
            (await turn.invoke("local.count", {"text": "a"})).value,
            (await room.invoke("words.count", {"text": "a"})).value,
        ]
    assert values == [{"a": 1}] * len(values)


async def test_result_has_the_type_that_returns_names(room: RoomClient) -> None:
    counted: dict[str, int] = await room.invoke(
        "words.count", {"text": "a"}, returns=dict[str, int]
    )
    proxy = (await room.toolkit("words")).with_options(returns=dict[str, str | float])
    assert [counted, await proxy.count(text="a")] == [{"a": 1}, {"a": 1.0}]
    with pytest.raises(
        InvalidResult
    ):  # A type checker refuses it too: the comment that ignores the error is required.
        _: str = await room.invoke("words.count", {"text": "a"}, returns=int)  # type: ignore[arg-type]


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda on: on.call("words", "count"), 'call("words.count", ...)'),
    (lambda on: on.call("words", "count", text="a"), 'call("words.count", ...)'),
    (lambda on: on.invoke("words", "count", {}), 'invoke("words.count", ...)'),
    (lambda on: on.invoke("words", "count"), 'invoke("words.count", ...)'),
    (lambda on: on.stream("words", "count", {}), 'stream("words.count", ...)'),
    (lambda on: on.explain("words", "count", {}), 'explain("words.count", ...)'),
    (
        lambda on: on.call("words.count", {"text": "a"}, timeout_s=5),
        "invoke('words.count', {...}, timeout_s=...)",
    ),
    (
        lambda on: on.call("words.count", {"text": "a"}, top=2),
        "call('words.count', {..., 'top': ...})",
    ),
    (lambda on: on.invoke("words.count", text="a"), "invoke('words.count', {..., 'text': ...})"),
    (lambda on: on.invoke("words.count", {}, timeout=5), "timeout_s="),
    (lambda on: on.stream("words.count", {}, stall_timeout=5), "stall_timeout_s="),
]

DEEP: Any = []
for _ in range(100_000):  # too deep for `repr` on every Python
    DEEP = [DEEP]
# With a proxy of the toolkit: what each refuses with which error and text.
REFUSED: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (lambda room, _: room.call(DEEP), InvalidArguments, "a value of type list is not a tool name"),
    (lambda room, _: room.call(DEEP, {}, top=1), TypeError, "call(a value of type list, {...,"),
    (lambda room, _: room.invoke("words.count", DEEP, DEEP), TypeError, "one mapping of arguments"),
    (lambda room, _: room.call("words.count", "a", 1), TypeError, "or arguments as keywords"),
    (lambda _, proxy: proxy.call("count", "a", 1), TypeError, "or arguments as keywords"),
    (lambda _, proxy: proxy.call(DEEP), InvalidArguments, "a value of type list is not a tool"),
    (lambda _, proxy: proxy.stream(["count"]), InvalidArguments, "['count'] is not a tool name"),
    (lambda _, proxy: proxy.tool(["count"]), InvalidArguments, "['count'] is not a tool name"),
    (lambda _, proxy: proxy.with_options(timeout=5), TypeError, "did you mean timeout_s=?"),
    (
        lambda room, _: room.list_builders("\udcff"),
        InvalidArguments,
        "with a lone surrogate cannot",
    ),
]
NO_TYPES: list[Any] = [{}, "", 5, [1], "int", print, list["Missing"], DEEP]  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(("write", "error", "text"), REFUSED)
async def test_value_of_a_wrong_type_is_refused_before_anything_is_sent(
    room: RoomClient, write: Callable[[Any, Any], Any], error: type[Exception], text: str
) -> None:
    proxy = await room.toolkit("words")
    with pytest.raises(error, match=re.escape(text)):
        await write(room, proxy)


@pytest.mark.parametrize("returns", NO_TYPES, ids=range(len(NO_TYPES)))
async def test_returns_is_checked_before_anything_is_sent(room: RoomClient, returns: Any) -> None:
    with pytest.raises(TypeError, match="returns must be a type that pydantic can read, not"):
        await room.invoke("no.tool", returns=returns)


@pytest.mark.parametrize(("write", "form"), WRONG)
async def test_wrong_form_is_answered_with_the_right_one(
    room: RoomClient, write: Callable[[Any], Any], form: str
) -> None:
    with pytest.raises(TypeError) as raised:
        await write(room)
    assert f"did you mean {form}?" in str(raised.value)


async def test_method_of_a_proxy_names_the_right_form(room: RoomClient) -> None:
    proxy = await room.toolkit("words")
    with pytest.raises(TypeError) as raised:
        await proxy.count("a")
    assert "did you mean count(text=...) or count({'text': ...})?" in str(raised.value)


@pytest.mark.parametrize(
    "name", ["words", "words.", ".count", "a.words.count", "", None, 7, b"words.count"]
)
async def test_invalid_tool_name_is_answered_with_the_form(room: RoomClient, name: Any) -> None:
    for method in (room.call, room.invoke, room.explain):
        with pytest.raises(InvalidArguments, match=r'write "toolkit\.tool"'):
            await method(name)


@pytest.mark.parametrize("arguments", [[], b"x", 7, {1, 2}, "hello"])
async def test_arguments_that_are_no_mapping_are_invalid(room: RoomClient, arguments: Any) -> None:
    form = r"arguments must be one mapping, not \w+; write invoke\('words.count', \{...\}\)"
    with pytest.raises(InvalidArguments, match=form):
        await room.invoke("words.count", arguments)
