"""What an exception says, for people: nothing of the machinery, and the line that is their own.

It repeats no values: what was wrong may have been a secret.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from pathlib import Path

from pydantic import ValidationError

__all__ = ["load_words", "plain_words"]

_MAX_TOLD = 3
_MACHINERY = ("stdlib", "platstdlib", "purelib", "platlib")
_OURS = (Path(__file__).parents[1], Path(importlib.__file__).parent)


def plain_words(error: Exception) -> str:
    """Return what an error says; of one of pydantic's, each complaint in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    told = error.errors(include_url=False, include_context=False, include_input=False)
    words = [_complaint(".".join(map(str, each["loc"])), each["msg"]) for each in told[:_MAX_TOLD]]
    return "; ".join([*words, *([f"{len(told) - _MAX_TOLD} more"] if told[_MAX_TOLD:] else [])])


def _complaint(place: str, message: str) -> str:
    own = message.removeprefix("Value error, ")
    return own if own != message or not place else f"{place}: {message}"


def load_words(error: Exception) -> str:
    """Say why a module of somebody's cannot be loaded, and at which line of theirs that shows."""
    words = plain_words(error)
    if not isinstance(error, ValidationError):
        words = f"{type(error).__name__}: {words}"
    place = "" if isinstance(error, SyntaxError) else _own_place(error)  # it names its own
    return f"{words} ({place})" if place else words


def _own_place(error: Exception) -> str:
    """Name the last line in a file that is neither ours nor installed, else that is not ours."""
    paths = sysconfig.get_paths()
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(each.filename), each.lineno) for each in reversed(frames)]
    not_ours = [each for each in places if each[0].is_file() and not _is_in(each[0], _OURS)]
    installed = tuple(Path(paths[name]) for name in _MACHINERY)
    own = [each for each in not_ours if not _is_in(each[0], installed)]
    return next((f"{_short(path)}:{line}" for path, line in own or not_ours), "")


def _is_in(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(each) for each in folders)


def _short(path: Path) -> Path:
    here = Path(os.getcwd())
    return path.relative_to(here) if path.is_relative_to(here) else path
