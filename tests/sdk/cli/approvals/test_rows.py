"""The rows of the live table at terminals of all widths."""

from __future__ import annotations

import pytest

from toolbus.cli.approvals.rows import fitted_words, table_lines

ROWS = [
    {
        "id": "1f4c0000",
        "age": "0:05",
        "tool": "payments.wire",
        "who": "bot for ann",
        "why": "the invoice 17 of may",
        "left": "4:55",
    },
    {"id": "20000000", "age": "1:05", "tool": "a.b", "who": "joe", "why": "", "left": "-"},
]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (
            80,
            [
                "  id         age  tool           who          why                    left",
                "> 1f4c0000  0:05  payments.wire  bot for ann  the invoice 17 of may  4:55",
                "  20000000  1:05  a.b            joe                                    -",
            ],
        ),
        (
            66,
            [
                "  id         age  tool           who          why             left",
                "> 1f4c0000  0:05  payments.wire  bot for ann  the invoice…    4:55",
                "  20000000  1:05  a.b            joe                             -",
            ],
        ),
        (
            43,
            [
                "  id        tool           who         left",
                "> 1f4c0000  payments.wire  bot for…    4:55",
                "  20000000  a.b            joe            -",
            ],
        ),
        (
            40,
            [
                "  id         age  tool           left",
                "> 1f4c0000  0:05  payments.wire  4:55",
                "  20000000  1:05  a.b               -",
            ],
        ),
        (
            21,
            ["  tool           left", "> payments.wire  4:55", "  a.b               -"],
        ),
    ],
)
def test_columns_are_as_wide_as_their_contents_and_no_word_is_broken(
    columns: int, lines: list[str]
) -> None:
    assert table_lines(ROWS, 0, columns) == lines


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [
        ("one two", 7, "one two"),
        ("one two", 6, "one…"),
        ("one two", 4, "one…"),
        ("onetwo", 4, "one…"),
        ("\u6f22\u6f22\u6f22", 5, "\u6f22\u6f22…"),
    ],
)
def test_text_is_cut_between_words(text: str, width: int, fitted: str) -> None:
    assert fitted_words(text, width) == fitted
