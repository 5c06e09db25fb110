"""How a call is written: `"toolkit.tool"`, then its arguments; and the right form for a wrong one.

Everything that calls a tool by its name reads its parameters here: rooms, turns and proxies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from toolbus.chunks.json_values import cut
from toolbus.errors import InvalidArguments
from toolbus.tools.call_room import CallOptions

__all__ = [
    "INVOKE_OPTIONS",
    "argument_mapping",
    "merged_arguments",
    "refuse_misplaced",
    "tool_parts",
]

INVOKE_OPTIONS = CallOptions.__optional_keys__ | {"returns"}
"""The keyword parameters of `Room.invoke`."""


def tool_parts(tool: Any) -> tuple[str, str]:
    """Split `"toolkit.tool"` into its two names.

    Raises InvalidArguments, with the form that is expected, for any other value.
    """
    if isinstance(tool, str):
        toolkit, _, name = tool.partition(".")
        if toolkit and name and "." not in name:
            return toolkit, name
    raise InvalidArguments(f'{cut(repr(tool))} is not a tool name: write "toolkit.tool"')


def argument_mapping(method: str, tool: Any, arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as a dict; None is no arguments.

    Raises:
        InvalidArguments: They are not a mapping.
        TypeError: They are text, as if toolkit and tool were two parameters.
    """
    if arguments is None:
        return {}
    if type(arguments) is dict:
        return arguments
    if isinstance(arguments, str):
        _refuse_two_names(method, tool, arguments)
    if not isinstance(arguments, Mapping):
        words = f"arguments must be one mapping, not {type(arguments).__name__}"
        raise InvalidArguments(words, details={"path": "", "message": words})
    return dict(arguments)


def merged_arguments(tool: Any, arguments: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `call`, which takes a mapping or keywords.

    Raises:
        InvalidArguments: They are not a mapping.
        TypeError: There are both.
    """
    if arguments is None:
        return named
    if not named:
        return argument_mapping("call", tool, arguments)
    if isinstance(arguments, str):
        _refuse_two_names("call", tool, arguments)
    name = next(iter(named))
    if name in INVOKE_OPTIONS:
        form = f"invoke({tool!r}, {{...}}, {name}=...)"
    else:
        form = f"call({tool!r}, {{..., {name!r}: ...}})"
    raise TypeError(
        f"call takes a mapping or keywords, not both, and no options; did you mean {cut(form)}?"
    )


def refuse_misplaced(
    method: str,
    tool: Any,
    positional: tuple[Any, ...],
    unknown: Mapping[str, Any],
    options: Collection[str],
) -> None:
    """Raise TypeError, with the right form, for parameters that a method does not take.

    Args:
        method: The method, for instance "invoke".
        tool: Its first parameter.
        positional: Its further positional parameters; it takes one, the arguments.
        unknown: Keywords that are no options.
        options: The names of its options.
    """
    if len(positional) > 1:
        _refuse_two_names(method, tool, str(positional[0]))
    if unknown:
        name = next(iter(unknown))
        near = get_close_matches(name, options, n=1)
        form = f"{near[0]}=" if near else f"{method}({tool!r}, {{..., {name!r}: ...}})"
        raise TypeError(
            f"{method} has no option {cut(name)!r}: arguments are a mapping, keywords are options;"
            f" did you mean {cut(form)}?"
        )


def _refuse_two_names(method: str, toolkit: Any, tool: str) -> None:
    if "." in str(toolkit):
        return
    form = f'{method}("{toolkit}.{tool}", ...)'
    raise TypeError(
        f'{method} takes a tool as "toolkit.tool", then a mapping of arguments;'
        f" did you mean {cut(form)}?"
    )
