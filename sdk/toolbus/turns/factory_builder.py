"""A builder that is made from a factory: its config without what only the operator sets."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from toolbus.chunks.json_values import cut, json_pointer, shown
from toolbus.concurrency.thread_iterator import on_own_thread
from toolbus.errors import InvalidArguments, Unavailable
from toolbus.factories.factory import ConfigField, ToolkitFactory, read_factory, unmasked
from toolbus.forked_children import call_in_children
from toolbus.room.room import Room
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.builders import ToolkitBuilder, ToolkitConfig

__all__ = ["builder_of"]

_TIMEOUT_S = 120.0
"""Seconds that a factory may take: longer than reading a description from a slow address."""
_MAX_RUNNING = 32
"""Threads of one builder, also those whose requests have ended."""


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
    return _FactoryBuilder(found, name, _first_paragraph(factory), operator)


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
            raise self._refused(error, values) from None

    def _refused(self, error: ValidationError, values: Mapping[str, Any]) -> InvalidArguments:
        first = next(self._factory.problems(error, values))
        if first.field is not None and first.field not in self._open:
            return self.refusal("", "its operator's config is wrong")
        texts = map(unmasked, self._operator.values())
        is_private = any(text in first.message for text in texts if text)
        return self.refusal(
            json_pointer(first.path), "is not valid" if is_private else first.message
        )


def _check_operator(name: str, factory: ToolkitFactory, operator: Mapping[str, Any]) -> None:
    """Check what the operator gives. Raises TypeError or ValueError."""
    fields = {field.name: field for field in factory.fields}
    for given in operator:
        if given not in fields:
            near = get_close_matches(given, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(fields) or 'none'}"
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


def _first_paragraph(factory: Callable[..., Any]) -> str:
    return (inspect.getdoc(factory) or "").partition("\n\n")[0].replace("\n", " ")
