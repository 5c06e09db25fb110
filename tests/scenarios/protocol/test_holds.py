"""PROTOCOL.md, HOLD-1 to HOLD-15: calls that wait for a person, as frames.

How long a call waits, and whose time stands still, is in `tests/room_server/calls/test_holds.py`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import pytest

from support.clients.forged_tokens import KEY
from support.clients.raw_client import RawClient, details_of, raw_participant
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    next_of,
    offer,
    refusal,
    toolkit_of,
)
from toolbus import AgentsGrant, ApiScope, Key, KeyRing
from toolbus.wire import (
    Assess,
    AssessDispatch,
    Call,
    Cancel,
    Dispatch,
    Failed,
    Held,
    Hold,
    Holds,
    Refresh,
    RequestId,
    Result,
    Resumed,
    Send,
    Settle,
    Subscribe,
    pack_body,
    unpack_body,
)
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server

DIGEST = b"d" * 32
BODY = pack_body({"arguments": b"\x80", "reason": "it asks"})
HOSTING = AgentsGrant(register_public_toolkit=True, register_private_toolkit=True, call=True)
CALLING = AgentsGrant(call=True, act_for=("ann",))
MINE: dict[str, Any] = {"approve": ("*",)}
ALL: dict[str, Any] = {"approve_all": ("*",)}
ANSWERS: dict[str, Any] = {"answer": ("echo",)}
OWN: dict[str, Any] = {}
FOR: dict[str, Any] = {"on_behalf_of": "ann"}
NUMBERS = count(100)


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as server:
        yield server
        assert server.server.hub.router.in_flight == 0


class Room:
    """The participants of one test."""

    def __init__(self, server: TestServer, stack: AsyncExitStack) -> None:
        self.server = server
        self._stack = stack
        self.members: dict[str, RawClient] = {}
        self.instances: dict[str, str] = {}

    async def join(
        self, name: str, *, role: str = "user", epoch: int = 1, **grants: Any
    ) -> RawClient:
        """Connect, with the grants of a caller and these; an epoch replaces the last connection."""
        grants.setdefault("agents", CALLING)
        token = self.server.token(name, role=role, api=ApiScope(messaging=True, **grants))
        if epoch == 1:
            self.instances[name] = f"{name}-{next(NUMBERS)}"
        entering = raw_participant(
            self.server,
            token=token,
            instance=self.instances[name],
            epoch=epoch,
            query="&holds=1&assess=1",
        )
        self.members[name] = await self._stack.enter_async_context(entering)
        return self.members[name]

    async def host(self, name: str = "host", manifest: Any = None, **options: Any) -> RawClient:
        """Connect, and host `echo` unless another manifest is given."""
        host = await self.join(name, agents=HOSTING, **ALL)
        await ask(host, offer(manifest, **options))
        return host


@asynccontextmanager
async def room_of(server: TestServer) -> AsyncIterator[Room]:
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        yield Room(server, stack)


def hold_of(dispatch: int | None, **fields: Any) -> Hold:
    """Make a hold; keywords that are not fields of the frame become options."""
    number, kind = fields.pop("id", next(NUMBERS)), fields.pop("kind", "approve")
    digest, body = fields.pop("digest", DIGEST), fields.pop("body", BODY)
    return Hold(RequestId(number), dispatch, kind, digest, body, fields)


async def held(
    caller: RawClient, host: RawClient, call: Call | None = None, **options: Any
) -> tuple[Dispatch, Hold, str]:
    """Let a call wait; return its dispatch, the request of the host, and the id of the hold."""
    dispatch = await call_through(caller, host, call or call_of("echo.say", next(NUMBERS)))
    request = hold_of(dispatch.id, **options)
    host.send_frame(request)
    return dispatch, request, (await next_of(caller, Held)).data["hold"]


def settle_of(hold: str, decision: str = "approve", **fields: Any) -> Settle:
    number, digest = fields.pop("id", next(NUMBERS)), fields.pop("digest", DIGEST)
    return Settle(RequestId(number), hold, decision, digest, fields)


async def decision_of(host: RawClient, request: Hold) -> Any:
    """Read on until a hold is settled by a person, and return the decision."""
    reply = await host.reply_to(request.id)
    assert isinstance(reply, Result), reply
    return unpack_body(reply.body, binary=True)


async def listed(approver: RawClient, **options: Any) -> list[dict[str, Any]]:
    """List all holds that a participant may settle, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = await ask(approver, Holds(RequestId(next(NUMBERS)), options))
        found += page["holds"]
        if page["cursor"] is None:
            return found
        options = {**options, "cursor": page["cursor"]}


# A whole hold


async def test_a_call_waits_until_it_is_approved_with_these_very_bytes(server: TestServer) -> None:
    """HOLD-1 to HOLD-4, HOLD-6, HOLD-8, HOLD-10: controls and bidi marks pass as data."""
    odd = "a\x00\x1b[2J\u202e\u2066\ufeff\ud7ff\n"
    body = pack_body({"arguments": b"\x80", "reason": odd, "preview": odd})
    async with room_of(server) as room:
        alice, host = await room.join("alice", **MINE), await room.host()
        await ask(alice, Subscribe(1, ["holds"]))
        call = call_of("echo.say", 7, purpose=odd)
        dispatch, request, id = await held(alice, host, call, body=body, approvers=["role:user"])
        added = await alice.next_event()
        assert (added.number, added.name) == (1, "hold_added")
        hold = added.data["hold"]
        assert (hold["id"], hold["toolkit"], hold["tool"]) == (id, "echo", "say")
        assert (hold["outcome"], hold["purpose"], hold["digest"]) == ("open", odd, DIGEST)
        assert hold["caller"]["name"] == hold["asked_for"]["name"] == "alice"
        assert hold["owner"] == {"name": "host", "issuer": KEY.iss}
        assert (hold["call_id"], "body" in hold) == (call.call_id, False)
        assert 0 <= hold["age_ms"] <= 300_000 - hold["left_ms"] < 300_000
        shown = (await ask(alice, Holds(2, {"hold": id})))["hold"]
        assert (shown["body"], shown["approvers"]) == (body, ["role:user"])
        changes: dict[str, Any] = {"arguments": pack_body({"text": odd}), "rules": pack_body([])}
        assert await ask(alice, settle_of(id, **changes)) == {"outcome": "approved"}
        decision = await decision_of(host, request)
        assert decision == {"outcome": "approved", "hold": id, "by": decision["by"], **changes}
        assert decision["by"] == hold["caller"]
        answer(host, dispatch)
        assert isinstance(await alice.reply_to(7), Result)
        # Another one is denied, and the reason of the person passes as it is.
        dispatch, request, id = await held(alice, host, call_of("echo.say", 8))
        alice.send_frame(settle_of(id, "deny", reason=odd))
        resumed = await next_of(alice, Resumed)
        assert resumed.data == {"hold": id, "tool": "echo.say", "outcome": "denied"}
        denied = await decision_of(host, request)
        assert (denied["outcome"], denied["reason"]) == ("denied", odd)
        host.send_frame(Failed(dispatch.id, "approval_denied", "no", False, odd, None, None))
        ended = await failure_of(alice, 8)
        assert (ended.code, ended.executed, ended.message) == ("approval_denied", "no", odd)


# Who may settle it

RIGHTS: list[tuple[str, dict[str, Any], dict[str, Any], list[str], str]] = [
    ("alice", MINE, OWN, [], "approved"),
    ("alice", ALL, OWN, [], "approved"),
    ("alice", {}, OWN, [], "approve"),
    ("alice", {"approve": ("other.*", "echo.hear")}, OWN, [], "approve"),
    ("alice", {"approve": ("echo.say",)}, OWN, [], "approved"),
    ("bob", {}, OWN, [], "not_found"),
    ("bob", MINE, OWN, [], "not_found"),
    ("bob", {"approve_all": ("other",)}, OWN, [], "not_found"),
    ("bob", {"approve_all": ("echo",)}, OWN, [], "approved"),
    ("ann", MINE, FOR, [], "approved"),
    ("ann", {}, FOR, [], "approve"),
    ("alice", MINE, FOR, [], "approve_own"),
    ("alice", ALL, FOR, [], "approve_own"),
    ("alice", {**MINE, "approve_own": True}, FOR, [], "approve_all"),
    ("alice", {**ALL, "approve_own": True}, FOR, [], "approved"),
    ("bob", ALL, FOR, [], "approved"),
    ("host", {**ALL, "approve_own": True}, OWN, [], "permission_denied"),
    ("alice", MINE, OWN, ["role:user"], "approved"),
    ("bob", MINE, OWN, ["role:user"], "approved"),
    ("bob", {}, OWN, ["role:user"], "not_found"),
    ("bob", MINE, OWN, ["name:bob"], "approved"),
    ("alice", MINE, OWN, ["name:bob"], "permission_denied"),
    ("carol", ALL, OWN, ["name:bob", "role:agent"], "not_found"),
    ("host", ALL, OWN, ["name:host"], "permission_denied"),
    ("alice", ALL, OWN, ["others"], "permission_denied"),
    ("ann", ALL, FOR, ["others"], "permission_denied"),
    ("alice", {**ALL, "approve_own": True}, FOR, ["others"], "permission_denied"),
    ("bob", MINE, OWN, ["others"], "not_found"),
    ("bob", ALL, OWN, ["others"], "approved"),
    ("bob", MINE, OWN, ["others", "name:bob"], "approved"),
    ("alice", MINE, OWN, ["others", "role:user"], "permission_denied"),
]


# What differs where an answer is asked for.
ANSWER_RIGHTS: list[tuple[str, dict[str, Any], dict[str, Any], list[str], str]] = [
    ("alice", ANSWERS, OWN, [], "answered"),
    ("alice", ALL, OWN, [], "answered"),
    ("alice", MINE, OWN, [], "answer"),
    ("alice", {"answer": ("other",)}, OWN, [], "answer"),
    ("bob", ANSWERS, OWN, [], "not_found"),
    ("bob", ALL, OWN, [], "answered"),
    ("ann", ANSWERS, FOR, [], "answered"),
    ("alice", ANSWERS, FOR, [], "approve_own"),
    ("host", {**ANSWERS, **ALL}, OWN, [], "permission_denied"),
    ("bob", ANSWERS, OWN, ["role:user"], "answered"),
    ("bob", MINE, OWN, ["role:user"], "not_found"),
    ("alice", ANSWERS, OWN, ["name:bob"], "permission_denied"),
    ("alice", {**ANSWERS, **ALL}, OWN, ["others"], "permission_denied"),
]
_ALL_RIGHTS = [("approve", *row) for row in RIGHTS] + [("answer", *row) for row in ANSWER_RIGHTS]


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize(("kind", "name", "grants", "call", "approvers", "expected"), _ALL_RIGHTS)
async def test_who_may_settle_a_hold(  # noqa: PLR0913 - the table's columns
    server: TestServer,
    kind: str,
    name: str,
    grants: dict[str, Any],
    call: dict[str, Any],
    approvers: list[str],
    expected: str,
    visible: bool,
) -> None:
    """HOLD-10, HOLD-11: others cannot tell that there is one: no event, no number, no error of its
    own; whoever may not see its toolkit is such a one.
    """
    async with room_of(server) as room:
        sharing: dict[str, Any] = {"public": False, "shared_with": ["name:alice", "name:ann"]}
        host, alice = await room.host(**({} if visible else sharing)), await room.join("alice")
        await room.join("ann")
        settler = await room.join(name, **grants)
        if not visible:
            call = {**call, "participant": "host"}
            expected = "not_found" if name in ("bob", "carol") else expected
        has_topic = not grants.keys().isdisjoint(("approve", "approve_all", "answer"))
        decision: dict[str, Any] = {"decision": kind}
        if kind == "answer":
            decision["chunk"] = b"\x91\x00"
        await ask(settler, Subscribe(1, ["messages", *["holds"] * has_topic]))
        made = call_of("echo.say", 7, **call)
        dispatch, request, id = await held(alice, host, made, kind=kind, approvers=approvers)
        if expected in ("approved", "answered"):
            assert (await settler.next_event()).data["hold"]["id"] == id
            assert await ask(settler, settle_of(id, **decision)) == {"outcome": expected}
            assert (await decision_of(host, request))["by"]["name"] == name
            answer(host, dispatch)
        else:
            failed = await refusal(settler, settle_of(id, **decision))
            is_grant = expected.startswith(("approve", "answer"))
            assert failed.code == ("permission_denied" if is_grant else expected)
            assert (details_of(failed) or {}) == ({"grant": expected} if is_grant else {})
            unknown = await refusal(settler, settle_of("0" * 16))
            assert (failed.message == unknown.message) is (expected == "not_found")
            read = await refusal(settler, Holds(RequestId(next(NUMBERS)), {"hold": id}))
            assert read.code in (failed.code, "permission_denied")
            host.send_frame(Cancel(request.id, ""))
            await failure_of(host, request.id)
            answer(host, dispatch)
            await alice.reply_to(7)
            await ask(alice, Send(8, name, "note", pack_body(None)))
            event = await settler.next_event()
            assert (event.number, event.name) == (1, "message")


async def test_host_settles_its_own_holds_with_a_development_token_alone() -> None:
    """HOLD-11: one person on one machine tries all of it; `others` holds for that person too."""
    settings = ServerSettings(keys=KeyRing([]), port=0, development_keys=frozenset({KEY.kid}))
    async with running_server(key=KEY, settings=settings) as server, room_of(server) as room:
        alice, host = await room.join("alice", **ALL), await room.host()
        dispatch, request, id = await held(alice, host)
        host.send_frame(settle_of(id))  # the decision comes before the reply to it
        await decision_of(host, request)
        answer(host, dispatch)
        _, request, id = await held(alice, host, call_of("echo.say", 7), approvers=["others"])
        assert (await refusal(alice, settle_of(id))).code == "permission_denied"
        await _reply(room, alice, host, request)


# Refused demands

BAD_HOLDS: list[tuple[dict[str, Any], str]] = [
    ({"dispatch": 1}, "permission_denied"),
    ({"dispatch": "ended"}, "permission_denied"),
    ({"dispatch": "of another host"}, "permission_denied"),
    ({"dispatch": "assessment"}, "permission_denied"),
    ({"dispatch": "held"}, "invalid_arguments"),
    ({"id": 999}, "invalid_arguments"),
    ({"kind": "granted", "tool": "echo.say"}, "permission_denied"),
    ({"kind": "consent"}, "invalid_arguments"),
    ({"digest": b"d" * 31}, "invalid_arguments"),
    ({"body": bytes(256 * 1024 + 1)}, "too_large"),
    ({"approval_ms": "soon"}, "invalid_arguments"),
    ({"approval_ms": 0}, "approval_expired"),
    ({"entered": 1}, "invalid_arguments"),
    ({"approvers": "others"}, "invalid_arguments"),
    ({"approvers": ["everybody"]}, "invalid_arguments"),
    ({"approvers": ["name:"]}, "invalid_arguments"),
    ({"approvers": [7]}, "invalid_arguments"),
    ({"approvers": ["name:a"] * 257}, "invalid_arguments"),
    ({"approvers": ["name:" + "a" * 256] * 32}, "invalid_arguments"),
    ({"dispatch": None}, "invalid_arguments"),
    ({"dispatch": None, "kind": "granted"}, "invalid_arguments"),
    ({"dispatch": None, "kind": "granted", "tool": "echo.say"}, "not_found"),
    ({"dispatch": None, "kind": "granted", "tool": "other.say", "public": True}, "not_found"),
    ({"tool": "echo"}, "invalid_arguments"),
    ({"tool": "echo.say.more"}, "invalid_arguments"),
    ({"tool": "missing.say"}, "not_found"),
    ({"tool": "echo.missing"}, "not_found"),
    ({"tool": "echo.say", "participant": "bob"}, "not_found"),
    ({"tool": "echo.say", "definition": "d" * 65}, "invalid_arguments"),
    ({"tool": "echo.say", "definition": "d" * 64}, "definition_changed"),
]


async def test_demands_that_are_refused_stop_no_time_and_are_shown_to_nobody(
    server: TestServer,
) -> None:
    """HOLD-1, HOLD-2, HOLD-4, HOLD-5, HOLD-12, HOLD-13: and the call goes on as before."""
    async with room_of(server) as room:
        alice, host = await room.join("alice", **MINE), await room.host()
        other = await room.host("other", toolkit_of("other", "say"))
        ids = {"of another host": (await call_through(alice, other, call_of("other.say", 1))).id}
        answer(host, ended := await call_through(alice, host, call_of("echo.say", 2)))
        await alice.reply_to(2)
        alice.send_frame(Assess(3, "c" * 32, "echo", "say", None, b"\x80", None, []))
        ids |= {"ended": ended.id, "assessment": (await next_of(host, AssessDispatch)).id}
        # The most that is shown.
        call, body = call_of("echo.say", 7), bytes(256 * 1024)
        first, request, id = await held(alice, host, call, id=999, body=body)
        ids["held"] = first.id
        free = await call_through(alice, host, call_of("echo.say", 4))
        for fields, code in BAD_HOLDS:
            dispatch = fields.get("dispatch", free.id)
            more = {name: value for name, value in fields.items() if name != "dispatch"}
            bad = hold_of(ids.get(dispatch, dispatch), **more)
            refused = await refusal(host, bad)
            assert (fields, refused.code, refused.executed) == (fields, code, "no")
        assert [hold["id"] for hold in await listed(alice)] == [id]
        answer(host, free)
        assert isinstance(await alice.reply_to(4), Result)
        await _reply(room, alice, host, request)
        for host_of, number in ((other, "of another host"), (host, "assessment")):
            host_of.send_frame(Result(ids[number], pack_body([0])))
        assert isinstance(await alice.reply_to(1), Result)
        assert isinstance(await alice.reply_to(3), Result)


# Refused decisions

BAD_SETTLES: list[tuple[dict[str, Any], str]] = [
    ({"hold": "0" * 16}, "not_found"),
    ({"hold": ""}, "not_found"),
    ({"digest": b"e" * 32}, "invalid_arguments"),
    ({"digest": b""}, "invalid_arguments"),
    ({"decision": "take_back"}, "invalid_arguments"),
    ({"decision": "answer", "chunk": b"\x91\x00"}, "invalid_arguments"),
    ({"chunk": b"\x91\x00"}, "invalid_arguments"),
    ({"decision": ""}, "invalid_arguments"),
    ({"decision": "deny", "reason": "r" * 2_001}, "invalid_arguments"),
    ({"decision": "deny", "reason": 5}, "invalid_arguments"),
    ({"decision": "deny", "arguments": b"\x80"}, "invalid_arguments"),
    ({"decision": "deny", "rules": b"\x90"}, "invalid_arguments"),
    ({"arguments": "{}"}, "invalid_arguments"),
    ({"arguments": bytes(256 * 1024 + 1)}, "too_large"),
    ({"rules": bytes(64 * 1024 + 1)}, "invalid_arguments"),
]


async def test_decisions_that_are_refused_change_nothing(server: TestServer) -> None:
    """HOLD-8: forged, of an unknown hold, with a wrong hash; then the first one counts."""
    async with room_of(server) as room:
        alice, again = await room.join("alice", **MINE), await room.join("alice", **MINE)
        mallory, weak = await room.join("mallory", **MINE), await room.join("bob", **ALL)
        host = await room.host()
        await ask(weak, Refresh(2, server.token("bob", api=ApiScope(approve_all=("*",)))))
        dispatch, request, id = await held(alice, host)
        for fields, code in BAD_SETTLES:
            refused = await refusal(alice, settle_of(**{"hold": id, **fields}))
            assert (fields, refused.code) == (fields, code)
        assert (await refusal(mallory, settle_of(id))).code == "not_found"
        # A cursor is the id of a hold too.
        cursor = base64.urlsafe_b64encode(pack_body([id])).decode()
        forged = await refusal(mallory, Holds(RequestId(8), {"cursor": cursor}))
        assert forged.code == "not_found"
        # Other arguments need the grant to call the tool.
        refused = await refusal(weak, settle_of(id, arguments=b"\x80"))
        assert (refused.code, details_of(refused)) == (
            "permission_denied",
            {"grant": "agents.call"},
        )
        denying: dict[str, Any] = {"decision": "deny", "reason": "no"}
        await ask(alice, settle_of(id, **denying))
        assert (await decision_of(host, request))["outcome"] == "denied"
        # The same of the same identity, by any connection, succeeds again; nothing else does.
        for approver, more, is_same in (
            (alice, denying, True),
            (again, denying, True),
            (alice, {**denying, "reason": "No"}, False),
            (alice, {"decision": "approve"}, False),
            (weak, denying, False),
        ):
            settling = settle_of(id, **more)
            if is_same:
                assert await ask(approver, settling) == {"outcome": "denied"}
                continue
            late = await refusal(approver, settling)
            assert late.code == "already_exists"
            assert details_of(late)["outcome"] == "denied"
            assert details_of(late)["by"]["name"] == "alice"
        shown = (await ask(again, Holds(9, {"hold": id})))["hold"]
        assert (shown["outcome"], shown["reason"], "body" in shown) == ("denied", "no", False)
        answer(host, dispatch)


BAD_ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({}, "invalid_arguments"),
    ({"chunk": "text"}, "invalid_arguments"),
    ({"chunk": bytes(256 * 1024 + 1)}, "too_large"),
    ({"chunk": b"\x91\x00", "rules": b"\x90"}, "invalid_arguments"),
    ({"decision": "approve"}, "invalid_arguments"),
    ({"decision": "deny", "chunk": b"\x91\x00"}, "invalid_arguments"),
]


async def test_an_answer_reaches_its_host_as_it_was_sent_and_once(server: TestServer) -> None:
    """HOLD-15: the server reads nothing of it; what it refuses changes nothing."""
    async with room_of(server) as room:
        alice, again = await room.join("alice", **ANSWERS), await room.join("alice", **ANSWERS)
        mallory, host = await room.join("mallory", **ANSWERS), await room.host()
        await ask(alice, Subscribe(1, ["holds"]))
        dispatch = await call_through(alice, host, call_of("echo.say", 7))
        host.send_frame(request := hold_of(dispatch.id, kind="answer", body=b"\xc1"))
        told = (await next_of(alice, Held)).data
        assert (told["kind"], told["may_settle"]) == ("answer", True)
        id = told["hold"]
        assert (await alice.next_event()).data["hold"]["kind"] == "answer"
        assert [hold["kind"] for hold in await listed(alice)] == ["answer"]
        assert await listed(alice, kind="approve") == []
        assert (await ask(alice, Holds(2, {"hold": id})))["hold"]["body"] == b"\xc1"
        for fields, code in BAD_ANSWERS:
            refused = await refusal(alice, settle_of(id, **{"decision": "answer", **fields}))
            assert (fields, refused.code) == (fields, code)
        answering: dict[str, Any] = {"decision": "answer", "chunk": bytes(256 * 1024)}
        assert (await refusal(mallory, settle_of(id, **answering))).code == "not_found"
        assert await ask(again, settle_of(id, **answering)) == {"outcome": "answered"}
        decision = await decision_of(host, request)
        assert (decision["outcome"], decision["chunk"]) == ("answered", answering["chunk"])
        assert (await next_of(alice, Resumed)).data["outcome"] == "answered"
        assert await ask(alice, settle_of(id, **answering)) == {"outcome": "answered"}
        late = await refusal(again, settle_of(id, decision="answer", chunk=b"\x91\x00"))
        assert (late.code, (details_of(late) or {})["outcome"]) == ("already_exists", "answered")
        answer(host, dispatch)
        assert isinstance(await alice.reply_to(7), Result)


# What ends a hold beside a decision


async def _cancel(_room: Room, alice: RawClient, _host: RawClient, _: Hold) -> None:
    alice.send_frame(Cancel(RequestId(7), ""))
    assert (await failure_of(alice, 7)).executed == "no"


async def _lose_host(_room: Room, alice: RawClient, host: RawClient, _: Hold) -> None:
    host.abort()
    lost = await failure_of(alice, 7)
    assert (lost.code, lost.executed, lost.retryable) == ("host_lost", "no", True)


async def _replace_host(room: Room, alice: RawClient, _host: RawClient, _: Hold) -> None:
    await room.join("host", epoch=2)
    lost = await failure_of(alice, 7)
    assert (lost.code, lost.executed, lost.retryable) == ("host_lost", "no", True)


async def _reply(_room: Room, alice: RawClient, host: RawClient, hold: Hold) -> None:
    assert hold.dispatch is not None
    host.send_frame(Result(RequestId(hold.dispatch), pack_body([0])))
    resumed = await next_of(alice, Resumed)
    assert (resumed.id, resumed.data["outcome"]) == (7, "cancelled")
    assert isinstance(await alice.reply_to(7), Result)


async def _withdraw(room: Room, alice: RawClient, host: RawClient, hold: Hold) -> None:
    host.send_frame(Cancel(hold.id, "no more"))
    assert (await failure_of(host, hold.id)).code == "cancelled"
    await next_of(alice, Resumed)
    again = hold_of(hold.dispatch)
    host.send_frame(again)
    assert (await next_of(alice, Held)).id == 7
    await _reply(room, alice, host, again)


async def _forbid(room: Room, alice: RawClient, host: RawClient, _: Hold) -> None:
    ann = room.members["ann"]
    await ask(ann, Refresh(900, room.server.token("ann", api=ApiScope())))
    assert (await failure_of(alice, 7)).executed == "no"


ENDS: dict[str, tuple[Callable[[Room, RawClient, RawClient, Hold], Awaitable[None]], Any]] = {
    "caller cancels": (_cancel, OWN),
    "host leaves": (_lose_host, OWN),
    "host is replaced": (_replace_host, OWN),
    "host replies": (_reply, OWN),
    "host withdraws": (_withdraw, OWN),
    "principal loses the grant": (_forbid, FOR),
}


@pytest.mark.parametrize("end", ENDS)
async def test_hold_ends_with_its_call(server: TestServer, end: str) -> None:
    """HOLD-1, HOLD-7, HOLD-10, HOLD-14: late decisions say how it ended, and change nothing."""
    act, options = ENDS[end]
    async with room_of(server) as room:
        alice, host, bob = (
            await room.join("alice"),
            await room.host(),
            await room.join("bob", **ALL),
        )
        await room.join("ann")
        await ask(bob, Subscribe(1, ["holds"]))
        _, request, id = await held(alice, host, call_of("echo.say", 7, **options))
        await act(room, alice, host, request)
        outcome = "lost" if act in (_lose_host, _replace_host) else "cancelled"
        event = await bob.next_event()
        while event.name != "hold_settled":
            event = await bob.next_event()
        assert (event.data["hold"]["id"], event.data["hold"]["outcome"]) == (id, outcome)
        late = await refusal(bob, settle_of(id))
        assert (late.code, details_of(late)) == ("already_exists", {"outcome": outcome})
        assert await listed(bob) == []
        assert (await listed(bob, settled=True))[0]["id"] == id


async def test_hold_of_a_caller_that_lost_its_line_is_decided_for_its_next_attempt(
    server: TestServer,
) -> None:
    """HOLD-19, CALL-12."""
    async with room_of(server) as room:
        alice, host = await room.join("alice"), await room.host()
        bob = await room.join("bob", **ALL)
        await ask(bob, Subscribe(1, ["holds"]))
        _, request, id = await held(alice, host, call := call_of("echo.say", 7))
        alice.abort()
        assert (await next_of(host, Cancel)).reason == "caller_gone"
        assert (await failure_of(host, request.id)).code == "cancelled"
        events = [await bob.next_event() for _ in range(2)]
        assert [(event.name, event.data["hold"].get("away")) for event in events] == [
            ("hold_added", None),
            ("hold_added", True),
        ]
        assert [(hold["id"], hold["away"]) for hold in await listed(bob)] == [(id, True)]
        assert await ask(bob, settle_of(id)) == {"outcome": "approved"}
        back = await room.join("alice")
        dispatch, request, again = await held(back, host, call)
        decision = await decision_of(host, request)
        assert (decision["hold"], decision["outcome"]) == (id, "approved")
        assert (await listed(bob, settled=True))[-1]["replaces"] == id != again
        answer(host, dispatch)
        assert isinstance(await back.reply_to(7), Result)


async def test_approver_that_lost_the_grant_or_left_decides_nothing(server: TestServer) -> None:
    """HOLD-11: and gets no further event; another one decides."""
    async with room_of(server) as room:
        alice, host = await room.join("alice"), await room.host()
        bob, carol = await room.join("bob", **ALL), await room.join("carol", **ALL)
        await ask(bob, Subscribe(1, ["holds", "messages"]))
        dispatch, request, id = await held(alice, host, call_of("echo.say", 7))
        assert (await bob.next_event()).data["hold"]["id"] == id
        weak = ApiScope(approve=("*",), messaging=True)
        await ask(bob, Refresh(2, server.token("bob", api=weak)))
        assert (await refusal(bob, settle_of(id))).code == "not_found"
        carol.send_frame(settle_of(id, digest=b"e" * 32))  # and then it leaves
        carol.abort()
        dave = await room.join("dave", **ALL)
        await ask(dave, settle_of(id))
        await decision_of(host, request)
        answer(host, dispatch)
        await alice.reply_to(7)
        await ask(alice, Send(8, "bob", "note", pack_body(None)))
        event = await bob.next_event()
        assert (event.number, event.name) == (2, "message")


# Questions of an agent's own, and rules


OWN_CASES: list[tuple[bool, dict[str, Any]]] = [
    (True, {"tool": "echo.say", "participant": "host", "purpose": "p" * 600}),
    (True, {"tool": "kit.run", "local": True}),
    (False, {"tool": "echo.say", "call_id": "c" * 70}),
    (False, {"tool": "kit.run", "local": True}),
]


@pytest.mark.parametrize(("within", "options"), OWN_CASES)
async def test_agent_asks_about_a_call_that_it_is_about_to_make(
    server: TestServer, within: bool, options: dict[str, Any]
) -> None:
    """HOLD-12: the principal is that of the call it runs, else the agent itself."""
    async with room_of(server) as room:
        alice, _ = await room.join("alice", **MINE), await room.host()
        agent = await room.host("agent", toolkit_of("planner", "plan"))
        await ask(agent, Refresh(3, server.token("agent", api=ApiScope(**MINE, agents=HOSTING))))
        dispatch: Dispatch | None = None
        if within:
            dispatch = await call_through(alice, agent, call_of("planner.plan", 7))
        number = None if dispatch is None else dispatch.id
        requests = [hold_of(number, **options) for _ in range(2)]
        for request in requests:
            agent.send_frame(request)
        approver = alice if within else agent
        first, second = [await _next_hold(approver, number) for number in (1, 2)]
        assert (first["own"], f"{first['toolkit']}.{first['tool']}") == (True, options["tool"])
        assert first["caller"]["name"] == "agent"
        assert first["owner"]["name"] == ("agent" if "local" in options else "host")
        assert first["asked_for"]["name"] == ("alice" if within else "agent")
        assert len(first["definition"]) == (0 if "local" in options else 64)
        assert ("on_behalf_of" in first) is within
        assert len(first.get("purpose", "")) <= 500
        assert len(first.get("call_id", "")) <= 64
        if within:  # an agent that asks cannot answer itself
            refused = await refusal(agent, settle_of(first["id"]))
            assert details_of(refused) == {"grant": "approve_own"}
        else:
            assert (await refusal(alice, settle_of(first["id"]))).code == "not_found"
        approver.send_frame(settle_of(first["id"]))
        approver.send_frame(settle_of(second["id"], "deny"))
        outcomes = [(await decision_of(agent, request))["outcome"] for request in requests]
        assert outcomes == ["approved", "denied"]
        agent.send_frame(hold_of(number, **options))
        if dispatch is None:
            await _next_hold(agent, 1)
            agent.abort()
            return
        answer(agent, dispatch)
        while (frame := await alice.read_frame()) != Result(7, pack_body([0])):
            assert isinstance(frame, Held | Resumed | Result)


async def _next_hold(approver: RawClient, count: int) -> dict[str, Any]:
    """Wait until so many holds are open, and return the last."""
    while len(holds := await listed(approver)) < count:
        pass
    return holds[count - 1]


async def test_approvers_are_named_from_the_issuer_of_who_asks() -> None:
    """HOLD-11, NAME-1: also where the toolkit that is asked about is of another issuer."""
    home = Key.generate(kid="home", iss="https://home", alias="home")
    away = Key.generate(kid="away", iss="https://away", alias="away")
    settings = ServerSettings(keys=KeyRing([away]), port=0)
    async with (
        running_server(key=home, settings=settings) as server,
        room_of(server) as room,
        room_of(TestServer(server.server, away)) as abroad,
    ):
        agent, mine = await room.host("agent"), await room.join("bob", **MINE)
        theirs = await abroad.join("bob", **MINE)
        await abroad.host("host", toolkit_of("away", "say"))
        approvers = ["name:bob", "role:judge", "name:away/ann"]
        agent.send_frame(hold_of(None, tool="away.say", approvers=approvers))
        hold = await _next_hold(mine, 1)
        shown = (await ask(mine, Holds(RequestId(2), {"hold": hold["id"]})))["hold"]
        assert shown["approvers"] == ["name:home/bob", "role:judge", "name:away/ann"]
        assert (await refusal(theirs, settle_of(hold["id"]))).code == "not_found"
        await ask(mine, settle_of(hold["id"]))


async def test_granted_rule_is_listed_until_it_is_taken_back(server: TestServer) -> None:
    """HOLD-13: it stops no time, and has no events."""
    async with room_of(server) as room:
        alice, bob = await room.join("alice", **MINE), await room.join("bob", **MINE)
        host = await room.host()
        await ask(alice, Subscribe(1, ["holds", "messages"]))
        facts = {"tool": "echo.say", "public": True, "name": "alice", "issuer": KEY.iss}
        granted = hold_of(None, kind="granted", **facts)
        host.send_frame(granted)
        await ask(host, Send(2, "alice", "note", pack_body(None)))
        assert (await alice.next_event()).number == 1
        assert await listed(alice) == await listed(bob, kind="granted") == []
        (rule,) = await listed(alice, kind="granted")
        assert (rule["asked_for"]["name"], "caller" in rule) == ("alice", False)
        assert (await ask(alice, Holds(3, {"hold": rule["id"]})))["hold"]["body"] == BODY
        assert (await refusal(alice, settle_of(rule["id"]))).code == "invalid_arguments"
        assert (await refusal(bob, settle_of(rule["id"], "take_back"))).code == "not_found"
        await ask(alice, settle_of(rule["id"], "take_back"))
        assert (await decision_of(host, granted))["outcome"] == "taken_back"


# Many of them


async def test_as_many_holds_as_fit_while_others_call(server: TestServer) -> None:
    """HOLD-9: 64 of a caller, 1,024 of a host; calls of others go on, and all are settled."""
    async with room_of(server) as room:
        host, boss = await room.host(), await room.join("boss", **ALL)
        callers = [await room.join(f"caller-{number}") for number in range(17)]
        for caller in callers[:16]:
            for number in range(64):
                caller.send_frame(call_of("echo.say", number))
        waiting = [await next_of(host, Dispatch) for _ in range(1_024)]
        requests = [hold_of(dispatch.id) for dispatch in waiting]
        for request in requests:
            host.send_frame(request)
        for caller in callers[:16]:
            for _ in range(64):
                await next_of(caller, Held)
        for caller in (callers[0], callers[16]):
            one_more = await call_through(caller, host, call_of("echo.say", 64))
            refused = await refusal(host, hold_of(one_more.id))
            assert (refused.code, refused.executed) == ("quota_exceeded", "no")
            answer(host, one_more)
            assert isinstance(await caller.reply_to(64), Result)
        holds = await listed(boss)
        calls = [
            (dispatch.call_id, unpack_body(dispatch.header["caller"])[1]) for dispatch in waiting
        ]
        assert [(hold["call_id"], hold["caller"]["name"]) for hold in holds] == calls
        for hold in holds:
            boss.send_frame(settle_of(hold["id"]))
        for request in requests:
            assert (await decision_of(host, request))["outcome"] == "approved"
            assert request.dispatch is not None
            host.send_frame(Result(RequestId(request.dispatch), pack_body([0])))
        for caller in callers[:16]:
            assert isinstance(await caller.reply_to(63), Result)


async def test_approver_that_floods_is_refused_and_others_decide(server: TestServer) -> None:
    """HOLD-8, REG-19."""
    async with room_of(server) as room:
        alice, host = await room.join("alice", **MINE), await room.host()
        mallory = await room.join("mallory", **ALL)
        dispatch, request, id = await held(alice, host)
        for number in range(2_001):
            mallory.send_frame(settle_of("0" * 16, id=10_000 + number))
        assert (await failure_of(mallory, 10_000)).code == "not_found"
        assert (await failure_of(mallory, 12_000)).code == "quota_exceeded"
        await ask(alice, settle_of(id))
        await decision_of(host, request)
        answer(host, dispatch)
