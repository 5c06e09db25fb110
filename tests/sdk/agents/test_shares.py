"""Who loses what where there is too much: the asker who has the most, its oldest first."""

from __future__ import annotations

import pytest

from toolbus.agents.conversation import conversation_key
from toolbus.agents.state_store import Entry, asker_of, beyond_shares
from toolbus.tools.tool_run import LOCAL, Participant


def lost(newest_first: str, most: int, most_bytes: int) -> list[str]:
    """Return who loses how much, of entries such as "ann:3" with 3 bytes."""
    parts = [word.split(":") for word in newest_first.split()]
    entries = [Entry(number, asker, int(size)) for number, (asker, size) in enumerate(parts)]
    beyond = beyond_shares(entries, most, most_bytes)
    return [f"{entry.key} {entry.asker}" for entry in sorted(beyond, key=lambda entry: entry.key)]


@pytest.mark.parametrize(
    ("newest_first", "most", "most_bytes", "expected"),
    [
        ("m:1 a:1", 2, 2, []),
        ("m:1 m:1 m:1 a:1", 3, 9, ["2 m"]),  # the own oldest one, not the oldest of all
        ("a:1 m:1 m:1 m:1 a:1", 3, 9, ["3 m", "4 a"]),
        ("a:1 b:1 c:1 d:1", 3, 9, ["3 d"]),  # askers without number: the oldest one
        ("a:1 b:1 c:1 m:1 m:1", 4, 9, ["4 m"]),
        ("m:1 m:1 a:5 a:1", 9, 6, ["2 a", "3 a"]),
        ("m:4 a:1 m:4 b:1 m:4", 9, 6, ["2 m", "4 m"]),
        ("m:9 a:1 b:1", 9, 5, ["0 m"]),  # one alone is larger than all may be
        ("a:1 m:4 m:4", 1, 6, ["1 m", "2 m"]),
        ("a:0 a:0 b:0", 2, 0, ["1 a"]),
    ],
)
def test_asker_with_the_most_loses_its_oldest(
    newest_first: str, most: int, most_bytes: int, expected: list[str]
) -> None:
    assert lost(newest_first, most, most_bytes) == expected


def test_asker_is_who_asks_and_for_whom_whatever_the_conversation_is_called() -> None:
    ann = Participant("1", "ann", issuer="acme")
    bob = Participant("2", 'b", null, "ob', issuer="acme")
    names = ["", 'x", "y', '\\", "', ", ", "😀" * 200, '"', "\ud800"]
    for caller, principal in ((ann, None), (ann, bob), (bob, ann), (LOCAL, None)):
        found = {asker_of(conversation_key(caller, principal, name)) for name in names}
        assert len(found) == 1
    askers = [(ann, None), (ann, bob), (bob, ann), (bob, None), (LOCAL, None)]
    assert len({asker_of(conversation_key(*asker, "n")) for asker in askers}) == len(askers)
