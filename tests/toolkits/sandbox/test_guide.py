"""The guide "Sandbox" says of each backend what the table of the code says."""

from __future__ import annotations

from pathlib import Path

from toolbus_toolkits.sandbox.report import table

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "sandbox.md"


def test_table_of_the_guide_is_that_of_the_code() -> None:
    head = f"| {table()[0][0]} |"
    shown = (head + GUIDE.read_text(encoding="utf-8").partition(head)[2]).partition("\n\n")[0]
    lines = shown.splitlines()
    assert [lines[0], *lines[2:]] == [f"| {' | '.join(row)} |" for row in table()]
