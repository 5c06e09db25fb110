"""PROTOCOL.md against the docstrings of the tests and the code: each promise is held by a test.

The docstring of a test names what the test holds: rules by their ids (`CALL-3`, `REG-22 to
REG-24`), and rows of the table of guarantees by their headings (`guarantee "host is killed"`).
Nothing else lists them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolbus.errors import ERRORS

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PROTOCOL = ROOT / "sdk" / "toolbus" / "wire" / "PROTOCOL.md"
RULE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* ", re.MULTILINE)
RULES = RULE.findall(PROTOCOL.read_text(encoding="utf-8"))
ID = re.compile(r"(?<![\w-])[A-Z]{2,}-\d+(?![\w-]|\.\d)")
RANGE = re.compile(r"([A-Z]{2,})-(\d+) to \1-(\d+)")
GUARANTEE = re.compile(r'guarantee "([^"]+)"', re.IGNORECASE)
# Looks like the id of a rule and is none.
OTHER_WORDS = frozenset({"UTF-8", "UTF-16", "UTF-32", "SHA-256", "ISO-8601", "ISO-8859"})
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


def docstrings() -> Iterator[str]:
    """Yield the docstring of each test that has one, as one line."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test_"):
                    yield " ".join((ast.get_docstring(node) or "").split())


def rules_in(text: str) -> set[str]:
    """Return the ids that a text names, with those within its ranges."""
    within = {
        f"{section}-{number}"
        for section, first, last in RANGE.findall(text)
        for number in range(int(first), int(last) + 1)
    }
    return within.union(ID.findall(text))


DOCSTRINGS = list(docstrings())


def test_each_rule_is_held_by_a_test() -> None:
    held = {rule for text in DOCSTRINGS for rule in rules_in(text)}
    assert [rule for rule in RULES if rule not in held] == []


def test_each_guarantee_is_held_by_a_test_and_no_other_is_named() -> None:
    assert {name for text in DOCSTRINGS for name in GUARANTEE.findall(text)} == {
        row[0] for row in TABLE[1:]
    }


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
