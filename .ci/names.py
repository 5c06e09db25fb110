"""Fails if an identifier of a source file has a word that does not say what the thing is."""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

FOLDERS = ("sdk", "room_server", "toolkits")
WORDS = {"told", "said", "kept", "happened", "whoever"}
LOOP = "each"
"""A loop names what it goes over: `for tool in tools`."""
SPLIT = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def definitions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give line and name of everything that a file names."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def problems(path: pathlib.Path) -> Iterator[str]:
    """List the names of one file that are to be changed."""
    names = [
        *((1, part) for part in path.with_suffix("").parts),
        *definitions(ast.parse(path.read_text(encoding="utf-8"))),
    ]
    for line, name in names:
        words = {word.lower() for word in SPLIT.findall(name)}
        if found := WORDS & words:
            yield f"{path}:{line} {name}: another word than {', '.join(sorted(found))}"
        elif name == LOOP:
            yield f"{path}:{line} {name}: name what the loop goes over"


if __name__ == "__main__":
    files = [path for folder in FOLDERS for path in sorted(pathlib.Path(folder).rglob("*.py"))]
    sys.exit("\n".join(problem for path in files for problem in problems(path)) or None)
