"""The options of a function as a tool, and the decorator `@tool` that sets them.

An option has one meaning for `@tool`, `ToolOptions` and `FunctionTool`. Whether options fit their
function is checked when a `FunctionTool` is made of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import BaseModel

from toolbus.chunks.json_values import cut, shown
from toolbus.tools.approvers import DEFAULT_APPROVAL_S
from toolbus.tools.argument_models import near
from toolbus.tools.error_text import SentErrors
from toolbus.tools.signature import name_of

if TYPE_CHECKING:
    from toolbus.tools.middleware import Middleware

__all__ = ["ToolFields", "ToolOptions", "merged_options", "options_of", "tool"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__toolbus_tool__"


class ToolFields(TypedDict, total=False):
    """The options as keywords; `ToolOptions` documents them."""

    name: str | None
    title: str | None
    description: str | None
    rules: Sequence[str]
    thumbnail_url: str
    args_schema: type[BaseModel] | dict[str, Any] | None
    preset: Mapping[str, Any] | None
    extended: type[BaseModel] | None
    postprocess: Callable[[Any], Any] | None
    output_schema: dict[str, Any] | None
    supports_context: bool
    read_only: bool
    idempotent: bool
    concurrency_safe: bool | None
    destructive: bool
    open_world: bool
    external: bool
    approval: bool
    approvers: Sequence[str]
    approval_timeout_s: float | None
    timeout_s: float | None
    max_concurrency: int | None
    affinity: str
    cache_ttl_s: float | None
    annotations: Mapping[str, Any] | None
    errors: SentErrors | None
    middlewares: Sequence[Middleware]
    assess: Callable[..., Any] | None
    match_rule: Callable[..., bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The options of a function as a tool."""

    name: str | None = None
    """The tool's name; the function's name by default."""
    title: str | None = None
    """A title for humans; the name by default."""
    description: str | None = None
    """What the tool does; the docstring by default."""
    rules: Sequence[str] = ()
    """How a model should use the tool."""
    thumbnail_url: str = ""
    """A picture."""
    args_schema: type[BaseModel] | dict[str, Any] | None = None
    """A pydantic model or a JSON Schema of the arguments, in place of the signature's types."""
    preset: Mapping[str, Any] | None = None
    """Arguments that are fixed: callers neither see nor override them."""
    extended: type[BaseModel] | None = None
    """A pydantic model whose fields are added to the arguments."""
    postprocess: Callable[[Any], Any] | None = None
    """Gets each value that the function returns or yields, and returns the tool's; may be async."""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema that every result has to match."""
    supports_context: bool = False
    """It reads `context.caller_context`."""
    read_only: bool = False
    """It changes nothing."""
    idempotent: bool = False
    """Running it twice has the effect of running it once."""
    concurrency_safe: bool | None = None
    """Several calls of one agent may run at a time; by default the value of `read_only`. False also
    means that one host runs one call of a sync function at a time."""
    destructive: bool = False
    """It may delete or overwrite what cannot be restored."""
    open_world: bool = False
    """It acts on systems that its author does not control, such as the internet."""
    external: bool = False
    """A person or another program outside the host gives its result."""
    approval: bool = False
    """A person has to approve each call. A host lets it wait for that; in the process of an agent
    the permissions of the turn decide, for which it is an ask that no allow rule replaces."""
    approvers: Sequence[str] = ()
    """Who may approve its calls: `role:x` and `name:x`; "others" for nobody who makes the call, or
    whom it is made for. By default as the toolkit says, else all with the grant for the tool."""
    approval_timeout_s: float | None = DEFAULT_APPROVAL_S
    """Seconds that a call of it waits for a person; 0 never waits, None waits without limit. The
    time of its caller counts if that is shorter."""
    timeout_s: float | None = None
    """Seconds that one call may run."""
    max_concurrency: int | None = None
    """How many calls one host runs at a time. By default unbounded for an async function; for a
    sync one 8, or 1 with `concurrency_safe=False`."""
    affinity: str = "none"
    """Which calls stay with one host: "none", "caller", or the name of an argument."""
    cache_ttl_s: float | None = None
    """Seconds that a cache may serve a result again for equal arguments; only for `read_only`."""
    annotations: Mapping[str, Any] | None = None
    """JSON values for programs, in addition to those of its toolkit."""
    errors: SentErrors | None = None
    """What callers get of an exception: "text", its class and its text, or "class", its class
    alone; by default as the toolkit says, else "class", and "text" on a development server."""
    middlewares: Sequence[Middleware] = ()
    """What runs around each call, the first outermost."""
    assess: Callable[..., Any] | None = None
    """Says what a call would be before it runs. It gets the arguments that it names as parameters,
    and a `ToolContext` if it has a parameter for one, and returns an `Assessment`, or its behavior
    as text. An async one runs on the event loop, a sync one on a thread."""
    match_rule: Callable[..., bool] | None = None
    """Gets the pattern of a rule, then the arguments that it names, and returns whether the rule
    covers the call. It runs on a thread."""


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(**options: Unpack[ToolFields]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool, with the options of the tool; with or without parentheses.

    The function itself does not change and stays callable. When a `Toolkit` takes it, the schema is
    made from its signature and the description from its docstring, unless an option gives them. A
    parameter annotated `ToolContext` receives the context of the call.

    Args:
        function: The function, where `@tool` is written without parentheses.
        options: See `ToolOptions`.

    Raises `TypeError` for anything but a function or a method, and for an unknown option.
    """
    record = merged_options(None, cast("ToolFields", options), "@tool")

    def mark(function: F) -> F:
        holder = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        if isinstance(function, type) or not callable(holder):
            text = f"@tool decorates a function, not {shown(function)}"
            if isinstance(function, str):
                text += f"; did you mean @tool(name={shown(function)})?"
            raise TypeError(text)
        try:
            setattr(holder, _MARK, record)
        except AttributeError:
            raise TypeError(
                f"{name_of(function)} cannot be decorated: use FunctionTool(function, ...)"
            ) from None
        return function

    if function is None:
        return mark
    return mark(function)


def options_of(function: Callable[..., Any]) -> ToolOptions:
    """Return the options that `@tool` set on a function, or the defaults."""
    while True:
        options = getattr(function, _MARK, None)
        if isinstance(options, ToolOptions):
            return options
        if not isinstance(function, functools.partial):
            return ToolOptions()
        function = function.func


def merged_options(options: ToolOptions | None, given: ToolFields, label: str) -> ToolOptions:
    """Return `options` with the given ones in their place.

    Raises `TypeError` for an unknown option; the message names the nearest one.
    """
    known = [option.name for option in fields(ToolOptions)]
    for name in given:
        if name not in known:
            raise TypeError(f"{label} has no option {cut(name)!r}{near(name, known)}")
    return replace(options or ToolOptions(), **given)
