"""Participants of a room: lists, attributes, builders and their events, with raw clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.clients.raw_client import (
    RawClient,
    details_of,
    raw_participant,
    with_grants,
)
from support.clients.raw_requests import ask, id_of, next_of, offer, refusal, toolkit_of
from support.rooms.unharmed_server import unharmed_server
from toolbus import AgentsGrant, ApiScope
from toolbus.wire import (
    Attributes,
    Builders,
    Event,
    Participants,
    Refresh,
    Result,
    Send,
    Subscribe,
    Unregister,
    pack_body,
)
from toolbus_server.calls import call_state as flights
from toolbus_server.limits import RateLimiter
from toolbus_server.rooms import event_feed as feed
from toolbus_server.rooms import room_changes
from toolbus_server.testing import TestServer


async def names_in(client: RawClient, **options: Any) -> list[str]:
    page = await ask(client, Participants(900, options))
    return [participant["name"] for participant in page["participants"]]


async def own_entry(client: RawClient) -> dict[str, Any]:
    page = await ask(client, Participants(901, {}))
    return next(
        participant for participant in page["participants"] if participant["id"] == id_of(client)
    )


async def listen(client: RawClient, *topics: str) -> None:
    await ask(client, Subscribe(902, list(topics)))


async def refused_path(client: RawClient, request: Any) -> str:
    failed = await refusal(client, request)
    assert failed.code == "invalid_arguments"
    return str(details_of(failed)["path"])


# Lists


async def test_participants_are_listed_by_name_with_the_presence_grant(server: TestServer) -> None:
    """PEOPLE-1."""
    async with (
        with_grants(server, "carl", presence=True) as carl,
        raw_participant(server, "bob", instance="1") as bob,
        raw_participant(server, "bob", instance="2") as twin,
        with_grants(server, "eve", messaging=True) as eve,
    ):
        assert (await refusal(eve, Participants(1, {}))).code == "permission_denied"
        page = await ask(carl, Participants(1, {}))
        listed, twins = page["participants"], sorted([id_of(bob), id_of(twin)])
        assert [participant["id"] for participant in listed] == [*twins, id_of(carl), id_of(eve)]
        assert page["cursor"] is None
        since = listed[2].pop("since")
        assert abs(since / 1000 - server.server.admission._now()) < 60
        assert listed[2] == {
            "id": id_of(carl),
            "name": "carl",
            "role": "user",
            "issuer": "toolbus-test",
            "attributes": {},
        }


async def test_pages_of_participants_follow_each_other(server: TestServer) -> None:
    """PEOPLE-1."""
    async with AsyncExitStack() as stack:
        for name in ("d", "b", "a", "c"):
            client = await stack.enter_async_context(raw_participant(server, name))
        found, cursor = list[str](), None
        for _ in range(4):
            page = await ask(client, Participants(1, {"limit": 1, "cursor": cursor}))
            found += [participant["name"] for participant in page["participants"]]
            cursor = page["cursor"]
        assert (found, cursor) == (["a", "b", "c", "d"], None)
        assert await names_in(client, limit=0) == ["a"]
        for options in ({"limit": "1"}, {"cursor": 1}, {"cursor": "x"}, {"cursor": "kQE="}):
            assert await refused_path(client, Participants(2, options)) in {"/limit", "/cursor"}


async def test_a_page_of_talkative_participants_ends_early_and_none_is_left_out(
    server: TestServer,
) -> None:
    """PEOPLE-1."""
    async with AsyncExitStack() as stack:
        for number in range(20):
            connection = await stack.enter_async_context(raw_participant(server, f"p{number:02}"))
            await ask(connection, Attributes(1, {"words": "x" * 16_000}))
        room = await stack.enter_async_context(server.room("zoe"))
        assert 1 < len(await names_in(connection)) < 20
        listed = await room.participants()
        assert [person.name for person in listed] == [*(f"p{n:02}" for n in range(20)), "zoe"]


# Attributes


async def test_attributes_are_replaced_one_by_one_and_taken_away(server: TestServer) -> None:
    """PEOPLE-2."""
    async with raw_participant(server, "bob") as bob:
        await ask(bob, Attributes(1, {"status": "busy", "seat": [3, {"row": "B"}]}))
        await ask(bob, Attributes(2, {"status": "free", "gone": None}))
        assert (await own_entry(bob))["attributes"] == {"status": "free", "seat": [3, {"row": "B"}]}
        await ask(bob, Attributes(3, {"seat": None}))
        assert (await own_entry(bob))["attributes"] == {"status": "free"}


def nested(levels: int) -> Any:
    return [] if levels == 1 else [nested(levels - 1)]


@pytest.mark.parametrize(
    ("attributes", "path"),
    [
        ({f"a{n}": 1 for n in range(64)}, "/attributes"),  # and the existing one
        ({"x" * 65: 1}, "/attributes"),
        ({"x": "y" * 16_380}, "/attributes"),
        ({"x": b"bytes"}, "/attributes/x"),
        ({"x": nested(29)}, "/attributes/x" + "/0" * 28),
    ],
    ids=["too many", "long name", "too large", "bytes", "too deep"],
)
async def test_attributes_beyond_a_limit_change_nothing(
    server: TestServer, attributes: dict[str, Any], path: str
) -> None:
    """PEOPLE-2."""
    async with raw_participant(server, "bob") as bob:
        await ask(bob, Attributes(1, {"status": "busy"}))
        assert await refused_path(bob, Attributes(2, attributes)) == path
        assert (await own_entry(bob))["attributes"] == {"status": "busy"}


async def test_the_largest_attributes_reach_every_subscriber(server: TestServer) -> None:
    """PEOPLE-2, and FRAME-6: the largest allowed ones can be listed and published."""
    full = {f"{n:064}": 1 for n in range(62)} | {"deep": nested(28), "long": "x" * 12_000}
    async with raw_participant(server, "bob") as bob, raw_participant(server, "carl") as carl:
        await listen(carl, "participants")
        await ask(bob, Attributes(1, full))
        assert (await carl.next_event()).data["participant"]["attributes"] == full
        assert (await own_entry(bob))["attributes"] == full


async def test_a_successor_keeps_attributes_and_offers_and_its_events_end(
    server: TestServer,
) -> None:
    """CONN-11, PEOPLE-2, EVENT-4."""
    async with raw_participant(server, "bob", instance="1", epoch=1) as old:
        await ask(old, Attributes(1, {"status": "busy"}))
        await ask(old, Builders(2, {"offer": [OFFER]}))
        await listen(old, "participants")
        async with raw_participant(server, "bob", instance="1", epoch=2) as new:
            assert (await own_entry(new))["attributes"] == {"status": "busy"}
            offered = await ask(new, Builders(3, {"participant": "bob"}))
            assert offered["builders"] == [OFFER]
            assert await old.close_code() == 4409
            assert await names_in(new) == ["bob"]
            async with raw_participant(server, "carl") as carl:
                await listen(carl, "participants")
                await ask(new, Attributes(4, {"status": None}))
                assert (await carl.next_event()).data["participant"]["id"] == id_of(new)


async def test_attributes_go_with_the_connection(server: TestServer) -> None:
    """PEOPLE-2."""
    async with raw_participant(server, "carl") as carl:
        await listen(carl, "participants")
        async with raw_participant(server, "bob", instance="1") as bob:
            await ask(bob, Attributes(1, {"status": "busy"}))
            assert (await carl.next_event()).name == "participant_joined"
        assert (await carl.next_event()).name == "participant_left"
        async with raw_participant(server, "bob", instance="1", epoch=2) as bob:
            assert (await own_entry(bob))["attributes"] == {}


# Events


async def test_joins_changes_and_leaves_cause_events(server: TestServer) -> None:
    """PEOPLE-3, EVENT-2."""
    async with (
        raw_participant(server, "carl") as carl,
        with_grants(server, "dan", presence=True) as dan,
    ):
        await listen(carl, "participants", "toolkits")
        await listen(dan, "participants")
        for first in (1, 4):
            async with raw_participant(server, "bob") as bob:
                joined = [await reader.next_event() for reader in (carl, dan)]
                await ask(bob, offer(public=False))  # no event for either: it is bob's alone
                await ask(bob, Attributes(2, {"status": "busy"}))
                changed = [await reader.next_event() for reader in (carl, dan)]
            left = [await reader.next_event() for reader in (carl, dan)]
            for number, (name, attributes, events) in enumerate(
                [
                    ("participant_joined", {}, joined),
                    ("participant_changed", {"status": "busy"}, changed),
                    ("participant_left", {}, left),
                ]
            ):
                for event in events:
                    assert (event.number, event.name) == (first + number, name)
                    assert event.data["participant"]["id"] == id_of(bob)
                    assert event.data["participant"]["attributes"] == attributes


async def test_a_successor_is_published_as_one_leave_and_one_join(server: TestServer) -> None:
    """PEOPLE-3, CONN-11."""
    async with raw_participant(server, "carl") as carl:
        async with raw_participant(server, "bob", instance="1") as old:
            await ask(old, Attributes(1, {"status": "busy"}))
            await listen(carl, "participants")
            async with raw_participant(server, "bob", instance="1", epoch=2) as new:
                events = [await carl.next_event() for _ in range(2)]
        received = [(event.name, event.data["participant"]["id"]) for event in events]
        assert received == [("participant_left", id_of(old)), ("participant_joined", id_of(new))]
        assert events[1].data["participant"]["attributes"] == {"status": "busy"}


async def test_participant_that_joined_and_left_at_once_causes_no_event(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-3."""
    monkeypatch.setattr(room_changes, "COALESCE_S", 0.5)
    async with raw_participant(server, "carl") as carl, raw_participant(server, "bob") as bob:
        await listen(carl, "participants")
        async with server.room("brief"):
            pass
        for status in ("busy", "free"):
            await ask(bob, Attributes(1, {"status": status}))
        event = await carl.next_event()
        assert (event.number, event.name) == (1, "participant_changed")
        assert event.data["participant"]["attributes"] == {"status": "free"}
        await ask(bob, Attributes(1, {"status": None}))
        assert (await carl.next_event()).number == 2


async def test_many_registrations_at_once_arrive_in_one_event(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-3."""
    flushes, flush = list[int](), feed.EventFeed._flush

    def counted(event_feed: feed.EventFeed) -> Iterator[None]:
        flushes.append(1)
        return flush(event_feed)

    monkeypatch.setattr(room_changes, "COALESCE_S", 5.0)  # longer than 50 joins take
    monkeypatch.setattr(feed.EventFeed, "_flush", counted)
    async with AsyncExitStack() as stack:
        carl = await stack.enter_async_context(raw_participant(server, "carl"))
        await listen(carl, "participants", "toolkits")
        for number in range(50):
            host = await stack.enter_async_context(raw_participant(server, f"h{number:02}"))
            manifest = {"name": f"t{number}", "tools": []}
            await ask(host, offer(manifest))
        events = [await carl.next_event() for _ in range(100)]
        assert flushes == [1]
    assert [event.number for event in events] == list(range(1, 101))
    assert [event.name for event in events] == ["participant_joined"] * 50 + ["toolkit_added"] * 50


async def test_a_topic_needs_its_grant_and_a_refusal_changes_nothing(server: TestServer) -> None:
    """EVENT-1."""
    scopes: dict[str, dict[str, Any]] = {
        "toolkits": {"agents": AgentsGrant(use_tools=True)},
        "participants": {"presence": True},
        "messages": {"messaging": True},
    }
    for topic, grants in scopes.items():
        async with with_grants(server, "eve", **grants) as eve:
            for other in scopes.keys() - {topic}:
                failed = await refusal(eve, Subscribe(1, [topic, other]))
                assert failed.code == "permission_denied"
            assert await ask(eve, Subscribe(2, [topic])) == {"topics": [topic]}
    async with with_grants(server, "eve", presence=True) as eve:
        await listen(eve, "participants")
        assert await refused_path(eve, Subscribe(3, ["participants", "weather"])) == "/topics"
        assert (await refusal(eve, Subscribe(4, ["messages"]))).code == "permission_denied"
        async with raw_participant(server, "bob"):
            assert (await eve.next_event()).number == 1
        await eve.next_event()
        await listen(eve, "participants")
        async with raw_participant(server, "bob"):
            assert (await eve.next_event()).number == 1
        assert await ask(eve, Subscribe(5, [])) == {"topics": []}
        async with raw_participant(server, "bob"):
            assert await names_in(eve) == ["bob", "eve"]
        eve.send_frame(Participants(6, {}))
        assert isinstance(await eve.read_frame(), Result)  # and no event before it


async def test_events_that_a_newer_token_does_not_grant_stop(server: TestServer) -> None:
    """EVENT-1, REFRESH-1."""
    fewer = server.token("eve", api=ApiScope(messaging=True), role="guest")
    async with (
        raw_participant(server, "eve") as eve,
        raw_participant(server, "carl") as carl,
    ):
        await ask(eve, Subscribe(1, ["participants", "toolkits", "messages"]))
        await listen(carl, "participants")
        await ask(eve, Refresh(2, fewer))
        event = await carl.next_event()
        assert (event.name, event.data["participant"]["role"]) == ("participant_changed", "guest")
        await ask(carl, offer())
        async with raw_participant(server, "bob"):
            assert (await carl.next_event()).name == "participant_joined"
        assert (await carl.next_event()).name == "participant_left"
        await ask(carl, Send(3, None, "note", b"\x80"))
        event = await eve.next_event()
        assert (event.number, event.name) == (1, "message")


async def test_toolkits_that_a_newer_token_shows_or_hides_cause_events(server: TestServer) -> None:
    """EVENT-2, REFRESH-1."""
    async with (
        raw_participant(server, "host") as host,
        raw_participant(server, "eve") as eve,
    ):
        await ask(host, offer(toolkit_of("weather", "forecast"), 1))
        await ask(host, offer(toolkit_of("clock", "now"), 2))
        await ask(
            host,
            offer(toolkit_of("vault", "open"), 3, public=False, shared_with=["role:guard"]),
        )
        await listen(eve, "toolkits")
        grants = ApiScope(agents=AgentsGrant(use_tools=True, deny=["weather"]))
        await ask(eve, Refresh(2, server.token("eve", api=grants, role="guard")))
        events = [await eve.next_event() for _ in range(2)]
        assert {(event.name, event.data["toolkit"]["name"]) for event in events} == {
            ("toolkit_removed", "weather"),
            ("toolkit_added", "vault"),
        }
        assert [event.number for event in events] == [1, 2]
        await ask(host, Unregister(4, "weather", True))  # no event: it was hidden before
        await ask(host, Unregister(5, "clock", True))
        event = await eve.next_event()
        assert (event.number, event.data["toolkit"]["name"]) == (3, "clock")


async def test_a_participant_that_flaps_is_refused_for_a_while_and_its_watchers_see_little() -> (
    None
):
    """REG-19."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "carl") as carl,
        raw_participant(server) as mallory,
    ):
        await listen(carl, "toolkits", "participants")
        for number in range(0, 2_000, 4):
            mallory.send_frame(offer({"name": "flap"}, number))
            mallory.send_frame(Unregister(number + 1, "flap", True))
            mallory.send_frame(Attributes(number + 2, {"n": number}))
            mallory.send_frame(Builders(number + 3, {"offer": []}))
        for request in (
            offer({"name": "flap"}, 9_000),
            Unregister(9_001, "flap", True),
            Attributes(9_002, {"n": -1}),
            Builders(9_003, {"offer": []}),
        ):
            failed = await refusal(mallory, request)
            assert (failed.code, failed.executed, failed.retryable) == (
                "quota_exceeded",
                "no",
                True,
            )
            assert failed.retry_after_ms is not None
            assert 0 < failed.retry_after_ms <= 10_000
        assert (await own_entry(mallory))["attributes"] == {"n": 1_996}
        await ask(carl, Attributes(1, {"others": "are free to change"}))
        last = await carl.next_event()
        while "others" not in last.data["participant"]["attributes"]:
            last = await next_of(carl, Event)
        assert last.number < 500


def test_a_meter_returns_when_its_window_ends() -> None:
    limiter = RateLimiter(1, 10.0)
    assert limiter.retry_after_s(3.0) == 0
    assert [limiter.exceeded(5.0), limiter.exceeded(6.0)] == [False, True]
    assert limiter.retry_after_s(6.0) == 9.0
    assert not limiter.exceeded(15.0)
    assert (flights._MESSAGES, flights._CHANGES, flights._WINDOW_S) == (1_000, 2_000, 10.0)


# Builders

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
OFFER = {"name": "weather", "description": "Forecasts.", "schema": SCHEMA}


def build(**changes: Any) -> dict[str, Any]:
    return {**OFFER, **changes}


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "/offer"),
        ({"offer": [], "participant": "bob"}, "/offer"),
        ({"offer": {}}, "/offer"),
        ({"participant": 1}, "/participant"),
        ({"offer": [OFFER, "x"]}, "/offer/1"),
        ({"offer": [build(name="No Name")]}, "/offer/0/name"),
        ({"offer": [build(description=None)]}, "/offer/0/description"),
        ({"offer": [build(schema=[])]}, "/offer/0/schema"),
        ({"offer": [build(schema={"default": b"x"})]}, "/offer/0/schema/default"),
        ({"offer": [OFFER, OFFER]}, "/offer"),
        ({"offer": [build(name=f"t{n}") for n in range(65)]}, "/offer"),
    ],
    ids=str,
)
async def test_offer_that_breaks_a_rule_replaces_nothing(
    server: TestServer, options: dict[str, Any], path: str
) -> None:
    """BUILD-1."""
    async with raw_participant(server, "bob") as bob:
        await ask(bob, Builders(1, {"offer": [build(name="kept")]}))
        assert await refused_path(bob, Builders(2, options)) == path
        offered = await ask(bob, Builders(3, {"participant": "bob"}))
        assert [builder["name"] for builder in offered["builders"]] == ["kept"]


async def test_offers_have_as_many_values_and_bytes_as_the_rule_says(server: TestServer) -> None:
    """BUILD-1: lists, map, its texts and the schema are seven values."""
    values = {"enum": [0] * 89, "examples": [0] * 4_000}
    other_bytes = len(pack_body([build(description="x" * 256)])) - 256
    text = "x" * (32 * 1024 - other_bytes)
    async with raw_participant(server, "bob") as bob:
        await ask(bob, Builders(1, {"offer": [build(schema=values)]}))
        await ask(bob, Builders(2, {"offer": [build(description=text)]}))
        values["enum"].append(0)
        for offer in (build(schema=values), build(description=text + "x")):
            assert await refused_path(bob, Builders(3, {"offer": [offer]})) == "/offer"


async def test_only_builders_that_the_grant_covers_are_listed(
    server: TestServer,
) -> None:
    """BUILD-1, BUILD-2."""
    stream = build(name="news")
    async with (
        raw_participant(server, "agent", instance="1") as agent,
        raw_participant(server, "agent", instance="2") as replica,
        with_grants(server, "ann", agents=AgentsGrant(builders=["wea*"])) as ann,
        with_grants(server, "eve") as eve,
    ):
        for offering in (agent, replica):
            await ask(offering, Builders(1, {"offer": [{**OFFER, "new": 1}, stream]}))
        assert await ask(ann, Builders(1, {"participant": "agent"})) == {"builders": [OFFER]}
        assert await ask(eve, Builders(1, {"participant": "agent"})) == {"builders": []}
        assert await ask(ann, Builders(1, {"participant": "nobody"})) == {"builders": []}
        both = await ask(agent, Builders(2, {"participant": "agent"}))
        assert both == {"builders": [OFFER, stream]}
        await ask(agent, Builders(3, {"offer": []}))
        await ask(replica, Builders(3, {"offer": [stream]}))
        assert await ask(ann, Builders(2, {"participant": "agent"})) == {"builders": []}


async def test_offers_are_at_most_32_kib_together(server: TestServer) -> None:
    """BUILD-1."""
    async with raw_participant(server, "bob") as bob:
        offers = [build(name=f"t{n}", description="x" * 10_000) for n in range(3)]
        await ask(bob, Builders(1, {"offer": offers}))
        more = [*offers, build(description="x" * 5_000)]
        assert await refused_path(bob, Builders(2, {"offer": more})) == "/offer"
        (connection,) = server.server.hub.rooms["lab"].routed.connections.values()
        assert [offer["name"] for offer in connection.participant.offers.values()] == [
            "t0",
            "t1",
            "t2",
        ]
