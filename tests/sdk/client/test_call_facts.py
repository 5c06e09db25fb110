"""Span attributes of a call's participants, which are decoded once per caller."""

from __future__ import annotations

from itertools import product

from toolbus.hosting.hosted_call import _span_attributes
from toolbus.telemetry.attributes import CALLER, ON_BEHALF_OF, ROOM
from toolbus.wire import pack_body

CARDS = {name: pack_body([f"id-of-{name}", name, "user", "acme"]) for name in ("ann", "bob")}


def test_caller_room_and_principal_are_distinguished_in_each_call() -> None:
    calls = list(product(("lab", "main"), CARDS, (None, *CARDS)))
    for room, caller, behalf in calls + calls:
        facts = _span_attributes(room, CARDS[caller], None if behalf is None else CARDS[behalf])
        named = {} if behalf is None else {ON_BEHALF_OF: behalf}
        assert facts == {ROOM: room, CALLER: caller, **named}
