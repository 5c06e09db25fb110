"""Frames that are nearly valid: every kind that a client may send, with changed fields.

Values that only a running conversation knows are placeholders, which `settled` replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from toolbus.wire import pack_body
from toolbus.wire.frames import (
    FROM_CLIENT,
    KINDS,
    Admin,
    Assess,
    Attributes,
    Builders,
    Call,
    Cancel,
    Credit,
    Describe,
    Drain,
    Explain,
    Failed,
    Frame,
    Hold,
    Holds,
    Input,
    ListToolkits,
    Participants,
    Progress,
    Refresh,
    Register,
    Result,
    Send,
    Settle,
    StreamChunk,
    Subscribe,
    Unregister,
)

NEXT_ID = "@next-id"
"""An id that was not used before."""
DISPATCH = "@dispatch"
"""The id of a call that the sender runs, or of none."""
OWN_TOKEN, OTHER_TOKEN = "@own-token", "@other-token"
CALL_IDS = range(4)
"""The ids of calls: few, so that they coincide."""

_kit = st.sampled_from(["home", "den", "echo", "missing", "", "Home", "h" * 70])
_tool = st.sampled_from(["wait", "say", "missing", "", "a.b"])
_person = st.sampled_from(["mallory", "trudy", "carol", "host", "nobody", "", "\x00"])
_packed = st.sampled_from(
    [pack_body({}), pack_body({"text": "hi"}), b"", b"\xc1", pack_body([1, 2]), b"\x91" * 40]
)
_schema = st.sampled_from([{}, {"type": "object"}, {"type": "numbr"}, {"$ref": "http://127.0.0.1"}])
_manifest = st.builds(
    lambda name, version, schema: pack_body(
        {"name": name, "version": version, "tools": [{"name": "wait", "input_schema": schema}]}
    ),
    st.sampled_from(["home", "den", "Bad"]),
    st.sampled_from(["", "2"]),
    _schema,
)
_topic = st.sampled_from(["toolkits", "participants", "messages", "holds", "weather"])
_digest = st.sampled_from([b"d" * 32, b"d" * 32, b"d" * 32, b""])
_hold = st.sampled_from(["0" * 16, "", "h" * 70])
_traceparent = st.sampled_from([None, f"00-{'a' * 32}-{'b' * 16}-01", "junk"])
_odd = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**64 - 1, 0.5, float("nan")]),
    st.sampled_from(["", "x", "x" * 5_000, b"", b"\xc1", [], {}, [[]], {"a": {"b": [1]}}]),
    st.text(max_size=8),
    st.binary(max_size=8),
)


def _map(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw maps in which each key may be missing, and sometimes another key or value occurs."""
    good = st.fixed_dictionaries({}, optional=dict(values))
    odd = st.dictionaries(st.sampled_from([*values, "new", ""]), _odd, max_size=2)
    return st.one_of(good, good, st.builds(lambda one, two: {**one, **two}, good, odd))


_call_options = _map(
    participant=_person,
    parent=st.just(DISPATCH),
    on_behalf_of=_person,
    pin=st.just("0" * 64),
    attempt=st.integers(0, 2),
    caller_context=_packed,
    affinity=st.just("a"),
    credit_chunks=st.sampled_from([1, 2, 2**40]),
    credit_bytes=st.sampled_from([1, 2**40]),
    idle_ms=st.sampled_from([0, 60_000]),
    input=st.booleans(),
    progress=st.booleans(),
    purpose=st.sampled_from(["", "a trip", "p" * 501]),
    approval_ms=st.sampled_from([0, 50, 2**53]),
)
_id = st.just(NEXT_ID)
_words = st.sampled_from(["", "words", "w" * 5_000])
_cursor = st.sampled_from(["", "bm8=", "x"])
_limit = st.sampled_from([0, 1, 100, 2**40])
_number = st.sampled_from([0, 1, 1, 2, 2**53])

FIELDS: Mapping[type[Frame], tuple[st.SearchStrategy[Any], ...]] = {
    Result: (st.just(DISPATCH), st.one_of(_packed, st.just(pack_body([2, "done"])))),
    Failed: (
        st.just(DISPATCH),
        st.sampled_from(["tool_failed", "overloaded", "not_found", "made_up", ""]),
        st.sampled_from(["no", "maybe", "yes", "perhaps"]),
        st.booleans(),
        _words,
        st.one_of(st.none(), _packed),
        st.sampled_from([None, 0, 50]),
    ),
    Call: (
        st.sampled_from(CALL_IDS),
        st.sampled_from(["a" * 32, "b" * 32, "c" * 32, "", "d" * 65]),
        _kit,
        _tool,
        st.sampled_from([None, 0, 60_000, 2**53]),
        _packed,
        st.one_of(st.none(), _call_options),
        _traceparent,
    ),
    Assess: (
        st.sampled_from(CALL_IDS),
        st.sampled_from(["a" * 32, "", "d" * 65]),
        _kit,
        _tool,
        st.sampled_from([None, 0, 60_000, 2**53]),
        _packed,
        st.one_of(st.none(), _call_options),
        st.lists(st.one_of(_words, _odd), max_size=3),
    ),
    Cancel: (st.sampled_from(CALL_IDS), _words),
    StreamChunk: (st.just(DISPATCH), _number, _packed),
    Input: (st.sampled_from(CALL_IDS), _number, st.one_of(st.none(), _packed), st.booleans()),
    Credit: (st.sampled_from([*CALL_IDS, DISPATCH]), st.booleans(), _number, _limit),
    Progress: (st.just(DISPATCH), _packed),
    Hold: (
        _id,
        st.sampled_from([DISPATCH, DISPATCH, None]),
        st.sampled_from(["approve", "approve", "granted", "answer"]),
        _digest,
        _packed,
        _map(
            approval_ms=st.sampled_from([0, 50, 2**53]),
            approvers=st.lists(st.sampled_from(["others", "name:trudy", "role:user", "x"])),
            entered=st.booleans(),
            tool=st.sampled_from(["home.wait", "echo.say", "missing.say", "home", ""]),
            local=st.booleans(),
            public=st.booleans(),
            name=_person,
            issuer=st.just("acme"),
        ),
    ),
    Holds: (
        _id,
        _map(
            hold=_hold,
            kind=st.sampled_from(["granted", "answer"]),
            settled=st.booleans(),
            limit=_limit,
        ),
    ),
    Settle: (
        _id,
        _hold,
        st.sampled_from(["approve", "deny", "answer", "take_back", ""]),
        _digest,
        _map(reason=_words, arguments=_packed, rules=_packed, chunk=_packed),
    ),
    Register: (
        _id,
        st.one_of(_manifest, _manifest, _packed),
        _map(
            public=st.booleans(),
            shared_with=st.lists(st.sampled_from(["*", "name:trudy", "role:user", "x"])),
            generation=st.sampled_from([1, 7, 2**48]),
            base=st.sampled_from([0, 1, 8]),
            supersede=st.booleans(),
        ),
    ),
    Unregister: (_id, _kit, st.booleans()),
    ListToolkits: (_id, _map(search=_words, limit=_limit, cursor=_cursor)),
    Describe: (_id, _kit, _map(participant=_person, digest=st.just("0" * 64))),
    Subscribe: (_id, st.lists(st.one_of(_topic, _topic, _topic, _odd), max_size=4)),
    Drain: (_id, _map()),
    Refresh: (_id, st.sampled_from([OWN_TOKEN, OTHER_TOKEN, "", "a.b.c"])),
    Explain: (_id, _kit, _tool, _call_options),
    Attributes: (_id, st.dictionaries(st.sampled_from(["a", "b", "", "n" * 65]), _odd, max_size=3)),
    Send: (
        _id,
        st.one_of(st.none(), _person),
        st.sampled_from(["note", "", "a b", "n" * 65]),
        _packed,
    ),
    Participants: (_id, _map(limit=_limit, cursor=_cursor)),
    Builders: (
        _id,
        _map(
            participant=_person,
            offer=st.lists(_map(name=_kit, description=_words, schema=_schema), max_size=2),
        ),
    ),
    Admin: (
        _id,
        st.sampled_from(["rooms", "kick", "revoke", ""]),
        _map(
            room=st.sampled_from(["lab", "den", ""]),
            participant=st.sampled_from(["mallory", "trudy", "nobody"]),
            issuer=st.just("acme"),
            name=st.sampled_from(["trudy", "nobody"]),
            jti=st.just("j"),
        ),
    ),
}
"""Valid fields of each kind, and some whose meaning is refused."""
assert set(FIELDS) == set(FROM_CLIENT), "a kind has come, or gone"


@st.composite
def frames(draw: st.DrawFn, kinds: Sequence[type[Frame]] = tuple(FIELDS)) -> list[Any]:
    """Draw the array of a frame: valid, or with one or two fields changed, missing or added."""
    kind = draw(st.sampled_from(kinds))
    array = [KINDS[kind], *(draw(field) for field in FIELDS[kind])]
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2]))):
        place = draw(st.integers(0 if draw(st.integers(0, 9)) == 9 else 1, len(array) - 1))
        array[place] = draw(_odd)
    if draw(st.integers(0, 14)) == 14:
        array = array[: draw(st.integers(1, len(array)))]
    if draw(st.integers(0, 9)) == 9:
        array.append(draw(_odd))
    return array


@st.composite
def calls(draw: st.DrawFn) -> list[Any]:
    """Draw the array of a call that is likely to run."""
    tool = draw(st.sampled_from([("home", "wait"), ("den", "wait"), ("echo", "say")]))
    options = draw(st.sampled_from([None, {}, {"parent": DISPATCH}, {"attempt": 1}]))
    number = draw(st.sampled_from(CALL_IDS))
    return [KINDS[Call], number, f"{number:032x}", *tool, 60_000, pack_body({}), options]


def replies() -> st.SearchStrategy[list[Any]]:
    """Make strategies of the frames that end a call."""
    return frames((Result, Failed, Cancel))


def settled(value: Any, words: Mapping[str, Any]) -> Any:
    """Replace the placeholders by the conversation's values."""
    if isinstance(value, str):
        return words.get(value, value)
    if isinstance(value, list):
        return [settled(each, words) for each in value]
    if isinstance(value, dict):
        return {key: settled(each, words) for key, each in value.items()}
    return value
