"""Malicious participants: against callers, hosts and subscribers.

Each sends valid frames. Its actions may affect only its own calls and its own connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.clients.raw_checks import (
    DONE,
    SAY,
    WAIT,
    check_still_served,
    dispatched,
    host_slow,
    refused,
)
from support.clients.raw_client import CLOSE, PING, raw_participant, websocket_frame
from support.rooms.server_state import connection_of
from support.rooms.unharmed_server import unharmed_server
from toolbus.wire import (
    Call,
    Cancel,
    Describe,
    Failed,
    ListToolkits,
    Register,
    Result,
    Subscribe,
    Unregister,
    encode,
    pack_body,
    unpack_body,
)
from toolbus_server.testing import running_server

MIB = 1024 * 1024

# Ids of others


# Hosts


@pytest.mark.parametrize(
    "fields",
    [
        ("x" * 60_000, "no", True, "", None, None),
        ("not_found", "y" * 60_000, False, "", None, None),
        ("not_found", "no", False, "\n\x1b[2J" * 9_000, None, 2**53),
        ("tool_failed", "yes", False, "", b"\x91" * 900_000, 0),
        ("tool_failed", "yes", False, "", pack_body({"a": [[]] * 900_000}), 0),
        ("", "", False, "", b"", None),
    ],
)
async def test_caller_can_read_every_failure_of_a_host(fields: tuple[Any, ...]) -> None:
    async with (
        unharmed_server() as server,
        raw_participant(server, "host2") as host,
        raw_participant(server) as caller,
    ):
        await host_slow(host)
        caller.send_frame(WAIT)
        host.send_frame(Failed((await dispatched(host)).id, *fields))
        reply = await caller.reply_to(1)

        assert isinstance(reply, Failed)
        assert len(encode(reply)) < 64 * 1024
        assert reply.executed in {"no", "maybe", "yes"}


async def test_host_that_disconnects_within_a_frame_ends_its_calls() -> None:
    """CALL-13."""
    async with unharmed_server() as server, raw_participant(server) as caller:
        async with raw_participant(server, "host2") as host:
            await host_slow(host)
            caller.send_frame(WAIT)
            await dispatched(host)
            host.send(b"\x82\x80")  # not even a broken frame
        code, executed, _ = await refused(caller, 1)

        assert (code, executed) == ("host_lost", "maybe")


async def test_call_after_a_broken_frame_reaches_no_host() -> None:
    async with (
        unharmed_server() as server,
        raw_participant(server, "host2") as host,
        raw_participant(server) as mallory,
    ):
        await host_slow(host)
        to_host = connection_of(server, "host2")
        before = to_host.last_dispatch
        mallory.send(websocket_frame(b"\xc1") + websocket_frame(encode(WAIT)))
        assert await mallory.close_code() == 1007
        await check_still_served(host)

        assert server.server.hub.router.in_flight == 0
        assert to_host.last_dispatch == before


# Toolkits


async def test_toolkit_with_very_long_names_closes_no_subscriber() -> None:
    """An event is a header: one that is too long would close the subscriber's connection."""
    tools = [{"name": f"{number:064d}", "input_schema": {}} for number in range(1_000)]
    manifest = {"name": "wide", "title": "\U0001f600" * 1_000, "tools": tools}
    async with (
        unharmed_server() as server,
        server.room("bob") as bob,
        raw_participant(server, "eve") as eve,
        raw_participant(server) as mallory,
    ):
        eve.send_frame(Subscribe(1, ["toolkits"]))
        await eve.reply_to(1)
        mallory.send_frame(Register(1, pack_body(manifest), {}))
        assert isinstance(await mallory.reply_to(1), Result)
        event = await eve.next_event()
        assert event.data["toolkit"]["name"] == "wide"

        (found,) = [info async for info in bob.toolkits(search="wide")]
        assert len(found.tools) == 1_000


@pytest.mark.parametrize("claimed", [2**48 - 1, 2**48, 2**53, 2**63, 2**64 - 1])
async def test_generation_that_a_host_claims_keeps_no_other_host_from_registering(
    claimed: int,
) -> None:
    """REG-10: the generation that an honest host gets after that is accepted again."""
    async with (
        unharmed_server() as server,
        raw_participant(server) as mallory,
        raw_participant(server, "bob") as bob,
    ):
        mallory.send_frame(Register(1, pack_body({"name": "evil"}), {"generation": claimed}))
        await mallory.reply_to(1)
        good = pack_body({"name": "good"})
        bob.send_frame(Register(1, good, {}))
        reply = await bob.reply_to(1)
        assert isinstance(reply, Result)
        generation = unpack_body(reply.body)["generation"]
        bob.send_frame(Register(2, good, {"generation": generation}))

        assert isinstance(await bob.reply_to(2), Result)


# Participants that do not read


async def test_caller_that_reads_nothing_affects_only_itself() -> None:
    """CALL-28: its results are buffered until there are too many; the host goes on."""
    big = pack_body([3, "f", "application/octet-stream", bytes(MIB // 2)])
    async with (
        unharmed_server() as server,
        raw_participant(server, "host2") as host,
        raw_participant(server) as mallory,
    ):
        await host_slow(host)
        mallory.stop_reading()
        to_mallory = connection_of(server, "mallory")
        for number in range(64):  # 32 MiB
            mallory.send_frame(replace(WAIT, id=number, call_id=f"call{number}"))
            host.send_frame(Result((await dispatched(host)).id, big))
            await check_still_served(host)
            assert to_mallory.waiting_reply_bytes <= 16 * MIB
        mallory.read_again()

        assert [type(await mallory.reply_to(number)) for number in range(32)] == [Result] * 32
        assert (await refused(mallory, 63))[:2] == ("overloaded", "yes")
        assert to_mallory.waiting_reply_bytes == 0


async def test_host_that_reads_nothing_gets_no_more_calls_and_stays() -> None:
    """CALL-18: a call that does not fit is `overloaded`; it never closes the host."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "host2") as host,
        raw_participant(server, "bob") as bob,
    ):
        await host_slow(host)
        host.stop_reading()
        for number in range(40):
            big = replace(WAIT, id=number, call_id=f"c{number}", arguments=bytes(MIB // 2))
            bob.send_frame(big)
            await bob.flush()
        assert (await refused(bob, 39))[:2] == ("overloaded", "no")
        await check_still_served(bob)
        host.read_again()
        await dispatched(host)
        await check_still_served(host)


async def test_answers_to_a_flood_of_pings_are_limited() -> None:
    async with unharmed_server() as server, raw_participant(server) as mallory:
        mallory.stop_reading()
        flood = websocket_frame(bytes(125), opcode=PING) * 8_000
        to_mallory = connection_of(server, "mallory")
        port = to_mallory.port
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                while port.is_open:
                    mallory.send(flood)
                    await mallory.writer.drain()
                    assert port.transport.get_write_buffer_size() < 4 * MIB


async def test_server_stops_while_a_participant_reads_nothing() -> None:
    async with asyncio.timeout(60):
        async with (
            running_server() as server,
            raw_participant(server, "host2") as host,
            raw_participant(server) as caller,
        ):
            await host_slow(host)
            host.stop_reading()
            for number in range(40):
                big = replace(WAIT, id=number, call_id=f"c{number}", arguments=bytes(MIB // 2))
                caller.send_frame(big)
                await caller.flush()
            await refused(caller, 39)
            await server.server.stop()


# Random frames

ID = st.integers(0, 9) | st.integers(0, 2**53)
NAME = st.sampled_from(["echo", "say", "slow", "wait", "evil", "alice", "\x00", "é" * 90])
BODY = st.sampled_from([SAY.arguments, DONE, b"", b"\xc1", b"\x90"]) | st.binary(max_size=40)
MANIFEST = st.sampled_from([pack_body({"name": "evil"}), pack_body({"name": "echo"})]) | BODY
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | NAME | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=5,
)
OPTION = st.sampled_from(
    "participant parent on_behalf_of pin attempt caller_context traceparent tracestate "
    "public shared_with generation base supersede search limit cursor digest x".split()
)
OPTIONS = st.dictionaries(OPTION, VALUE, max_size=4)
WELL_FORMED = st.one_of(
    st.builds(Call, ID, NAME, NAME, NAME, st.none() | ID, BODY, st.none() | OPTIONS),
    st.builds(Result, ID, BODY),
    st.builds(Failed, ID, NAME, NAME, st.booleans(), NAME, st.none() | BODY, st.none() | ID),
    st.builds(Cancel, ID, NAME),
    st.builds(Register, ID, MANIFEST, OPTIONS),
    st.builds(Unregister, ID, NAME, st.booleans()),
    st.builds(ListToolkits, ID, OPTIONS),
    st.builds(Describe, ID, NAME, OPTIONS),
    st.builds(Subscribe, ID, st.lists(NAME | st.just("toolkits"), max_size=3)),
).map(encode)
SHAPELESS = st.tuples(st.integers(0, 60), st.lists(VALUE, max_size=8)).map(
    lambda pair: pack_body([pair[0], *pair[1]])
)
MESSAGE = (WELL_FORMED | WELL_FORMED | SHAPELESS | st.binary(max_size=60)).map(websocket_frame)
HEADED = st.builds(
    websocket_frame,
    st.binary(max_size=200),
    opcode=st.integers(0, 15),
    fin=st.booleans(),
    rsv=st.sampled_from([0, 0, 0, 1, 4]),
    masked=st.sampled_from([True, True, True, False]),
)
CONVERSATION = st.lists(MESSAGE | MESSAGE | HEADED | st.binary(max_size=60), max_size=30)


@example_settings(max_examples=40)
@given(st.lists(CONVERSATION, min_size=1, max_size=4), st.booleans())
async def test_no_bytes_of_a_participant_break_the_server_or_affect_another(
    conversations: list[list[bytes]], in_one_piece: bool
) -> None:
    async with unharmed_server() as server:
        for sent in conversations:
            async with raw_participant(server) as mallory:
                for data in [b"".join(sent)] if in_one_piece else sent:
                    mallory.send(data)
                    with suppress(ConnectionError):
                        await mallory.flush()
                mallory.send(websocket_frame(b"\x03\xe8", opcode=CLOSE))
                mallory.writer.write_eof()
                await mallory.close_code()
