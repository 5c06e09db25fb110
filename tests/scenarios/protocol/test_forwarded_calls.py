"""PROTOCOL.md, CALL-29 to CALL-31: calls that a host forwards for the caller of its own call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
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
    id_of,
    next_of,
    offer,
    refusal,
    toolkit_of,
)
from support.nodes.cluster import nodes
from support.redis.server import any_redis
from toolbus import AgentsGrant, ApiScope
from toolbus.wire import (
    Call,
    Describe,
    Dispatch,
    Explain,
    ListToolkits,
    Result,
    Subscribe,
    unpack_body,
)
from toolbus_server.testing import TestServer, running_server

EVERYTHING: dict[str, Any] = {"call": True, "use_tools": True, "register_public_toolkit": True}


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as server, asyncio.timeout(60):
        yield server


def participant(server: TestServer, name: str, room: str = "lab", **grants: Any) -> Any:
    scope = AgentsGrant(**EVERYTHING, register_private_toolkit=True, **grants)
    token = server.token(name, room=room, api=ApiScope(agents=scope))
    return raw_participant(server, token=token, room=room)


def private(*shared: str) -> dict[str, Any]:
    return {"public": False, "shared_with": [f"name:{each}" for each in shared]}


PUBLIC: dict[str, Any] = {"public": True}
GONE: Any = ("not_found", "toolkit deep not found", {})
LACKS = {"grant": "agents.call", "lacks": "caller"}
LACKS_HOST = {"grant": "agents.call", "lacks": "host", "tool": "deep.say"}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], str, dict[str, Any], Any]] = [
    # whose toolkit `deep` is, how it is registered, what ann and the hub may not call, the outcome
    ("keeper", PUBLIC, {}, "", {}, None),
    ("keeper", PUBLIC, {"deny": ["deep"]}, "", {}, ("no grant to call deep.say", LACKS)),
    ("keeper", PUBLIC, {}, "", {"deny": ["deep.say"]}, ("hub has no grant for", LACKS_HOST)),
    ("keeper", PUBLIC, {"allow": ["out"]}, "", {"deny": ["deep"]}, ("no grant to call", LACKS)),
    ("keeper", private("ann", "hub"), {}, "keeper", {}, None),
    ("keeper", private("ann", "hub"), {}, "", {}, GONE),
    ("keeper", private("ann"), {}, "keeper", {}, GONE),
    ("keeper", private("hub"), {}, "keeper", {}, GONE),
    ("ann", private(), {}, "", {}, GONE),
    ("ann", private("hub"), {}, "", {}, None),
    ("hub", PUBLIC, {}, "", {"deny": ["deep"]}, None),
    ("hub", PUBLIC, {"deny": ["deep"]}, "", {}, ("no grant to call deep.say", LACKS)),
    ("hub", private("ann"), {}, "hub", {"allow": ["x"]}, None),
    ("hub", private("keeper"), {}, "hub", {}, GONE),
    ("hub", private("ann"), {}, "", {}, GONE),
]


@pytest.mark.parametrize(("owner", "offered", "ann_may", "named", "hub_may", "outcome"), ROWS)
async def test_a_forwarded_call_needs_its_asker_and_its_host(  # noqa: PLR0913 - a row
    server: TestServer,
    owner: str,
    offered: dict[str, Any],
    ann_may: dict[str, Any],
    named: str,
    hub_may: dict[str, Any],
    outcome: Any,
) -> None:
    """CALL-29, CALL-30: in calls, explanations and descriptions."""
    async with (
        participant(server, "ann", **ann_may) as ann,
        participant(server, "hub", **hub_may) as hub,
        participant(server, "keeper") as keeper,
    ):
        people = {"ann": ann, "hub": hub, "keeper": keeper}
        await ask(hub, offer(toolkit_of("out", "say")))
        await ask(people[owner], offer(toolkit_of("deep", "say"), 2, **offered))
        outer = await call_through(ann, hub, call_of("out.say", 7))
        options: dict[str, Any] = {"parent": outer.id, "forward": True}
        if named:
            options["participant"] = named
        explained = await ask(hub, Explain(3, "deep", "say", options))
        hub.send_frame(call_of("deep.say", 8, **options))
        hub.send_frame(Describe(9, "deep", options))
        if outcome is None:
            assert explained["would_run"]
            inner = await next_of(people[owner], Dispatch)
            described = await hub.reply_to(9)
            assert isinstance(described, Result)
            found = unpack_body(described.body)
            assert [each["name"] for each in found["manifest"]["tools"]] == ["say"]
            # CALL-31
            assert unpack_body(inner.header["caller"])[0] == id_of(hub)
            assert unpack_body(inner.header["on_behalf_of"])[0] == id_of(ann)
            [first] = unpack_body(inner.header["forwarded_for"], binary=True)
            assert unpack_body(first)[0] == id_of(ann)
            answer(people[owner], inner)
            assert isinstance(await hub.reply_to(8), Result)
            return
        code, words, details = ("permission_denied", *outcome) if len(outcome) == 2 else outcome
        refused = await failure_of(hub, 8)
        assert (refused.code, refused.executed) == (code, "no")
        assert refused.message.startswith(words)
        assert (details_of(refused) or {}) == details == explained["details"]
        assert (explained["code"], explained["message"]) == (code, refused.message)
        undescribed = await failure_of(hub, 9)
        hidden = "permission_denied" if offered is PUBLIC else "not_found"
        assert undescribed.code == (code if code == "not_found" else hidden)


async def test_a_description_has_what_both_may_read(server: TestServer) -> None:
    """REG-15: with `forward`; a tool needs the asker, and the host that asks."""
    async with (
        participant(server, "ann", deny=["deep.a"]) as ann,
        participant(server, "hub", deny=["deep.b"]) as hub,
        participant(server, "keeper") as keeper,
    ):
        await ask(hub, offer(toolkit_of("out", "say")))
        await ask(keeper, offer(toolkit_of("deep", "a", "b", "c")))
        outer = await call_through(ann, hub, call_of("out.say", 7))
        options = {"parent": outer.id, "forward": True}
        described = await ask(hub, Describe(8, "deep", options))
        assert [each["name"] for each in described["manifest"]["tools"]] == ["c"]
        assert described["toolkit"]["tools"] == ["c"]


async def test_a_description_has_the_reserve_that_both_may_see(server: TestServer) -> None:
    """REG-15, REG-14: a definition in reserve is not shown to a host through its caller."""
    first, second = (toolkit_of("deep", "say", version=each) for each in ("1", "2"))
    async with (
        participant(server, "ann") as ann,
        participant(server, "hub") as hub,
        participant(server, "keeper") as one,
        participant(server, "keeper") as two,
    ):
        await ask(hub, offer(toolkit_of("out", "say")))
        await ask(one, offer(first, **private("ann")))
        await ask(two, offer(second, **private("ann", "hub")))
        outer = await call_through(ann, hub, call_of("out.say", 7))
        named = {"participant": "keeper"}
        options = {"parent": outer.id, "forward": True, **named}
        for reader, asked, versions in ((ann, named, ["1"]), (hub, named, []), (hub, options, [])):
            kit = (await ask(reader, Describe(8, "deep", asked)))["toolkit"]
            assert [each["version"] for each in kit.get("reserve", ())] == versions


async def test_a_nested_call_is_explained_as_it_would_be_refused(server: TestServer) -> None:
    """EXPLAIN-1, ERR-9."""
    async with (
        participant(server, "ann") as ann,
        participant(server, "hub", deny=["deep"]) as hub,
        participant(server, "keeper") as keeper,
    ):
        await ask(hub, offer(toolkit_of("out", "say")))
        await ask(keeper, offer(toolkit_of("deep", "say")))
        outer = await call_through(ann, hub, call_of("out.say", 7))
        explained = await ask(hub, Explain(8, "deep", "say", {"parent": outer.id}))
        refused = await refusal(hub, call_of("deep.say", 9, parent=outer.id))
        assert explained["details"] == details_of(refused) == LACKS_HOST


@pytest.mark.parametrize(
    ("options", "code", "path"),
    [
        ({"forward": True}, "invalid_arguments", "/forward"),
        ({"forward": 1, "parent": 1}, "invalid_arguments", "/forward"),
        ({"forward": True, "parent": "1"}, "invalid_arguments", "/parent"),
        ({"forward": True, "parent": 1}, "permission_denied", None),
    ],
)
async def test_only_a_host_that_runs_a_call_forwards(
    server: TestServer, options: dict[str, Any], code: str, path: str | None
) -> None:
    """CALL-29, CALL-14."""
    async with participant(server, "hub") as hub:
        await ask(hub, offer(toolkit_of("deep", "say")))
        for request in (call_of("deep.say", 8, **options), Describe(9, "deep", options)):
            refused = await refusal(hub, request)
            assert (refused.code, refused.executed) == (code, "no")
            assert (details_of(refused) or {}).get("path") == path
        assert (await ask(hub, Explain(10, "deep", "say", options)))["code"] == code


async def test_what_an_ended_call_was_forwarded_for_is_forwarded_no_more(
    server: TestServer,
) -> None:
    """CALL-25, CALL-29: nor is anything for a participant that has left."""
    async with participant(server, "hub") as hub:
        await ask(hub, offer(toolkit_of("out", "say")))
        await ask(hub, offer(toolkit_of("deep", "say"), 2))
        async with participant(server, "ann") as ann:
            outer = await call_through(ann, hub, call_of("out.say", 7))
            options = {"parent": outer.id, "forward": True}
            inner = await call_through(hub, hub, call_of("deep.say", 8, **options))
            assert inner.header["forwarded_for"]
        lost = await failure_of(hub, 8)
        assert (lost.code, lost.executed) == ("cancelled", "maybe")
        refused = await refusal(hub, call_of("deep.say", 9, **options))
        assert (refused.code, refused.executed) == ("permission_denied", "no")


class Chain:
    """Ann's call of `first` is forwarded to `second`, each hosted at the next server.

    Args:
        servers: The servers; `keeper` hosts `deep` at the first.
        room: The room.
    """

    keeper: RawClient
    second: RawClient
    options: dict[str, Any]
    """Of what `second` forwards next."""
    behind: list[str]
    """The ids of `first` and of ann."""

    def __init__(self, servers: list[TestServer], room: str) -> None:
        self._here, self._there = servers[0], servers[-1]
        self._room = room

    async def begin(
        self, stack: AsyncExitStack, shared: dict[str, Any], first_may: dict[str, Any]
    ) -> None:
        """Let all join, register and call."""
        enter, room = stack.enter_async_context, self._room
        self.keeper = await enter(participant(self._here, "keeper", room))
        self.second = await enter(participant(self._there, "second", room, builders=["x", "y"]))
        first_may = {"builders": ["x"], **first_may}
        first = await enter(participant(self._here, "first", room, **first_may))
        ann = await enter(participant(self._there, "ann", room, builders=["*"]))
        await ask(self.keeper, offer(toolkit_of("deep", "say"), **shared))
        await ask(first, offer(toolkit_of("first", "say")))
        await ask(self.second, offer(toolkit_of("second", "say")))
        outer = await self._through(ann, first, call_of("first.say", 7))
        options = {"parent": outer.id, "forward": True}
        inner = await self._through(first, self.second, call_of("second.say", 8, **options))
        self.options = {"parent": inner.id, "forward": True, "participant": "keeper"}
        self.behind = [id_of(first), id_of(ann)]

    async def _through(self, caller: RawClient, host: RawClient, call: Call) -> Dispatch:
        """Call once the toolkit is known at the node of the caller."""
        await ask(caller, Subscribe(1, ["toolkits"]))
        listed = await ask(caller, ListToolkits(2, {}))
        while call.toolkit not in [each["name"] for each in listed["toolkits"]]:
            await caller.next_event()
            listed = await ask(caller, ListToolkits(2, {}))
        await ask(caller, Subscribe(1, []))
        return await call_through(caller, host, call)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.redis)])
async def test_a_call_that_is_forwarded_twice_is_checked_for_all(count: int) -> None:
    """CALL-30, CALL-31, BUILD-3: the asker is who called first, also through other nodes."""
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (PUBLIC, {}, ""),
        (PUBLIC, {"deny": ["deep"]}, "permission_denied"),
        (private("ann", "first", "second"), {}, ""),
        (private("ann", "first"), {}, "not_found"),
        (private("ann", "second"), {}, "not_found"),
        (private("first", "second"), {}, "not_found"),
    ]
    async with asyncio.timeout(90), AsyncExitStack() as all_of_it:
        if count == 1:
            servers = [await all_of_it.enter_async_context(running_server(key=KEY))]
        else:
            redis = await all_of_it.enter_async_context(any_redis())
            servers = await all_of_it.enter_async_context(nodes(redis, count))
        for number, (shared, first_may, code) in enumerate(cases):
            made = Chain(servers, f"room-{number}")
            async with AsyncExitStack() as stack:
                await made.begin(stack, shared, first_may)
                call = call_of("deep.say", 9, **made.options)
                if code:
                    refused = await refusal(made.second, call)
                    assert (refused.code, refused.executed) == (code, "no"), shared
                    continue
                inner = await call_through(made.second, made.keeper, call)
                infos = unpack_body(inner.header["forwarded_for"], binary=True)
                assert [unpack_body(each)[0] for each in infos] == made.behind
                assert unpack_body(inner.header["caller"])[0] == id_of(made.second)
                assert unpack_body(inner.header["on_behalf_of"])[0] == made.behind[-1]
                assert unpack_body(inner.header["builders"]) == [["x", "y"], ["x"], ["*"]]
                answer(made.keeper, inner)
                assert isinstance(await made.second.reply_to(9), Result)
