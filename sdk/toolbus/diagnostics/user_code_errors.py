"""Error texts for exceptions in user code: short, with the user's own line, without values.

Values are left out because they may be secrets.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path

from pydantic import ValidationError

__all__ = ["begin_at_author", "error_text", "load_error_text"]

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_OURS = (Path(__file__).parents[1], Path(importlib.__file__).parent)
_STDLIB = Path(os.__file__).parent
_RUNNERS = (Path(__file__).parents[1], _STDLIB / "asyncio", _STDLIB / "concurrent")
"""What calls the functions of tools."""


def error_text(error: BaseException) -> str:
    """Return the message of an error; for pydantic, its problems in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    texts = []
    for problem in problems[:3]:
        text = problem["msg"].removeprefix("Value error, ")
        if problem["loc"] and text == problem["msg"]:
            text = f"{'.'.join(map(str, problem['loc']))}: {text}"
        texts.append(text)
    if len(problems) > 3:
        texts.append(f"{len(problems) - 3} more")
    return "; ".join(texts)


def load_error_text(error: Exception | SystemExit) -> str:
    """Return why a user's module cannot be loaded, with the file and line in user code.

    What a ready-made toolkit refuses is in words for its operator: without the name of a class.
    """
    text = error_text(error)
    own, others = _lines(error)
    frames = traceback.extract_tb(error.__traceback__)
    is_theirs = bool(frames) and _is_in(Path(frames[-1].filename), _ready_made())
    is_in_words = isinstance(error, ValueError | ImportError)  # or a package is missing
    if is_theirs and (is_in_words or type(error).__module__.startswith("toolbus_toolkits.")):
        others = []
    elif not isinstance(error, ValidationError):
        text = f"{type(error).__name__}: {text}"
    line = next(iter(own or others), "")
    if not line or isinstance(error, SyntaxError):  # whose text has one
        return text
    return f"{text} ({line})"


def begin_at_author(error: BaseException) -> None:
    """Let the traceback of what a tool raised begin at the first line of its author.

    The frames above it are those of toolbus, and of event loop and threads. Without a line of an
    author it stays as it is.
    """
    traceback = error.__traceback__
    while traceback is not None:
        if not _is_in(Path(traceback.tb_frame.f_code.co_filename), _RUNNERS):
            error.with_traceback(traceback)  # an error may be frozen, which takes no attribute
            return
        traceback = traceback.tb_next


def _ready_made() -> tuple[Path, ...]:
    """Return the folder of the ready-made toolkits, if they are loaded."""
    found = sys.modules.get("toolbus_toolkits")
    return tuple(map(Path, getattr(found, "__path__", ())))


def _lines(error: BaseException) -> tuple[list[str], list[str]]:
    """Return each `file:line` of user code, and of other code that is not toolbus, last first."""
    paths = sysconfig.get_paths()
    installed = (*(Path(paths[name]) for name in _INSTALLED), *_ready_made())
    own: list[str] = []
    others: list[str] = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_file() or _is_in(path, _OURS):
            continue
        found = others if _is_in(path, installed) else own
        if path.is_relative_to(os.getcwd()):
            path = path.relative_to(os.getcwd())
        found.append(f"{path}:{frame.lineno}")
    return own, others


def _is_in(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
