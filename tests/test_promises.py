"""PROTOCOL.md against `promises.toml` and the code: each promise has tests, each id is a rule."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolbus.errors import ERRORS

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PROTOCOL = ROOT / "sdk" / "toolbus" / "wire" / "PROTOCOL.md"
PROMISES = tomllib.loads((TESTS / "promises.toml").read_text(encoding="utf-8"))
RULE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* ", re.MULTILINE)
RULES = RULE.findall(PROTOCOL.read_text(encoding="utf-8"))
ID = re.compile(r"(?<![\w-])[A-Z]{2,}-\d+(?![\w-]|\.\d)")
# Looks like the id of a rule and is none.
OTHER_WORDS = frozenset({"UTF-8", "SHA-256", "ISO-8601", "ISO-8859"})
NO_TEXT = frozenset({".msgpack", ".pyc", ".png", ".sqlite"})
TABLE_HEAD = "| what fails |"


def tables_of(document: Path) -> list[list[list[str]]]:
    """Return the rows of each table of guarantees in a document, headings first."""
    lines = document.read_text(encoding="utf-8").splitlines()
    firsts = [number for number, line in enumerate(lines) if line.startswith(TABLE_HEAD)]
    found = []
    for first in firsts:
        heads, _, *rest = lines[first : lines.index("", first)]
        found.append(
            [[cell.strip() for cell in line.strip("|").split("|")] for line in (heads, *rest)]
        )
    return found


(TABLE,) = tables_of(PROTOCOL)


def names_in(path: Path) -> set[str]:
    """Return the names of the tests of a file; none if there is no such file."""
    if not path.is_file():
        return set()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    names = {each.name for each in ast.parse(path.read_bytes()).body if isinstance(each, kinds)}
    return {name for name in names if path.name.startswith("test_") and name.startswith("test_")}


def missing(entries: dict[str, list[str]]) -> Iterator[str]:
    """Name the entries whose tests do not exist."""
    files = {test.partition("::")[0] for tests in entries.values() for test in tests}
    known = {f"{file}::{name}" for file in files for name in names_in(TESTS / file)}
    for promise, tests in entries.items():
        yield from (f"{promise}: {test}" for test in tests if test not in known)


@pytest.mark.parametrize(
    ("part", "promised"),
    [("rules", RULES), ("guarantees", [row[0] for row in TABLE[1:]])],
)
def test_each_promise_has_tests_that_exist_and_no_entry_is_stale(
    part: str, promised: list[str]
) -> None:
    entries: dict[str, list[str]] = PROMISES[part]
    assert [*entries] == promised
    assert [promise for promise, tests in entries.items() if not tests] == []
    assert [promise for promise, tests in entries.items() if len({*tests}) < len(tests)] == []
    assert list(missing(entries)) == []


def test_every_rule_has_one_id_and_the_ids_of_a_section_count_from_one() -> None:
    assert len(RULES) > 100
    assert len(set(RULES)) == len(RULES)
    numbers: dict[str, list[int]] = {}
    for rule in RULES:
        section, _, number = rule.partition("-")
        numbers.setdefault(section, []).append(int(number))
    for section, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), section


@pytest.mark.parametrize("folder", ["tests", "sdk", "room_server", "toolkits"])
def test_every_id_that_is_named_is_a_rule(folder: str) -> None:
    known = {*RULES, *OTHER_WORDS}
    unknown: dict[str, set[str]] = {}
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and path.suffix not in NO_TEXT:
            if others := set(ID.findall(path.read_text(encoding="utf-8"))) - known:
                unknown[str(path.relative_to(ROOT))] = others
    assert unknown == {}


def test_tables_for_users_have_the_cells_of_the_protocol() -> None:
    parts = tables_of(ROOT / "docs" / "reference" / "guarantees.md")
    assert [row[0] for row in TABLE] == [row[0] for row in parts[0]]
    columns = {row[0]: row for row in map(list, zip(*TABLE, strict=True))}
    shown = {row[0]: row for part in parts for row in map(list, zip(*part, strict=True))}
    assert shown == columns


def test_the_table_of_guarantees_has_a_cell_for_each_column() -> None:
    assert {len(row) for row in TABLE} == {10}
    assert all(cell for row in TABLE for cell in row)


def test_each_code_in_the_table_of_guarantees_is_one() -> None:
    codes = {code for row in TABLE for cell in row for code in re.findall(r"`([a-z_]+)`", cell)}
    assert codes - {"drain"} <= ERRORS.keys()
