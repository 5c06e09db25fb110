"""What the spans of a call say of who is in it, which is read once for each caller."""

from __future__ import annotations

from itertools import product

from toolbus.hosted_call import _facts_of
from toolbus.semantics import CALLER, ON_BEHALF_OF, ROOM
from toolbus.wire import pack_body

CARDS = {name: pack_body([f"id-of-{name}", name, "user", "acme"]) for name in ("ann", "bob")}


def test_callers_rooms_and_principals_are_told_apart_each_time() -> None:
    calls = list(product(("lab", "main"), CARDS, (None, *CARDS)))
    for room, caller, behalf in calls + calls:
        facts = _facts_of(room, CARDS[caller], None if behalf is None else CARDS[behalf])
        named = {} if behalf is None else {ON_BEHALF_OF: behalf}
        assert facts == {ROOM: room, CALLER: caller, **named}
