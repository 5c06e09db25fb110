"""Gates of skills: what a machine must have for a skill to be listed.

A gate is read from `metadata.toolbus.gate`, else from `metadata.agenticx.gate`. A gate that cannot
be read excludes its skill: it is never ignored.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["GateFacts", "SkillGate", "read_gate"]

_OWNERS = ("toolbus", "agenticx")
_LISTS = ("os", "bins", "any_bins", "env", "config")
_OLD_NAMES = {f"requires_{name}": name for name in _LISTS[1:]}
_SYSTEMS = {"darwin": "macos", "win32": "windows", "cygwin": "windows", "osx": "macos"}


@dataclass(frozen=True, slots=True)
class SkillGate:
    """The conditions of a skill; all of them must hold."""

    os: tuple[str, ...] = ()
    """Operating systems, of which one must be this: linux, macos, windows."""
    bins: tuple[str, ...] = ()
    """Programs that must all be on the path."""
    any_bins: tuple[str, ...] = ()
    """Programs of which one must be on the path."""
    env: tuple[str, ...] = ()
    """Environment variables that must have a value."""
    config: tuple[str, ...] = ()
    """Names that the operator must have switched on: `Skills(config=...)`."""
    always: bool = False
    """Whether the other conditions are ignored."""

    def failure(self, facts: GateFacts) -> str:
        """Return why the skill is left out here; empty if the gate is open."""
        if self.always:
            return ""
        if self.os and facts.system not in map(_system, self.os):
            return f"needs the system {' or '.join(self.os)}"
        missing = [program for program in self.bins if not facts.has_program(program)]
        if missing:
            return f"needs programs that are not on the path: {', '.join(missing)}"
        if self.any_bins and not any(map(facts.has_program, self.any_bins)):
            return f"needs one of these programs on the path: {', '.join(self.any_bins)}"
        missing = [variable for variable in self.env if not facts.environ.get(variable)]
        if missing:
            return f"needs environment variables: {', '.join(missing)}"
        missing = [name for name in self.config if name not in facts.config]
        if missing:
            return f"needs to be switched on with config: {', '.join(missing)}"
        return ""


class GateFacts:
    """What gates are compared with; made for one listing, so that a program is searched once.

    Args:
        environ: The environment; its `PATH` is searched for programs.
        config: The names that the operator switched on.
        system: As in `sys.platform`.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        config: frozenset[str] = frozenset(),
        system: str = sys.platform,
    ) -> None:
        self.environ = environ
        self.config = config
        self.system = _system(system)
        self._programs: dict[str, bool] = {}

    def has_program(self, name: str) -> bool:
        """Return whether a program is on the path."""
        if name not in self._programs:
            found = shutil.which(name, path=self.environ.get("PATH", ""))
            self._programs[name] = found is not None
        return self._programs[name]


def read_gate(front_matter: Mapping[str, Any]) -> SkillGate:
    """Return the gate of a front matter. Raises `ValueError` for one that is not valid."""
    metadata = front_matter.get("metadata")
    if not isinstance(metadata, Mapping):
        return SkillGate()
    for owner in _OWNERS:
        own = metadata.get(owner)
        if isinstance(own, Mapping) and own.get("gate") is not None:
            return _gate_of(own["gate"], f"metadata.{owner}.gate")
    return SkillGate()


def _gate_of(value: object, path: str) -> SkillGate:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must be a mapping")
    found: dict[str, Any] = {}
    for key, condition in value.items():
        name = _OLD_NAMES.get(key, key)
        if name in found or name not in (*_LISTS, "always"):
            known = ", ".join((*_LISTS, "always"))
            raise ValueError(f"{path}.{key} is unknown or there twice: a gate has {known}")
        if name == "always":
            if not isinstance(condition, bool):
                raise ValueError(f"{path}.always must be true or false")
            found[name] = condition
        else:
            found[name] = _names(condition, f"{path}.{key}")
    return SkillGate(**found)


def _names(value: object, path: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{path} must be a list of names")
    if any(set(name) & set("/\\\0\n") for name in names):
        raise ValueError(f"{path} must contain names without a path")
    return tuple(names)


def _system(name: str) -> str:
    return _SYSTEMS.get(name.lower(), name.lower())
