"""Skills: folders with a `SKILL.md`, listed for a prompt and read by a model when it needs them.

`scan` finds them, `skill` decides which count, `library` lists them and reads their files; here is
the factory. Scripts of skills are text: nothing is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, Toolkit
from toolbus.settings import expanded
from toolbus_toolkits.skills.library import Skills
from toolbus_toolkits.skills.scan import SkippedSkill
from toolbus_toolkits.skills.skill import Skill, SkillGate, SkillSource, standard_sources

__all__ = [
    "Skill",
    "SkillGate",
    "SkillSource",
    "Skills",
    "SkillsConfig",
    "SkippedSkill",
    "skills",
    "standard_sources",
]


class SkillsConfig(BaseModel, frozen=True, extra="forbid"):
    """The folders of the toolkit `skills`, and what is switched on for its gates.

    Raises `ValidationError` for a path that is not a folder.
    """

    paths: Annotated[tuple[Path, ...], OperatorOnly] = Field(
        (), description="Folders with skills; by default the standard ones."
    )
    config: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Names that are switched on for the gate `config` of skills."
    )

    @field_validator("paths")
    @classmethod
    def _must_be_folders(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            if not expanded(path).is_dir():
                raise ValueError(f"{str(path)!r} is no folder: name one that holds skills")
        return paths


_STANDARD = SkillsConfig()


def skills(config: SkillsConfig = _STANDARD) -> Toolkit:
    """Skills to be read: `list_skills` and `view_skill`."""
    found = Skills(config.paths or None, config=config.config)
    found.list()  # logs what is left out when the host starts, and not with the first call
    return found.toolkit()
