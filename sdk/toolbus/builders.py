"""Toolkits that are made when they are asked for: who makes them, and from what.

A config names a builder and says what it is to build. It comes as JSON from somebody else, or as
an object from this program; both are checked here, once, before anything is built. Nothing is
started here: that is a turn's business.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from toolbus.argument_check import JsonCheck, Violation
from toolbus.errors import InvalidArguments, NotFound, PermissionDenied, RoomException
from toolbus.grants import ToolPatterns, is_toolkit_name
from toolbus.people import BuilderInfo
from toolbus.plain_json import cut, json_pointer
from toolbus.room import Room
from toolbus.toolkit import Toolkit

__all__ = [
    "AnyBuilder",
    "ToolkitBuilder",
    "ToolkitConfig",
    "Wanted",
    "build",
    "builder_infos",
    "make_toolkits",
    "read_configs",
    "side_by_side",
]


class ToolkitConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """What a builder is asked for; a subclass adds fields, and what it does not know is refused."""

    name: str
    """The builder's name."""


C = TypeVar("C", bound=ToolkitConfig)
T = TypeVar("T")
_TypeOf: TypeAlias = type[C]


class _Refusal(InvalidArguments):
    """A config that its builder turned down; an error of a call that it made is another thing."""


class ToolkitBuilder(ABC, Generic[C]):
    """Makes a toolkit each time it is asked for, from a config.

    A subclass overrides `make`::

        class Weather(ToolkitBuilder[WeatherConfig]):
            async def make(self, room, model, config):
                return Toolkit("weather", [forecast_for(config.region)])

        builders = [Weather("weather", WeatherConfig)]

    Args:
        name: What configs call it by: a toolkit's name.
        type: The class of its configs.
        description: What it builds; the docstring of `type` unless given.

    Raises `ValueError` for a name that is none and `TypeError` for a type that is no config's, or
    that has no JSON Schema.
    """

    def __init__(self, name: str, type: _TypeOf[C], *, description: str | None = None) -> None:
        if not is_toolkit_name(name):
            raise ValueError(
                "a builder's name is a lower-case letter, then up to 63 of a-z 0-9 _ -"
            )
        if not (inspect.isclass(type) and issubclass(type, ToolkitConfig)):
            raise TypeError(f"builder {name!r}: type is a subclass of ToolkitConfig, not {type!r}")
        self.name: str = name
        self.type: _TypeOf[C] = type
        self.description: str = _words_of(type) if description is None else description
        self._schema = _schema_of(name, type)
        self._check = JsonCheck(self._schema)

    @abstractmethod
    async def make(self, room: Room, model: Any, config: C) -> Toolkit:
        """Make a new toolkit; what it needs its tools' `start` takes and their `stop` releases.

        Args:
            room: Where it will be used; what it calls is called for whoever asked.
            model: What the agent says of its model; toolbus does not look at it.
            config: What was asked for, checked.

        Raises:
            InvalidArguments: What `refusal` made, where the config cannot be met.
        """

    @staticmethod
    def refusal(path: str, message: str) -> InvalidArguments:
        """Return the error by which `make` turns a config down, to be raised.

        Args:
            path: JSON pointer to what is wrong, from the config: `/region`.
            message: What is wrong with it.
        """
        return _Refusal(message, details={"path": path, "message": message})

    def info(self) -> BuilderInfo:
        """Return what others are told of it: name, description, and the schema of its configs."""
        return BuilderInfo(self.name, self.description, self._schema)

    def read(self, config: Mapping[str, Any]) -> C:
        """Check a config that came as JSON. Raises InvalidArguments, its path from the config."""
        found = self._check.violation(config)
        if found is None:
            try:
                return self.type.model_validate(config)
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False)[0]
                found = Violation(json_pointer(first["loc"]), cut(first["msg"]))
        raise _invalid(found.path, found.message)


class _Itself(ToolkitBuilder[ToolkitConfig]):
    """A toolkit that is there already, as its own builder."""

    def __init__(self, toolkit: Toolkit) -> None:
        words = toolkit.description or toolkit.title
        super().__init__(toolkit.name, ToolkitConfig, description=words)
        self._toolkit = toolkit

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        return await self._toolkit.make(room, model, config)


AnyBuilder: TypeAlias = ToolkitBuilder[Any] | Toolkit
"""Whatever can be asked for a toolkit: a toolkit is its own builder."""


class Wanted(NamedTuple):
    """One toolkit that was asked for, and is not built yet."""

    path: str
    """JSON pointer to the entry that asks for it."""
    builder: ToolkitBuilder[Any]
    config: ToolkitConfig


def builder_infos(builders: Iterable[AnyBuilder]) -> list[BuilderInfo]:
    """Return what `offer_builders` tells others of these. Raises ValueError for two of one name."""
    return [each.info() for each in _by_name(builders).values()]


async def make_toolkits(
    room: Room,
    model: Any,
    builders: Iterable[AnyBuilder],
    tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None,
    *,
    granted: Iterable[str] | None = None,
) -> list[Toolkit]:
    """Build the toolkits that are asked for, side by side, in the order of `tools`.

    Args:
        room: What the builders are given.
        model: What the builders are given.
        builders: Who can be asked; those that are not asked do nothing.
        tools: Configs, as JSON objects or as objects of the builders' types; None asks for nothing.
        granted: Patterns of builders that may be asked for; all of them unless given.

    Raises:
        InvalidArguments: An entry is wrong, or there are two of one name; `path` names it, as
            `/tools/1/region`.
        NotFound: Nobody builds an entry's name.
        PermissionDenied: `granted` does not cover it.
        ValueError: Two builders have one name.
        Exception: What a builder's `make` raises; those beside it are cancelled.
    """
    return await build(room, model, read_configs(builders, tools, granted=granted))


def read_configs(
    builders: Iterable[AnyBuilder],
    tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None,
    *,
    granted: Iterable[str] | None = None,
) -> list[Wanted]:
    """Find who builds what is asked for. Raises as `make_toolkits` does; builds nothing."""
    known = _by_name(builders)
    patterns = None if granted is None else ToolPatterns(granted)
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools or [], Sequence):
        raise _invalid("/tools", "is a list of configs")
    wanted: dict[str, Wanted] = {}
    for index, entry in enumerate(tools or []):
        path = f"/tools/{index}"
        name = _name_in(entry, path)
        if name in wanted:
            raise _invalid(f"{path}/name", f"{wanted[name].path} asks for {name} already")
        if patterns is not None and not patterns.covers_toolkit(name):
            words = f"{path}: no grant to ask for {_shown(name)}"
            raise PermissionDenied(words, details={"path": path, "message": words})
        if name not in known:
            raise _nobody_builds(name, path, known)
        wanted[name] = Wanted(path, known[name], _read(known[name], entry, path))
    return list(wanted.values())


async def build(room: Room, model: Any, wanted: Sequence[Wanted]) -> list[Toolkit]:
    """Build what was found by `read_configs`, side by side; raises as `make_toolkits` does."""
    return await side_by_side([_make(room, model, each) for each in wanted])


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Do works at once and return what they give, in their order.

    Raises:
        Exception: What the first, in their order, of those that failed raised; the others are
            cancelled.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(each) for each in works]
    except ExceptionGroup as failures:
        ended = [task for task in tasks if not task.cancelled()]
        failure = next(filter(None, (task.exception() for task in ended)), failures)
    else:
        return [task.result() for task in tasks]
    raise failure


async def _make(room: Room, model: Any, wanted: Wanted) -> Toolkit:
    name = wanted.builder.name
    try:
        made: object = await wanted.builder.make(room, model, wanted.config)
    except _Refusal as error:
        raise _below(wanted.path, error) from error
    except Exception as error:
        error.add_note(f"{wanted.path}: builder {name} raised it")
        raise
    if not isinstance(made, Toolkit):
        raise TypeError(f"builder {name} made a {type(made).__name__}, which is no toolkit")
    return made


def _by_name(builders: Iterable[AnyBuilder]) -> dict[str, ToolkitBuilder[Any]]:
    found: dict[str, ToolkitBuilder[Any]] = {}
    for each in builders:
        if not isinstance(each, ToolkitBuilder | Toolkit):
            raise TypeError(f"a {type(each).__name__} builds no toolkits")
        if each.name in found:
            raise ValueError(f"two builders are named {each.name!r}")
        found[each.name] = _Itself(each) if isinstance(each, Toolkit) else each
    return found


def _name_in(entry: object, path: str) -> str:
    if isinstance(entry, ToolkitConfig):
        return entry.name
    if not isinstance(entry, Mapping):
        raise _invalid(path, "is an object, a config")
    if "name" not in entry:
        raise _invalid(f"{path}/name", '"name" is required')
    name = entry["name"]
    if not isinstance(name, str):
        raise _invalid(f"{path}/name", "is the name of a builder, a text")
    return name


def _read(builder: ToolkitBuilder[Any], entry: object, path: str) -> ToolkitConfig:
    if isinstance(entry, Mapping):
        try:
            read: ToolkitConfig = builder.read(dict(entry))
        except InvalidArguments as error:
            raise _below(path, error) from None
        return read
    if type(entry) is not builder.type:
        words = f"builder {builder.name} takes a {builder.type.__name__}"
        raise _invalid(path, f"{words}, not a {type(entry).__name__}")
    assert isinstance(entry, ToolkitConfig)
    return entry


def _nobody_builds(name: str, path: str, known: Iterable[str]) -> NotFound:
    there = ", ".join(sorted(known)) or "nothing"
    words = f"{path}: nobody builds {_shown(name)}; what can be asked for: {cut(there)}"
    return NotFound(words, details={"path": path, "message": words})


def _shown(name: str) -> str:
    return name if is_toolkit_name(name) else cut(repr(name))


def _invalid(path: str, message: str) -> InvalidArguments:
    words = f"{path}: {message}" if path else message
    return InvalidArguments(words, details={"path": path, "message": message})


def _below(path: str, error: RoomException) -> InvalidArguments:
    """Say of an error within a config where in `tools` that is."""
    message = str(error.details.get("message", error.message))
    return _invalid(f"{path}{error.details.get('path', '')}", message)


def _words_of(kind: type[ToolkitConfig]) -> str:
    own = vars(kind).get("__doc__") if kind is not ToolkitConfig else None
    return inspect.cleandoc(own) if own else ""


def _schema_of(name: str, kind: type[ToolkitConfig]) -> dict[str, Any]:
    """Write the schema of a builder's configs, with its own name as the only one that fits."""
    try:
        schema = kind.model_json_schema()
    except PydanticUserError as error:
        raise TypeError(f"builder {name!r}: {kind.__name__} has no JSON Schema: {error}") from error
    described = {"name": {"type": "string", "const": name}}
    schema["properties"] = {**schema.get("properties", {}), **described}
    schema["required"] = ["name", *(each for each in schema.get("required", ()) if each != "name")]
    return schema
