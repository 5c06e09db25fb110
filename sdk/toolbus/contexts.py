"""Named contexts: sets of settings for one server, in the file `contexts.toml` of `TOOLBUS_HOME`.

A context never has a token, only the path of a file with a token or keys. Only the form of the file
is checked here; `toolbus.settings` checks the values.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from toolbus.atomic_file import write_atomically

__all__ = ["CONTEXT_SETTINGS", "Contexts", "is_context_name"]

CONTEXT_SETTINGS = ("url", "room", "token_file", "keys", "name")
"""The settings that a context may have, each as text."""
_FILE = "contexts.toml"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_context_name(name: str) -> bool:
    """Whether this can name a context: 1 to 64 of `A-Z a-z 0-9 _ -`."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of one user. Methods return a changed copy; `save` writes it."""

    path: Path
    """The file, which need not exist."""
    named: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings of each context."""
    in_use: str | None = None
    """The context that applies where no other is chosen."""

    @classmethod
    def load(cls, home: Path) -> Contexts:
        """Read the file; without one there are no contexts.

        Raises:
            ValueError: The file cannot be read or is not valid; the message says what to do.
        """
        path = home / _FILE
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ValueError(f"TOOLBUS_HOME: cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _broken(path, f"it is not a TOML file: {error}") from error
        in_use, tables = values.pop("in_use", None), values.pop("context", {})
        if values:
            raise _broken(path, f"unknown setting {next(iter(values))!r}")
        if not isinstance(in_use, str | None) or not isinstance(tables, dict):
            raise _broken(path, "in_use must be text, and each context a table [context.NAME]")
        for name, table in tables.items():
            _check_table(path, name, table)
        return cls(path, tables, in_use)

    def get(self, name: str) -> Mapping[str, str]:
        """Return the settings of a context; ValueError if there is none of this name."""
        found = self.named.get(name)
        if found is None:
            near = get_close_matches(name[:64], self.named, n=1)
            step = f"did you mean {near[0]}?" if near else "`toolbus context list` lists them"
            raise ValueError(f"there is no context {name[:64]!r} in {self.path}: {step}")
        return found

    def with_context(self, name: str, settings: Mapping[str, str]) -> Contexts:
        """Add a context, or replace it."""
        return replace(self, named={**self.named, name: dict(settings)})

    def without(self, name: str) -> Contexts:
        """Remove a context; if it is in use, none is in use any more."""
        left = {other: self.named[other] for other in self.named if other != name}
        without = replace(self, named=left)
        if self.in_use == name:
            return without.using(None)
        return without

    def using(self, name: str | None) -> Contexts:
        """Use a context, or none."""
        return replace(self, in_use=name)

    def save(self) -> None:
        """Write the file in one step, readable by its owner only. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = []
        if self.in_use is not None:
            lines.append(f"in_use = {_toml_text(self.in_use)}\n")
        for name, settings in self.named.items():
            lines.append(f"\n[context.{name}]\n")
            lines += (f"{key} = {_toml_text(value)}\n" for key, value in settings.items())
        write_atomically(self.path, "".join(lines).encode(), mode=0o600, sync=True)


def _check_table(path: Path, name: str, table: Any) -> None:
    if not is_context_name(name) or not isinstance(table, dict):
        raise _broken(path, f"{name[:64]!r} is not the table of a context")
    unknown = sorted(set(table) - set(CONTEXT_SETTINGS))
    if unknown:
        raise _broken(path, f"context {name}: unknown setting {unknown[0]!r}")
    for key, value in table.items():
        if not isinstance(value, str) or not value:
            raise _broken(path, f"context {name}: {key} must be text")


def _broken(path: Path, problem: str) -> ValueError:
    return ValueError(
        f"cannot read the contexts of {path}: {problem}; correct the file, or delete it and add "
        "the contexts again (`toolbus context add`)"
    )


def _toml_text(value: str) -> str:
    # A JSON string is a TOML string, except for one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
