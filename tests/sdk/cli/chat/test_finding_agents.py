"""Which agent a name means: one's own, else the only one that one sees."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, cast

import pytest

from toolbus import InvalidResult, JsonChunk, NotFound, ToolkitInfo
from toolbus.cli.chat.agents import RemoteAgent, find_agent
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.tools.tool_run import Participant


def toolkit(name: str, owner: str, *tools: str, issuer: str = "dev") -> ToolkitInfo:
    alias = "" if issuer == "dev" else issuer
    return ToolkitInfo(
        name, "", "", "", "digest", False, owner, 1, tools or ("ask",), issuer, alias
    )


class Listed:
    """A room with a list of toolkits."""

    room = "main"
    me = Participant("1", "joe", "user", "dev")

    def __init__(self, *toolkits: ToolkitInfo) -> None:
        self._toolkits = toolkits

    async def toolkits(self, search: str) -> AsyncGenerator[ToolkitInfo, None]:
        for each in self._toolkits:
            if search in each.name or search in each.tools:
                yield each


@pytest.mark.parametrize(
    ("toolkits", "owner"),
    [
        ([toolkit("helper", "ann"), toolkit("helper2", "bob")], "ann"),
        ([toolkit("helper", "ann"), toolkit("helper", "joe")], "joe"),
        ([toolkit("helper", "ann"), toolkit("helper", "bob", "look")], "ann"),
        ([toolkit("helper", "bob", "look")], "bob"),
    ],
)
async def test_name_means_one_agent(toolkits: list[ToolkitInfo], owner: str) -> None:
    found = await find_agent(cast(Any, Listed(*toolkits)), "helper", None)
    assert (found.name, found.owner) == ("helper", owner)


@pytest.mark.parametrize(
    ("toolkits", "error", "words"),
    [
        (
            [toolkit("helper", "ann"), toolkit("helper", "bob")],
            UsageError,
            "--participant: ann, bob",
        ),
        (
            # Of another issuer: a namesake is somebody else.
            [toolkit("helper", "joe", issuer="corp"), toolkit("helper", "bob")],
            UsageError,
            "--participant: corp/joe, bob",
        ),
        ([], NotFound, "your token shows no agent in room main"),
        ([toolkit("helping", "ann")], NotFound, "your token shows these in room main: helping"),
    ],
)
async def test_name_that_means_none_or_several_is_refused(
    toolkits: list[ToolkitInfo], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await find_agent(cast(Any, Listed(*toolkits)), "helper", None)


class Streams(Listed):
    """A room in which each call has these chunks."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self._values = values

    @asynccontextmanager
    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[AsyncGenerator[JsonChunk, None]]:
        async def chunks() -> AsyncGenerator[JsonChunk, None]:
            for value in self._values:
                yield JsonChunk(value)

        yield chunks()


async def test_answer_without_an_end_is_an_error() -> None:
    text, end = {"type": "text", "text": "a"}, {"type": "end", "text": "a"}
    for values, is_whole in (
        ([text, end], True),
        ([text], False),
        ([end, text], False),
        ([], False),
    ):
        room = cast(Any, Streams(*values))
        agent = RemoteAgent(room, toolkit("a", "ann"), tools=(), conversation="", waits=False)
        events: list[Any] = []
        refused: AbstractContextManager[Any]
        refused = nullcontext() if is_whole else pytest.raises(InvalidResult, match="has no end")
        with refused:
            async for event in agent.ask("?"):
                events.append(event)
        assert [event for event in events if isinstance(event, dict)] == values
