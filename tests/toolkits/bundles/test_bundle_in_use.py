"""A bundle with a memory template and a skill: installed, used by an agent's turn, and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolbus import AgentState, ToolFailed, Turn
from toolbus_toolkits import bundles
from toolbus_toolkits.memory import Memory
from toolbus_toolkits.skills import Skills, SkillSource


async def test_what_a_bundle_brings_is_used_until_it_is_removed(tmp_path: Path) -> None:
    source, home, notes = tmp_path / "office", tmp_path / "home", tmp_path / "notes.db"
    (source / "letters").mkdir(parents=True)
    text = "---\nname: letters\ndescription: Write letters.\n---\nBegin with the date.\n"
    (source / "letters" / "SKILL.md").write_text(text)
    (source / "notes.md").write_text("# Clients\nName, city\n")
    manifest = {
        "toolbus_bundle": "1",
        "name": "office",
        "version": "1.0",
        "skills": ["letters"],
        "memory_templates": {"notes": "notes.md"},
    }
    (source / "toolbus-bundle.yaml").write_text(json.dumps(manifest))
    bundles.plan_install(source, home=home).apply()

    def made() -> list[Memory]:
        return [Memory(notes, templates=["notes"], home=home)]

    state = AgentState()
    skills = Skills([SkillSource(home / "installed-skills")])
    async with Turn(None, always=made(), skills=[skills], state=state) as turn:
        prompt = turn.prompt("{toolkits}\n{skills}")
        assert "# Clients" in prompt
        assert "letters" in prompt
        assert "Begin with the date." in str(await turn.call("skills.view_skill", name="letters"))
        await turn.call("memory.append", text="Ann lives in Oslo", tags=["clients"])

    bundles.plan_uninstall("office", home=home).apply()
    with pytest.raises(ValueError, match="install a bundle"):
        made()
    async with Turn(None, always=[Memory(notes)], skills=[skills], state=state) as turn:
        with pytest.raises(ToolFailed, match="letters"):
            await turn.call("skills.view_skill", name="letters")
        (note,) = await turn.call("memory.search", query="oslo")
        assert note["text"] == "Ann lives in Oslo"
