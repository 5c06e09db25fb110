"""How a call is written: `"toolkit.tool"`, then its arguments; and the right form for a wrong one.

Everything that calls a tool by its name reads its parameters here: rooms, turns and proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any

from toolbus.chunks.json_values import cut, shown
from toolbus.errors import InvalidArguments
from toolbus.public_names import RENAMED_PARTS
from toolbus.tools.call_room import InvokeOptions

__all__ = [
    "INVOKE_OPTIONS",
    "argument_mapping",
    "argument_object",
    "keyword_options",
    "merged_arguments",
    "own_name",
    "refuse_misplaced",
    "refuse_two_names",
    "refuse_unknown",
    "tool_parts",
    "with_option_hint",
]

INVOKE_OPTIONS = InvokeOptions.__optional_keys__ | {"returns"}
"""The keyword parameters of `Room.invoke`."""


def tool_parts(tool: Any) -> tuple[str, str]:
    """Split `"toolkit.tool"` into its two names.

    Raises InvalidArguments, with the form that is expected, for any other value.
    """
    if isinstance(tool, str):
        toolkit, _, name = tool.partition(".")
        if toolkit and name and "." not in name:
            return toolkit, name
    raise InvalidArguments(f'{shown(tool)} is not a tool name: write "toolkit.tool"')


def own_name(tool: Any) -> str:
    """Return the name of a tool without its toolkit. Raises InvalidArguments if it is not text."""
    if isinstance(tool, str):
        return tool
    raise InvalidArguments(f"{shown(tool)} is not a tool name: write it as text")


def argument_mapping(method: str, tool: Any, arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as a dict; None means none.

    Raises:
        InvalidArguments: They are not a mapping.
        TypeError: They are text, as if toolkit and tool were two parameters.
    """
    if type(arguments) is dict:
        return arguments
    if isinstance(arguments, str):
        refuse_two_names(method, tool, arguments)
    return argument_object(arguments, f"; write {cut(f'{method}({shown(tool)}, {{...}})')}")


def argument_object(arguments: Any, hint: str = "") -> dict[str, Any]:
    """Return the arguments that a program or a model wrote as a dict; None means none.

    Raises InvalidArguments, whose message ends with the hint, if they are not a mapping.
    """
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    kind = type(arguments).__name__
    if isinstance(arguments, str):
        hint = hint or ": read JSON text with json.loads"
    words = f"arguments must be one mapping, not {kind}{hint}"
    raise InvalidArguments(words, details={"path": "", "message": words})


def merged_arguments(
    tool: Any,
    arguments: Any,
    named: dict[str, Any],
    options: Collection[str] = INVOKE_OPTIONS,
) -> dict[str, Any]:
    """Return the arguments of `call`, which takes a mapping or keywords.

    Args:
        tool: The first parameter of `call`.
        arguments: The second one.
        named: The keywords.
        options: The names of the options of the `invoke` beside this `call`.

    Raises:
        InvalidArguments: They are not a mapping.
        TypeError: There are both.
    """
    if arguments is None:
        return named
    if not named:
        return argument_mapping("call", tool, arguments)
    if isinstance(arguments, str):
        refuse_two_names("call", tool, arguments)
    name = next(iter(named))
    if name in options:
        form = f"invoke({shown(tool)}, {{...}}, {name}=...)"
    else:
        form = f"call({shown(tool)}, {{..., {name!r}: ...}})"
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
        unknown: Keywords that are not options.
        options: The names of its options.
    """
    if len(positional) > 1:
        refuse_two_names(method, tool, positional[0])
        rest = ", or arguments as keywords" if method == "call" else "; options are keywords"
        raise TypeError(f"{method} takes a tool and one mapping of arguments{rest}")
    if unknown:
        name = next(iter(unknown))
        near = get_close_matches(name, options, n=1)
        form = f"{near[0]}=" if near else f"{method}({shown(tool)}, {{..., {name!r}: ...}})"
        raise TypeError(
            f"{method} has no option {cut(name)!r}: arguments are a mapping, keywords are options;"
            f" did you mean {cut(form)}?"
        )


def keyword_options(function: Callable[..., Any]) -> list[str]:
    """Return the names of the keyword-only parameters of a function or class."""
    parameters = signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def refuse_unknown(
    method: str,
    names: Collection[str],
    options: Collection[str],
) -> None:
    """Raise TypeError, with the nearest option, for a keyword that is not an option of a method."""
    for name in names:
        if name not in options:
            hint = ""
            if new := RENAMED_PARTS.get(f"{method}({name}=)"):
                hint = f"; it is now {new}"
            elif near := get_close_matches(name, options, n=1):
                hint = f"; did you mean {near[0]}=?"
            raise TypeError(f"{method} has no option {cut(name)!r}{hint}")


def refuse_two_names(method: str, toolkit: Any, tool: Any) -> None:
    """Raise TypeError, with the right form, if toolkit and tool are two parameters."""
    if not isinstance(toolkit, str) or not isinstance(tool, str) or "." in toolkit:
        return
    if not tool.replace("-", "_").isidentifier():  # such as JSON
        return
    form = f'{method}("{toolkit}.{tool}", ...)'
    raise TypeError(
        f'{method} takes a tool as "toolkit.tool", then a mapping of arguments;'
        f" did you mean {cut(form)}?"
    )


def with_option_hint(error: InvalidArguments) -> InvalidArguments:
    """Add a hint to the error if a refused argument has the name of a call option.

    A tool may have parameters with such names; these are ordinary arguments.
    """
    path, cause = (str(error.details.get(key, "")) for key in ("path", "message"))
    name = path.removeprefix("/")
    is_misplaced = cause.endswith((" is not known", " is not a JSON value")) or cause.startswith(
        "arguments "
    )
    if name not in INVOKE_OPTIONS or not is_misplaced:
        return error
    message = (
        f"{error.message}; {name} is an option of the call: pass it to "
        f"room.invoke(..., {name}=) or proxy.with_options({name}=)"
    )
    return InvalidArguments(message, executed=error.executed, details=error.details)
