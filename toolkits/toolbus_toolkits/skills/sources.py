"""Where skills are searched: folders with a priority, and the standard ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from toolbus.settings import expanded, user_folder

__all__ = [
    "INSTALLED_FOLDER",
    "NAMED_PRIORITY",
    "SkillSource",
    "checked_sources",
    "standard_sources",
]

NAMED_PRIORITY = 100
"""The priority of a path that a program or the operator names."""
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
    priority: int = NAMED_PRIORITY
    """Of two skills with one name the one of the higher priority counts."""
    name: str = ""
    """How listings show it; by default the path."""
    _: KW_ONLY
    operator: bool = True
    """Whether its skills are the operator's words; others are quoted in prompts."""
    location: Literal["project", "global"] = "global"
    """Whether it belongs to the project of the working directory or to the user."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"a source of skills is a path, not {type(self.path).__name__}")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError("the priority of a source of skills must be a whole number")
        object.__setattr__(self, "path", expanded(self.path))
        object.__setattr__(self, "name", self.name or str(self.path))


def checked_sources(paths: Iterable[str | os.PathLike[str] | SkillSource]) -> list[SkillSource]:
    """Return sources in the order in which they count. Raises `TypeError` for anything else."""
    if isinstance(paths, str | os.PathLike | SkillSource):
        raise TypeError("paths must be a list of paths or SkillSource(...)")
    sources = [path if isinstance(path, SkillSource) else SkillSource(Path(path)) for path in paths]
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
