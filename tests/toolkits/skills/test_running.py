"""Scripts of skills: which may be run, what they reach, and what a model gets of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from support.processes.command_line import CommandLine
from support.pytest_plugins.missing_parts import not_verified
from support.rooms.turns import agent_and_host
from support.sandbox.reach import system_path
from toolbus import (
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    Permissions,
    Rule,
    ScriptResult,
    ToolContext,
    ToolFailed,
    ToolGroup,
    ToolInactive,
    Toolkit,
    Turn,
    skill_viewer,
)
from toolbus_toolkits.sandbox import (
    SandboxConfig,
    SandboxPolicy,
    SandboxUnavailable,
    ToolRiskProfile,
    backend_for,
)
from toolbus_toolkits.skills import Skills, SkillsConfig, SkillSource, skills

__all__ = ["system_path"]
HELLO = "import os, sys; print('hello', *sys.argv[1:]); print(os.getcwd())"


def write(folder: Path, **scripts: str) -> Path:
    """Write a skill with scripts, `a_py` as `a.py`; return the folder of the source."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: Use it.\n---\n")
    for name, text in scripts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder.parent


def runnable(path: Path, **options: Any) -> Skills:
    return Skills([SkillSource(path, run=True)], **options)


async def run(found: Skills, script: str, *args: str, **options: Any) -> ScriptResult:
    context = ToolContext()
    given = {"skill": "it", "script": script, "args": list(args), **options}
    value: Any = (await found.toolkit().execute(context, "run", given)).value
    return ScriptResult(**value)


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> SandboxConfig:
    config = SandboxConfig(backend=request.param)
    try:
        backend_for(config)
    except SandboxUnavailable as error:
        not_verified(f"scripts of skills in {request.param}", str(error))
    return config


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of scripts are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


async def test_a_script_runs_confined_in_a_folder_that_is_removed(
    tmp_path: Path, scratch: Path, sandbox: SandboxConfig
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    code = f"""
        echo "$1" > note; cat note; ls -A; cat "$(dirname "$0")/SKILL.md" | head -1
        cat {outside} 2>/dev/null; echo x 2>/dev/null > "$(dirname "$0")/SKILL.md" && echo changed
        echo x 2>/dev/null > {outside}
        echo oops >&2; exit 3
    """
    source = write(tmp_path / "skills" / "it", a_sh=code)
    before = (source / "it" / "SKILL.md").read_text()
    result = await run(runnable(source, sandbox=sandbox), "a.sh", "a 'b'\n$(c)")
    assert result.stdout == "a 'b'\n$(c)\nnote\n---\n"
    assert result.stderr == "oops\n"
    assert (result.exit, result.timed_out, result.truncated) == (3, False, False)
    assert result.sandbox == sandbox.backend
    assert (source / "it" / "SKILL.md").read_text() == before
    assert outside.read_text() == "secret"
    assert not any("toolbus-skill" in name for name in os.listdir(scratch))


async def test_a_script_runs_by_itself_or_by_the_program_for_its_ending(tmp_path: Path) -> None:
    source = write(tmp_path / "it", a_py=HELLO, b_sh="echo shell", c="#!/bin/sh\necho itself")
    (source / "it" / "c").chmod(0o755)
    found = runnable(source)
    assert (await run(found, "a.py", "x", "--y")).stdout.startswith("hello x --y\n")
    assert (await run(found, "b.sh")).stdout == "shell\n"
    assert (await run(found, "c")).stdout == "itself\n"


async def test_scripts_of_a_source_that_does_not_say_run_are_not_run(tmp_path: Path) -> None:
    source = write(tmp_path / "yes" / "it", a_py=HELLO)
    other = write(tmp_path / "no" / "other", a_py=HELLO)
    assert [tool.name for tool in Skills([source]).toolkit().tools] == ["list_skills", "view_skill"]
    found = Skills([SkillSource(source, run=True), SkillSource(other, name="others")])
    assert [tool.name for tool in found.toolkit().tools][2:] == ["run"]
    with pytest.raises(ToolFailed, match="scripts of the source others are not run") as refused:
        await run(found, "a.py", skill="other")
    assert refused.value.executed == "no"
    both = skill_viewer(Skills([other]), runnable(source))
    with pytest.raises(ToolFailed, match="no script of the skill 'other' may be run"):
        await both.execute(ToolContext(), "run", {"skill": "other", "script": "a.py"})


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("../it/a.py", "without .. and hidden names"),
        ("/usr/bin/true", "without .. and hidden names"),
        ("sub/../a.py", "without .. and hidden names"),
        (".hidden.py", "without .. and hidden names"),
        ("", "without .. and hidden names"),
        ("a\0.py", "without .. and hidden names"),
        ("link.py", "is a link, or is reached by one"),
        ("out.py", "is a link that leaves its folder"),
        ("linked/a.py", "is a link that leaves its folder"),
        ("./a.py", "write 'a.py'"),
        ("gone.py", "cannot be read: No such file"),
        ("x" * 300, "cannot be read: File name too long"),
        ("sub", "is not a regular file"),
        ("pipe.py", "is not a regular file"),
        ("SKILL.md", r"is not executable, and its name does not end with \.py, \.sh, \.js"),
    ],
)
async def test_what_is_no_script_of_the_skill_itself_is_refused(
    tmp_path: Path, script: str, words: str
) -> None:
    source = write(tmp_path / "skills" / "it", a_py=HELLO)
    folder = source / "it"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.py").write_text(HELLO)
    (folder / "sub").mkdir()
    (folder / ".hidden.py").write_text(HELLO)
    (folder / "link.py").symlink_to("a.py")
    (folder / "out.py").symlink_to(elsewhere / "a.py")
    (folder / "linked").symlink_to(elsewhere)
    os.mkfifo(folder / "pipe.py")
    with pytest.raises(ToolFailed, match=words) as refused:
        await run(runnable(source), script)
    assert refused.value.executed == "no"


async def test_an_unknown_skill_and_arguments_that_no_program_takes_are_refused(
    tmp_path: Path,
) -> None:
    found = runnable(write(tmp_path / "it", a_py=HELLO))
    with pytest.raises(ToolFailed, match="there is no skill 'gone'"):
        await run(found, "a.py", skill="gone")
    for argument, words in (("a\0b", "cannot start"), ("x" * 200_000, "Argument list too long")):
        with pytest.raises(ToolFailed, match=words) as refused:
            await run(found, "a.py", argument)
        assert refused.value.executed == "no"


async def test_a_folder_that_is_replaced_by_a_link_meanwhile_is_not_shown(tmp_path: Path) -> None:
    source = write(tmp_path / "skills" / "it", a_py=HELLO)
    found = runnable(source)
    skill = found.get("it")
    (source / "it").rename(tmp_path / "moved")
    (source / "it").symlink_to(tmp_path / "moved")
    with pytest.raises(ToolFailed, match="is a link"):
        await found._runner.run(ToolContext(), skill, "a.py", [], 10)


async def test_long_output_loses_its_middle_and_endless_output_its_script(tmp_path: Path) -> None:
    long = (
        "import sys\nprint('a' * 50_000 + 'b' * 50_000); print('\\x1b[2J\\u200b', file=sys.stderr)"
    )
    source = write(tmp_path / "it", long_py=long, endless_sh="yes", slow_sh="echo begun; sleep 600")
    found = runnable(source)
    result = await run(found, "long.py")
    assert (result.exit, result.truncated) == (0, True)
    assert result.stdout.startswith("aaa")
    assert result.stdout.endswith("bbb\n")
    assert "[the middle of 100,001 bytes is left out]" in result.stdout
    assert len(result.stdout) + len(result.stderr) <= 30_000
    assert result.stderr == "\\x1b[2J\\u200b\n"
    endless = await run(found, "endless.sh")
    assert (endless.exit, endless.timed_out, endless.truncated) == (None, False, True)
    assert "it was ended: it wrote more than 67,108,864 bytes" in endless.stderr
    slow = await run(found, "slow.sh", timeout_s=1)
    assert (slow.exit, slow.timed_out, slow.stdout) == (None, True, "begun\n")


async def test_a_policy_decides_about_scripts_as_one_tool_and_they_stay_confined(
    tmp_path: Path,
) -> None:
    source = write(tmp_path / "it", slow_sh="sleep 600")
    profile = ToolRiskProfile("skills.run", force_backend="landlock", max_timeout_s=1)
    result = await run(runnable(source, sandbox=SandboxPolicy([profile])), "slow.sh")
    assert (result.timed_out, result.sandbox) == (True, "landlock")
    for refused in (
        SandboxConfig(backend="subprocess"),
        SandboxPolicy([ToolRiskProfile("skills.*", "low")]),
        SandboxPolicy([ToolRiskProfile("*", force_backend="subprocess")]),
    ):
        with pytest.raises(ValueError, match="scripts of skills are always confined"):
            runnable(source, sandbox=refused)


async def test_where_nothing_confines_no_script_runs(tmp_path: Path) -> None:
    source = write(tmp_path / "it", a_py=HELLO)
    config = SandboxConfig(backend="docker", image="none")
    with pytest.raises(ToolFailed, match="nothing confines programs here") as refused:
        await run(runnable(source, sandbox=config), "a.py")
    assert refused.value.executed == "no"
    with pytest.raises(SandboxUnavailable, match="nothing confines programs here"):
        skills(SkillsConfig(run=(source,), sandbox=config))


@pytest.mark.parametrize("mode", ["default", "accept_edits"])
async def test_a_run_is_asked_about_and_a_rule_covers_one_script(
    tmp_path: Path, mode: Literal["default", "accept_edits"]
) -> None:
    source = write(tmp_path / "it", a_py=HELLO, b_py=HELLO)
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(request.assessment.message)
        return ApprovalDecision.deny()

    rules = [Rule(behavior="allow", tool="skills.run", match="it/a.py")]
    async with (
        agent_and_host(Toolkit("none", [])) as (_, agent),
        Turn(
            agent,
            skills=[runnable(source)],
            permissions=Permissions(rules=rules, mode=mode),
            approve=approve,
        ) as turn,
    ):
        ran = await turn.call("skills.run", skill="it", script="a.py")
        assert ran["stdout"].startswith("hello")
        with pytest.raises(ApprovalDenied):
            await turn.call("skills.run", skill="it", script="b.py", args=["x y"])
    assert asked == ["runs a script of the skill it, confined: b.py 'x y'"]


async def test_a_script_of_an_inactive_group_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "it", a_py=HELLO)
    group = ToolGroup("office", "Writes letters.", skills=[runnable(source)])
    async with (
        agent_and_host(Toolkit("none", [])) as (_, agent),
        Turn(agent, groups=[group]) as turn,
    ):
        with pytest.raises(ToolInactive):
            await turn.call("skills.run", skill="it", script="a.py")


def test_a_host_runs_scripts_of_the_folders_that_it_names(tmp_path: Path) -> None:
    source = write(tmp_path / "skills" / "it", a_py=HELLO)
    shown = write(tmp_path / "shown" / "other", a_py=HELLO)
    config = SkillsConfig(paths=(shown,), run=(source,))
    toolkit = skills(config)
    assert [tool.name for tool in toolkit.tools] == ["list_skills", "view_skill", "run"]
    assert len(skills(SkillsConfig(paths=(source,))).tools) == 2
    both = SkillsConfig(paths=(source,), run=(source / "it" / "..",))
    assert len(skills(both).tools) == 3
    here = CommandLine(tmp_path)
    ended = here.run("host", "skills", "--run", str(tmp_path / "gone"))
    assert (ended.code, "is no folder" in ended.err) == (2, True)
    ended = here.run("host", "skills", "--run", str(source), "--sandbox", "subprocess")
    assert ended.code == 2
    assert "scripts of skills are always confined" in ended.err
