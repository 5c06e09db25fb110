"""Names of participants and roles: which are accepted, and what is said about the others."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.auth.grants import AgentsGrant
from toolbus.auth.participant_names import (
    is_participant_name,
    means,
    name_fault,
    reference_fault,
)

GOOD = [
    *("a", "Zoë", "a b", "a" * 128, "svc:web/7", "ann@example.org", "*"),
    *("日本", "ラーメン 2", "東京 tower", "한국", "Мария", "Ελένη", "שרה", "مريم", "नेहा", "Nguyễn"),
]
BAD: dict[str, list[Any]] = {
    "1 to 128": ["", "a" * 129, None, 1, b"a", ["a"]],
    "printable": ["a\n", "\x00", "a\x7f", "a\u2028", "\ud800", "a\u202eb", "a\u200bb", "a\xadb"],
    "space": [" ", "alice ", " alice", "a  b"],
    "NFKC": ["Zoe\u0308", "\uff41", "\ufb01n", "\u212aim", "a\u2160", "\u3164"],
    "letters, digits": ["a\u2014b", "\U0001f916", "\u2713", "a\u2044b"],
    "invisible": ["a\ufe0f", "a\u034fb", "\u115f", "a\U000e0101"],
    "combining mark": ["\u0301a", "a \u0301"],
    "several scripts": [
        "\u0430lice",
        "alic\u0435",
        "\u0391lice",
        "b\u043eb 2",
        "\u05d0\u0627",
        "a\u0661",
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_names_of_one_script_are_accepted(name: str) -> None:
    """TOKEN-7."""
    assert name_fault(name) is None
    assert is_participant_name(name)


@pytest.mark.parametrize("fault", BAD)
def test_names_that_look_like_another_are_refused_with_the_reason(fault: str) -> None:
    """TOKEN-7."""
    for name in BAD[fault]:
        assert fault in (name_fault(name) or "accepted"), ascii(name)
        assert not is_participant_name(name)


@pytest.mark.parametrize(
    ("text", "own_alias", "is_meant"),
    [("ann", "a", True), ("ann", "b", False), ("a/ann", "b", True), ("b/ann", "a", False)],
)
def test_a_client_reads_names_as_the_server_does(text: str, own_alias: str, is_meant: bool) -> None:
    """NAME-1: in lists that it filters itself."""
    assert means(text, "ann", "a", own_alias) is is_meant
    assert means("a/ann", "a/ann", "", "")
    assert not means("a/ann", "a/ann", "b", "b")


def test_an_alias_and_a_name_may_be_of_two_scripts() -> None:
    assert reference_fault("corp/\u043c\u0430\u0440\u0438\u044f") is None
    assert AgentsGrant(act_for=["corp/\u043c\u0430\u0440\u0438\u044f"]).act_for
    assert reference_fault("Corp/\u043c\u0430\u0440\u0438\u044f") is not None
