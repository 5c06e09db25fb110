"""Error texts for exceptions in user code: short, with the user's own line, without values.

Values are left out because they may be secrets.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from pathlib import Path

from pydantic import ValidationError

__all__ = ["error_text", "load_error_text"]

_MAX_PROBLEMS = 3
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_OURS = (Path(__file__).parents[1], Path(importlib.__file__).parent)


def error_text(error: Exception) -> str:
    """Return the message of an error; for pydantic, its problems in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = problems[:_MAX_PROBLEMS]
    texts = [_problem_text(".".join(map(str, each["loc"])), each["msg"]) for each in shown]
    more = len(problems) - len(shown)
    return "; ".join([*texts, *([f"{more} more"] if more else [])])


def _problem_text(path: str, message: str) -> str:
    own = message.removeprefix("Value error, ")
    return own if own != message or not path else f"{path}: {message}"


def load_error_text(error: Exception | SystemExit) -> str:
    """Return why a user's module cannot be loaded, with the file and line in user code."""
    text = error_text(error) if isinstance(error, Exception) else str(error)
    if not isinstance(error, ValidationError):
        text = f"{type(error).__name__}: {text}"
    line = "" if isinstance(error, SyntaxError) else _user_line(error)  # a SyntaxError names it
    return f"{text} ({line})" if line else text


def _user_line(error: BaseException) -> str:
    """Return the last `file:line` of user code, else of any code that is not toolbus."""
    paths = sysconfig.get_paths()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(Path(each.filename), each.lineno) for each in reversed(frames)]
    not_ours = [each for each in lines if each[0].is_file() and not _is_in(each[0], _OURS)]
    installed = tuple(Path(paths[name]) for name in _INSTALLED)
    own = [each for each in not_ours if not _is_in(each[0], installed)]
    return next((f"{_short(path)}:{line}" for path, line in own or not_ours), "")


def _is_in(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(each) for each in folders)


def _short(path: Path) -> Path:
    here = Path(os.getcwd())
    return path.relative_to(here) if path.is_relative_to(here) else path
