from __future__ import annotations

import asyncio
from datetime import date
from typing import Any, Literal, cast

import pytest
from pydantic import Field, field_validator

from toolbus.errors import InvalidArguments, NotFound, PermissionDenied, ToolFailed
from toolbus.room.room import Room
from toolbus.room.room_client import RoomClient
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.builders import (
    ToolkitBuilder,
    ToolkitConfig,
    builder_infos,
    make_toolkits,
)
from toolbus.turns.turn import Turn

NO_ROOM = cast(Room, None)


class WeatherConfig(ToolkitConfig):
    """The weather of one region."""

    name: Literal["weather"] = "weather"
    region: str = Field(min_length=2)
    days: int = 3
    since: date | None = None

    @field_validator("region")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "nowhere":
            raise ValueError("no such region")
        return value


class Weather(ToolkitBuilder[WeatherConfig]):
    """Makes an empty toolkit and records its arguments."""

    def __init__(self) -> None:
        super().__init__("weather", WeatherConfig)
        self.made: list[tuple[Any, WeatherConfig]] = []

    async def make(self, room: Room, model: Any, config: WeatherConfig) -> Toolkit:
        self.made.append((model, config))
        return Toolkit("weather", description=config.region)


class Maker(ToolkitBuilder[ToolkitConfig]):
    """Makes a toolkit once all of `party` are making one; raises `error` if it has one."""

    def __init__(
        self, name: str, party: asyncio.Barrier | None = None, error: Exception | None = None
    ) -> None:
        super().__init__(name, ToolkitConfig)
        self.party, self.error = party, error
        self.ends: list[str] = []
        self.begun = asyncio.Event()

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        self.begun.set()
        try:
            if self.party is not None:
                await self.party.wait()
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        return Toolkit(config.name)


async def made(*tools: Any, granted: list[str] | None = None) -> list[Toolkit]:
    builders = (Weather(), Toolkit("notes"), Maker("other"))
    return await make_toolkits(NO_ROOM, None, builders, list(tools), granted=granted)


# Arguments of a builder


async def test_json_and_objects_are_built_in_the_order_of_the_requests() -> None:
    weather, notes = Weather(), Toolkit("notes")
    asked: list[dict[str, Any] | ToolkitConfig] = [
        {"name": "notes"},
        WeatherConfig(region="eu", days=1),
    ]
    built = await make_toolkits(NO_ROOM, "gpt", (weather, notes), asked)
    assert built[0] is notes
    assert built[1].description == "eu"
    assert weather.made == [("gpt", WeatherConfig(region="eu", days=1))]


async def test_json_is_converted_to_the_types_of_the_config() -> None:
    weather = Weather()
    entry = {"name": "weather", "region": "eu", "since": "2026-03-01"}
    await make_toolkits(NO_ROOM, None, [weather], [entry])
    assert weather.made[0][1].since == date(2026, 3, 1)


async def test_only_requested_toolkits_are_built() -> None:
    weather = Weather()
    assert await make_toolkits(NO_ROOM, None, [weather, Maker("other")], [{"name": "other"}])
    assert await make_toolkits(NO_ROOM, None, [weather], None) == []
    assert await make_toolkits(NO_ROOM, None, [weather], []) == []
    assert weather.made == []


async def test_toolkits_are_built_concurrently() -> None:
    party = asyncio.Barrier(2)
    builders = [Maker("one", party), Maker("two", party)]
    async with asyncio.timeout(60):
        built = await make_toolkits(NO_ROOM, None, builders, [{"name": "one"}, {"name": "two"}])
    assert [each.name for each in built] == ["one", "two"]


# Invalid entries


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"name": "weather"}, "/tools/1/region"),
        ({"name": "weather", "region": 7}, "/tools/1/region"),
        ({"name": "weather", "region": "x"}, "/tools/1/region"),
        ({"name": "weather", "region": "nowhere"}, "/tools/1/region"),
        ({"name": "weather", "region": "eu", "days": "3"}, "/tools/1/days"),
        ({"name": "weather", "region": "eu", "since": "soon"}, "/tools/1/since"),
        ({"name": "weather", "region": "eu", "regoin": "eu"}, "/tools/1/regoin"),
        ({"name": "weather", "region": "${cred:a/b/c}"}, "/tools/1/region"),
        (WeatherConfig(name="weather", region="${cred:a/b/c}"), "/tools/1/region"),
        ({"name": "weather", "region": "eu", "${cred:a": 1}, "/tools/1/${cred:a"),
        ({"name": "weather", "region": object()}, "/tools/1/region"),
        ({"region": "eu"}, "/tools/1/name"),
        ({"name": 7}, "/tools/1/name"),
        ({"name": "notes"}, "/tools/1/name"),
        ("weather", "/tools/1"),
        (None, "/tools/1"),
        (ToolkitConfig(name="weather"), "/tools/1"),
    ],
)
async def test_error_of_an_invalid_entry_has_its_path(entry: Any, path: str) -> None:
    with pytest.raises(InvalidArguments) as raised:
        await made({"name": "notes"}, entry)
    assert raised.value.details["path"] == path
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("tools", ["weather", b"weather", {"name": "weather"}, 7])
async def test_tools_must_be_a_list(tools: Any) -> None:
    with pytest.raises(InvalidArguments) as raised:
        await make_toolkits(NO_ROOM, None, [Weather()], tools)
    assert raised.value.details["path"] == "/tools"


async def test_nothing_is_built_if_one_entry_is_invalid() -> None:
    weather = Weather()
    asked = [{"name": "weather", "region": "eu"}, {"name": "nobody"}]
    with pytest.raises(NotFound):
        await make_toolkits(NO_ROOM, None, [weather], asked)
    assert weather.made == []


async def test_unknown_builder_is_not_found_and_the_error_lists_the_available_ones() -> None:
    with pytest.raises(
        NotFound, match=r"/tools/0: there is no builder wether; available: notes, other, weather"
    ):
        await made({"name": "wether"})


async def test_invalid_name_is_shortened_in_the_error() -> None:
    with pytest.raises(NotFound) as raised:
        await made({"name": "\x1b[31m" * 10_000})
    assert len(str(raised.value)) < 600
    assert "\x1b" not in str(raised.value)


async def test_two_entries_of_one_name_are_invalid() -> None:
    entry = {"name": "weather", "region": "eu"}
    with pytest.raises(InvalidArguments, match="/tools/1/name: /tools/0 already requests weather"):
        await made(entry, WeatherConfig(region="us"))


# Grants


async def test_request_beyond_the_grant_is_denied_with_the_builders_name() -> None:
    assert await made({"name": "notes"}, granted=["no*"])
    with pytest.raises(PermissionDenied, match="/tools/1: no grant for builder other"):
        await made({"name": "notes"}, {"name": "other"}, granted=["notes", "weather"])
    with pytest.raises(PermissionDenied):
        await made({"name": "nobody"}, granted=[])


# Builders that fail


async def test_failing_builder_cancels_the_others_and_its_error_is_raised() -> None:
    party = asyncio.Barrier(3)
    waiting = Maker("waiting", party)
    failing = Maker("failing", error=ToolFailed("no more today"))
    asked = [{"name": "waiting"}, {"name": "failing"}]
    with pytest.raises(ToolFailed, match="no more today") as raised:
        await make_toolkits(NO_ROOM, None, [waiting, failing], asked)
    assert raised.value.__notes__ == ["/tools/1: raised by builder failing"]
    assert waiting.ends == ["cancelled"]


async def test_config_refused_by_a_builder_has_its_path() -> None:
    error = ToolkitBuilder.refusal("/region", "is closed")
    with pytest.raises(InvalidArguments, match=r"^/tools/0/region: is closed$"):
        await make_toolkits(NO_ROOM, None, [Maker("closed", error=error)], [{"name": "closed"}])


async def test_invalid_arguments_of_a_builders_own_call_keep_their_path() -> None:
    error = InvalidArguments("/city: is no city", details={"path": "/city", "message": "is none"})
    with pytest.raises(InvalidArguments, match=r"^/city: is no city") as raised:
        await make_toolkits(NO_ROOM, None, [Maker("asking", error=error)], [{"name": "asking"}])
    assert raised.value.__notes__ == ["/tools/0: raised by builder asking"]


async def test_builder_must_return_a_toolkit() -> None:
    class Broken(Maker):
        async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
            return None  # type: ignore[return-value]  # what is tried here

    with pytest.raises(TypeError, match="builder broken must return a Toolkit, not NoneType"):
        await make_toolkits(NO_ROOM, None, [Broken("broken")], [{"name": "broken"}])


async def test_cancelled_building_cancels_the_builders() -> None:
    party = asyncio.Barrier(2)
    waiting = Maker("waiting", party)
    task = asyncio.create_task(make_toolkits(NO_ROOM, None, [waiting], [{"name": "waiting"}]))
    async with asyncio.timeout(60):
        await waiting.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiting.ends == ["cancelled"]


# Definitions of builders


def test_two_builders_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two builders are named 'notes'"):
        builder_infos([Toolkit("notes"), Maker("notes")])


@pytest.mark.parametrize("name", ["", "Weather", "a.b", "7", 7])
def test_builder_has_a_toolkits_name(name: Any) -> None:
    with pytest.raises(ValueError, match="a builder's name"):
        Maker(name)


@pytest.mark.parametrize("kind", [dict, object(), WeatherConfig(region="eu")])
def test_builder_has_a_config_type(kind: Any) -> None:
    class Any_(ToolkitBuilder[Any]):
        async def make(self, room: Room, model: Any, config: Any) -> Toolkit:
            raise NotImplementedError

    with pytest.raises(TypeError, match="type is a subclass of ToolkitConfig"):
        Any_("any", kind)


def factory(config: WeatherConfig) -> Toolkit:
    raise NotImplementedError


def test_other_types_are_refused_as_builders() -> None:
    with pytest.raises(TypeError, match=r"Toolkit, not function; builder_of\(...\) makes one"):
        builder_infos([cast("Any", factory)])
    with pytest.raises(TypeError, match="builders must be a list, not <"):
        Turn(RoomClient("ws://127.0.0.1:1"), builders=cast("Any", Toolkit("one")))
    with pytest.raises(TypeError, match="a builder is a ToolkitBuilder or a Toolkit, not str"):
        builder_infos(["weather"])  # type: ignore[list-item]  # what is tried here


def test_builder_info_has_name_description_and_schema() -> None:
    weather, notes = builder_infos([Weather(), Toolkit("notes", description="My notes.")])
    assert (weather.name, weather.description) == ("weather", "The weather of one region.")
    assert weather.schema["required"] == ["name", "region"]
    assert weather.schema["properties"]["name"] == {"type": "string", "const": "weather"}
    assert weather.schema["additionalProperties"] is False
    assert (notes.name, notes.description) == ("notes", "My notes.")
    assert list(notes.schema["properties"]) == ["name"]
