"""Agents and turns for tests: tools and builders that record, messages, and a room with a host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from toolbus import (
    ApiScope,
    Message,
    Participant,
    RequiredToolkit,
    RoomClient,
    Tool,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Turn,
    builder_of,
    tool,
)
from toolbus.room.room import Room
from toolbus_server.testing import TestServer, room_of, running_server

__all__ = [
    "Diary",
    "Recorded",
    "agent_and_host",
    "greeter",
    "message_of",
    "names",
    "turn_built",
    "turn_hosted",
    "turn_in_process",
]


class Recorded(Tool):
    """A tool that records when it is started and stopped."""

    input_schema = {"properties": {}}  # noqa: RUF012 - as a tool's author writes it

    def __init__(self, name: str, diary: list[str], *, fails: bool = False) -> None:
        super().__init__(name)
        self.diary, self.fails = diary, fails
        self.room: Any = None

    async def start(self, room: Any) -> None:
        if self.fails:
            raise OSError("no disk")
        self.room = room
        self.diary.append(f"+{self.name}")

    async def stop(self) -> None:
        self.diary.append(f"-{self.name}")
        raise RuntimeError("stops badly")

    async def execute(self, context: ToolContext, /, **_: Any) -> Any:
        return f"{self.name} for {context.caller.name}"


class Diary(ToolkitBuilder[ToolkitConfig]):
    """Builds a toolkit of its own name with one recorded tool."""

    def __init__(self, name: str, diary: list[str], *, fails: bool = False) -> None:
        super().__init__(name, ToolkitConfig)
        self.diary, self.fails = diary, fails

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        return Toolkit(self.name, [Recorded(self.name, self.diary, fails=self.fails)])


def greeter(version: str = "1") -> Toolkit:
    @tool(idempotent=True)
    async def greet(context: ToolContext, name: str) -> str:
        """Greet somebody."""
        principal = context.on_behalf_of
        asker = context.caller.name if principal is None else principal.name
        return f"hello {name}, from {context.caller.name} for {asker}"

    @tool
    async def insult(name: str) -> str:
        return f"{name}!"

    return Toolkit("greeter", [greet, insult], version=version)


def names(turn: Turn) -> list[str]:
    return [each.name for each in turn.tools]


def message_of(
    name: str, *asked: Any, builders: Sequence[str] = (), issuer: str = "toolbus-test"
) -> Message:
    sender = Participant(id="", name=name, issuer=issuer)
    return Message(sender, "question", {"tools": list(asked)}, True, tuple(builders))


@asynccontextmanager
async def agent_and_host(
    *toolkits: Toolkit, api: ApiScope | None = None
) -> AsyncIterator[tuple[TestServer, RoomClient]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server())
        host = await stack.enter_async_context(server.room("host"))
        for each in toolkits:
            await stack.enter_async_context(host.host(each))
        yield server, await stack.enter_async_context(server.room("agent", api=api))


@asynccontextmanager
async def turn_in_process(toolkit: Toolkit, **options: Any) -> AsyncIterator[Turn]:
    """Offer a toolkit that is in the process of the turn."""
    async with Turn(None, always=[toolkit], **options) as turn:
        yield turn


@asynccontextmanager
async def turn_built(
    factory: Callable[[Any], Toolkit], name: str, **config: Any
) -> AsyncIterator[Turn]:
    """Offer a toolkit that a factory builds for the turn."""
    builder = builder_of(factory, **config)
    async with Turn(None, builders=[builder], tools=[builder.type(name=name)]) as turn:
        yield turn


@asynccontextmanager
async def turn_hosted(toolkit: Toolkit, **options: Any) -> AsyncIterator[Turn]:
    """Offer a toolkit of the host `host`."""
    async with (
        room_of("host", "agent") as (host, agent),
        host.host(toolkit, public=True),
        Turn(agent, required=[RequiredToolkit(toolkit.name)], **options) as turn,
    ):
        yield turn
