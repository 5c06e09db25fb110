"""Lock files: what counts as a difference, how the file is written, and which files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolbus import DefinitionChanged, LockedToolkit, LockFile
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.wire import ToolkitManifest, ToolManifest

INFO = ToolkitInfo("words", "", "", "1", "d1", True, "ann", 1, ("count",), "acme")


def entry(info: ToolkitInfo = INFO, **fields: Any) -> LockedToolkit:
    schema = {"properties": {"text": {"type": fields.pop("kind", "string")}}}
    names = fields.pop("tools", ("count",))
    text = fields.pop("text", "Counts words.")
    tools = [ToolManifest(name=name, input_schema=schema, description=text) for name in names]
    return LockedToolkit.of(info, ToolkitManifest(name=info.name, tools=tuple(tools), **fields))


CHANGED = replace(INFO, digest="d2")


@pytest.mark.parametrize(
    ("current", "lines"),
    [
        (entry(), []),
        (entry(tools=("count", "hidden")), []),  # visible by other grants: the digest is equal
        (
            entry(replace(INFO, owner="bob", issuer="evil")),
            ["owner: ann (issuer acme) -> bob (issuer evil)"],
        ),
        (
            entry(replace(INFO, issuer="evil")),
            ["owner: ann (issuer acme) -> ann (issuer evil)"],
        ),
        (
            entry(CHANGED, version="2", tools=("upper",), rules=("Be brief.",)),
            [
                "digest: d1 -> d2",
                'version: "" -> "2"',
                'rules: added, ["Be brief."]',
                "- tool count",
                "+ tool upper",
            ],
        ),
        (
            entry(CHANGED, kind="integer", text="Counts."),
            [
                "digest: d1 -> d2",
                '~ tool count: description: "Counts words." -> "Counts."',
                '~ tool count: input_schema/properties/text/type: "string" -> "integer"',
            ],
        ),
    ],
)
def test_difference_names_what_changed(current: LockedToolkit, lines: list[str]) -> None:
    assert entry().differences(current) == lines


def test_difference_of_a_long_text_shows_where_it_changes() -> None:
    line = entry(text="a" * 500 + "b").differences(entry(CHANGED, text="a" * 500 + "c"))[1]
    assert line == f'~ tool count: description: ...{"a" * 30}b" -> ...{"a" * 30}c"'


def test_refusal_lists_a_bounded_number_of_differences() -> None:
    file = LockFile().updated([entry(tools=[f"old{n}" for n in range(300)])])
    current = ToolkitManifest(name="words")
    with pytest.raises(DefinitionChanged, match=r"281 more: `toolbus lock --check`") as caught:
        file.check(CHANGED, current)
    assert len(caught.value.details["difference"]) == 200


def test_file_is_the_same_in_every_order_and_has_no_invisible_characters(tmp_path: Path) -> None:
    toolkits = [entry(text="caf\u00e9\u202e\x07"), entry(replace(INFO, public=False))]
    file = LockFile(path=tmp_path / "toolbus.lock").updated(toolkits)
    text = file.to_text()
    assert LockFile(path=file.path).updated(toolkits[::-1]).to_text() == text
    assert "caf\u00e9\\u202e\\u0007" in text
    file.save()
    assert LockFile.load(file.path) == file


def test_public_toolkit_of_another_owner_takes_the_place_of_an_entry() -> None:
    of_bob = entry(replace(INFO, owner="bob"))
    private = entry(replace(INFO, public=False))
    assert LockFile().updated([entry(), private]).updated([of_bob]).toolkits == (of_bob, private)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "does not exist: `toolbus lock` writes it"),
        (b"\xff", "is not a lock file: .*; remove it"),
        (b"<<<<<<< HEAD", "is not a lock file: Expecting value"),
        (b"[" * 100_000, "is not a lock file"),
        (b'{"lock": 2}', "written by a newer release"),
        (b'{"lock": 1}', "/toolkits: Field required"),
        (b'{"lock": 1, "toolkits": [{"name": 7}]}', "/toolkits/0/name: Input should be a valid"),
    ],
)
def test_file_that_is_no_lock_file_is_refused(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    path = tmp_path / "toolbus.lock"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=text):
        LockFile.load(path)


def test_file_has_one_value_on_a_line() -> None:
    lines = LockFile().updated([entry()]).to_text().splitlines()
    assert json.loads("\n".join(lines))["lock"] == 1
    assert '          "description": "Counts words.",' in lines
