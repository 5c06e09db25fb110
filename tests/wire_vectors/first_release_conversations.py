"""The recorded conversations of `record_first_release.py`: each function is one conversation.

Each step waits for the effect of the step before, so that only one order of frames is possible.
"""

# mypy: ignore-errors
# They call the SDK of that release, whose methods had other parameters.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from typing_extensions import TypedDict

from toolbus import (
    BuilderInfo,
    RoomClient,
    RoomException,
    ToolContext,
    ToolFailed,
    Toolkit,
    tool,
)

PATIENCE_S = 60.0


class Forecast(TypedDict):
    """What `weather.forecast` returns."""

    city: str
    days: int


class Weather:
    """A toolkit that reports when a call of it has started and was cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()

    def toolkit(self) -> Toolkit:
        """Make the toolkit; the descriptions of its tools are in the recordings."""

        @tool(read_only=True, idempotent=True)
        async def forecast(city: str, days: int = 3) -> Forecast:
            """Forecast the weather."""
            return {"city": city, "days": days}

        @tool
        async def report(context: ToolContext, city: str) -> str:
            """Report what the forecast is."""
            days = (await context.room.call("weather.forecast", city=city))["days"]
            return f"{city}: {days} days, for {context.caller.name}"

        @tool
        async def wait() -> None:
            """Wait for ever."""
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()

        @tool
        async def refuse(words: str) -> None:
            """Fail, and say why."""
            raise ToolFailed(words, retryable=True)

        @tool
        async def picture() -> bytes:
            """Give bytes."""
            return b"\x89PNG"

        tools: list[Any] = [forecast, report, wait, refuse, picture]
        return Toolkit("weather", tools, description="Forecasts", rules=["Use metric units."])


def participant(server: Any, url: str, name: str) -> RoomClient:
    """Return a participant with all grants, whose instance is the name."""

    async def token() -> str:
        return str(server.token(name))

    return RoomClient(url, room="lab", token=token, instance=name)


@asynccontextmanager
async def host_and_caller(
    server: Any, url: str, weather: Weather
) -> AsyncIterator[tuple[RoomClient, RoomClient]]:
    """Return a participant that hosts the weather, and another one."""
    async with (
        participant(server, url, "station") as host,
        host.host(weather.toolkit()),
        participant(server, url, "alice") as alice,
    ):
        yield host, alice


async def calls(server: Any, relay: Any, url: str) -> None:
    """A host registers; a caller lists, describes, explains, and makes valid and invalid calls."""
    async with host_and_caller(server, url, Weather()) as (_, alice):
        assert [each.name async for each in alice.toolkits(search="FORE")] == ["weather"]
        weather = await alice.toolkit("weather")
        await alice.toolkit("weather")
        await alice.explain("weather", "forecast")
        await alice.explain("weather", "missing")
        await alice.call("weather.forecast", city="Oslo")
        await weather.with_options(retry=False).forecast(city="København", days=2**40)
        await alice.invoke("weather", "picture", pin=weather.info.digest)
        await alice.invoke("weather", "forecast", {"city": "Bø"}, caller_context={"thread": "t-1"})
        for tool_name, arguments in (
            ("weather.refuse", {"words": "not today"}),
            ("weather.forecast", {"city": 7}),
            ("weather.missing", {}),
            ("nobody.knows", {}),
        ):
            with suppress(RoomException):
                await alice.call(tool_name, **arguments)
        with suppress(RoomException):
            await alice.invoke("weather", "forecast", {"city": "Bø"}, pin="0" * 64)


async def nested_calls(server: Any, relay: Any, url: str) -> None:
    """A tool calls another one while it runs, for its caller."""
    async with host_and_caller(server, url, Weather()) as (_, alice):
        assert await alice.call("weather.report", city="Oslo") == "Oslo: 3 days, for alice"


async def calls_that_are_given_up(server: Any, relay: Any, url: str) -> None:
    """A caller cancels, a deadline passes, a caller leaves during a call: the host is notified."""
    weather = Weather()
    async with host_and_caller(server, url, weather) as (_, alice):
        calling = asyncio.ensure_future(alice.call("weather.wait"))
        await happens(weather.began)
        calling.cancel()
        await happens(weather.stopped)
        with suppress(RoomException):
            await alice.invoke("weather", "wait", timeout_s=0.2, retry=False)
        await happens(weather.stopped)
        async with participant(server, url, "bob") as bob:
            leaving = asyncio.ensure_future(bob.call("weather.wait"))
            weather.began.clear()
            await happens(weather.began)
        await happens(weather.stopped)
        await asyncio.gather(leaving, return_exceptions=True)


async def a_host_that_comes_back(server: Any, relay: Any, url: str) -> None:
    """A host loses its connection, which the server does not notice, and reconnects."""
    weather = Weather()
    async with host_and_caller(server, url, weather) as (host, alice):
        calling = asyncio.ensure_future(alice.invoke("weather", "wait", retry=False))
        await happens(weather.began)
        relay.cut("station/1")
        with suppress(RoomException):
            await calling
        await until(relay, lambda seen: seen.get("closed") == "station/1")
        await until(relay, lambda seen: seen.get("to") == "station/2" and seen["frame"][0] == 2)
        assert [each.hosts async for each in host.toolkits()] == [1]
        await alice.call("weather.forecast", city="Oslo")


async def people_and_events(server: Any, relay: Any, url: str) -> None:
    """A participant subscribes; others join, change, host, send, stop hosting and leave."""
    async with (
        participant(server, url, "listener") as listener,
        listener.events() as events,
    ):
        async with participant(server, url, "bob") as bob:
            await next_event(events, "participant_joined")
            await bob.set_attributes(status="busy", seat=[3, "B"])
            await next_event(events, "participant_changed")
            await bob.set_attributes(seat=None)
            await next_event(events, "participant_changed")
            async with bob.host(Weather().toolkit()):
                await next_event(events, "toolkit_added")
            await next_event(events, "toolkit_removed")
            async with bob.host(
                Weather().toolkit(), public=False, shared_with=["name:listener", "role:agent"]
            ):
                await next_event(events, "toolkit_added")
                await listener.invoke("weather", "forecast", {"city": "Bø"}, participant="bob")
            await next_event(events, "toolkit_removed")
            await bob.send("listener", "note", {"text": "the train is late"})
            await next_event(events, "message")
            await bob.broadcast("note")
            await next_event(events, "message")
            with suppress(RoomException):
                await bob.send("nobody", "note", 7)
            assert len(await bob.participants()) == 2
            offer = BuilderInfo(name="weather", description="For one place.", schema={})
            await bob.offer_builders([offer])
            assert await listener.list_builders("bob")
        await next_event(events, "participant_left")


async def a_newer_token(server: Any, relay: Any, url: str) -> None:
    """A participant refreshes its token, and administers its rooms."""
    async with participant(server, url, "alice") as alice:
        await alice.refresh()
        await alice.admin("rooms")


CONVERSATIONS = [
    calls,
    nested_calls,
    calls_that_are_given_up,
    a_host_that_comes_back,
    people_and_events,
    a_newer_token,
]


async def happens(event: asyncio.Event) -> None:
    """Wait for an event, and allow it to happen again."""
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()
    event.clear()


async def next_event(events: Any, name: str) -> None:
    """Wait for the next event, which must have this name."""
    async with asyncio.timeout(PATIENCE_S):
        event = await anext(aiter(events))
    assert event.name == name, event


async def until(relay: Any, matches: Any) -> None:
    """Wait until the relay has seen a frame."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(map(matches, relay.events)):  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.01)
