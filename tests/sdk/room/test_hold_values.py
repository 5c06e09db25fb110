"""What a client reads of calls that wait; anything else from a server or a host is an error."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import HoldInfo
from toolbus.errors import InvalidResult
from toolbus.room.holds import GrantedHold
from toolbus.tools.approvals import bound_digest
from toolbus.wire import pack_body

PACKED = pack_body({"path": "a"})
WHO = {"id": "1", "name": "ann", "role": "user", "issuer": "acme"}
BODY: dict[str, Any] = {"arguments": PACKED, "reason": "it asks", "suggestions": []}
HOLD: dict[str, Any] = {
    "id": "h",
    "kind": "approve",
    "toolkit": "files",
    "tool": "write",
    "owner": {"name": "ops", "issuer": "acme"},
    "asked_for": {"name": "ann", "issuer": "acme"},
    "definition": "d" * 64,
    "digest": bound_digest("d" * 64, PACKED),
    "outcome": "open",
    "age_ms": 1,
    "left_ms": 2,
    "caller": WHO,
    "on_behalf_of": WHO,
    "by": WHO,
    "forwarded_for": [WHO],
    "call_id": "c",
    "purpose": "p",
    "reason": "r",
    "replaces": "",
    "approvers": ["others"],
    "body": pack_body(BODY),
}
ODD: list[Any] = [5, -1.5, [7], [[]], {"name": 5}, {1: 2}]


@pytest.mark.parametrize("name", HOLD)
@pytest.mark.parametrize("value", ODD)
def test_field_of_another_type_is_an_error(name: str, value: Any) -> None:
    assert HoldInfo.from_wire(HOLD).body is not None
    is_number = name.endswith("_ms") and isinstance(value, int | float)
    if not is_number:
        with pytest.raises(InvalidResult):
            HoldInfo.from_wire({**HOLD, name: value})
    elif name == "age_ms":
        assert HoldInfo.from_wire({**HOLD, name: value}).age_s == value / 1000


@pytest.mark.parametrize("name", BODY)
@pytest.mark.parametrize("value", [*ODD, None, b"\xc1", "text"])
def test_words_of_a_host_of_another_type_are_an_error(name: str, value: Any) -> None:
    if isinstance(value, str) and name == "reason":
        return
    with pytest.raises(InvalidResult):
        HoldInfo.from_wire({**HOLD, "body": pack_body({**BODY, name: value})})


@pytest.mark.parametrize("name", ["id", "tool", "owner", "asked_for", "digest", "age_ms", "body"])
@pytest.mark.parametrize("value", [None, *ODD[2:]])
def test_granted_rule_with_a_field_of_another_type_is_an_error(name: str, value: Any) -> None:
    assert GrantedHold.from_wire({**HOLD, "kind": "granted"}).rule is None  # the words of a host
    with pytest.raises(InvalidResult):
        GrantedHold.from_wire({**HOLD, "kind": "granted", name: value})
