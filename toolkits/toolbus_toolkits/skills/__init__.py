"""Skills: folders with a `SKILL.md`, listed for a prompt and read by a model when it needs them.

`scan` finds them, `skill` decides which count, `library` lists them and reads their files, and
`running` runs scripts, in a sandbox, of folders that the operator names for that; here is the
factory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, Toolkit
from toolbus.settings import expanded
from toolbus_toolkits.sandbox import SandboxOption, backend_for, read_sandbox
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

    run: Annotated[tuple[Path, ...], OperatorOnly] = Field(
        (), description="Folders with skills whose scripts may be run, in a sandbox."
    )
    sandbox: Annotated[SandboxOption, OperatorOnly] = Field(
        None,
        description="What confines scripts: auto, bubblewrap, landlock, or a sandbox as JSON.",
    )
    network: Annotated[bool, OperatorOnly] = Field(
        False, description="Whether these scripts may use the network."
    )

    @field_validator("paths", "run")
    @classmethod
    def _must_be_folders(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            if not expanded(path).is_dir():
                raise ValueError(f"{str(path)!r} is no folder: name one that holds skills")
        return paths


_STANDARD = SkillsConfig()


def skills(config: SkillsConfig = _STANDARD) -> Toolkit:
    """Skills to be read: `list_skills` and `view_skill`; and scripts of some, with `run`.

    Raises `SandboxUnavailable` if scripts may be run and nothing confines them here.
    """
    sandbox = read_sandbox(config.sandbox or "auto")
    if config.network:
        sandbox = sandbox.model_copy(update={"network": True})
    if config.run:
        backend_for(sandbox)
    paths = {expanded(path).resolve(): path for path in (*config.paths, *config.run)}
    runs = {expanded(path).resolve() for path in config.run}
    sources = [SkillSource(path, run=real in runs) for real, path in paths.items()]
    found = Skills(sources or None, config=config.config, sandbox=sandbox)
    found.list()  # logs what is left out when the host starts, and not with the first call
    return found.toolkit()
