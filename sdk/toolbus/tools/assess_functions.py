"""The functions of `@tool(assess=..., match_rule=...)`, and how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from toolbus.chunks.json_values import cut, shown
from toolbus.tools.context import ToolContext
from toolbus.tools.signature import is_async, is_context, name_of, yields

__all__ = ["InputFunction"]


class InputFunction(NamedTuple):
    """A function that gets some of a tool's arguments by their names, such as `assess`."""

    function: Callable[..., Any]
    names: frozenset[str] | None
    """The arguments that it takes; None means all of them."""
    context: str | None
    """The parameter that gets the `ToolContext`."""
    is_async: bool
    defaults: Mapping[str, Any]
    """Those of the tool's function, for arguments that a call leaves out."""

    @classmethod
    def of(
        cls,
        function: Any,
        tool: Callable[..., Any],
        known: frozenset[str] | None,
        label: str,
        *,
        takes_pattern: bool = False,
    ) -> Self:
        """Read the parameters of a function.

        Args:
            function: The function.
            tool: The tool's function.
            known: The names that the tool's arguments may have; None means any.
            label: The option, for errors.
            takes_pattern: Whether it gets the pattern of a rule by position, before the arguments.

        Raises `TypeError` for what is no function, and for a parameter that no argument fills.
        """
        if not callable(function) or isinstance(function, type) or yields(function):
            raise TypeError(f"{label} must be a function that returns one value")
        if takes_pattern and is_async(function):
            raise TypeError(f"{label} must not be async: it is called for each pattern of a rule")
        parameters = _parameters(function)
        if takes_pattern:
            first = parameters.pop(0) if parameters else None
            if first is None or first.kind not in (
                inspect.Parameter.POSITIONAL_ONLY,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
            ):
                raise TypeError(f"{label} must take the pattern first")
        context: str | None = None
        names: set[str] = set()
        takes_all = False
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_all = True
            elif parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(
                    f"{label}: {parameter.name!r} must be taken by name, as the arguments are"
                )
            elif is_context(parameter.annotation) and not takes_pattern:
                context = parameter.name
            elif known is not None and parameter.name not in known:
                there = cut(", ".join(sorted(known))) or "none"
                raise TypeError(
                    f"{label}: {name_of(function)} takes {shown(parameter.name)}, which is no"
                    f" argument of the tool; there are: {there}"
                )
            else:
                names.add(parameter.name)
        defaults = {
            parameter.name: parameter.default
            for parameter in inspect.signature(tool).parameters.values()
            if parameter.default is not parameter.empty
            and (takes_all or parameter.name in names)
            and (known is None or parameter.name in known)
        }
        taken = None if takes_all else frozenset(names)
        return cls(function, taken, context, is_async(function), defaults)

    def call(self, *leading: Any, context: ToolContext | None, arguments: Mapping[str, Any]) -> Any:
        """Call the function with the arguments that it takes."""
        names = self.names
        given = {name: value for name, value in arguments.items() if names is None or name in names}
        if self.context is not None:
            given[self.context] = context
        return self.function(*leading, **given)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # a name that is there for type checkers only
        signature = inspect.signature(function)
    return list(signature.parameters.values())
