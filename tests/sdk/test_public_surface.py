"""The public surface: `__all__`, its order, docstrings and types of everything in it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import toolbus
import toolbus.agents
import toolbus.models
import toolbus.permissions
import toolbus.sync
import toolbus.turns
import toolbus.wire
import toolbus_server

LAZY = [toolbus, toolbus.agents, toolbus.turns, toolbus.models, toolbus.permissions]
"""Packages that import each public name when it is first used."""
PACKAGES = [*LAZY, toolbus.sync, toolbus.wire, toolbus_server]
IDS = [package.__name__ for package in PACKAGES]
OURS = ("toolbus", "toolbus_server")


WITH_ALL = [package for package in PACKAGES if hasattr(package, "__all__")]
"""Not `toolbus.wire`, where `as` makes a name public."""


def public_names(package: types.ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def promised_names(package: types.ModuleType) -> list[str]:
    return getattr(package, "__all__", None) or list(public_names(package))


def order(name: str) -> tuple[int, str]:
    """Return constants, classes, then functions, each in alphabetical order, as ruff sorts them."""
    rank = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return rank, name


def is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in OURS


def functions_of(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the public methods and properties that a class, or a base class of ours, defines."""
    for each in filter(is_ours, owner.__mro__):
        for name, value in vars(each).items():
            plain = value.fget if isinstance(value, property) else inspect.unwrap(_bare(value))
            if not name.startswith("_") and inspect.isfunction(plain) and is_ours(plain):
                yield f"{owner.__name__}.{name}", plain


def _bare(value: Any) -> Any:
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def promised() -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        for name in promised_names(package):
            yield f"{package.__name__}.{name}", getattr(package, name)


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in promised():
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and is_ours(value):
            yield from functions_of(value)


def words_under_names(package: types.ModuleType) -> set[str]:
    """Return the names at module level that have a docstring below them."""
    assert package.__file__ is not None
    found = set()
    for path in Path(package.__file__).parent.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, below in pairwise(body):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found |= {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
    return found


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_package_imports_each_public_name_when_it_is_first_used(package: types.ModuleType) -> None:
    names = package._names
    assert set(package.__all__) == names_for_type_checkers(package)
    for name in package.__all__:
        value = getattr(package, name)
        assert value is getattr(import_module(names.home(name)), name)
        assert value is getattr(toolbus, name)
        assert name in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
    program = f"import sys, {package.__name__}; print(*(m for m in sys.modules if 'toolbus' in m))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert set(loaded.stdout.split()) == {"toolbus", "toolbus.public_names", package.__name__}


def names_for_type_checkers(package: types.ModuleType) -> set[str]:
    assert package.__file__ is not None
    body = ast.parse(Path(package.__file__).read_text(encoding="utf-8")).body
    block = next(each for each in body if isinstance(each, ast.If))
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    return {alias.asname or alias.name for each in imports for alias in each.names}


@pytest.mark.parametrize(
    "package", [each for each in WITH_ALL if each not in LAZY], ids=lambda package: package.__name__
)
def test_all_has_every_public_name_and_no_other(package: types.ModuleType) -> None:
    assert set(package.__all__) == public_names(package).keys()


@pytest.mark.parametrize("package", WITH_ALL, ids=lambda package: package.__name__)
def test_all_is_in_order_and_names_nothing_twice(package: types.ModuleType) -> None:
    assert package.__all__ == sorted(set(package.__all__), key=order)


def test_every_public_class_and_function_has_a_docstring() -> None:
    classes = [(name, value) for name, value in promised() if inspect.isclass(value)]
    # A dataclass without one gets its signature instead.
    bare = [name for name, value in classes if _words(value).startswith(f"{value.__name__}(")]
    silent = [name for name, value in [*classes, *functions()] if not _words(value)]
    assert bare + silent == []


def _words(value: Any) -> str:
    return (value.__doc__ or "").strip()


@pytest.mark.parametrize("package", PACKAGES, ids=IDS)
def test_every_public_value_has_a_docstring_below_it(package: types.ModuleType) -> None:
    explained = words_under_names(package)
    values = {
        name
        for name, value in ((each, getattr(package, each)) for each in promised_names(package))
        if not inspect.isclass(value) and not inspect.isfunction(value)
    }
    assert values - explained == set()


def test_every_public_function_is_annotated() -> None:
    untyped = []
    for name, function in functions():
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        own = parameters[1:] if parameters and parameters[0].name in {"self", "cls"} else parameters
        kinds = [signature.return_annotation, *(each.annotation for each in own)]
        if inspect.Signature.empty in kinds:
            untyped.append(name)
    assert untyped == []
