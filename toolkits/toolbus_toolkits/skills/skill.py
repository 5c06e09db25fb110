"""One skill: the text of its `SKILL.md`, checked.

A skill that breaks a rule is left out with the reason; nothing of it is repaired.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolbus_toolkits.skills.files import UnreadableFile, text_of
from toolbus_toolkits.skills.front_matter import read_front_matter
from toolbus_toolkits.skills.gates import SkillGate, read_gate
from toolbus_toolkits.skills.sources import SkillSource

__all__ = ["MAX_SKILL_BYTES", "SKILL_FILE", "Skill", "SkillRefused", "parse_skill"]

SKILL_FILE = "SKILL.md"
"""The file that makes a folder a skill."""
MAX_SKILL_BYTES = 256 * 1024
"""The largest `SKILL.md`."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9])?")
_MAX_DESCRIPTION_CHARS = 4_096


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
        object.__setattr__(self, "key", re.sub(r"[ ._-]+", "-", self.name.lower()))

    @property
    def path(self) -> Path:
        """Its `SKILL.md`."""
        return self.base_dir / SKILL_FILE

    @property
    def location(self) -> str:
        """`project` or `global`."""
        return self.source.location


def parse_skill(content: bytes, base_dir: Path, source: SkillSource) -> Skill:
    """Make a skill.

    Args:
        content: The bytes of its `SKILL.md`.
        base_dir: The real path of its folder.
        source: Where it comes from.

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
