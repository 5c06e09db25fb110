"""Builders: they make toolkits on request, from configs.

A config names a builder and describes what to build. It is JSON from another participant, or an
object of this program; both are checked here, once, before anything is built. Nothing is started
here: `Turn` does that. `builder_of` makes a builder from a factory, whose config has not what only
the operator sets.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError, create_model
from pydantic.errors import PydanticUserError

from toolbus.auth.grants import ToolPatterns, is_toolkit_name
from toolbus.chunks.json_values import cut, json_pointer, shown
from toolbus.concurrency.thread_iterator import on_own_thread
from toolbus.credential_references import refuse_references
from toolbus.errors import InvalidArguments, NotFound, PermissionDenied, RoomException, Unavailable
from toolbus.factories.factory import ConfigField, ToolkitFactory, read_factory, unmasked
from toolbus.forked_children import call_in_children
from toolbus.room.participants import BuilderInfo
from toolbus.room.room import Room
from toolbus.schemas.validation import JsonCheck, Violation
from toolbus.tools.toolkit import Toolkit

__all__ = [
    "AnyBuilder",
    "ToolkitBuilder",
    "ToolkitConfig",
    "ToolkitRequest",
    "build_toolkits",
    "builder_infos",
    "builder_of",
    "make_toolkits",
    "read_configs",
    "run_concurrently",
]


T = TypeVar("T")
_TIMEOUT_S = 120.0
"""Seconds that a factory may take: longer than reading a description from a slow address."""
_MAX_RUNNING = 32
"""Threads of one builder, also those whose requests have ended."""


class ToolkitConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """A request to a builder; a subclass adds fields, and unknown fields are refused."""

    name: str
    """The builder's name."""


C = TypeVar("C", bound=ToolkitConfig)
_TypeOf: TypeAlias = type[C]


class _Refusal(InvalidArguments):
    """Raised by a builder that refuses a config, unlike the errors of calls it makes."""


class ToolkitBuilder(ABC, Generic[C]):
    """Makes a toolkit on each request, from a config.

    A subclass overrides `make`:

        class Weather(ToolkitBuilder[WeatherConfig]):
            async def make(self, room, model, config):
                return Toolkit("weather", [forecast_for(config.region)])

        builders = [Weather("weather", WeatherConfig)]

    Args:
        name: The name that configs use: a toolkit's name.
        type: The class of its configs.
        description: What it builds; by default the docstring of `type`.

    Raises `ValueError` for an invalid name and `TypeError` for a type that is not a subclass of
    `ToolkitConfig`, or that has no JSON Schema.
    """

    def __init__(self, name: str, type: _TypeOf[C], *, description: str | None = None) -> None:
        if not is_toolkit_name(name):
            raise ValueError(
                "a builder's name is a lower-case letter, then up to 63 of a-z 0-9 _ -"
            )
        if not (inspect.isclass(type) and issubclass(type, ToolkitConfig)):
            raise TypeError(
                f"builder {name!r}: type is a subclass of ToolkitConfig, not {shown(type)}"
            )
        self.name: str = name
        self.type: _TypeOf[C] = type
        if description is None:  # the words of the type itself, not those it inherits
            description = inspect.cleandoc(vars(type).get("__doc__") or "")
            description = "" if type is ToolkitConfig else description
        self.description: str = description
        self._schema = _schema_of(name, type)
        self._check = JsonCheck(self._schema)

    @abstractmethod
    async def make(self, room: Room, model: Any, config: C) -> Toolkit:
        """Make a new toolkit; its tools acquire resources in `start` and release them in `stop`.

        Args:
            room: The room of use; calls through it are made on behalf of the requester. None in
                a turn that has no room.
            model: The agent's value for its model; toolbus does not read it.
            config: The checked config.

        Raises:
            InvalidArguments: Made by `refusal`, if the config cannot be fulfilled.
        """

    @staticmethod
    def refusal(path: str, message: str) -> InvalidArguments:
        """Return the error with which `make` refuses a config, to be raised.

        Args:
            path: JSON pointer to the invalid value, relative to the config: `/region`.
            message: What is wrong with it.
        """
        return _Refusal(message, details={"path": path, "message": message})

    def info(self) -> BuilderInfo:
        """Return the published description: name, description, and the schema of its configs."""
        return BuilderInfo(self.name, self.description, self._schema)

    def read(self, config: Mapping[str, Any]) -> C:
        """Check a JSON config. Raises InvalidArguments with a path relative to the config.

        A config is written by another participant, so a reference to a credential is refused.
        """
        refuse_references(config)
        found = self._check.violation(config)
        if found is None:
            try:
                return self.type.model_validate(config)
            except ValidationError as error:
                first = error.errors(include_url=False, include_context=False)[0]
                found = Violation(json_pointer(first["loc"]), cut(first["msg"]))
        raise _invalid(found.path, found.message)


class _PrebuiltToolkit(ToolkitBuilder[ToolkitConfig]):
    """An existing toolkit as its own builder."""

    def __init__(self, toolkit: Toolkit) -> None:
        text = toolkit.description or toolkit.title
        super().__init__(toolkit.name, ToolkitConfig, description=text)
        self._toolkit = toolkit

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        return await self._toolkit.make(room, model, config)


AnyBuilder: TypeAlias = ToolkitBuilder[Any] | Toolkit
"""A builder or a toolkit: a toolkit is its own builder."""


class ToolkitRequest(NamedTuple):
    """A request for one toolkit, not built yet."""

    path: str
    """JSON pointer to the entry that requests it."""
    builder: ToolkitBuilder[Any]
    config: ToolkitConfig


def builder_infos(builders: Iterable[AnyBuilder]) -> list[BuilderInfo]:
    """Return what `offer_builders` publishes. Raises ValueError for two builders of one name."""
    return [builder.info() for builder in _by_name(builders).values()]


async def make_toolkits(
    room: Room,
    model: Any,
    builders: Iterable[AnyBuilder],
    tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None,
    *,
    granted: Iterable[str] | None = None,
) -> list[Toolkit]:
    """Build the requested toolkits concurrently; return them in the order of `tools`.

    Args:
        room: Passed to the builders.
        model: Passed to the builders.
        builders: The available builders.
        tools: Configs, as JSON objects or objects of the builders' types; None requests nothing.
        granted: Patterns of builders that may be requested; all by default.

    Raises:
        InvalidArguments: An entry is invalid, or there are two of one name; `path` names it, as
            `/tools/1/region`.
        NotFound: There is no builder of an entry's name.
        PermissionDenied: `granted` does not cover it.
        ValueError: Two builders have one name.
        Exception: The exception of a builder's `make`; the other builders are cancelled.
    """
    patterns = None if granted is None else (tuple(granted),)
    return await build_toolkits(room, model, read_configs(builders, tools, granted=patterns))


def read_configs(
    builders: Iterable[AnyBuilder],
    tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None,
    *,
    granted: Sequence[Iterable[str]] | None = None,
    limits_objects: bool = True,
) -> list[ToolkitRequest]:
    """Find the builders of the requested toolkits. Raises as `make_toolkits`; builds nothing.

    Args:
        builders: The available builders.
        tools: Configs, as JSON objects or objects of the builders' types.
        granted: The patterns of each participant that limits what may be requested: one of each
            has to cover a builder. No participant may request nothing; None may request all.
        limits_objects: Whether that holds for objects too, and not for JSON alone.
    """
    known = _by_name(builders)
    patterns = None if granted is None else [ToolPatterns(texts) for texts in granted]
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools or [], Sequence):
        raise _invalid("/tools", "must be a list of configs")
    wanted: dict[str, ToolkitRequest] = {}
    for index, entry in enumerate(tools or []):
        path = f"/tools/{index}"
        name = _name_in(entry, path)
        if name in wanted:
            raise _invalid(f"{path}/name", f"{wanted[name].path} already requests {name}")
        is_limited = limits_objects or not isinstance(entry, ToolkitConfig)
        # Patterns of nobody cover nothing; `all` alone would say the opposite.
        is_covered = patterns is None or (
            patterns and all(pattern.covers_toolkit(name) for pattern in patterns)
        )
        if is_limited and not is_covered:
            text = f"{path}: no grant for builder {_shown(name)}"
            grant = f"agents.builders={name}"
            details = {"path": path, "message": text, "grant": grant}
            raise PermissionDenied(text, details=details)
        if name not in known:
            available = cut(", ".join(sorted(known)) or "none")
            text = f"{path}: there is no builder {_shown(name)}; available: {available}"
            raise NotFound(text, details={"path": path, "message": text})
        wanted[name] = ToolkitRequest(path, known[name], _read(known[name], entry, path))
    return list(wanted.values())


async def build_toolkits(
    room: Room | None, model: Any, wanted: Sequence[ToolkitRequest]
) -> list[Toolkit]:
    """Build what `read_configs` found, concurrently; raises as `make_toolkits` does."""
    return await run_concurrently([_make(room, model, request) for request in wanted])


async def run_concurrently(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order.

    Raises:
        Exception: The exception of the first failed one, in their order; the others are cancelled.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        ended = [task for task in tasks if not task.cancelled()]
        failure = next(filter(None, (task.exception() for task in ended)), failures)
    else:
        return [task.result() for task in tasks]
    raise failure


async def _make(room: Room | None, model: Any, wanted: ToolkitRequest) -> Toolkit:
    name = wanted.builder.name
    given: Any = room  # None in a turn without a room, which most builders are not made for
    try:
        made: object = await wanted.builder.make(given, model, wanted.config)
    except _Refusal as error:
        raise _below(wanted.path, error) from error
    except Exception as error:
        error.add_note(f"{wanted.path}: raised by builder {name}")
        raise
    if not isinstance(made, Toolkit):
        raise TypeError(f"builder {name} must return a Toolkit, not {type(made).__name__}")
    return made


def _by_name(builders: Iterable[AnyBuilder]) -> dict[str, ToolkitBuilder[Any]]:
    found: dict[str, ToolkitBuilder[Any]] = {}
    for builder in builders:
        if not isinstance(builder, ToolkitBuilder | Toolkit):
            kind = cut(type(builder).__name__)
            hint = "; builder_of(...) makes one of a factory" if read_factory(builder) else ""
            raise TypeError(f"a builder is a ToolkitBuilder or a Toolkit, not {kind}{hint}")
        if builder.name in found:
            raise ValueError(f"two builders are named {builder.name!r}")
        found[builder.name] = _PrebuiltToolkit(builder) if isinstance(builder, Toolkit) else builder
    return found


def _name_in(entry: object, path: str) -> str:
    if isinstance(entry, ToolkitConfig):
        return entry.name
    if not isinstance(entry, Mapping):
        raise _invalid(path, "must be a config, an object")
    if "name" not in entry:
        raise _invalid(f"{path}/name", '"name" is required')
    name = entry["name"]
    if not isinstance(name, str):
        raise _invalid(f"{path}/name", "must be the name of a builder, as text")
    return name


def _read(builder: ToolkitBuilder[Any], entry: object, path: str) -> ToolkitConfig:
    if isinstance(entry, Mapping):
        try:
            read: ToolkitConfig = builder.read(dict(entry))
        except InvalidArguments as error:
            raise _below(path, error) from None
        return read
    if type(entry) is not builder.type:
        text = f"builder {builder.name} takes a {builder.type.__name__}"
        raise _invalid(path, f"{text}, not a {type(entry).__name__}")
    assert isinstance(entry, ToolkitConfig)
    try:
        refuse_references(entry.model_dump(warnings="none"))
    except InvalidArguments as error:
        raise _below(path, error) from None
    return entry


def _shown(name: str) -> str:
    return name if is_toolkit_name(name) else shown(name)


def _invalid(path: str, message: str) -> InvalidArguments:
    text = f"{path}: {message}" if path else message
    return InvalidArguments(text, details={"path": path, "message": message})


def _below(path: str, error: RoomException) -> InvalidArguments:
    """Return the error of a config with its path from `tools`."""
    message = str(error.details.get("message", error.message))
    return _invalid(f"{path}{error.details.get('path', '')}", message)


def _schema_of(name: str, kind: type[ToolkitConfig]) -> dict[str, Any]:
    """Return the schema of a builder's configs, in which `name` is the builder's name."""
    try:
        schema = kind.model_json_schema()
    except PydanticUserError as error:
        raise TypeError(f"builder {name!r}: {kind.__name__} has no JSON Schema: {error}") from error
    described = {"name": {"type": "string", "const": name}}
    schema["properties"] = {**schema.get("properties", {}), **described}
    schema["required"] = ["name", *(key for key in schema.get("required", ()) if key != "name")]
    return schema


def builder_of(
    factory: Callable[[Any], Toolkit], name: str | None = None, /, **operator: Any
) -> ToolkitBuilder[Any]:
    """Make a builder from a factory, the function that `toolbus host` takes too.

    `Turn(builders=[builder_of(sql, database="shop.sqlite")])` offers `sql` with the other fields of
    its config. Fields that are marked with `OperatorOnly`, and those that are given here, are not
    in the builder's schema; a request that names one is refused with its path. `builder.type` is
    the class of its requests, for a program: `builder.type(max_rows=10)`.

    The factory runs on a thread of its own, for at most 120 s, and without a running event loop, as
    in `toolbus host`. At most 32 run at a time; `Unavailable` beyond both.

    Args:
        factory: A function with one parameter, which is annotated with a pydantic model.
        name: The builder's name; that of the function by default.
        operator: The operator's values of fields.

    Raises:
        TypeError: It is not a factory, there is no such field, an `OperatorOnly` field has no
            value, `OperatorOnly` marks only a part of a field, or a field that requests may set is
            named `name`.
        ValueError: A value is not valid, or the name is not a toolkit's.
    """
    found = read_factory(factory)
    if found is None:
        raise TypeError(
            "builder_of takes a function with one parameter that is annotated with a pydantic "
            f"model, not {shown(factory)}"
        )
    name = getattr(factory, "__name__", "") if name is None else name
    first_paragraph = (inspect.getdoc(factory) or "").partition("\n\n")[0].replace("\n", " ")
    return _FactoryBuilder(found, name, first_paragraph, operator)


class _FactoryBuilder(ToolkitBuilder[ToolkitConfig]):
    """Makes the toolkits of a factory."""

    def __init__(
        self, factory: ToolkitFactory, name: str, description: str, operator: Mapping[str, Any]
    ) -> None:
        _check_operator(name, factory, operator)
        fields = factory.fields
        self._factory = factory
        self._operator = dict(operator)
        self._forget_running()
        call_in_children(self._forget_running)  # whose threads a forked child does not have
        self._open = [
            field for field in fields if not field.is_operator_only and field.name not in operator
        ]
        self._closed = {
            key for field in fields if field not in self._open for key in (field.name, field.key)
        }
        super().__init__(name, _request_type(name, factory, self._open), description=description)

    def _forget_running(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def read(self, config: Mapping[str, Any]) -> ToolkitConfig:
        """Check a JSON config, as `make` needs it."""
        for key in self._closed.intersection(config):
            text = f"only the operator of {self.name} sets {key}: leave it out"
            raise self.refusal(json_pointer((key,)), text)
        request = super().read(config)
        self._config(request)
        return request

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        """Run the factory on a thread of its own, since it may read files and addresses.

        Not on the loop's default threads, which other code may fill, and without a running loop, as
        in `toolbus host`. A thread cannot be stopped: what it makes after a cancellation or the
        time limit is dropped, and such threads are bounded.
        """
        values = self._config(config)
        if self._running >= _MAX_RUNNING:
            text = f"{self.name} is making {_MAX_RUNNING} toolkits already"
            raise Unavailable(text, executed="no", retryable=True)
        work = functools.partial(contextvars.copy_context().run, self._outcome, values)
        ended = on_own_thread(work, f"toolbus-builder-{self.name}")
        with self._lock:  # the thread ends at its own time, and counts down
            self._running += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                made = await ended
        except TimeoutError as error:
            text = f"{self.name} has not made a toolkit within {_TIMEOUT_S:g} s"
            raise Unavailable(text, executed="no", retryable=True) from error
        if isinstance(made, Exception):
            raise made
        if isinstance(made, BaseException):  # such as SystemExit, which would end the program
            raise RuntimeError(f"{self.name} ended with {type(made).__name__}") from made
        toolkit: Toolkit = made
        return toolkit

    def _outcome(self, values: BaseModel) -> Toolkit | BaseException:
        """Return what the factory makes, or what it raises; on its thread."""
        try:
            return self._factory.function(values)
        except BaseException as error:
            return error
        finally:
            with self._lock:
                self._running -= 1

    def _config(self, request: ToolkitConfig) -> BaseModel:
        """Return the factory's config for a request. Raises the refusal of it."""
        wanted = [field.name for field in self._open if field.name in request.model_fields_set]
        values = {name: getattr(request, name) for name in wanted} | self._operator
        try:
            return self._factory.read(values)
        except ValidationError as error:
            first = next(self._factory.problems(error, values))
            if first.field is not None and first.field not in self._open:
                raise self.refusal("", "its operator's config is wrong") from None
            message = first.message
            if any(text in message for text in map(unmasked, self._operator.values()) if text):
                message = "is not valid"
            raise self.refusal(json_pointer(first.path), message) from None


def _check_operator(name: str, factory: ToolkitFactory, operator: Mapping[str, Any]) -> None:
    """Check what the operator gives. Raises TypeError or ValueError."""
    fields = {field.name: field for field in factory.fields}
    for given in operator:
        if given not in fields:
            hint = f"it has {', '.join(fields) or 'none'}"
            if near := get_close_matches(given, fields, n=1):
                hint = f"did you mean {near[0]}?"
            raise TypeError(
                f"builder {name!r}: its config has no field {shown(given)}: {cut(hint)}"
            )
    for field in fields.values():
        is_open = not field.is_operator_only and field.name not in operator
        if is_open and field.is_partly_operator_only:
            raise TypeError(
                f"builder {name!r}: OperatorOnly marks a part of the field {field.name}: write "
                "Annotated[..., OperatorOnly] around the whole type of a field"
            )
        if field.is_operator_only and field.info.is_required() and field.name not in operator:
            raise TypeError(
                f"builder {name!r}: only the operator sets {field.name}: give it, as "
                f"builder_of(..., {field.name}=...)"
            )
    try:
        factory.read(operator)
    except ValidationError as error:
        for problem in factory.problems(error, operator):
            if problem.field is not None and problem.field.name in operator:
                raise ValueError(
                    f"builder {name!r}: {problem.field.name}: {problem.message}"
                ) from None


def _request_type(
    name: str, factory: ToolkitFactory, fields: list[ConfigField]
) -> type[ToolkitConfig]:
    """Make the type of the builder's configs: the name, and the fields that requests may set."""
    if any("name" in (field.name, field.key) for field in fields):
        raise TypeError(
            f"builder {name!r}: a config's name is that of its builder: rename the field "
            "`name`, or give its value here"
        )
    given: dict[str, Any] = {field.name: (field.info.annotation, field.info) for field in fields}
    return create_model(
        factory.config.__name__, __base__=ToolkitConfig, **{"name": (str, name), **given}
    )
