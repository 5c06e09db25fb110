"""Installing, replacing and removing bundles: who owns what, and all or nothing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from toolbus_toolkits import bundles
from toolbus_toolkits.bundles import BundleRefused, NotInstalled
from toolbus_toolkits.mcp.config import read_file

SERVER = {"command": "python3", "args": ["server.py"]}
_Tree = dict[str, bytes]


def bundle(folder: Path, /, name: str = "office", version: str = "1.0", **parts: Any) -> Path:
    """Write a bundle with the skills that `skills` names; a skill's text is its version."""
    skills = parts.pop("skills", ["pdf"])
    folder.mkdir(parents=True, exist_ok=True)
    for each in skills:
        path = folder / "skills" / each / "SKILL.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"---\nname: {each}\ndescription: d\n---\n{name} {version}\n")
    manifest = {
        "toolbus_bundle": "1",
        "name": name,
        "version": version,
        "skills": [f"skills/{each}" for each in skills],
        **parts,
    }
    (folder / "toolbus-bundle.yaml").write_text(json.dumps(manifest))
    return folder


def tree(home: Path) -> _Tree:
    """Return all files of a home but the lock."""
    paths = [each for each in home.rglob("*") if each.is_file() and each.name != "bundles.lock"]
    return {str(each.relative_to(home)): each.read_bytes() for each in paths}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


def servers(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "mcp.json").read_text())["mcpServers"]
    return found


def test_a_bundle_is_installed_listed_and_removed(home: Path, source: Path) -> None:
    home.mkdir()
    mine = {"other": 1, "mcpServers": {"mine": {"url": "https://example.org/mcp"}}}
    (home / "mcp.json").write_text(json.dumps(mine))
    bundle(source, mcp_servers={"Files": SERVER})
    plan = bundles.plan_install(source, home=home)
    assert list(tree(home)) == ["mcp.json"]
    shown = "\n".join(plan.lines())
    assert f"write    {home}/installed-skills/pdf/SKILL.md  " in shown
    assert "command  MCP server files: python3 server.py" in shown
    done = plan.apply()
    assert (done.skills_installed, done.mcp_servers_installed) == (("pdf",), ("files",))
    assert servers(home) == {**mine["mcpServers"], "files": SERVER}  # type: ignore[dict-item]
    (listed,) = bundles.list_installed(home=home)
    assert (listed.name, listed.version, listed.origin) == ("office", "1.0", str(source))
    assert not bundles.install(source, home=home).changed
    removed = bundles.uninstall("OFFICE", home=home)
    assert removed.files_removed == ("installed-skills/pdf/SKILL.md",)
    assert json.loads((home / "mcp.json").read_text()) == mine
    assert bundles.list_installed(home=home) == []
    assert not (home / "installed-skills" / "pdf").exists()
    with pytest.raises(NotInstalled, match="there is no bundle 'office'"):
        bundles.uninstall("office", home=home)


def test_what_was_taken_away_is_installed_again(home: Path, source: Path) -> None:
    bundles.install(bundle(source, mcp_servers={"files": SERVER}), home=home)
    before = tree(home)
    for name in ("installed-skills/pdf/SKILL.md", "mcp.json"):
        (home / name).unlink()
        assert bundles.install(source, home=home).changed
        assert tree(home).keys() == before.keys()
    (home / "installed-skills/pdf/SKILL.md").unlink()
    bundles.uninstall("office", home=home)
    assert bundles.install(source, home=home).changed  # in spite of the empty folder


def test_a_command_is_shown_whole(home: Path, source: Path) -> None:
    padded = {"command": "python3", "args": ["-c", "pass", "x" * 2_000, "hidden"]}
    plan = bundles.plan_install(bundle(source, mcp_servers={"files": padded}), home=home)
    assert plan.lines()[-1].endswith(" hidden")
    padded["args"] = ["x" * 10_000, "hidden"]
    with pytest.raises(BundleRefused, match=r"MCP server files: .* more than 10,000 characters"):
        bundles.plan_install(bundle(source, mcp_servers={"files": padded}), home=home)


@pytest.mark.parametrize(("count", "padding"), [(256, 0), (1, 1024 * 1024 - 200)])
def test_mcp_json_stays_readable(home: Path, source: Path, count: int, padding: int) -> None:
    home.mkdir()
    mine = {f"mine-{each}": SERVER for each in range(count)}
    (home / "mcp.json").write_text(json.dumps({"x": "x" * padding, "mcpServers": mine}))
    before = tree(home)
    with pytest.raises(BundleRefused, match=r"mcp\.json would have .* remove others first"):
        bundles.plan_install(bundle(source, mcp_servers={"files": SERVER}), home=home)
    assert tree(home) == before


@pytest.mark.parametrize("key", ["servers", None])
def test_servers_of_the_user_stay_in_the_form_of_their_file(
    home: Path, source: Path, key: str | None
) -> None:
    home.mkdir()
    mine = {"mine": SERVER}
    (home / "mcp.json").write_text(json.dumps({key: mine} if key else mine))
    bundles.install(bundle(source, mcp_servers={"files": SERVER}), home=home)
    assert set(read_file(home / "mcp.json").servers) == {"mine", "files"}
    bundles.uninstall("office", home=home)
    assert json.loads((home / "mcp.json").read_text()) == ({key: mine} if key else mine)


def test_another_version_replaces_what_the_first_one_brought(home: Path, source: Path) -> None:
    bundle(source / "1", skills=["pdf", "old"], mcp_servers={"files": SERVER, "gone": SERVER})
    bundles.install(source / "1", home=home)
    newer = {"command": "python3", "args": ["new.py"]}
    bundle(source / "2", version="2.0", skills=["pdf", "new"], mcp_servers={"files": newer})
    with pytest.raises(BundleRefused, match=r"office 1\.0 is installed, with other content"):
        bundles.install(source / "2", home=home)
    bundles.install(source / "2", home=home, replace=True)
    assert servers(home) == {"files": newer}
    assert {each for each in tree(home) if each.startswith("installed")} == {
        "installed-skills/pdf/SKILL.md",
        "installed-skills/new/SKILL.md",
    }


def test_what_was_changed_since_stays(home: Path, source: Path) -> None:
    bundle(source / "1", skills=["pdf", "old"], mcp_servers={"files": SERVER})
    bundles.install(source / "1", home=home)
    changed = home / "installed-skills" / "old" / "SKILL.md"
    changed.write_text("mine now")
    edited = {"mcpServers": {"files": {**SERVER, "env": {"A": "b"}}}}
    (home / "mcp.json").write_text(json.dumps(edited))
    plan = bundles.plan_install(bundle(source / "2", version="2.0"), home=home, replace=True)
    assert any(f"{changed} was changed: it is kept" in each for each in plan.lines())
    removed = bundles.uninstall("office", home=home)
    assert removed.retained == ("installed-skills/old/SKILL.md", "MCP server files")
    assert changed.read_text() == "mine now"
    assert json.loads((home / "mcp.json").read_text()) == edited


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"name": "other"}, "skills/pdf/SKILL.md belongs to the installed bundle office"),
        (
            {"name": "other", "skills": [], "mcp_servers": {"files": SERVER}},
            "MCP server files belongs to the installed bundle office",
        ),
        ({"name": "other", "skills": ["mine"]}, "skills/mine exists and no bundle has installed"),
        (
            {"name": "other", "skills": [], "mcp_servers": {"mine": SERVER}},
            "mcp.json has an MCP server mine that no bundle has installed",
        ),
        ({"version": "2.0", "skills": ["edited"]}, "skills/edited/SKILL.md was changed: move it"),
        (
            {"version": "2.0", "mcp_servers": {"tuned": {**SERVER, "cwd": "/"}}},
            "MCP server tuned was changed in mcp.json",
        ),
        ({"requires": {"toolbus": ">=99"}}, "it needs toolbus >=99; this is"),
        ({"requires": {"bundles": {"gone": ""}}}, "needs the bundle gone; it is not installed"),
        (
            {"name": "other", "skills": ["b"], "requires": {"bundles": {"Office": ">=2"}}},
            "needs the bundle Office >=2; 1.0 is installed",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_not_the_bundle_s_own_is_not_touched(
    home: Path, source: Path, parts: dict[str, Any], words: str
) -> None:
    entries = {"files": SERVER, "tuned": SERVER}
    bundles.install(bundle(source / "1", skills=["pdf", "edited"], mcp_servers=entries), home=home)
    (home / "installed-skills" / "mine").mkdir()
    (home / "installed-skills" / "mine" / "notes.txt").write_text("mine")
    (home / "installed-skills" / "edited" / "SKILL.md").write_text("mine now")
    mine = {**servers(home), "mine": SERVER, "tuned": {**SERVER, "env": {"A": "b"}}}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": mine}))
    before = tree(home)
    with pytest.raises(BundleRefused, match=words):
        bundles.install(bundle(source / "2", **parts), home=home, replace=True)
    assert tree(home) == before


def test_a_bundle_that_another_one_needs_is_kept(home: Path, source: Path) -> None:
    bundles.install(bundle(source / "1"), home=home)
    needs: dict[str, Any] = {"requires": {"bundles": {"office": "<2"}}}
    bundles.install(bundle(source / "2", name="other", skills=["b"], **needs), home=home)
    with pytest.raises(BundleRefused, match="the bundle other needs it"):
        bundles.uninstall("office", home=home)
    with pytest.raises(BundleRefused, match="the bundle other needs office <2"):
        bundles.install(bundle(source / "3", version="2.0"), home=home, replace=True)


def test_a_plan_is_not_applied_to_a_home_that_has_changed(home: Path, source: Path) -> None:
    plan = bundles.plan_install(bundle(source / "1"), home=home)
    bundles.install(bundle(source / "2", version="0.9"), home=home)
    with pytest.raises(BundleRefused, match="is installed, with other content"):
        plan.apply()
    removal = bundles.plan_uninstall("office", home=home)
    (home / "installed-skills" / "pdf" / "SKILL.md").write_text("mine now")
    with pytest.raises(BundleRefused, match="has changed since the plan was made"):
        removal.apply()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bundles.json", "{", "is damaged"),
        (".bundle-change/journal.json", "{", "is damaged"),
        (".bundle-change/journal.json", "[{}]", "has another form: the journal is damaged"),
        (
            ".bundle-change/journal.json",
            '[{"path": "a", "existed": false, "folders": ["../b"]}]',
            "a folder is not one of its file",
        ),
        ("mcp.json", "{", "is not JSON"),
        ("mcp.json", "[]", "must be an object"),
        ("mcp.json", '{"mcpServers": []}', "must be an object"),
    ],
)
def test_a_damaged_file_of_the_home_is_not_overwritten(
    home: Path, source: Path, name: str, content: str, words: str
) -> None:
    (home / name).parent.mkdir(parents=True)
    (home / name).write_text(content)
    with pytest.raises(BundleRefused, match=words):
        bundles.install(bundle(source), home=home)
    assert (home / name).read_text() == content


@pytest.mark.parametrize("place", ["bundles.json", ".bundle-change/journal.json"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../outside/a.md", "is not a plain path inside"),
        ("avatars/../../outside/a.md", "is not a plain path inside"),
        ("{tmp}/outside/a.md", "is not a plain path inside"),
        ("avatars/a\0.md", "is not a plain path inside"),
        ("", "is not a plain path inside"),
        ("linked/a.md", "leads outside of .* by a link"),
        ("a.md", "leads outside of .* by a link"),
    ],
)
def test_a_path_that_leads_outside_of_the_home_is_refused_when_it_is_read(
    tmp_path: Path, home: Path, place: str, path: str, words: str
) -> None:
    outside = tmp_path / "outside"
    for folder in (outside, home / ".bundle-change"):
        folder.mkdir(parents=True)
    (outside / "a.md").write_text("mine")
    (home / "linked").symlink_to(outside)
    (home / "a.md").symlink_to(outside / "a.md")
    path = path.format(tmp=tmp_path)
    files = {path: hashlib.sha256(b"mine").hexdigest()}
    contents: dict[str, Any] = {
        "bundles.json": {"bundles": {"office": {"name": "office", "files": files}}},
        ".bundle-change/journal.json": [{"path": path, "existed": False, "folders": []}],
    }
    (home / place).write_text(json.dumps(contents[place]))
    with pytest.raises(BundleRefused, match=f"{place}: .*{words}"):
        bundles.uninstall("office", home=home)
    assert tree(outside) == {"a.md": b"mine"}


def test_a_linked_folder_gets_no_bundle_and_a_linked_mcp_file_stays_one(
    tmp_path: Path, home: Path, source: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "real").mkdir()
    home.symlink_to(tmp_path / "real")
    (home / "mcp.json").symlink_to(tmp_path / "mine.json")
    (home / "installed-skills").symlink_to(tmp_path / "outside")
    bundle(source, mcp_servers={"files": SERVER})
    with pytest.raises(BundleRefused, match="put the file, or the folder, in the place of"):
        bundles.install(source, home=home)
    assert list((tmp_path / "outside").iterdir()) == []
    (home / "installed-skills").unlink()
    bundles.install(source, home=home)
    assert (home / "mcp.json").is_symlink()
    assert list(servers(home)) == ["files"]


def test_an_error_half_way_leaves_everything_as_it_was(home: Path, source: Path) -> None:
    bundles.install(bundle(source / "1", skills=["pdf", "old"]), home=home)
    (home / "memory-templates").write_text("a file in the way")
    (source / "2").mkdir()
    (source / "2" / "notes.md").write_text("notes")
    parts: dict[str, Any] = {
        "memory_templates": {"notes": "notes.md"},
        "mcp_servers": {"files": SERVER},
    }
    bundle(source / "2", version="2.0", skills=["pdf", "new"], **parts)
    before = tree(home)
    with pytest.raises(BundleRefused, match=r"memory-templates.*: nothing was changed"):
        bundles.install(source / "2", home=home, replace=True)
    assert tree(home) == before
    assert not (home / "installed-skills" / "new").exists()


_KILLED = """
import os, sys
from pathlib import Path
from toolbus_toolkits import bundles
def dying(call):
    def replacement(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return call(*args, **kwargs)
    return replacement
for line in sys.stdin:
    if os.fork() == 0:
        left = int(line)
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
            setattr(os, name, dying(getattr(os, name)))
        bundles.install(sys.argv[1], home=Path(sys.argv[2]), replace=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@contextmanager
def killed_installs(new: Path, home: Path) -> Iterator[Callable[[int], int]]:
    """Give a function that installs in a process which ends at its n-th change of a folder."""
    command = [sys.executable, "-c", _KILLED, str(new), str(home)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        written, read = process.stdin, process.stdout
        assert written is not None
        assert read is not None

        def install(step: int) -> int:
            print(step, file=written, flush=True)
            return int(read.readline())

        yield install


def test_a_process_that_is_killed_at_any_step_leaves_the_old_or_the_new(
    home: Path, source: Path
) -> None:
    old = bundle(source / "1", skills=["pdf", "old"], mcp_servers={"files": SERVER})
    new = bundle(source / "2", version="2.0", skills=["pdf", "new"], mcp_servers={"web": SERVER})
    bundles.install(old, home=home)
    before = tree(home)
    outcomes: list[str] = []
    code = 9
    with killed_installs(new, home) as install:
        while code == 9:
            code = install(len(outcomes))
            (listed,) = bundles.list_installed(home=home)
            outcomes.append(listed.version)
            if listed.version == "1.0":
                assert tree(home) == before
                assert not (home / "installed-skills" / "new").exists()
                continue
            skills = {each for each in tree(home) if each.startswith("installed")}
            assert skills == {"installed-skills/pdf/SKILL.md", "installed-skills/new/SKILL.md"}
            assert list(servers(home)) == ["web"]
            bundles.install(old, home=home, replace=True)
            before = tree(home)
    assert code == 0
    assert outcomes == sorted(outcomes)
    assert outcomes.count("1.0") > 10
