"""What one participant may do to a room by requests that are well formed, and a stranger before."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from support.bystanders import unharmed_server
from support.raw_client import bearer, raw_connection, raw_participant, upgrade_request
from support.raw_talk import still_served
from support.wire_talk import ask, call_of, next_of, offer, refusal
from toolbus import AgentsGrant, ApiScope, Key, KeyRing, ParticipantToken
from toolbus.wire import (
    Builders,
    Describe,
    Event,
    Explain,
    ListToolkits,
    ParticipantId,
    Participants,
    Refresh,
    RequestId,
    Subscribe,
    pack_body,
)
from toolbus_server import people
from toolbus_server.flights import Seat
from toolbus_server.limits import Meter
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server


def seat_of(server: TestServer, name: str) -> Seat:
    seats = server.server.hub.rooms["lab"].room.seats.values()
    return next(seat for seat in seats if seat.member.identity.name == name)


# Schemas


def twice(reference: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": reference}, {"$ref": reference}]}


def doubling(steps: int, **fields: Any) -> dict[str, Any]:
    """Make a schema of which a compiler looks at 2 to the power of `steps` parts."""
    parts = {f"d{step}": twice(f"#/$defs/d{step + 1}") for step in range(steps)}
    parts[f"d{steps}"] = {"type": "object"}
    return {"$ref": "#/$defs/d0", "$defs": parts, "unevaluatedProperties": False, **fields}


def by_anchors(steps: int) -> dict[str, Any]:
    parts = {f"d{step}": {"$anchor": f"a{step}", **twice(f"#a{step + 1}")} for step in range(steps)}
    parts["last"] = {"$anchor": f"a{steps}"}
    return {"$ref": "#a0", "$defs": parts, "unevaluatedItems": False}


def out_of_an_example(steps: int) -> dict[str, Any]:
    return {"$ref": "#/default", "default": doubling(steps), "$defs": doubling(steps)["$defs"]}


def everyone_to_everyone(parts: int) -> dict[str, Any]:
    all_of = [{"$ref": f"#/$defs/d{number}"} for number in range(parts)]
    return {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{number}": {"anyOf": all_of} for number in range(parts)},
        "unevaluatedProperties": False,
    }


def under_an_id(steps: int) -> dict[str, Any]:
    return {"$defs": {"x": doubling(steps, **{"$id": "https://example.org/x"})}}


ENDLESS = {
    "doubling": doubling(60),
    "2019": doubling(60, **{"$schema": "https://json-schema.org/draft/2019-09/schema"}),
    "anchors": by_anchors(60),
    "example": out_of_an_example(60),
    "everyone": everyone_to_everyone(30),
    "id": under_an_id(60),
    "absolute": doubling(60, **{"$id": "https://example.org/x", "$ref": "x#/$defs/d0"}),
}


@pytest.mark.row(38)
@pytest.mark.parametrize("name", ENDLESS)
async def test_schema_that_would_be_compiled_for_ever_is_refused(name: str) -> None:
    """REG-4, BUILD-1."""
    schema = ENDLESS[name]
    async with unharmed_server() as server, raw_participant(server) as mallory:
        tools = [{"name": "t", "input_schema": schema}]
        failed = await refusal(mallory, offer({"name": "forms", "tools": tools}))
        assert (failed.code, failed.executed) == ("invalid_arguments", "no")
        built = {"name": "forms", "description": "", "schema": schema}
        failed = await refusal(mallory, Builders(RequestId(2), {"offer": [built]}))
        assert failed.code == "invalid_arguments"
        await still_served(mallory)


async def test_schema_that_says_what_is_unevaluated_is_taken() -> None:
    """REG-4."""
    base = {"properties": {"id": {"type": "string"}}}
    schema = {
        "$defs": {"base": base},
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"x": {"not": {"type": "null"}}}}],
        "unevaluatedProperties": False,
    }
    async with running_server() as server, raw_participant(server) as host:
        list_of_itself = {"unevaluatedItems": False, "anyOf": [{"type": "null"}, {"$ref": "#"}]}
        for number, each in enumerate((schema, base, doubling(4), list_of_itself)):
            tool = {"name": "t", "input_schema": each}
            await ask(host, offer({"name": f"k{number}", "tools": [tool]}, number))


# Work


@pytest.mark.row(44)
async def test_participant_that_lets_the_server_work_too_long_is_refused_for_a_while() -> None:
    """REG-20."""
    async with (
        unharmed_server() as server,
        raw_participant(server) as mallory,
        raw_participant(server, "carl") as carl,
    ):
        seat_of(server, "mallory").work = Meter(0.02, 60.0)
        number = 0
        while not seat_of(server, "mallory").work.exceeded(0.0, 0.0):
            number += 1
            tool = {"name": "t", "input_schema": {"enum": [f"{number}-{n}" for n in range(5_000)]}}
            mallory.send_frame(offer({"name": "big", "tools": [tool]}, number))
            await mallory.reply_to(number)
            assert number < 1_000
        refused = (
            offer(request_id=9_000),
            Subscribe(RequestId(9_001), ["toolkits"]),
            ListToolkits(RequestId(9_002), {}),
            Describe(RequestId(9_003), "echo", {}),
            Participants(RequestId(9_004), {}),
            Explain(RequestId(9_005), "echo", "say", {}),
            Refresh(RequestId(9_006), server.token("mallory")),
        )
        for request in refused:
            failed = await refusal(mallory, request)
            told = (failed.code, failed.executed, failed.retryable)
            assert told == ("quota_exceeded", "no", True)
            assert failed.retry_after_ms is not None
            assert 0 < failed.retry_after_ms <= 60_000
        await still_served(mallory)  # its calls are another matter
        await ask(carl, ListToolkits(RequestId(1), {}))


def test_meter_counts_amounts_and_forgets_them_with_their_window() -> None:
    meter = Meter(2.0, 10.0)
    assert not meter.exceeded(0.0, 1.5)
    assert not meter.exceeded(1.0, 0.0)
    assert meter.exceeded(2.0, 1.0)
    assert meter.exceeded(9.0, 0.0)
    assert not meter.exceeded(10.0, 0.0)


async def test_refreshes_without_end_are_refused_and_nobody_is_told_of_them() -> None:
    """REG-19, PEOPLE-3: a token with the same role changes nothing that others see."""
    async with (
        unharmed_server() as server,
        raw_participant(server) as mallory,
        raw_participant(server, "carl") as carl,
    ):
        await ask(carl, Subscribe(RequestId(1), ["participants"]))
        seat = seat_of(server, "mallory")
        seat.changes = Meter(3, 60.0)
        token = server.token("mallory")
        for number in range(3):
            await ask(mallory, Refresh(RequestId(number), token))
        failed = await refusal(mallory, Refresh(RequestId(3), token))
        assert (failed.code, failed.retryable) == ("quota_exceeded", True)
        async with raw_participant(server, "ann"):
            event = await next_of(carl, Event)
            assert (event.number, event.name) == (1, "participant_joined")
            seat.changes = Meter(3, 60.0)
            await ask(mallory, Refresh(RequestId(4), server.token("mallory", role="boss")))
            event = await next_of(carl, Event)
            assert (event.number, event.name) == (2, "participant_changed")
            assert event.data["participant"]["role"] == "boss"


async def test_offers_of_a_crowd_are_told_once_or_refused_as_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BUILD-2, REG-17."""
    async with running_server() as server, raw_participant(server, "ann") as ann:
        seat = seat_of(server, "ann")
        words = "x" * 30_000
        packed = {"name": "b", "description": words, "schema": {}}
        alike = {pack_body(packed): packed}
        await ask(ann, Builders(RequestId(1), {"offer": [packed]}))
        assert seat.member.offers == alike
        crowd = [replace(seat.member, id=ParticipantId(f"{n}"), offers=alike) for n in range(200)]
        room = server.server.hub.rooms["lab"].room.state
        room._by_name["many"] = {each.id: each for each in crowd}
        told = await ask(ann, Builders(RequestId(2), {"participant": "many"}))
        assert told == {"builders": [packed]}
        for number, each in enumerate(crowd):
            other = {**packed, "description": f"{number}{words}"}
            each.offers = {pack_body(other): other}
        packings: list[object] = []

        def packed_as_ever(value: object) -> bytes:
            packings.append(value)
            return pack_body(value)

        monkeypatch.setattr(people, "pack_body", packed_as_ever)
        failed = await refusal(ann, Builders(RequestId(3), {"participant": "many"}))
        assert (failed.code, failed.executed) == ("too_large", "no")
        assert len(packings) < 40  # a frame holds 34 of them; nobody waits for the rest


# Names


@pytest.mark.row(58)
async def test_nobody_acts_for_a_name_that_two_identities_have() -> None:
    """CALL-17."""
    other = Key.generate(kid="other", iss="elsewhere")
    settings = ServerSettings(keys=KeyRing([other]), port=0, drain_s=1.0)
    narrow = ApiScope(agents=AgentsGrant(call=True, deny=["echo.say"]))
    acting = call_of(on_behalf_of="bob", arguments=pack_body({"text": "hello"}))
    async with unharmed_server(settings=settings) as server, raw_participant(server) as agent:
        strange = ParticipantToken(name="bob", room=["lab"], api=ApiScope.full()).to_jwt(other)
        async with (
            raw_participant(server, token=strange),
            raw_participant(server, token=server.token("bob", api=narrow)),
        ):
            assert (await refusal(agent, acting)).code == "permission_denied"
        async with (
            raw_participant(server, token=server.token("bob"), instance="1"),
            raw_participant(server, token=server.token("bob"), instance="2"),
        ):
            await ask(agent, acting)


# The door


@pytest.mark.row(33)
@pytest.mark.parametrize("path", ["/healthz", "/rooms/lab", "/nowhere"])
async def test_what_stands_behind_a_request_ends_the_connection_and_is_no_bug(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CONN-10."""
    async with unharmed_server() as server:
        for _ in range(3):
            async with raw_connection(server.url) as stranger:
                request = upgrade_request(path, bearer(server.token("eve")))
                stranger.send(request + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert await stranger.reader.read() == b""
        assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
