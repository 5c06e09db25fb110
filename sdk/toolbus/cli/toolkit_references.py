"""The references of `toolbus host`: how a toolkit is found, and made if it has a factory.

A reference is `module:attribute` or the name of an entry point of `toolbus.toolkits`. It means a
toolkit, a function without required arguments that returns one, or a factory (`ToolkitFactory`).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from toolbus.auth.grants import is_toolkit_name
from toolbus.cli.completion import TOOLKITS
from toolbus.cli.suggestions import suggest_references
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.user_code_errors import load_error_text
from toolbus.factories.factory import ToolkitFactory, read_factory
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import Toolkit

__all__ = [
    "find_factory",
    "find_object",
    "find_toolkit",
    "is_reference",
    "last_name",
    "logger_names",
]

_TOOL_MARK = "__toolbus_tool__"  # the attribute that `@tool` sets on a function


def find_factory(reference: str) -> ToolkitFactory | None:
    """Return the factory that a reference means; None if it means something else.

    Raises what loading it raises, and UsageError for what is no toolkit and cannot make one.
    """
    found = _load(reference)
    _refuse_unusable(reference, found)
    return _factory_of(found)


def find_toolkit(
    reference: str, configure: Callable[[ToolkitFactory], Toolkit] | None = None
) -> Toolkit:
    """Return the toolkit of a reference; if that is a function, the function's result.

    Args:
        reference: The reference.
        configure: Makes the toolkit of a factory; by default its config has no values.

    Raises:
        UsageError: The toolkit does not exist, cannot be loaded, or its config is not valid.
    """
    found = find_object(reference, (Toolkit,), configure or (lambda factory: factory.make({})))
    assert isinstance(found, Toolkit)
    return found


def find_object(
    reference: str, kinds: tuple[type, ...], configure: Callable[[ToolkitFactory], Any]
) -> Any:
    """Return what a reference means, of one of the given kinds, as `find_toolkit` does.

    Args:
        reference: The reference.
        kinds: Classes; one of them is `Toolkit`.
        configure: Makes an object of a factory.
    """
    try:
        found = _load(reference)
        _refuse_unusable(reference, found)
        factory = _factory_of(found)
        if factory is not None:
            made = configure(factory)
        else:
            made = found if isinstance(found, kinds) or not callable(found) else found()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        text = f"cannot load {reference}: {load_error_text(error)}"
        suggestion = ""
        if isinstance(error, Exception) and _is_missing(reference, error):
            suggestion = _suggestion(reference) or _searched(error)
        raise UsageError(f"{text}: {suggestion}" if suggestion else text) from error
    if not isinstance(made, kinds):
        from toolbus.agents.agent import Agent  # it is large, and commands import this

        if made is found:
            text = f"{reference} is of type {type(made).__name__}"
        else:
            text = f"{reference} returned an object of type {type(made).__name__}"
        text = f"{text}, not a toolkit or a function that returns one"
        if isinstance(made, Agent):
            raise UsageError(f"{text}: did you mean {reference}.toolkit?")
        suggestion = _suggestion(reference.partition(":")[0])
        raise UsageError(f"{text}; {suggestion}" if suggestion else text)
    return made


def _factory_of(found: Any) -> ToolkitFactory | None:
    return None if _is_tool(found) else read_factory(found)


def last_name(reference: str) -> str:
    """Return the name in flags and variables: an installed name, or the last of an attribute."""
    return reference.rpartition(":")[2].rpartition(".")[2]


def logger_names(reference: str) -> set[str]:
    """Return the names under which a toolkit logs by custom: its package, and its own name.

    None of ours: `toolbus` hosts many of them, and their names are also those of libraries.
    """
    module, colon, attribute = reference.partition(":")
    if not colon:
        entry = next(entry for entry in entry_points(group=TOOLKITS) if entry.name == reference)
        module = entry.module
        attribute = reference
    package = module.partition(".")[0]
    return set() if package.startswith("toolbus") else {package, attribute}


def is_reference(word: str) -> bool:
    """Whether a word has the form of a reference, and names an installed toolkit if it must."""
    module, colon, attribute = word.partition(":")
    if not colon:
        return any(entry.name == word for entry in entry_points(group=TOOLKITS))
    return all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def _load(reference: str) -> Any:
    module, colon, attribute = reference.partition(":")
    if not colon:
        return _load_installed(reference)
    if not module or not attribute:
        raise UsageError(f"{reference!r} is not a toolkit: write module:attribute")
    if not all(module.split(".")) or "/" in module:
        found = _suggestion(reference) or "name a module of the current folder, without a path"
        raise UsageError(f"{module!r} is not the name of a module: {found}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def _load_installed(name: str) -> Any:
    installed = {entry.name: entry for entry in entry_points(group=TOOLKITS)}
    if name not in installed:
        others = f"write module:attribute, or one of {', '.join(sorted(installed))}"
        raise UsageError(f"no installed toolkit is named {name!r}: {_suggestion(name) or others}")
    return installed[name].load()


def _is_missing(reference: str, error: Exception) -> bool:
    """Whether the module or its attribute is missing, and not something that it imports."""
    module, _, attribute = reference.partition(":")
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__ == module and error.name == attribute.partition(".")[0]
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return name is not None and (module == name or module.startswith(f"{name}."))


def _searched(error: Exception) -> str:
    """Return where a missing module was searched; empty for a missing attribute."""
    if isinstance(error, AttributeError):
        return ""
    return f"modules are searched in the current folder ({os.getcwd()}) and on PYTHONPATH"


def _suggestion(reference: str) -> str:
    """Return a suggestion from the current folder; empty if there is none."""
    found = suggest_references(reference, Path.cwd())
    return f"did you mean {' or '.join(found)}?" if found else ""


def _refuse_unusable(reference: str, found: Any) -> None:
    """Refuse a tool, which a call would run, and a function that is no factory. Raises UsageError.

    A class, and an object with `__call__`, are called without arguments.
    """
    if _is_tool(found):
        _refuse_tool(reference, found)
    if inspect.iscoroutinefunction(found):
        text = "write a plain function that returns the toolkit, and prepare it in Tool.start"
        raise UsageError(f"{reference} is async: {text}")
    if inspect.isroutine(found) and read_factory(found) is None and (names := _required(found)):
        text = "a factory has one parameter, annotated with a pydantic model"
        raise UsageError(f"{reference} requires {', '.join(names)}: {text}")


def _refuse_tool(reference: str, found: Any) -> None:
    module, colon, name = reference.partition(":")
    if not colon:
        raise UsageError(f"the installed {reference} is a tool, not a toolkit")
    last = module.rpartition(".")[2]
    toolkit = last if is_toolkit_name(last) else "tools"
    text = (
        f"{name} is a tool, not a toolkit: write {module}:NAME of a Toolkit, "
        f'for example `tools = Toolkit("{toolkit}", [{name}])`'
    )
    if read_factory(found) is not None:
        text = f"{text}; of a factory write the return annotation, `-> Toolkit`"
    suggestion = _suggestion(module)
    raise UsageError(f"{text}; {suggestion}" if suggestion else text)


def _is_tool(found: Any) -> bool:
    """Whether it is a tool, or a function that cannot create a toolkit."""
    if isinstance(found, Tool) or hasattr(found, _TOOL_MARK):
        return True
    if not inspect.isroutine(found) or inspect.isbuiltin(found):
        return False
    if "Toolkit" in str(getattr(found, "__annotations__", {}).get("return", "")):
        return False
    return inspect.iscoroutinefunction(found) or bool(_required(found))


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without defaults; none if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variadic
    ]
