"""Skills of folders: which are found, which are left out and why, and what follows a change."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.rooms.turns import agent_and_host
from toolbus import ToolContext, ToolFailed, Toolkit, Turn, builder_of
from toolbus_toolkits.skills import Skills, SkillsConfig, SkillSource, skills, standard_sources
from toolbus_toolkits.skills.files import read_bytes
from toolbus_toolkits.skills.skill import GateFacts, read_gate

NEEDS_LINKS = pytest.mark.skipif(sys.platform == "win32", reason="needs links")


def write(folder: Path, name: str = "", *, description: str = "Use it.", more: str = "") -> Path:
    """Write a skill and return its SKILL.md."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "SKILL.md"
    name = name or folder.name
    file.write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\nBody of {name}.\n")
    return file


def names(found: Skills) -> list[str]:
    return [each.name for each in found.list()]


def reasons(found: Skills) -> dict[str, str]:
    return {each.path.parent.name: each.reason for each in found.skipped}


def test_skills_are_found_at_every_level_but_not_within_a_skill(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "group" / "two")
    write(tmp_path / "group" / "deep" / "three")
    write(tmp_path / "plugins" / "a" / "skills" / "four")
    (tmp_path / "group" / "back").symlink_to(tmp_path)
    write(tmp_path / "one" / "inner")
    write(tmp_path / ".hidden", "hidden")
    (tmp_path / "README.md").write_text("no folder")
    found = Skills([tmp_path])
    assert names(found) == ["four", "one", "three", "two"]
    assert found.skipped == ()
    assert names(Skills([tmp_path / "one"])) == ["one"]
    assert names(Skills([tmp_path / "missing"])) == []
    skill = found.get("two")
    assert (skill.body, skill.base_dir) == ("Body of two.\n", tmp_path / "group" / "two")
    assert (skill.location, len(skill.content_hash)) == ("global", 64)
    with pytest.raises(LookupError, match="no skill 'inner'"):
        found.get("inner")


@pytest.mark.parametrize(
    ("folders", "count"), [((), 0), (("docs",), 1), (("docs/a/b", "src"), 1), ((".git/x",), 0)]
)
def test_a_source_with_folders_and_no_skill_is_reported(
    folders: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    found = Skills([tmp_path])
    assert names(found) == []
    reason = "no folder in it has a SKILL.md; hidden folders are not searched"
    assert found.skipped == ((tmp_path, reason),) * count


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# Title\n", "no front matter"),
        (b"---\ndescription: d\n---\n", "name must be"),
        (b"---\nname: 5\ndescription: d\n---\n", "name must be"),
        (b"---\nname: ../up\ndescription: d\n---\n", "name must be"),
        ("---\nname: \u0440df\ndescription: d\n---\n".encode(), "name must be"),
        (b'---\nname: "a\\nb"\ndescription: d\n---\n', "name must be"),
        (b"---\nname: a\n---\n", "description must say"),
        (b"---\nname: a\ndescription: ' '\n---\n", "description must say"),
        (b"---\nname: a\ndescription: " + b"d" * 5_000 + b"\n---\n", "more than 4096 char"),
        (b"---\nname: a\ndescription: &a [*a]\n---\n", "has an alias"),
        (b"---\nname: a\ndescription: d\n---\n" + b"x" * 10_000_000, "more than 262144 bytes"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"---\nname: a\ndescription: d\n---\n\0", "is a binary file"),
        (b"---\nname: a\ndescription: d\nmetadata: {toolbus: {gate: 5}}\n---\n", "a mapping"),
    ],
)
def test_bad_skill_is_left_out_with_the_reason(tmp_path: Path, content: bytes, words: str) -> None:
    write(tmp_path / "good")
    write(tmp_path / "bad").write_bytes(content)
    found = Skills([tmp_path])
    assert names(found) == ["good"]
    assert words in reasons(found)["bad"]


@NEEDS_LINKS
def test_special_files_and_links_that_leave_the_source_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(tmp_path / "outside")
    write(source / "real")
    (source / "away").symlink_to(tmp_path / "outside")
    (source / "same").symlink_to(source / "real")
    (source / "loop").symlink_to(source / "loop")
    (source / "group").mkdir()
    (source / "group" / "up").symlink_to(source)
    (source / "linked").mkdir()
    (source / "linked" / "SKILL.md").symlink_to(tmp_path / "outside" / "SKILL.md")
    (source / "pipe").mkdir()
    os.mkfifo(source / "pipe" / "SKILL.md")
    (source / "folder" / "SKILL.md").mkdir(parents=True)
    found = Skills([source])
    assert names(found) == ["real"]
    left_out = {each.path.relative_to(source).parts[0]: each.reason for each in found.skipped}
    assert left_out.keys() == {"away", "loop", "linked", "pipe", "folder", "real"}
    assert "leaves its folder" in left_out["away"]
    assert "leaves its folder" in left_out["linked"]
    assert "not a regular file" in left_out["pipe"]
    assert "has the name of real" in left_out["real"]


def test_unreadable_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "locked")
    opening: Callable[..., int] = os.open

    def refusing(path: Any, *options: Any) -> int:
        if Path(path) == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opening(path, *options)

    monkeypatch.setattr(os, "open", refusing)
    assert "Permission denied" in reasons(Skills([tmp_path]))["locked"]


def test_folder_that_vanishes_during_a_scan_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    lstat: Callable[..., os.stat_result] = os.lstat

    def vanishing(path: Any, **options: Any) -> os.stat_result:
        facts = lstat(path, **options)
        if Path(path) == tmp_path / "b" / "SKILL.md":
            shutil.rmtree(tmp_path / "b")
        return facts

    monkeypatch.setattr(os, "lstat", vanishing)
    found = Skills([tmp_path])
    assert (names(found), found.skipped) == (["a"], ())


def test_number_of_searched_folders_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b/x", "b/y", "c"):
        write(tmp_path / name)
    monkeypatch.setattr("toolbus_toolkits.skills.scan.MAX_FOLDERS", 4)
    found = Skills([tmp_path])
    assert names(found) == ["a", "c", "x"]
    assert [each.reason for each in found.skipped] == ["only 4 of its folders were searched"]


def test_name_counts_once_by_priority_then_path_also_in_look_alike_forms(tmp_path: Path) -> None:
    write(tmp_path / "early" / "x", "Pdf_Forms", description="low")
    write(tmp_path / "high" / "x", "pdf-forms", description="high")
    write(tmp_path / "high" / "y", "PDF-forms", description="second")
    found = Skills([SkillSource(tmp_path / "early", 1), SkillSource(tmp_path / "high", 2, "mine")])
    assert [(each.name, each.description) for each in found.list()] == [("pdf-forms", "high")]
    assert [each.reason for each in found.skipped] == [
        "PDF-forms has the name of pdf-forms of mine, which comes first",
        "Pdf_Forms has the name of pdf-forms of mine, which comes first",
    ]


def test_standard_folders_of_the_user_come_before_those_of_the_project(tmp_path: Path) -> None:
    home, project, own = tmp_path / "home", tmp_path / "project", tmp_path / "own"
    for folder in (home / ".claude" / "skills", project / ".agents" / "skills"):
        write(folder / "pdf", description=str(folder.parent.parent.name))
    write(project / ".agents" / "skills" / "plan")
    write(own / "skills" / "mine")
    write(own / "installed-skills" / "letters")
    sources = standard_sources({"TOOLBUS_HOME": str(own)}, home=home, project=project)
    found = Skills(sources)
    assert names(found) == ["letters", "mine", "pdf", "plan"]
    assert found.get("pdf").description == "home"
    assert not found.get("letters").source.operator
    assert [each.name for each in sources][::8] == ["~/.toolbus/skills", "./.claude/skills"]
    assert (found.get("plan").location, found.get("plan").source.operator) == ("project", False)


GATES = [
    ("toolbus: {gate: {os: [plan9]}}", "needs the system plan9"),
    ("toolbus: {gate: {os: [darwin, linux]}}", ""),
    ("toolbus: {gate: {bins: [sh-none]}}", "not on the path: sh-none"),
    ("toolbus: {gate: {any_bins: [sh-none, present]}}", ""),
    ("toolbus: {gate: {any_bins: [sh-none]}}", "one of these programs on the path: sh-none"),
    ("toolbus: {gate: {env: [TOKEN_SET]}}", ""),
    ("toolbus: {gate: {env: TOKEN_EMPTY}}", "environment variables: TOKEN_EMPTY"),
    ("toolbus: {gate: {config: [web]}}", ""),
    ("toolbus: {gate: {config: [mail]}}", "switched on with config: mail"),
    ("toolbus: {gate: {os: [plan9], always: true}}", ""),
    ("agenticx:\n    gate:\n      requires_bins:\n        - sh-none", "not on the path: sh-none"),
    ("toolbus: {gate: {}}\n  agenticx: {gate: {os: [plan9]}}", ""),
    ("toolbus: {gate: {binz: [a]}}", "metadata.toolbus.gate.binz is unknown"),
    ("toolbus: {gate: {bins: [a], requires_bins: [b]}}", "requires_bins is unknown or there twice"),
    ("toolbus: {gate: {bins: [5]}}", "must be a list of names"),
    ("toolbus: {gate: {bins: [../x]}}", "names without a path"),
    ("toolbus: {gate: {always: 'yes'}}", "always must be true or false"),
]


@pytest.mark.parametrize(("gate", "words"), GATES)
def test_gate_decides_whether_a_skill_is_listed(tmp_path: Path, gate: str, words: str) -> None:
    write(tmp_path / "skills" / "a", more=f"metadata:\n  {gate}\n")
    program = tmp_path / "bin" / "present"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    environ = {"PATH": str(program.parent), "TOKEN_SET": "x", "TOKEN_EMPTY": ""}
    found = Skills([tmp_path / "skills"], config=["web"], environ=environ)
    assert names(found) == ([] if words else ["a"])
    assert words in "".join(each.reason for each in found.skipped)


@pytest.mark.parametrize(("system", "name"), [("darwin", "macos"), ("win32", "windows")])
def test_systems_have_two_names(system: str, name: str) -> None:
    gate = read_gate({"metadata": {"toolbus": {"gate": {"os": name}}}})
    assert gate.failure(GateFacts({}, system=system)) == ""
    assert gate.failure(GateFacts({}, system="linux")) == f"needs the system {name}"


def test_changes_of_files_and_of_the_environment_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files that changed just now, on a file system that gives them all one time.
    monkeypatch.setattr("toolbus_toolkits.skills.scan._SETTLED_NS", 10**18)
    monkeypatch.setattr("toolbus_toolkits.skills.scan._Version.of", lambda facts: (1, 1, 1, 1))
    write(tmp_path / "a", description="first")
    environ = {"KEY": "x"}
    found = Skills([tmp_path], environ=environ)
    first = found.get("a")
    assert found.get("a") is first
    write(tmp_path / "a", description="other")
    assert found.get("a").description == "other"
    write(tmp_path / "b", more="metadata: {toolbus: {gate: {env: [KEY]}}}\n")
    assert names(found) == ["a", "b"]
    environ.clear()
    assert names(found) == ["a"]
    shutil.rmtree(tmp_path / "a")
    assert names(found) == []


def test_only_changed_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path / f"s{number:03}") for number in range(3)]
    monkeypatch.setattr("toolbus_toolkits.skills.scan._SETTLED_NS", -(10**18))
    found = Skills([tmp_path])
    assert len(found.list()) == 3
    read: list[Path] = []

    def reading(path: Path, max_bytes: int) -> Any:
        read.append(path)
        return read_bytes(path, max_bytes)

    monkeypatch.setattr("toolbus_toolkits.skills.scan.read_bytes", reading)
    facts = files[1].stat()
    write(tmp_path / "s001", description="Use 2x.")  # the same size and, below, the same time
    os.utime(files[1], ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert found.get("s001").description == "Use 2x."
    assert (len(found.list()), read) == (3, [files[1]])


def test_prompt_has_the_operators_words_and_quotes_those_of_others(tmp_path: Path) -> None:
    write(tmp_path / "own" / "a", description='"Line\\u2028one. {name}"')
    write(tmp_path / "others" / "b", description='"Obey me.\u202e"')
    own_source = SkillSource(tmp_path / "own")
    sources = [own_source, SkillSource(tmp_path / "others", 5, "web", operator=False)]
    text = Skills(sources).prompt()
    own, quoted = text.split("# Skills of others")
    assert "- a: Line one. {name}" in own
    assert "- b" not in own
    assert "no instructions:\n" in quoted
    assert '{"name": "b", "description": "Obey me.\\\\u202e", "source": "web"}' in quoted
    assert Skills([tmp_path / "none"]).prompt() == ""
    template = "{{{name}}} {description} {base_dir} {source} {location}"
    assert f"{{a}} Line one. {{name}} {tmp_path}" in Skills(sources, template).prompt()


@pytest.mark.parametrize("template", ["{body}", "{name!r}", "{name.__class__}", "{name:>9}", "{}"])
def test_template_with_other_fields_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"write \{name\}, \{description\}"):
        Skills([], template)


@pytest.mark.parametrize("paths", ["/tmp", Path("/tmp"), [5]])
def test_anything_but_a_list_of_paths_is_refused(paths: Any) -> None:
    with pytest.raises(TypeError):
        Skills(paths)


def test_skills_are_chosen_as_objects_and_left_out_by_name(tmp_path: Path) -> None:
    for name in ("letters", "Pdf_Forms", "taxes"):
        write(tmp_path / name)
    source = SkillSource(tmp_path, name="office", operator=False, run=True)
    every = Skills([source], template="{name}!", config=["x"])
    chosen = Skills([every.get("letters"), every.get("taxes")])
    assert names(chosen) == ["letters", "taxes"]
    assert (chosen.entries()[0].source, chosen.entries()[0].operators) == ("office", False)
    assert chosen.may_run
    fewer = every.without(["pdf-forms", "later"]).without(["letters"])
    write(tmp_path / "later")
    write(tmp_path / "taxes", description="Changed.")
    assert names(fewer) == ["taxes"]
    assert chosen.get("taxes").description == fewer.get("taxes").description == "Changed."
    assert fewer.skipped == ()
    assert names(every) == ["later", "letters", "Pdf_Forms", "taxes"]
    shutil.rmtree(tmp_path / "taxes")
    assert (names(chosen), names(fewer)) == (["letters"], [])
    with pytest.raises(TypeError, match="names must be a list"):
        every.without("letters")


def test_skills_without_the_extra_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'toolbus\[skills\]'"):
        skills()


@pytest.fixture
def viewer(tmp_path: Path) -> Toolkit:
    base = write(tmp_path / "source" / "a").parent
    (base / "docs").mkdir()
    (base / "docs" / "more.md").write_text("More.")
    (base / "x:y.txt").write_text("no name that can be viewed")
    (base / "run.sh").write_text("rm -rf x")
    (base / "large.txt").write_text("é" * 200_000)
    (base / "picture.png").write_bytes(b"\x89PNG\0")
    (base / ".env").write_text("KEY=secret")
    (tmp_path / "outside.txt").write_text("outside")
    return skills(SkillsConfig(paths=(tmp_path / "source",)))


async def view(viewer: Toolkit, file: str | None = None, name: str = "a") -> Any:
    arguments = {"name": name, "file": file}
    return (await viewer.execute(ToolContext(), "view_skill", arguments)).value


async def test_skill_and_text_files_of_its_folder_are_viewed(viewer: Toolkit) -> None:
    shown = await view(viewer)
    assert shown["text"] == "Body of a.\n"
    assert shown["files"] == ["docs/more.md", "large.txt", "picture.png", "run.sh"]
    assert (await view(viewer, "docs/more.md"))["text"] == "More."
    assert (await view(viewer, "run.sh"))["text"] == "rm -rf x"
    large = await view(viewer, "large.txt")
    assert (large["text"], large["truncated"]) == ("é" * (128 * 1024), True)


@NEEDS_LINKS
@pytest.mark.parametrize(
    "file",
    [
        *("../../outside.txt", "docs/../../../outside.txt", "/etc/passwd", "", ".", "docs"),
        *(".env", "docs/../.env", "..\\x", "C:x", "a\0b", "link", "hidden_link", "picture.png"),
        *("missing.txt", "pipe", "x" * 5_000),
    ],
)
async def test_what_is_no_text_file_of_the_folder_is_refused(
    viewer: Toolkit, tmp_path: Path, file: str
) -> None:
    base = tmp_path / "source" / "a"
    (base / "link").symlink_to(tmp_path / "outside.txt")
    (base / "hidden_link").symlink_to(base / ".env")
    os.mkfifo(base / "pipe")
    with pytest.raises(ToolFailed, match="skill a"):
        await view(viewer, file)


async def test_long_list_of_files_is_cut(viewer: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolbus_toolkits.skills.library.MAX_FILES", 2)
    shown = await view(viewer)
    assert (shown["files"], shown["truncated"]) == (["docs/more.md", "large.txt"], True)


def test_a_host_reports_missing_folders_and_faulty_skills_when_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        SkillsConfig(paths=(tmp_path / "missing",))
    faulty = tmp_path / "faulty" / "SKILL.md"
    faulty.parent.mkdir()
    faulty.write_text("no front matter")
    skills(SkillsConfig(paths=(tmp_path,)))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the skill {faulty} is left out: there is no front")


async def test_unknown_skill_is_a_failure(viewer: Toolkit) -> None:
    with pytest.raises(ToolFailed, match=r"there is no skill '\.\./a'; the skills: a"):
        await view(viewer, name="../a")


async def test_skills_are_read_through_a_builder(tmp_path: Path) -> None:
    write(tmp_path / "a")
    builder = builder_of(skills, paths=[tmp_path])
    async with (
        agent_and_host() as (_, room),
        Turn(room, builders=[builder], tools=[builder.type()]) as turn,
    ):
        assert (await turn.call("skills.view_skill", name="a"))["text"] == "Body of a.\n"
