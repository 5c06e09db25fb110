"""What an avatar gives to an agent, and what each faulty one is refused with."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus_toolkits.bundles import install
from toolbus_toolkits.bundles.avatars import Avatar, AvatarRefused, read_avatar

CLERK = """
name: Clerk
role: writes letters
instructions: Be polite.
skills: [letters]
toolkits: [clock, Files]
require: [ledger]
offer: [clock]
denied_tools: [files.delete, shell]
available: false
model: scripted:letters.jsonl
"""
AGX = """
id: clerk
name: Clerk
role: writes letters
system_prompt: Be polite.
skills_enabled: {letters: true, taxes: false}
tools_enabled: {bash_exec: false, file_read: true, webClick: false, files__write: false}
default_provider: openai
default_model: gpt
pinned: true
color: null
"""
FOLDER = {
    "toolbus-bundle.yaml": 'toolbus_bundle: "1"\nname: office\nversion: "1.0"\n'
    "skills: [letters]\nmcp_servers: {Files: {command: npx}}\navatars: {clerk: clerk.yaml}\n",
    "letters/SKILL.md": "---\nname: letters\ndescription: Writes letters.\n---\nDear all,\n",
    "clerk.yaml": CLERK,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "office"
    for path, text in FOLDER.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    install(folder, home=tmp_path / "home")
    return tmp_path / "home"


def read(home: Path, text: str) -> Avatar:
    (home / "avatars" / "clerk.yaml").write_text(text)
    return read_avatar("clerk", home=home)


def test_an_avatar_says_what_its_agent_has_and_what_it_must_not_call(home: Path) -> None:
    avatar = read_avatar("clerk", home=home)
    assert avatar.instructions == "Your name is Clerk.\nYour role: writes letters\n\nBe polite."
    (skills,) = avatar.skills
    assert [(entry.name, entry.operators) for entry in skills.entries()] == [("letters", False)]
    assert skills.view("letters").text.endswith("Dear all,\n")
    assert (avatar.toolkits, avatar.offer) == (("clock",), ("clock",))
    assert avatar.require == ("files", "ledger")
    assert avatar.denied_tools == ("files.delete", "shell", "*.shell")
    assert (avatar.available, avatar.model) == (False, "scripted:letters.jsonl")
    (note,) = avatar.notes
    assert f"`toolbus host mcp --config {home}/mcp.json`" in note


def test_keys_of_agenticx_mean_what_they_mean_there(home: Path) -> None:
    avatar = read(home, AGX)
    assert avatar.instructions.endswith("Be polite.")
    assert [entry.name for entry in avatar.skills[0].entries()] == ["letters"]
    assert avatar.denied_tools == (
        *("bash_exec", "*.bash_exec", "*.webClick"),
        *("files__write", "*.files__write", "files.write"),
    )
    assert (avatar.toolkits, avatar.require, avatar.model) == ((), (), "openai:gpt")
    assert avatar.notes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tools: [files]", "tools seems to restrict the agent"),
        ("allowed_tools: [files.read]", "allowed_tools seems to restrict"),
        ("enabledTools: []", "enabledTools seems to restrict"),
        ("toolset: {files: {write: false}}", "toolset seems to restrict"),
        ("config: {a: {disallow: [x]}}", "config.a.disallow seems to restrict"),
        ("config: [[{a: {mode: explore}}]]", "config.a.mode seems to restrict"),
        ("permissions: {mode: explore}", "permissions seems to restrict"),
        ("permission_mode: explore", "permission_mode seems to restrict"),
        ("mode: bypass", "mode seems to restrict"),
        ("policy: strict", "policy seems to restrict"),
        ("readOnly: true", "readOnly seems to restrict"),
        ("deniedtool: [x]", "deniedtool seems to restrict the agent, and is not understood: did"),
        ("tools_enabled: [files]", "/tools_enabled: must be names with true or false"),
        ("tools_enabled: {files: 'no'}", "/tools_enabled: must be names with true or false"),
        ("skills: letters", "/skills: must be a list of names"),
        ("skills: [leters]", "skills: 'leters' is not installed: did you mean letters?"),
        (
            "toolkits: [clok]",
            "'clok' is not installed: did you mean clock?; there are clock, codegen, files",
        ),
        ("toolkits: [ledger]", "or write it under `require` where others host it"),
        ("offer: [ledger]", "offer: 'ledger' is not installed"),
        ("offer: ['os:system']", "offer: 'os:system' is not installed"),
        ("require: ['sql@ops']", "require: 'sql@ops' is no name of a toolkit"),
        ("denied_tools: ['mcp (all)']", "denied_tools: 'mcp (all)' is no tool"),
        ("blocked_tools: {x: true}", "/denied_tools"),
        ("instructions: 5", "/instructions: must be text"),
        ("available: never", "/available"),
        ("instructions: a\nsystem_prompt: b", "system_prompt: instructions is there in another"),
        ("instructions: '${cred:org/tool/key}'", "references to credentials are allowed only in"),
        ("- a list", "must be a mapping"),
        ("a: &x [1]\nb: *x", "has an alias"),
        ("a: " + "[" * 40 + "]" * 40, "is nested deeper than 16 levels"),
        ("instructions: " + "x" * 70_000, "has more than 65536 bytes"),
        ("\0", "is a binary file"),
    ],
)
def test_a_faulty_avatar_is_refused_with_its_file_and_key(
    home: Path, text: str, words: str
) -> None:
    with pytest.raises(AvatarRefused) as refused:
        read(home, text)
    assert words in str(refused.value)
    assert str(home / "avatars" / "clerk.yaml") in str(refused.value)


def test_what_is_not_understood_and_harmless_is_noted(home: Path) -> None:
    avatar = read(home, "instruction: a\nworkspace_dir: /x\n_comment: b\n")
    assert [note.partition(": ")[2] for note in avatar.notes] == [
        "instruction is not understood: did you mean instructions?",
        "workspace_dir is not understood",
    ]


def test_nothing_hidden_reaches_the_model(home: Path) -> None:
    assert read(home, 'instructions: "a\\u200bb\\U000e0041"').instructions == "a\\u200bb\\U000e0041"


@pytest.mark.parametrize("name", ["clrek", "../avatars/clerk", "", ".", "clerk\n"])
def test_a_missing_avatar_is_told_with_those_that_there_are(home: Path, name: str) -> None:
    with pytest.raises(
        AvatarRefused, match=r"there is no avatar .*; the avatars are clerk: .*NAME\.yaml"
    ):
        read_avatar(name, home=home)
    (home / "avatars" / "clerk.json").write_text("{}")
    with pytest.raises(AvatarRefused, match=r"has clerk.json and clerk.yaml, both of which are"):
        read_avatar("clerk", home=home)


def test_what_a_bundle_has_brought_and_is_gone_is_told_with_the_command(home: Path) -> None:
    (home / "installed-skills" / "letters" / "SKILL.md").unlink()
    with pytest.raises(AvatarRefused) as refused:
        read_avatar("clerk", home=home)
    assert f"bundle office has it: `toolbus bundle install {home.parent}/office`" in str(
        refused.value
    )
