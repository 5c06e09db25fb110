"""Writes the golden frames and bodies beside this file; run it with python.

It packs with msgpack alone and writes kind numbers and digests by hand, so that the vectors check
the codec and do not repeat it. A vector is a pair: NAME.json describes the content of NAME.msgpack.
In the JSON a byte string is `{"$bin": "hex"}`. Committed vectors never change; new ones are added.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import msgpack

HERE = Path(__file__).parent
CALL_ID = "6f1c2b0e9d3a4c5b8e7f60718293a4b5"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CLIENT, SERVER = "client", "server"


def pack(value: Any) -> bytes:
    """Pack as every other language would: no ext types, text as str, bytes as bin."""
    return cast(bytes, msgpack.packb(value))


def plain(value: Any) -> Any:
    """Convert a value to a form that JSON can hold."""
    match value:
        case bytes():
            return {"$bin": value.hex()}
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
    "required": ["city"],
    "additionalProperties": False,
}
# No field is at its default: this is the content of the digest, up to the form of
# numbers.
MINIMAL_MANIFEST: dict[str, Any] = {
    "name": "weather",
    "title": "Weather",
    "description": "Forecasts for places \u2014 K\u00f8benhavn too.",
    "rules": ["Use metric units."],
    "annotations": {"unit": "metric", "limits": [1, 2.5, None]},
    "version": "1.2.0",
    "tools": [
        {
            "name": "forecast",
            "description": "Forecast the weather.",
            "input_schema": SCHEMA,
            "read_only": True,
            "idempotent": True,
            "timeout_s": 30,
        },
        {"name": "Stations", "input_schema": {"type": "object"}},
    ],
}
# The same definition with fields at their defaults, an unknown field, and 30 as a
# float: it has the same digest.
VERBOSE_MANIFEST: dict[str, Any] = {
    "from_the_future": True,
    "thumbnail_url": "",
    **MINIMAL_MANIFEST,
    "tools": [
        {
            **MINIMAL_MANIFEST["tools"][0],
            "timeout_s": 30.0,
            "title": "",
            "output_schema": None,
            "rules": [],
            "thumbnail_url": "",
            "supports_context": False,
            "streaming": False,
            "max_concurrency": None,
            "affinity": "none",
            "also_from_the_future": 1,
        },
        {**MINIMAL_MANIFEST["tools"][1], "read_only": False, "idempotent": False},
    ],
}


# Options that a call may send beside its arguments; other releases may not know them.
TAKING_MANIFEST: dict[str, Any] = {
    "name": "files",
    "tools": [
        {
            "name": "keep",
            "input_schema": {"type": "object"},
            "takes": "attachment",
            "takes_required": True,
        },
        {"name": "add", "input_schema": {"type": "object"}, "takes": "input"},
    ],
}

# Flags of tools; a manifest without them has the digest that it had before there were any.
FLAGGED_MANIFEST: dict[str, Any] = {
    "name": "files",
    "tools": [
        {
            "name": "drop",
            "input_schema": {"type": "object"},
            "concurrency_safe": False,
            "destructive": True,
            "open_world": True,
            "external": True,
            "approval": True,
            "cache_ttl_s": 30,
        },
    ],
}
# Annotations of a toolkit and of a tool; empty ones are in no digest.
ANNOTATED_MANIFEST: dict[str, Any] = {
    "name": "files",
    "annotations": {"mcp": "files"},
    "tools": [
        {
            "name": "keep",
            "input_schema": {"type": "object"},
            "annotations": {"mcp": "files", "sizes": [1, None, {"a": True}]},
        },
        {"name": "drop", "input_schema": {"type": "object"}},
    ],
}
# Pictures of a toolkit and of a tool; the digest of a tool without one does not have the field.
PICTURED_MANIFEST: dict[str, Any] = {
    "name": "files",
    "thumbnail_url": "https://example.org/files.png",
    "tools": [
        {
            "name": "keep",
            "input_schema": {"type": "object"},
            "thumbnail_url": "https://example.org/keep.png",
        },
        {"name": "drop", "input_schema": {"type": "object"}},
    ],
}


def canonical(value: Any) -> str:
    """Encode as RFC 8785 does, for the values in these vectors: no exotic numbers or keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


DIGEST = hashlib.sha256(canonical(MINIMAL_MANIFEST).encode()).hexdigest()
SUMMARY = {
    "name": "weather",
    "title": "Weather",
    "description": "Forecasts for places \u2014 K\u00f8benhavn too.",
    "version": "1.2.0",
    "digest": DIGEST,
    "public": True,
    "owner": {"name": "station-7", "issuer": "example"},
    "hosts": 2,
    "tools": ["forecast", "Stations"],
}
ALICE = ["3f9a61c27e5d08b4", "alice", "user", "example"]
PLANNER = ["b80d41e7c6a2935f", "planner", "agent", "example"]
PERSON = {
    "id": PLANNER[0],
    "name": PLANNER[1],
    "role": PLANNER[2],
    "issuer": PLANNER[3],
    "attributes": {"status": "busy"},
    "since": 1_790_000_000_000,
}
NOTE = {"text": "the train is late"}
MESSAGE = {
    "from": pack(PLANNER),
    "name": "note",
    "body": pack(NOTE),
    "direct": True,
    "builders": ["weather"],
}
OFFER = {
    "name": "weather",
    "description": "Forecasts for one place.",
    "schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WELCOME_FACTS = {
    "name": "alice",
    "issuer": "example",
    "role": "user",
    "api": {"agents": {"use_tools": True, "call": True}, "trace": True},
    "limits": {
        "max_frame_bytes": 1_048_576,
        "max_header_bytes": 65_536,
        "max_depth": 32,
        "max_calls": 4_096,
        "max_toolkits": 1_024,
        "max_hops": 16,
        "call_timeout_ms": 60_000,
        "reservation_ms": 30_000,
    },
    "heartbeat_ms": 5_000,
}
ARGUMENTS = {"city": "Oslo", "days": 2}
FULL_OPTIONS = {
    "participant": "station-7",
    "parent": 12,
    "on_behalf_of": "alice",
    "pin": DIGEST,
    "attempt": 1,
    "caller_context": pack({"thread": "t-1"}),
    "tracestate": "vendor=1",
}
STREAM_OPTIONS = {
    "credit_chunks": 256,
    "credit_bytes": 1_048_576,
    "idle_ms": 30_000,
    "input": True,
    "progress": True,
}
STREAM_HEADER = {
    "caller": pack(ALICE),
    "credit_chunks": 256,
    "credit_bytes": 32_768,
    "input": True,
    "progress": True,
}
BARE_HEADER = {"caller": pack(ALICE)}
FULL_HEADER = {
    "caller": pack(PLANNER),
    "private": True,
    "on_behalf_of": pack(ALICE),
    "caller_context": pack({"thread": "t-1"}),
    "attempt": 1,
    "tracestate": "vendor=1",
}
FORWARDED_HEADER = {
    "caller": pack(PLANNER),
    "on_behalf_of": pack(ALICE),
    "forwarded_for": pack([pack(ALICE)]),
}
BUILDERS_HEADER = {
    "caller": pack(PLANNER),
    "on_behalf_of": pack(ALICE),
    "builders": pack([["weather", "sql*"], ["*"]]),
}
REFUSED_DETAILS = {"path": "/days", "message": '"2" is not of type "integer"'}
CALL = (CALL_ID, "weather", "forecast")
# As in WATCH-2: a call that succeeded and is recorded, and a nested one that had no host.
ENDED_CALLS = [
    [CALL_ID, PLANNER[:2], *CALL[1:], ALICE[:2], None, "yes", 2_350, TRACEPARENT, None],
    [CALL_ID[::-1], ALICE[:2], "weather", "forcast", None, "not_found", "no", 0, None, CALL_ID],
]
CALL_NEWS = {
    "in_flight": 1,
    "started": 2,
    "ended": 2,
    "failed": 1,
    "calls": pack(ENDED_CALLS),
}

# As a host answers; `from_the_future` is a key of a newer version.
ASSESSMENT = {
    "behavior": "ask",
    "immune": True,
    "message": "overwrites forecasts.json",
    "preview": "-sun\n+rain\n",
    "suggestions": [{"behavior": "allow", "tool": "weather.forecast", "match": "Oslo:*"}],
    "matches": ["Oslo:*"],
    "parts": [[0], []],
    "from_the_future": [1],
}

# What is asked about a call that waits for a person, and the digest that an approval repeats.
HOLD_ID = "5d0f6c1e2b3a4958"
HOLD_BODY: dict[str, Any] = {
    "arguments": pack(ARGUMENTS),
    "reason": "the rule ask:weather.forecast",
    "message": "overwrites forecasts.json",
    "preview": "-sun\n+rain\n",
    "suggestions": [{"behavior": "allow", "tool": "weather.forecast", "match": "Oslo:*"}],
    "input": True,
}
HOLD_DIGEST = hashlib.sha256(DIGEST.encode() + HOLD_BODY["arguments"]).digest()
QUESTION = {
    "question": "Which days?\n",
    "schema": {"type": "array", "items": {"type": "string"}},
    "options": ["today", "tomorrow"],
    "reason": "the answer of alice does not fit",
}
QUESTION_DIGEST = hashlib.sha256(DIGEST.encode() + pack(QUESTION)).digest()
ANSWER = pack([2, "today"])
CHANGED = pack({"city": "Oslo", "days": 1})
RULES = pack([{"behavior": "allow", "tool": "weather.forecast", "match": "Oslo:*"}])
PEOPLE = [
    {"id": id, "name": name, "role": role, "issuer": issuer}
    for id, name, role, issuer in (ALICE, PLANNER)
]
HOLD = {
    "id": HOLD_ID,
    "kind": "approve",
    "toolkit": "weather",
    "tool": "forecast",
    "owner": {"name": "station-7", "issuer": "example"},
    "definition": DIGEST,
    "digest": HOLD_DIGEST,
    "asked_for": {"name": "alice", "issuer": "example"},
    "age_ms": 1_250,
    "outcome": "open",
    "caller": PEOPLE[1],
    "call_id": CALL_ID,
    "on_behalf_of": PEOPLE[0],
    "purpose": "plan the trip",
    "left_ms": 298_750,
}
SETTLED_HOLD = {
    **{key: value for key, value in HOLD.items() if key != "left_ms"},
    "outcome": "denied",
    "by": PEOPLE[0],
    "reason": "not today",
}
OWN_HOLD = {
    "tool": "weather.forecast",
    "participant": "station-7",
    "definition": DIGEST,
    "call_id": CALL_ID,
    "purpose": "plan the trip",
}

# name: (kind, number, sender, fields)
FRAMES: dict[str, tuple[str, int, list[str], list[Any]]] = {
    "welcome": ("welcome", 1, [SERVER], [1, ALICE[0], "lab", "9c0b7a6d5e4f3021", WELCOME_FACTS]),
    "welcome_development": (
        "welcome",
        1,
        [SERVER],
        [4, ALICE[0], "lab", "9c0b7a6d5e4f3021", {**WELCOME_FACTS, "errors": "text"}],
    ),
    "result": ("result", 2, [CLIENT, SERVER], [7, pack([1, {"city": "Oslo"}])]),
    "result_of_register": (
        "result",
        2,
        [SERVER],
        [1, pack({"digest": DIGEST, "generation": 4})],
    ),
    "result_of_register_in_reserve": (
        "result",
        2,
        [SERVER],
        [
            1,
            pack(
                {
                    "digest": DIGEST,
                    "generation": 7,
                    "base": 4,
                    "serving": False,
                    "instead": {"version": "1.1", "digest": DIGEST[::-1]},
                }
            ),
        ],
    ),
    "result_of_list": (
        "result",
        2,
        [SERVER],
        [3, pack({"toolkits": [SUMMARY], "cursor": None})],
    ),
    "failed": (
        "failed",
        3,
        [CLIENT, SERVER],
        [7, "invalid_arguments", "no", False, "days", pack(REFUSED_DETAILS), None],
    ),
    "failed_bare": (
        "failed",
        3,
        [CLIENT, SERVER],
        [8, "overloaded", "no", True, "the host runs 256 calls", None, 100],
    ),
    "event": ("event", 4, [SERVER], [1, "toolkit_added", {"toolkit": SUMMARY}]),
    "notice": ("notice", 5, [SERVER], ["token_expires", {"left_ms": 780_000}]),
    "call": ("call", 16, [CLIENT], [7, *CALL, 10_000, pack(ARGUMENTS), FULL_OPTIONS, TRACEPARENT]),
    "call_bare": ("call", 16, [CLIENT], [0, *CALL, None, pack({}), None, None]),
    "call_forwarded": (
        "call",
        16,
        [CLIENT],
        [9, *CALL, 10_000, pack(ARGUMENTS), {"parent": 12, "forward": True}, None],
    ),
    "call_largest_id": ("call", 16, [CLIENT], [2**53, *CALL, 2**53, pack({}), {}, None]),
    "dispatch": (
        "dispatch",
        17,
        [SERVER],
        [12, *CALL, 9_998, pack(ARGUMENTS), FULL_HEADER, TRACEPARENT],
    ),
    "dispatch_bare": (
        "dispatch",
        17,
        [SERVER],
        [1, *CALL, None, pack({}), BARE_HEADER, None],
    ),
    "dispatch_forwarded": (
        "dispatch",
        17,
        [SERVER],
        [16, *CALL, 9_997, pack(ARGUMENTS), FORWARDED_HEADER, None],
    ),
    "dispatch_builders": (
        "dispatch",
        17,
        [SERVER],
        [17, *CALL, 9_996, pack(ARGUMENTS), BUILDERS_HEADER, None],
    ),
    "cancel": ("cancel", 18, [CLIENT, SERVER], [7, "cancelled"]),
    "cancel_caller_gone": ("cancel", 18, [SERVER], [12, "caller_gone"]),
    "cancel_deadline": ("cancel", 18, [SERVER], [13, "deadline"]),
    "cancel_broken": ("cancel", 18, [SERVER], [14, "broken"]),
    "call_stream": ("call", 16, [CLIENT], [8, *CALL, None, pack(ARGUMENTS), STREAM_OPTIONS, None]),
    "dispatch_stream": (
        "dispatch",
        17,
        [SERVER],
        [15, *CALL, None, pack(ARGUMENTS), STREAM_HEADER, None],
    ),
    "assess": (
        "assess",
        23,
        [CLIENT],
        [10, *CALL, 5_000, pack(ARGUMENTS), FULL_OPTIONS, ["Oslo:*", "K\u00f8benhavn"]],
    ),
    "assess_bare": ("assess", 23, [CLIENT], [0, *CALL, None, pack({}), None, []]),
    "assess_dispatch": (
        "assess_dispatch",
        24,
        [SERVER],
        [17, *CALL, 4_998, pack(ARGUMENTS), FORWARDED_HEADER, ["Oslo:*", "K\u00f8benhavn"]],
    ),
    "assess_dispatch_bare": (
        "assess_dispatch",
        24,
        [SERVER],
        [18, *CALL, 5_000, pack({}), BARE_HEADER, []],
    ),
    "hold": (
        "hold",
        25,
        [CLIENT],
        [
            3,
            12,
            "approve",
            HOLD_DIGEST,
            pack(HOLD_BODY),
            {"approval_ms": 120_000, "approvers": ["role:user", "others"], "entered": False},
        ],
    ),
    "hold_own": (
        "hold",
        25,
        [CLIENT],
        [4, None, "approve", HOLD_DIGEST, pack(HOLD_BODY), {**OWN_HOLD, "local": False}],
    ),
    "hold_answer": (
        "hold",
        25,
        [CLIENT],
        [6, 12, "answer", QUESTION_DIGEST, pack(QUESTION), {"entered": True}],
    ),
    "hold_granted": (
        "hold",
        25,
        [CLIENT],
        [
            5,
            None,
            "granted",
            HOLD_DIGEST,
            RULES,
            {"tool": "weather.forecast", "public": True, "name": "alice", "issuer": "example"},
        ],
    ),
    "held": (
        "held",
        26,
        [SERVER],
        [
            7,
            {
                "hold": HOLD_ID,
                "kind": "approve",
                "tool": "weather.forecast",
                "left_ms": 300_000,
                "may_settle": True,
            },
        ],
    ),
    "held_and_nobody": ("held", 26, [SERVER], [7, {"hold": HOLD_ID, "nobody": True}]),
    "held_within": ("held", 26, [SERVER], [8, {}]),
    "resumed": (
        "resumed",
        27,
        [SERVER],
        [7, 61_200, {"hold": HOLD_ID, "outcome": "approved"}],
    ),
    "resumed_within": ("resumed", 27, [SERVER], [8, 61_200, {}]),
    "result_of_hold": (
        "result",
        2,
        [SERVER],
        [
            3,
            pack({"outcome": "approved", "by": PEOPLE[0], "arguments": CHANGED, "rules": RULES}),
        ],
    ),
    "result_of_hold_answer": (
        "result",
        2,
        [SERVER],
        [6, pack({"outcome": "answered", "by": PEOPLE[0], "chunk": ANSWER})],
    ),
    "holds": ("holds", 40, [CLIENT], [6, {}]),
    "holds_next_page": (
        "holds",
        40,
        [CLIENT],
        [7, {"kind": "granted", "settled": True, "limit": 20, "cursor": "kQc="}],
    ),
    "holds_of_one": ("holds", 40, [CLIENT], [8, {"hold": HOLD_ID}]),
    "result_of_holds": (
        "result",
        2,
        [SERVER],
        [6, pack({"holds": [HOLD], "cursor": None})],
    ),
    "result_of_holds_of_one": (
        "result",
        2,
        [SERVER],
        [8, pack({"hold": {**HOLD, "body": pack(HOLD_BODY), "approvers": ["others"]}})],
    ),
    "settle": ("settle", 41, [CLIENT], [9, HOLD_ID, "approve", HOLD_DIGEST, {}]),
    "settle_with_changes": (
        "settle",
        41,
        [CLIENT],
        [10, HOLD_ID, "approve", HOLD_DIGEST, {"arguments": CHANGED, "rules": RULES}],
    ),
    "settle_answer": (
        "settle",
        41,
        [CLIENT],
        [12, HOLD_ID, "answer", QUESTION_DIGEST, {"chunk": ANSWER}],
    ),
    "settle_deny": (
        "settle",
        41,
        [CLIENT],
        [11, HOLD_ID, "deny", HOLD_DIGEST, {"reason": "not today"}],
    ),
    "result_of_settle": ("result", 2, [SERVER], [11, pack({"outcome": "denied"})]),
    "failed_settled_already": (
        "failed",
        3,
        [SERVER],
        [
            9,
            "already_exists",
            "no",
            False,
            "this approval was settled already: it is denied by alice",
            pack({"outcome": "denied", "by": PEOPLE[0]}),
            None,
        ],
    ),
    "subscribe_holds": ("subscribe", 36, [CLIENT], [13, ["holds"]]),
    "event_hold_added": ("event", 4, [SERVER], [6, "hold_added", {"hold": HOLD}]),
    "event_hold_settled": ("event", 4, [SERVER], [7, "hold_settled", {"hold": SETTLED_HOLD}]),
    "chunk": ("chunk", 19, [CLIENT, SERVER], [8, 1, pack([1, {"line": "rain"}])]),
    "chunk_of_file": (
        "chunk",
        19,
        [CLIENT, SERVER],
        [9, 1, pack([3, "map.png", "image/png", b"\x89PNG", True])],
    ),
    "input": ("input", 20, [CLIENT, SERVER], [8, 1, pack([1, {"row": 1}]), False]),
    "input_end": ("input", 20, [CLIENT, SERVER], [8, 2, None, True]),
    "credit": ("credit", 21, [CLIENT, SERVER], [8, False, 384, 1_572_864]),
    "credit_of_input": ("credit", 21, [CLIENT, SERVER], [15, True, 256, 32_768]),
    "progress": ("progress", 22, [CLIENT, SERVER], [8, pack([1, {"done": 3, "of": 7}])]),
    "register": (
        "register",
        32,
        [CLIENT],
        [1, pack({"name": "tiny", "tools": []}), {"public": True}],
    ),
    "register_private_again": (
        "register",
        32,
        [CLIENT],
        [
            2,
            pack({"name": "tiny"}),
            {"public": False, "shared_with": ["name:bob", "role:agent"], "generation": 4},
        ],
    ),
    "register_that_supersedes": (
        "register",
        32,
        [CLIENT],
        [3, pack({"name": "tiny", "version": "1.0"}), {"supersede": True}],
    ),
    "register_that_returns": (
        "register",
        32,
        [CLIENT],
        [4, pack({"name": "tiny"}), {"supersede": False, "generation": 7, "base": 4}],
    ),
    "failed_definition_conflict": (
        "failed",
        3,
        [SERVER],
        [
            3,
            "definition_conflict",
            "no",
            False,
            "toolkit tiny has hosts with another definition",
            pack({"version": "1.1", "digest": DIGEST}),
            None,
        ],
    ),
    "notice_serving": (
        "notice",
        5,
        [SERVER],
        [
            "serving",
            {
                "toolkit": "tiny",
                "public": True,
                "serving": False,
                "generation": 7,
                "base": 4,
                "instead": {"version": "1.1", "digest": DIGEST},
            },
        ],
    ),
    "notice_leaving": ("notice", 5, [SERVER], ["leaving", {"grace_ms": 10_000}]),
    "drain": ("drain", 37, [CLIENT], [10, {}]),
    "refresh": ("refresh", 38, [CLIENT], [11, "eyJhbGciOiJIUzI1NiJ9.e30.c2ln"]),
    "explain": ("explain", 39, [CLIENT], [12, "weather", "forecast", {"pin": DIGEST}]),
    "explain_forwarded": (
        "explain",
        39,
        [CLIENT],
        [14, "weather", "forecast", {"parent": 12, "forward": True}],
    ),
    "admin": ("admin", 52, [CLIENT], [13, "kick", {"room": "lab", "participant": "eve"}]),
    "unregister": ("unregister", 33, [CLIENT], [5, "weather", True]),
    "list": ("list", 34, [CLIENT], [3, {}]),
    "list_next_page": (
        "list",
        34,
        [CLIENT],
        [4, {"search": "rain", "limit": 20, "cursor": "lKd3ZWF0aGVywqlzdGF0aW9uLTenZXhhbXBsZQ=="}],
    ),
    "describe": ("describe", 35, [CLIENT], [5, "weather", {}]),
    "describe_known": (
        "describe",
        35,
        [CLIENT],
        [6, "weather", {"participant": "station-7", "digest": DIGEST}],
    ),
    "describe_forwarded": (
        "describe",
        35,
        [CLIENT],
        [7, "weather", {"participant": "station-7", "parent": 12, "forward": True}],
    ),
    "subscribe": ("subscribe", 36, [CLIENT], [9, ["toolkits"]]),
    "subscribe_end": ("subscribe", 36, [CLIENT], [10, []]),
    "subscribe_calls": ("subscribe", 36, [CLIENT], [12, ["calls"]]),
    "subscribe_people": ("subscribe", 36, [CLIENT], [11, ["participants", "messages"]]),
    "event_joined": ("event", 4, [SERVER], [2, "participant_joined", {"participant": PERSON}]),
    "event_left": (
        "event",
        4,
        [SERVER],
        [3, "participant_left", {"participant": {**PERSON, "attributes": {}}}],
    ),
    "event_message": ("event", 4, [SERVER], [4, "message", MESSAGE]),
    "event_calls": ("event", 4, [SERVER], [5, "calls", CALL_NEWS]),
    "attributes": ("attributes", 48, [CLIENT], [12, {"status": "busy", "seat": [3, "B"]}]),
    "attributes_taken_away": ("attributes", 48, [CLIENT], [13, {"status": None}]),
    "send": ("send", 49, [CLIENT], [14, "alice", "note", pack(NOTE)]),
    "send_to_all": ("send", 49, [CLIENT], [15, None, "note", pack(None)]),
    "participants": ("participants", 50, [CLIENT], [16, {}]),
    "participants_next_page": (
        "participants",
        50,
        [CLIENT],
        [17, {"limit": 20, "cursor": "kqVhbGljZbAzZjlhNjFjMjdlNWQwOGI0"}],
    ),
    "builders_offer": ("builders", 51, [CLIENT], [18, {"offer": [OFFER]}]),
    "builders_of": ("builders", 51, [CLIENT], [19, {"participant": "planner"}]),
}

# name: (description, value)
BODIES: dict[str, tuple[str, Any]] = {
    "arguments": ("arguments", ARGUMENTS),
    "arguments_none": ("arguments", {}),
    "calls_of_event": ("calls", ENDED_CALLS),
    "chunk_empty": ("chunk", [0]),
    "chunk_json": ("chunk", [1, {"days": [{"high": -2.5, "dry": True, "note": None}]}]),
    "chunk_json_null": ("chunk", [1, None]),
    "chunk_json_integers": ("chunk", [1, [-(2**63), 2**64 - 1, 2**53, 0, 1.0]]),
    "chunk_json_as_text": (
        "chunk",
        [1, {"wei": "1" + "0" * 23, "ratio": "NaN"}, ["/wei", "/ratio"]],
    ),
    "chunk_json_more_as_text": ("chunk", [1, ["NaN"] * 17, [f"/{n}" for n in range(16)], 1]),
    "chunk_text_as_text": ("chunk", [2, "half \ufffd", [""]]),
    "chunk_mixed": (
        "chunk",
        [
            6,
            [
                pack([1, {"zoom": 3}]),
                pack([2, "a map"]),
                pack([3, "map.png", "image/png", b"\x89PNG"]),
            ],
        ],
    ),
    "chunk_text": ("chunk", [2, "Sn\u00f8 i natt \u2744"]),
    "chunk_file": ("chunk", [3, "map.png", "image/png", b"\x89PNG\r\n\x1a\n"]),
    "chunk_file_piece": ("chunk", [3, "map.png", "image/png", b"\x89PNG", True]),
    "chunk_file_last_piece": ("chunk", [3, "", "", b"\r\n\x1a\n", False]),
    "chunk_link": ("chunk", [4, "Radar", "https://example.org/radar?x=1"]),
    "details": ("details", REFUSED_DETAILS),
    "details_of_several": (
        "details",
        {
            **REFUSED_DETAILS,
            "all": [REFUSED_DETAILS, {"path": "/city", "message": '"city" is required'}],
        },
    ),
    "caller_context": ("caller_context", {"thread": "t-1"}),
    "answer_of_describe": (
        "answer",
        {"toolkit": SUMMARY, "unchanged": True},
    ),
    "answer_of_subscribe": ("answer", {"topics": ["toolkits"]}),
    "answer_of_unregister": ("answer", {}),
    "answer_of_drain": ("answer", {}),
    "answer_of_participants": ("answer", {"participants": [PERSON], "cursor": None}),
    "answer_of_send": ("answer", {"delivered": 2}),
    "answer_of_assess": ("assessment", ASSESSMENT),
    "answer_of_assess_by_flags": ("assessment", {"behavior": "pass", "source": "manifest"}),
    "answer_of_builders": ("answer", {"builders": [OFFER]}),
}
# Each with the minimum from which its digest is computed.
MANIFESTS = {
    "manifest": (MINIMAL_MANIFEST, MINIMAL_MANIFEST),
    "manifest_verbose": (VERBOSE_MANIFEST, MINIMAL_MANIFEST),
    "manifest_takes": (TAKING_MANIFEST, TAKING_MANIFEST),
    "manifest_flags": (FLAGGED_MANIFEST, FLAGGED_MANIFEST),
    "manifest_annotations": (
        {
            **ANNOTATED_MANIFEST,
            "tools": [
                *ANNOTATED_MANIFEST["tools"][:1],
                {**ANNOTATED_MANIFEST["tools"][1], "annotations": {}},
            ],
        },
        ANNOTATED_MANIFEST,
    ),
    "manifest_thumbnails": (PICTURED_MANIFEST, PICTURED_MANIFEST),
}


def nested(levels: int) -> Any:
    """Return nested arrays."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def call_with(options: Any) -> bytes:
    """Pack a call with these options."""
    return pack([16, 7, *CALL, None, pack({}), options])


EXT = msgpack.ExtType(5, b"\x00")
FULL = b"\xff" * 4
UNREAD = "33 levels where nobody reads"
# name: (sender, close code, reason, bytes)
BROKEN: dict[str, tuple[str, int, str, bytes]] = {
    "empty": (CLIENT, 1007, "no value at all", b""),
    "truncated": (CLIENT, 1007, "ends before its last field", pack([18, 7, "cancelled"])[:-3]),
    "trailing_bytes": (CLIENT, 1007, "bytes after the frame", pack([18, 7, "x"]) + b"\x00"),
    "reserved_byte": (CLIENT, 1007, "0xC1 is never used", b"\x93\x12\x07\xc1"),
    "bad_utf8": (CLIENT, 1007, "text that is not UTF-8", b"\x93\x12\x07\xa2\xff\xfe"),
    "str_longer_than_frame": (CLIENT, 1007, "a length of 2^32-1", b"\x93\x12\x07\xdb" + FULL),
    "bin_longer_than_frame": (CLIENT, 1007, "a length of 2^32-1", b"\x93\x02\x07\xc6" + FULL),
    "array_claims_too_much": (CLIENT, 1007, "an array of 2^32-1", b"\x93\x24\x07\xdd" + FULL),
    "map_claims_too_much": (CLIENT, 1007, "a map of 2^32-1", b"\x93\x22\x07\xdf" + FULL),
    "too_many_items": (CLIENT, 1007, "4,097 items in one array", pack([36, 7, [0] * 4097])),
    "ext_type": (CLIENT, 1007, "an ext type", call_with({"future": EXT})),
    "ext_type_as_field": (CLIENT, 1007, "an ext type", pack([18, 7, EXT])),
    "timestamp": (CLIENT, 1007, "the ext type of times", call_with({"x": msgpack.Timestamp(1)})),
    "key_is_no_text": (CLIENT, 1007, "an integer as a key", call_with({1: "x"})),
    "key_is_bytes": (CLIENT, 1007, "bytes as a key", call_with({b"pin": "x"})),
    "nan": (CLIENT, 1007, "NaN in a map", call_with({"future": float("nan")})),
    "infinity": (CLIENT, 1007, "an infinity in a map", call_with({"future": float("-inf")})),
    "too_deep": (CLIENT, 1007, "33 levels, the frame's own included", pack([36, 7, nested(32)])),
    "too_deep_in_map": (CLIENT, 1007, "33 levels", call_with({"future": nested(31)})),
    "far_too_deep": (CLIENT, 1007, "2,000 levels", b"\x91" * 2000 + b"\x90"),
    "too_deep_trailing": (CLIENT, 1007, UNREAD, pack([18, 7, "", nested(32)])),
    "too_deep_unknown_kind": (CLIENT, 1007, UNREAD, pack([99, nested(32)])),
    "not_an_array": (CLIENT, 1002, "a map is no frame", pack({"kind": 18})),
    "no_kind": (CLIENT, 1002, "an empty array", pack([])),
    "kind_is_text": (CLIENT, 1002, "a kind is an integer", pack(["call", 7])),
    "kind_is_bool": (CLIENT, 1002, "a kind is an integer", pack([True, 7])),
    "field_missing": (CLIENT, 1002, "a call without options", pack([16, 7, *CALL, None, b""])),
    "field_of_other_type": (CLIENT, 1002, "bin expected", pack([16, 7, *CALL, None, {}, None])),
    "id_is_bool": (CLIENT, 1002, "an id is an integer", pack([18, True, "x"])),
    "id_is_float": (CLIENT, 1002, "an id is an integer", pack([18, 7.0, "x"])),
    "id_is_nil": (CLIENT, 1002, "an id is an integer", pack([18, None, "x"])),
    "id_negative": (CLIENT, 1002, "an id is not negative", pack([18, -1, "x"])),
    "id_too_large": (CLIENT, 1002, "an id is at most 2^53", pack([18, 2**53 + 1, "x"])),
    "header_too_large": (CLIENT, 1009, "64 KiB, nothing opaque", pack([18, 7, "x" * 65536])),
    "event_data_is_list": (SERVER, 1002, "the data of an event is a map", pack([4, 1, "x", []])),
    "welcome_nan": (SERVER, 1007, "NaN in a map", pack([1, 1, "", "", "", {"x": float("nan")}])),
}  # fmt: skip

# name: (path of the refused value, reason, bytes)
BROKEN_BODIES: dict[str, tuple[str, str, bytes]] = {
    "body_empty": ("", "no value at all", b""),
    "body_trailing_bytes": ("", "bytes after the value", pack({}) + b"\x00"),
    "body_nan": ("/days", "NaN is not JSON", pack({"days": float("nan")})),
    "body_infinity": ("/list/1", "infinities are not JSON", pack({"list": [0, float("inf")]})),
    "body_bytes": ("/data", "arguments are JSON, which has no bytes", pack({"data": b"x"})),
    "body_ext_type": ("", "an ext type", pack({"x": EXT})),
    "body_timestamp": ("/x", "the ext type of times", pack({"x": msgpack.Timestamp(1)})),
    "body_key_is_no_text": ("", "an integer as a key", pack({1: "x"})),
    "body_key_is_bytes": ("/a", "bytes as a key", pack({"a": {b"k": 1}})),
    "body_too_deep": ("/0" * 32, "33 levels", pack(nested(33))),
    "body_far_too_deep": ("", "2,000 levels", b"\x91" * 2000 + b"\x90"),
    "body_claims_too_much": ("", "an array of 2^32-1", b"\xdd" + FULL),
}

# name: (sender, decoded frame, bytes)
TOLERATED: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "trailing_fields": (
        CLIENT,
        {"kind": "cancel", "fields": [7, "cancelled"]},
        pack([18, 7, "cancelled", {"new": [1, b"x"]}, None]),
    ),
    "traceparent_left_out": (
        CLIENT,
        {"kind": "call", "fields": [7, *CALL, None, pack({}), None, None]},
        pack([16, 7, *CALL, None, pack({}), None]),
    ),
    "unknown_option": (
        CLIENT,
        {"kind": "describe", "fields": [7, "weather", {"new": [1, 2.5]}]},
        pack([35, 7, "weather", {"new": [1, 2.5]}]),
    ),
    "wide_integers": (
        CLIENT,
        {"kind": "cancel", "fields": [7, "x"]},
        b"\x93\xd3\x00\x00\x00\x00\x00\x00\x00\x12\xcd\x00\x07\xd9\x01x",
    ),
    "duplicate_keys_last_wins": (
        CLIENT,
        {"kind": "describe", "fields": [7, "w", {"digest": "b"}]},
        b"\x94\x23\x07\xa1w\x82\xa6digest\xa1a\xa6digest\xa1b",
    ),
    "deep_enough": (
        CLIENT,
        {"kind": "subscribe", "fields": [7, nested(31)]},
        pack([36, 7, nested(31)]),
    ),
    "deep_enough_in_map": (
        CLIENT,
        {"kind": "list", "fields": [7, {"future": nested(30)}]},
        pack([34, 7, {"future": nested(30)}]),
    ),
    "deep_enough_trailing": (
        CLIENT,
        {"kind": "cancel", "fields": [7, ""]},
        pack([18, 7, "", nested(31)]),
    ),
    "deep_enough_unknown_kind": (
        CLIENT,
        {"unknown": 99, "id": None},
        pack([99, nested(31)]),
    ),
    "unknown_kind": (CLIENT, {"unknown": 200, "id": 7}, pack([200, 7, "x"])),
    "unknown_kind_without_id": (CLIENT, {"unknown": 200, "id": None}, pack([200, "x"])),
    "kind_of_the_other_side": (CLIENT, {"unknown": 17, "id": 7}, pack([17, 7])),
    # A reserved notice in the past, and a notice of an unknown name today.
    "reserved_kind": (
        SERVER,
        {"kind": "notice", "fields": ["token_expires", {}]},
        pack([5, "token_expires", {}]),
    ),
}


def write(folder: str, name: str, content: dict[str, Any], data: bytes) -> None:
    """Write one pair."""
    place = HERE / folder
    place.mkdir(exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (place / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (place / f"{name}.msgpack").write_bytes(data)


def main() -> None:
    """Write all vectors."""
    for name, (kind, number, senders, fields) in FRAMES.items():
        content = {"kind": kind, "number": number, "from": senders, "fields": plain(fields)}
        write("frames", name, content, pack([number, *fields]))
    for name, (what, value) in BODIES.items():
        write("bodies", name, {"what": what, "value": plain(value)}, pack(value))
    for name, (value, least) in MANIFESTS.items():
        text = canonical(least)
        digest = hashlib.sha256(text.encode()).hexdigest()
        content = {"what": "manifest", "value": plain(value), "digest": digest, "canonical": text}
        write("bodies", name, content, pack(value))
    for name, (sender, code, why, data) in BROKEN.items():
        write("broken", name, {"from": sender, "close_code": code, "why": why}, data)
    for name, (path, why, data) in BROKEN_BODIES.items():
        write("broken_bodies", name, {"path": path, "why": why}, data)
    for name, (sender, reads_as, data) in TOLERATED.items():
        write("tolerated", name, {"from": sender, "reads_as": plain(reads_as)}, data)


if __name__ == "__main__":
    main()
