"""What was meant by a reference that names no toolkit: `words.py`, `words` or `words.words`.

It reads the files that lie in a folder, and imports and runs none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["near_references"]

_MAX_TOLD = 3


def near_references(reference: str, folder: Path) -> list[str]:
    """Return what a person may have meant, as `module:attribute`; empty where nothing is there.

    Args:
        reference: What was typed.
        folder: Where modules are looked for.
    """
    path, _, attribute = reference.partition(":")
    module = path.removesuffix(".py").removeprefix("./").replace("/", ".")
    if not all(part.isidentifier() for part in module.split(".")):
        return []
    found = _in_module(folder, module, attribute) or _in_module(folder, module, "")
    head, dot, last = module.rpartition(".")
    if not found and dot and not attribute:
        found = _in_module(folder, head, last)
    return found[:_MAX_TOLD]


def _in_module(folder: Path, module: str, attribute: str) -> list[str]:
    """Name the toolkits of a module, or the one attribute if it has that."""
    tree = _parsed(folder.joinpath(*module.split(".")))
    if tree is None:
        return []
    names = dict(_names_in(tree))
    if attribute:
        return [f"{module}:{attribute}"] if attribute in names else []
    namesake = module.rpartition(".")[2]
    likely = [name for name, makes_one in names.items() if makes_one or name == namesake]
    return [f"{module}:{name}" for name in likely]


def _parsed(path: Path) -> ast.Module | None:
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        try:
            return ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
    return None


def _names_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Give what a module defines at its top, and whether that is, or makes, a toolkit."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield target.id, isinstance(value, ast.Call) and _is_toolkit(value.func)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                yield name, _is_toolkit(annotation)
            case ast.FunctionDef(name=name, args=args, returns=returns):
                makes_one = returns is not None and _is_toolkit(returns)
                yield name, makes_one and not _needs_arguments(args)


def _is_toolkit(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2].strip("'\"").endswith("Toolkit")


def _needs_arguments(parameters: ast.arguments) -> bool:
    positional = len(parameters.posonlyargs) + len(parameters.args)
    return positional > len(parameters.defaults) or None in parameters.kw_defaults
