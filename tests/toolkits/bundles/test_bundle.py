"""What a bundle says of itself, and what each broken part is refused with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus_toolkits.bundles.bundle import read_bundle
from toolbus_toolkits.bundles.contents import BundleRefused

SKILL = b"---\nname: Pdf Forms\ndescription: Fills forms.\n---\nText.\n"
SERVER = {"command": "npx", "args": ["-y", "files"]}
AGX: dict[str, Any] = {
    "agx_bundle": 1.0,
    "name": "office",
    "version": 0.3,
    "icon": "ignored",
    "components": {
        "skills": [{"path": "skills/pdf/SKILL.md", "description": "Forms."}],
        "mcp_servers": [{"name": "files", "config_path": "mcp/files.json"}],
        "avatars": [{"name": "clerk", "config_path": "avatars/clerk.yaml"}],
        "memory_templates": [{"name": "notes", "path": "memory/notes.md"}],
    },
}
OURS: dict[str, Any] = {
    "toolbus_bundle": "1",
    "name": "office",
    "version": "0.3",
    "skills": ["skills/pdf"],
    "mcp_servers": {"files": SERVER},
    "avatars": {"clerk": "avatars/clerk.yaml"},
    "memory_templates": {"notes": "memory/notes.md"},
}
FILES = {
    "skills/pdf/SKILL.md": SKILL,
    "skills/pdf/scripts/fill.py": b"print()",
    "mcp/files.json": json.dumps({"mcpServers": {"files": SERVER}}).encode(),
    "avatars/clerk.yaml": b"name: clerk",
    "memory/notes.md": b"# Notes",
}


def contents(manifest: dict[str, Any], **changed: bytes) -> dict[str, bytes]:
    name = "agx-bundle.yaml" if "agx_bundle" in manifest else "toolbus-bundle.yaml"
    return {**FILES, name: json.dumps(manifest).encode(), **changed}


@pytest.mark.parametrize("manifest", [AGX, OURS], ids=["agx", "toolbus"])
def test_both_forms_install_the_same(manifest: dict[str, Any]) -> None:
    bundle = read_bundle(contents(manifest))
    assert (bundle.name, bundle.version) == ("office", "0.3")
    assert bundle.servers == {"files": SERVER}
    assert bundle.skills == ["Pdf Forms"]
    assert bundle.files == {
        "installed-skills/pdf-forms/SKILL.md": SKILL,
        "installed-skills/pdf-forms/scripts/fill.py": b"print()",
        "avatars/clerk.yaml": b"name: clerk",
        "memory-templates/notes.md": b"# Notes",
    }


def test_a_path_of_a_manifest_may_name_this_folder_and_end_with_a_slash() -> None:
    plain = with_part(OURS, "skills", ["skills/pdf"])
    decorated = with_part(OURS, "skills", ["./skills/pdf/"])
    assert read_bundle(contents(decorated)).files == read_bundle(contents(plain)).files


def test_a_version_is_kept_without_the_space_around_it() -> None:
    assert read_bundle(contents({**OURS, "version": " 1.0\n"})).version == "1.0"


def test_a_skill_alone_is_a_bundle() -> None:
    text = SKILL.replace(b"---\nText", b"metadata: {version: 2}\n---\nText")
    bundle = read_bundle({"SKILL.md": text, "scripts/a.py": b""})
    assert (bundle.name, bundle.version) == ("pdf-forms", "2")
    assert sorted(bundle.files) == [
        "installed-skills/pdf-forms/SKILL.md",
        "installed-skills/pdf-forms/scripts/a.py",
    ]


def test_a_skill_at_the_top_leaves_the_other_parts_out() -> None:
    top = SKILL.replace(b"Pdf Forms", b"top")
    manifest = {**OURS, "skills": ["SKILL.md", "skills/pdf"]}
    bundle = read_bundle(contents(manifest, **{"SKILL.md": top, "extra.md": b"x"}))
    found = [each for each in bundle.files if each.startswith("installed-skills/top/")]
    assert sorted(found) == [
        "installed-skills/top/SKILL.md",
        "installed-skills/top/extra.md",
        "installed-skills/top/mcp/files.json",
    ]


def test_an_entry_of_an_mcp_server_may_stand_alone_in_its_file() -> None:
    changed = {"mcp/files.json": json.dumps(SERVER).encode()}
    assert read_bundle(contents(AGX, **changed)).servers == {"files": SERVER}


def with_part(manifest: dict[str, Any], part: str, value: Any) -> dict[str, Any]:
    if manifest is AGX:
        return {**AGX, "components": {**AGX["components"], part: value}}
    return {**manifest, part: value}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({**OURS, "name": "../../outside"}, "/name: String should match"),
        ({**OURS, "name": ".."}, "/name: String should match"),
        ({**OURS, "name": "a\u202eb"}, "/name: String should match"),
        ({**OURS, "version": 0.3}, "/version: must be text: put it in quotes"),
        ({**OURS, "version": "new"}, "/version: must be a version"),
        ({**OURS, "toolbus_bundle": "2"}, "/toolbus_bundle: Input should be '1'"),
        ({**OURS, "skils": []}, "/skils: is no key of this form"),
        ({**OURS, "requires": {"toolbus": "new"}}, "/requires/toolbus: must be a range"),
        ({**AGX, "agx_bundle": "3"}, "/agx_bundle: Input should be '1'"),
        ({**AGX, "name": "a/b"}, "/name: String should match"),
        (with_part(OURS, "skills", ["../x"]), "/skills/0: the path '../x' is not a plain path"),
        (with_part(OURS, "skills", ["skills/gone"]), "skills/gone/SKILL.md is in the manifest"),
        (with_part(OURS, "skills", ["skills/pdf", "skills/pdf"]), "two skills 'Pdf Forms'"),
        (with_part(OURS, "avatars", {"../a": "x"}), "/avatars/../a.*: String should match"),
        (with_part(OURS, "avatars", {"a": "memory/notes.md"}), "must be a mapping"),
        (
            with_part(OURS, "avatars", {"a": "avatars/clerk.yaml", "A": "avatars/clerk.yaml"}),
            "twice",
        ),
        (
            with_part(OURS, "mcp_servers", {"x": {}}),
            'MCP server x: .*"command"',
        ),
        (with_part(OURS, "mcp_servers", {"x": SERVER, "X": {**SERVER}}), "two MCP servers 'x'"),
        (
            with_part(OURS, "mcp_servers", {"x": {**SERVER, "Trusted": True}}),
            "MCP server x: only who hosts it can say that it is trusted",
        ),
        (
            with_part(OURS, "mcp_servers", {"x": {**SERVER, "sandbox": "subprocess"}}),
            "MCP server x: only who hosts it can say what confines it",
        ),
        (
            with_part(OURS, "mcp_servers", {"x": {**SERVER, "env": {"A": "${cred:a/b/c}"}}}),
            "MCP server x: /env/A: references to credentials are allowed only",
        ),
        (with_part(AGX, "skills", [{"path": "/etc/x"}]), "/components/skills/0/path: the path"),
        (with_part(AGX, "skills", ["x"]), "/components/skills/0: Input should be a valid dict"),
        (with_part(AGX, "mcp_servers", [{"name": "x"}]), "config_path: is missing"),
        (
            with_part(AGX, "mcp_servers", [{"name": "x", "config_path": "memory/notes.md"}]),
            "not JSON",
        ),
        (
            with_part(AGX, "avatars", [{"name": "../a", "config_path": "avatars/clerk.yaml"}]),
            "/components/avatars/0/name: String should match",
        ),
        ({"toolbus_bundle": "1", "name": "a", "version": "1"}, "nothing to install"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_bundle_with_a_broken_part_is_refused_whole(manifest: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleRefused, match=words):
        read_bundle(contents(manifest))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "it is no bundle"),
        ({"agx-bundle.yaml": b"", "toolbus-bundle.yaml": b""}, "has both"),
        ({"agx-bundle.yaml": b"\xff"}, "agx-bundle.yaml is not UTF-8 text"),
        ({"agx-bundle.yaml": b"a: &a [b]\nc: *a"}, "agx-bundle.yaml has an alias"),
        ({"agx-bundle.yaml": b"a: 1\na: 2"}, r"the key 'a' occurs twice \(line 1\)"),
        ({"agx-bundle.yaml": b"a: [" * 40}, "agx-bundle.yaml (is nested|is not YAML)"),
        ({"toolbus-bundle.yaml": b"- a"}, "toolbus-bundle.yaml must be a mapping"),
        ({"SKILL.md": b"no front matter"}, "SKILL.md: there is no front matter"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_file_that_is_no_manifest_is_refused(files: dict[str, bytes], words: str) -> None:
    with pytest.raises(BundleRefused, match=words):
        read_bundle(files)
