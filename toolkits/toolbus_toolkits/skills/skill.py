"""One skill: the folder that it comes from, the text of its `SKILL.md`, checked, and its gate.

A skill that breaks a rule is left out with the reason; nothing of it is repaired. A gate is what a
machine must have for the skill to be listed. It is read from `metadata.toolbus.gate`, else from
`metadata.agenticx.gate`; one that cannot be read excludes its skill.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolbus.settings import expanded, user_folder
from toolbus_toolkits.skills.files import UnreadableFile, text_of
from toolbus_toolkits.skills.front_matter import read_front_matter

__all__ = [
    "INSTALLED_FOLDER",
    "MAX_SKILL_BYTES",
    "SKILL_FILE",
    "GateFacts",
    "Skill",
    "SkillGate",
    "SkillRefused",
    "SkillSource",
    "checked_sources",
    "key_of",
    "parse_skill",
    "read_gate",
    "standard_sources",
]

INSTALLED_FOLDER = "installed-skills"
"""The folder of `TOOLBUS_HOME` that bundles install skills into."""
_INSTALLED_PRIORITY = 35
_GLOBAL = (
    (80, ".toolbus"),
    (70, ".agent"),
    (60, ".agents"),
    (50, ".cursor"),
    (40, ".claude"),
)
_PROJECT = ((30, ".agents"), (20, ".agent"), (10, ".claude"))


@dataclass(frozen=True, slots=True)
class SkillSource:
    """A folder with skills.

    The folder is a skill itself, or its folders are, or folders of those.
    """

    path: Path
    """It need not exist; `~` is expanded."""
    priority: int = 100
    """Of two skills with one name the one of the higher priority counts; standard folders have at
    most 80."""
    name: str = ""
    """How listings show it; by default the path."""
    _: KW_ONLY
    operator: bool = True
    """Whether its skills are the operator's words; others are quoted in prompts."""
    location: Literal["project", "global"] = "global"
    """Whether it belongs to the project of the working directory or to the user."""
    run: bool = False
    """Whether scripts of its skills may be run, in a sandbox."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"a source of skills is a path, not {type(self.path).__name__}")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError("the priority of a source of skills must be a whole number")
        object.__setattr__(self, "path", expanded(self.path))
        object.__setattr__(self, "name", self.name or str(self.path))


def checked_sources(
    paths: Iterable[str | os.PathLike[str] | SkillSource | Skill],
) -> list[SkillSource]:
    """Return sources in the order in which they count. Raises `TypeError` for anything else.

    A skill becomes a source with its folder alone, and is read again as that changes.
    """
    if isinstance(paths, str | os.PathLike | SkillSource | Skill):
        raise TypeError("paths must be a list of paths, SkillSource(...) or skills")
    sources = []
    for path in paths:
        if isinstance(path, Skill):
            path = replace(path.source, path=path.base_dir)
        sources.append(path if isinstance(path, SkillSource) else SkillSource(Path(path)))
    return sorted(sources, key=lambda source: (-source.priority, str(source.path)))


def standard_sources(
    environ: Mapping[str, str] | None = None,
    *,
    home: Path | None = None,
    project: Path | None = None,
) -> list[SkillSource]:
    """Return the folders where skills usually are.

    Those of the user come first and are the operator's. Those of bundles and of the project are
    not: their authors wrote them.

    Args:
        environ: `TOOLBUS_HOME` of it is used in place of `~/.toolbus`; by default `os.environ`.
        home: The user's folder.
        project: The folder of the project; by default the working directory.
    """
    variables = os.environ if environ is None else environ
    user, here = home or user_folder(), project or Path.cwd()
    named = variables.get("TOOLBUS_HOME")
    ours = Path(named) if named else user / ".toolbus"
    found = []
    for priority, folder in _GLOBAL:
        base = ours if folder == ".toolbus" else user / folder
        found.append(SkillSource(base / "skills", priority, f"~/{folder}/skills"))
    installed = ours / INSTALLED_FOLDER
    name = f"~/.toolbus/{INSTALLED_FOLDER}"
    found.append(SkillSource(installed, _INSTALLED_PRIORITY, name, operator=False))
    for priority, folder in _PROJECT:
        path = here / folder / "skills"
        name = f"./{folder}/skills"
        found.append(SkillSource(path, priority, name, operator=False, location="project"))
    return found


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
            continue
        names = [condition] if isinstance(condition, str) else condition
        if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
            raise ValueError(f"{path}.{key} must be a list of names")
        if any(set(one) & set("/\\\0\n") for one in names):
            raise ValueError(f"{path}.{key} must contain names without a path")
        found[name] = tuple(names)
    return SkillGate(**found)


def _system(name: str) -> str:
    return _SYSTEMS.get(name.lower(), name.lower())


SKILL_FILE = "SKILL.md"
"""The file that makes a folder a skill."""
MAX_SKILL_BYTES = 256 * 1024
"""The largest `SKILL.md`, and what is read of another file."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9])?")
_MAX_DESCRIPTION_CHARS = 4_096
"""A list of skills has all descriptions; agentskills.io has 1,024."""


class SkillRefused(Exception):
    """A skill is left out; the text says why."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that was read."""

    name: str
    """At most 64 of `A-Z a-z 0-9 . _ -` and spaces; from the front matter, not from the folder."""
    description: str
    """What it is for; at most 4,096 characters."""
    base_dir: Path
    """The real path of its folder."""
    source: SkillSource
    gate: SkillGate
    metadata: Mapping[str, Any]
    """The whole front matter, as JSON values."""
    content_hash: str
    """SHA-256 of its `SKILL.md`, in hex."""
    body: str
    """The text below the front matter."""
    key: str = field(init=False)
    """Equal for names that are hard to tell apart, such as `Pdf_Forms` and `pdf-forms`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(self.name))

    @property
    def path(self) -> Path:
        """Its `SKILL.md`."""
        return self.base_dir / SKILL_FILE

    @property
    def location(self) -> str:
        """`project` or `global`."""
        return self.source.location


def key_of(name: str) -> str:
    """Return what names have in common that are hard to tell apart."""
    return re.sub(r"[ ._-]+", "-", name.lower())


def parse_skill(content: bytes, base_dir: Path, source: SkillSource) -> Skill:
    """Make a skill.

    Raises `SkillRefused` if it breaks a rule.
    """
    if len(content) > MAX_SKILL_BYTES:
        raise SkillRefused(f"{SKILL_FILE} has more than {MAX_SKILL_BYTES} bytes")
    try:
        front_matter, body = read_front_matter(text_of(content))
        gate = read_gate(front_matter)
    except UnreadableFile as error:
        raise SkillRefused(f"{SKILL_FILE} {error}") from None
    except ValueError as error:
        raise SkillRefused(str(error)) from None
    name, description = front_matter.get("name"), front_matter.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SkillRefused(
            "name must be 1 to 64 of A-Z a-z 0-9 . _ - and spaces, with a letter or digit first and"
            " last"
        )
    if not isinstance(description, str) or not description.strip():
        raise SkillRefused("description must say in text what the skill is for")
    if len(description) > _MAX_DESCRIPTION_CHARS:
        raise SkillRefused(f"description has more than {_MAX_DESCRIPTION_CHARS} characters")
    return Skill(
        name=name,
        description=" ".join(description.split()),
        base_dir=base_dir,
        source=source,
        gate=gate,
        metadata=front_matter,
        content_hash=hashlib.sha256(content).hexdigest(),
        body=body,
    )
