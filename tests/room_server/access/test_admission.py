"""Admission: successors, replicas, and when a connection is ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.clients.forged_tokens import HEADER, signed
from support.clients.handshakes import ask, claims, code_for_browser, handshake_server
from support.clients.raw_checks import DONE, WAIT, dispatched, host_slow, refused
from support.clients.raw_client import (
    RawClient,
    bearer,
    browser_bearer,
    raw_connection,
    raw_participant,
)
from support.rooms.unharmed_server import connections_of, unharmed_server
from toolbus.auth.grants import ApiScope
from toolbus.wire import (
    Cancel,
    Event,
    ListToolkits,
    Register,
    Result,
    Subscribe,
    pack_body,
    unpack_body,
)
from toolbus_server.testing import running_server

SLOW = {"name": "wait", "input_schema": {"type": "object"}}


def place(instance: str, epoch: object) -> str:
    return f"/rooms/lab?instance={instance}&epoch={epoch}"


async def generation_of(client: RawClient) -> int:
    """Host `slow.wait` and return the generation it got."""
    client.send_frame(Register(50, pack_body({"name": "slow", "tools": [SLOW]}), {}))
    reply = await client.reply_to(50)
    assert isinstance(reply, Result)
    return int(unpack_body(reply.body)["generation"])


async def hosts_of_slow(client: RawClient, request_id: int = 7) -> list[int]:
    client.send_frame(ListToolkits(request_id, {"search": "slow"}))
    reply = await client.reply_to(request_id)
    assert isinstance(reply, Result)
    return [summary["hosts"] for summary in unpack_body(reply.body)["toolkits"]]


# Successors


async def test_successor_has_the_toolkits_at_once_and_the_old_connection_is_closed() -> None:
    """CONN-11: a call right after the welcome is dispatched to the new connection."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "bob") as bob,
        raw_participant(server, "host2", instance="i", epoch=5) as old,
    ):
        await host_slow(old)
        async with raw_participant(server, "host2", instance="i", epoch=6) as new:
            bob.send_frame(WAIT)
            call = await dispatched(new)
            new.send_frame(Result(call.id, DONE))

            assert await bob.reply_to(1) == Result(1, DONE)
            assert await hosts_of_slow(bob) == [1]
            assert await old.close_code() == 4409
            assert connections_of(server)["lab"].count("host2") == 1


async def test_succession_leaves_no_gap_in_lists_calls_or_events() -> None:
    async with (
        unharmed_server() as server,
        raw_participant(server, "eve") as eve,
        raw_participant(server, "bob") as bob,
        AsyncExitStack() as stack,
    ):
        heir = await stack.enter_async_context(raw_participant(server, "host2", instance="i"))
        await host_slow(heir)
        eve.send_frame(Subscribe(1, ["toolkits"]))
        await eve.reply_to(1)
        looking = asyncio.create_task(_look_until_done(bob))
        for epoch in range(2, 30):
            successor = raw_participant(server, "host2", instance="i", epoch=epoch)
            heir = await stack.enter_async_context(successor)
        heir.send_frame(Register(1, pack_body({"name": "done"}), {}))
        seen = await looking

        assert set(map(tuple, seen)) == {(1,)}
        assert len(seen) > 5
        async with asyncio.timeout(60):
            while (event := await eve.next_event()).data["toolkit"]["name"] != "done":
                assert event.name == "toolkit_changed"


async def _look_until_done(client: RawClient) -> list[list[int]]:
    """List repeatedly, until the toolkit "done" is listed."""
    seen: list[list[int]] = []
    while True:
        client.send_frame(ListToolkits(1, {}))
        reply = await client.reply_to(1)
        assert isinstance(reply, Result)
        hosts = {each["name"]: each["hosts"] for each in unpack_body(reply.body)["toolkits"]}
        if "done" in hosts:
            return seen
        seen.append([hosts.get("slow", 0)])


@pytest.mark.parametrize("epoch", [4, 5, "05", 1])
async def test_equal_or_lower_epoch_is_refused_and_the_old_connection_stays(epoch: object) -> None:
    """CONN-5, CONN-6."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "bob") as bob,
        raw_participant(server, "host2", instance="i", epoch=5) as old,
    ):
        await host_slow(old)
        token = server.token("host2")
        head = await ask(server, place("i", epoch), bearer(token))

        assert head.status == 409
        assert await code_for_browser(server, place("i", epoch), token) == 4409
        assert server.server.admission.refused == {"old_epoch": 2}
        bob.send_frame(WAIT)
        old.send_frame(Result((await dispatched(old)).id, DONE))
        assert isinstance(await bob.reply_to(1), Result)


async def test_browser_succeeds_by_the_same_rule() -> None:
    """CONN-4."""
    async with unharmed_server() as server:
        async with raw_participant(server, "host2", instance="i", epoch=2**53 - 1) as old:
            await host_slow(old)
            async with raw_connection(server.url) as new:
                headers = browser_bearer(server.token("host2"))
                assert (await new.upgrade(place("i", 2**53), headers)).status == 101
                assert await old.close_code() == 4409
                assert await hosts_of_slow(new) == [1]


async def test_calls_in_flight_end_when_a_successor_connects() -> None:
    """CONN-11: those the old one ran are lost, those it made are cancelled at their hosts."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "bob") as bob,
        raw_participant(server, "host2") as other,
        raw_participant(server, "double", instance="i", epoch=1) as old,
    ):
        await host_slow(other)
        old.send_frame(Register(1, pack_body({"name": "mine", "tools": [SLOW]}), {}))
        await old.reply_to(1)
        old.send_frame(WAIT)
        made = await dispatched(other)
        bob.send_frame(replace(WAIT, toolkit="mine"))
        await dispatched(old)
        async with raw_participant(server, "double", instance="i", epoch=2) as new:
            assert (await refused(bob, 1))[:2] == ("host_lost", "maybe")
            assert await other.read_frame() == Cancel(made.id, "caller_gone")
            new.send_frame(WAIT)  # the ids of the old one are free
            assert (await dispatched(other)).call_id == WAIT.call_id


async def test_subscription_does_not_pass_to_the_successor() -> None:
    async with (
        unharmed_server() as server,
        raw_participant(server, "host2") as host,
        raw_participant(server, "eve", instance="i", epoch=1) as old,
    ):
        old.send_frame(Subscribe(1, ["toolkits"]))
        await old.reply_to(1)
        async with raw_participant(server, "eve", instance="i", epoch=2) as new:
            await host_slow(host)
            new.send_frame(Subscribe(1, ["toolkits"]))
            assert isinstance(await new.read_frame(), Result)
            host.send_frame(Register(1, pack_body({"name": "later"}), {}))
            event = await new.read_frame()

            assert isinstance(event, Event)
            assert (event.number, event.data["toolkit"]["name"]) == (1, "later")


async def test_frames_of_a_replaced_connection_are_not_read() -> None:
    async with (
        unharmed_server() as server,
        raw_participant(server, "bob") as bob,
        raw_participant(server, "host2", instance="i", epoch=1) as old,
        raw_participant(server, "host2", instance="i", epoch=2) as new,
    ):
        old.send_frame(Register(1, pack_body({"name": "slow", "tools": [SLOW]}), {}))
        await old.flush()
        assert await old.close_code() == 4409
        assert await hosts_of_slow(bob) == []
        assert await hosts_of_slow(new) == []


async def test_instance_that_left_may_reconnect_with_any_epoch() -> None:
    async with unharmed_server() as server, raw_participant(server, "bob") as bob:
        async with raw_participant(server, "host2", instance="i", epoch=9) as host:
            bob.send_frame(Subscribe(1, ["toolkits"]))
            await bob.reply_to(1)
            await host_slow(host)
            assert (await bob.next_event()).name == "toolkit_added"
        left = await bob.next_event()
        assert (left.name, left.data["toolkit"]["hosts"]) == ("toolkit_changed", 0)
        async with raw_participant(server, "host2", instance="i", epoch=1):
            pass


@example_settings(max_examples=20)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=15))
async def test_highest_epoch_stays_whatever_the_order(epochs: list[int]) -> None:
    async with running_server() as server:
        token = server.token("host2")
        clients = [await RawClient.connect(server.url) for _ in epochs]
        heads = await asyncio.gather(
            *(
                client.upgrade(place("i", epoch), bearer(token))
                for client, epoch in zip(clients, epochs, strict=True)
            )
        )
        (connection,) = server.server.hub.rooms["lab"].routed.connections.values()

        assert connection.participant.epoch == max(epochs)
        assert {head.status for head in heads} <= {101, 409}
        assert sum(head.status == 101 for head in heads) >= 1
        for client in clients:
            client.abort()


# Replicas


async def test_other_instances_and_other_identities_are_participants_of_their_own() -> None:
    async with unharmed_server() as server:
        async with (
            raw_participant(server, "host2", instance="i", epoch=5) as first,
            raw_participant(server, "host2", instance="j", epoch=5) as second,
            raw_participant(server, "host3", instance="i", epoch=5),
            raw_participant(server, "host2"),
            raw_participant(server, "host2"),
        ):
            assert await generation_of(first) == await generation_of(second)
            assert await hosts_of_slow(second) == [2]
            assert connections_of(server)["lab"].count("host2") == 4
            assert connections_of(server)["lab"].count("host3") == 1
            first.abort()
            await _until_hosts(second, [1])


async def _until_hosts(client: RawClient, hosts: list[int]) -> None:
    async with asyncio.timeout(60):
        while await hosts_of_slow(client) != hosts:
            pass


async def test_one_instance_may_be_in_two_rooms() -> None:
    async with handshake_server() as server:
        token = signed(HEADER, claims(room=["lab", "attic"]))
        async with raw_connection(server.url) as here, raw_connection(server.url) as there:
            for client, room in ((here, "lab"), (there, "attic")):
                path = f"/rooms/{room}?instance=i&epoch=1"
                assert (await client.upgrade(path, bearer(token))).status == 101
                await client.read_frame()
            assert connections_of(server)["attic"] == ["alice"]
            assert (
                connections_of(server)["lab"].count("alice") == 2
            )  # the other one belongs to the test server


# Refused and expired connections


async def test_draining_server_admits_no_connection() -> None:
    async with running_server() as server:
        server.server.admission.draining = True
        for headers in (bearer(server.token("bob")), browser_bearer(server.token("bob"))):
            head = await ask(server, "/rooms/lab", headers)

            assert (head.status, head.headers["retry-after"]) == (503, "1")
        assert server.server.hub.rooms == {}


async def test_participant_whose_token_expires_is_closed_and_its_toolkits_are_removed_at_once() -> (
    None
):
    """CONN-12: also while it does not read, nor close its side."""
    async with handshake_server() as server, raw_participant(server, "bob") as bob:
        bob.send_frame(Subscribe(1, ["toolkits"]))
        await bob.reply_to(1)
        now = time.time()
        may_host = ApiScope.host_default().to_claims()
        # The leeway of 60 s ends in a second and a half.
        ending = signed(HEADER, claims(sub="host2", iat=now - 3_600, exp=now - 58.5, api=may_host))
        async with raw_participant(server, token=ending) as host:
            await host_slow(host)
            assert (await bob.next_event()).name == "toolkit_added"
            assert (await bob.next_event()).name == "toolkit_removed"
            assert "host2" not in connections_of(server)["lab"]

            assert await host.close_code() == 4401
