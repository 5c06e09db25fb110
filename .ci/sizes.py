"""Fails if a source file has over 600 lines, a function over 40, or a folder over 20 modules."""

import ast
import pathlib
import sys
from collections import Counter

FOLDERS = ("sdk", "room_server", "toolkits")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 40
MAX_MODULES = 20


def too_long(path: pathlib.Path) -> list[str]:
    """List what is too long in one file."""
    text = path.read_text(encoding="utf-8")
    found = []
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        found.append(f"{path}: {lines} lines, at most {MAX_FILE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
            first = node.body[1 if has_docstring else 0]
            length = (node.end_lineno or 0) - first.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno} {node.name}: {length} lines, at most 40")
    return found


def too_many() -> list[str]:
    """List the folders that have too many modules, those of tests as well."""
    paths = [
        path
        for folder in (*FOLDERS, "tests")  # docs/examples has programs, which form no package
        for path in pathlib.Path(folder).rglob("*.py")
    ]
    modules = Counter(path.parent for path in paths if path.name != "__init__.py")
    return [
        f"{folder}: {count} modules, at most {MAX_MODULES}"
        for folder, count in sorted(modules.items())
        if count > MAX_MODULES
    ]


if __name__ == "__main__":
    files = [path for folder in FOLDERS for path in sorted(pathlib.Path(folder).rglob("*.py"))]
    problems = [problem for path in files for problem in too_long(path)] + too_many()
    sys.exit("\n".join(problems) or None)
