"""Builders of factories: what a request may set, and what only the operator does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr, create_model, model_validator
from typing_extensions import TypedDict

from toolbus import (
    InvalidArguments,
    OperatorOnly,
    Toolkit,
    Unavailable,
    builder_of,
    make_toolkits,
)
from toolbus.turns import builders
from toolbus.turns.builders import builder_infos

ROOM: Any = None


class Shop(BaseModel):
    database: Annotated[Path, OperatorOnly()] = Field(description="Where the goods are.")
    key: SecretStr = SecretStr("")
    rows: Annotated[int, Field(ge=1, le=9, description="How many.")] = 3
    tags: list[str] = []

    @model_validator(mode="after")
    def check_all(self) -> Shop:
        if self.rows == 9 and self.tags:
            raise ValueError(f"no tags beside 9 rows of {self.database}")
        return self


def shop(config: Shop) -> Toolkit:
    """Sell things.

    Not shown.
    """
    return Toolkit("shop", description=config.model_dump_json())


def by_keyword(*, config: Shop) -> Toolkit:
    return shop(config)


def several(*configs: Shop) -> Toolkit:
    return shop(configs[0])


async def built(builder: Any, **config: Any) -> dict[str, Any]:
    request = {"name": builder.name, **config}
    [toolkit] = await make_toolkits(ROOM, None, [builder], [request])
    return Shop.model_validate_json(toolkit.description).model_dump(mode="json")


async def test_request_sets_the_open_fields_and_the_operator_the_others() -> None:
    builder = builder_of(shop, database="a.db", tags=["mine"])
    [info] = builder_infos([builder])
    assert (info.name, info.description) == ("shop", "Sell things.")
    assert set(info.schema["properties"]) == {"name", "key", "rows"}
    rows = info.schema["properties"]["rows"]
    assert (rows["maximum"], rows["description"], rows["default"]) == (9, "How many.", 3)
    assert await built(builder) | {"key": ""} == {
        "database": "a.db",
        "key": "",
        "rows": 3,
        "tags": ["mine"],
    }
    factories: list[Any] = [shop, by_keyword]
    for factory in factories:
        assert (await built(builder_of(factory, "store", database="b"), rows=5))["rows"] == 5


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({"database": "/etc"}, "/tools/0/database", "only the operator of shop sets database"),
        ({"rows": 10}, "/tools/0/rows", "greater than the maximum of 9"),
        ({"row": 1}, "/tools/0", "row"),
        ({"rows": 9, "tags": ["x"]}, "/tools/0", "is not valid"),
    ],
)
async def test_request_that_is_refused_names_the_path(
    config: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(InvalidArguments, match=message) as refused:
        await built(builder_of(shop, database="secret.db"), **config)
    assert refused.value.details["path"].startswith(path)
    assert "secret.db" not in str(refused.value)


class Named(BaseModel):
    name: str = ""


def named(config: Named) -> Toolkit:
    return Toolkit("named", description=config.name)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: builder_of(shop), TypeError, "only the operator sets database: give it"),
        (lambda: builder_of(shop, databse="x"), TypeError, "did you mean database?"),
        (lambda: builder_of(shop, database="x", rows=0), ValueError, "rows: Input should be"),
        (lambda: builder_of(shop, "Bad Name", database="x"), ValueError, "lower-case letter"),
        (lambda: builder_of(named), TypeError, "rename the field `name`"),
        (lambda: builder_of(lambda: Toolkit("x")), TypeError, "with one parameter"),  # type: ignore[arg-type, misc]
        (lambda: builder_of(several), TypeError, "with one parameter"),
        (lambda: builder_of(Toolkit("x")), TypeError, "with one parameter"),  # type: ignore[arg-type]
    ],
)
def test_builder_that_cannot_be_made_says_why(
    make: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()


class Source(BaseModel):
    path: Annotated[str, OperatorOnly] = ""
    next: Source | None = None


class Options(TypedDict):
    path: Annotated[str, OperatorOnly]


@pytest.mark.parametrize(
    "kind", [Annotated[str, OperatorOnly] | None, list[Source], dict[str, Options]]
)
def test_mark_on_a_part_of_an_open_field_is_refused(kind: Any) -> None:
    config = create_model("Config", source=(kind, ...), rows=(int, 1))

    def kit(config: Any) -> Toolkit:
        return Toolkit("kit")

    kit.__annotations__["config"] = config
    with pytest.raises(TypeError, match="marks a part of the field source"):
        builder_of(kit)


class Gate(BaseModel):
    """A factory that waits, as one that reads from a slow address."""

    size: int = 1


class _Gated:
    """A factory that runs until it is let go."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.entered = asyncio.Event()
        self.release = threading.Event()
        self.ended = asyncio.Event()

    def make(self, config: Gate) -> Toolkit:
        self.loop.call_soon_threadsafe(self.entered.set)
        try:
            assert self.release.wait(60)
            return Toolkit("made", description=f"{asyncio.Event()} {TENANT.get()}")
        finally:
            self.loop.call_soon_threadsafe(self.ended.set)


TENANT: ContextVar[str] = ContextVar("TENANT", default="none")


async def test_the_loop_runs_while_a_factory_blocks() -> None:
    gated = _Gated()
    TENANT.set("acme")
    making = asyncio.create_task(
        make_toolkits(ROOM, None, [builder_of(gated.make, "gate")], [{"name": "gate"}])
    )
    async with asyncio.timeout(60):
        await gated.entered.wait()
        gated.release.set()
        [toolkit] = await making
    assert toolkit.description.endswith("acme")


async def test_what_a_cancelled_or_late_factory_makes_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gated = _Gated()
    builder = builder_of(gated.make, "gate")
    making = asyncio.create_task(make_toolkits(ROOM, None, [builder], [{"name": "gate"}]))
    async with asyncio.timeout(60):
        await gated.entered.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        monkeypatch.setattr(builders, "_TIMEOUT_S", 0.01)
        with pytest.raises(Unavailable, match=r"within 0\.01 s"):
            await make_toolkits(ROOM, None, [builder], [{"name": "gate"}])
        monkeypatch.setattr(builders, "_MAX_RUNNING", 2)
        with pytest.raises(Unavailable, match="making 2 toolkits already"):
            await make_toolkits(ROOM, None, [builder], [{"name": "gate"}])
        gated.release.set()
        await gated.ended.wait()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration()])
async def test_what_a_factory_raises_is_raised_by_its_request(error: BaseException) -> None:
    def fail(config: Gate) -> Toolkit:
        raise error

    expected = ValueError if isinstance(error, ValueError) else RuntimeError
    with pytest.raises(expected) as failed:
        await make_toolkits(ROOM, None, [builder_of(fail)], [{"name": "fail"}])
    assert error in (failed.value, failed.value.__cause__)
