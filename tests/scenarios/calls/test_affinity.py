"""Calls with the same affinity reach one host, across replicas and a restart of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.clients.raw_client import details_of, raw_participant
from support.rooms.events import until_hosts
from support.rooms.replicas import REPLICAS, carts
from toolbus import Key, KeyRing
from toolbus.errors import DefinitionChanged, InvalidArguments, RoomException
from toolbus.room.room import connection_of
from toolbus.wire import Call, CallId, Failed, RequestId, Result, pack_body
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server


@asynccontextmanager
async def replicas(
    server: TestServer, by: str = "customer", instances: Sequence[str] = REPLICAS
) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        for instance in instances:
            host = await stack.enter_async_context(server.room("host", instance=instance))
            await stack.enter_async_context(host.host(carts(instance, by), supersede=True))
        yield stack


async def test_calls_with_one_value_of_the_argument_meet_at_one_host_for_every_caller() -> None:
    """CALL-23."""
    customers: list[Any] = [f"customer-{n}" for n in range(20)] + [{"a": 1, "b": 2}, None]
    async with running_server() as server, replicas(server):
        async with server.room("alice") as alice, server.room("bob") as bob:
            first = [await alice.call("carts.add", item="x", customer=each) for each in customers]
            again = [await bob.call("carts.add", item="y", customer=each) for each in customers]
            turned = await bob.call("carts.add", item="z", customer={"b": 2, "a": 1})
            left_out = await bob.call("carts.add", item="z")
    assert first == again
    assert (turned, left_out) == (first[-2], first[-1])
    assert set(first) == set(REPLICAS)


async def test_calls_of_one_caller_meet_at_one_host_whatever_its_connection() -> None:
    """CALL-23."""
    seen: set[str] = set()
    async with running_server() as server, replicas(server):
        for name in ("ann", "bob", "cem", "dee", "eva", "fay", "gus", "hal"):
            at: set[str] = set()
            for _ in range(2):
                async with server.room(name) as room:
                    at |= {await room.call("carts.mine") for _ in range(5)}
            assert len(at) == 1
            seen |= at
    assert len(seen) > 1


async def test_an_affinity_outlives_a_restart_of_the_server() -> None:
    key = Key.generate(kid="test", iss="acme")
    customers = [f"customer-{n}" for n in range(12)]
    async with AsyncExitStack() as exit_stack:
        async with running_server(key=key) as first:
            settings = ServerSettings(keys=KeyRing([]), port=first.server.port)
            await exit_stack.enter_async_context(replicas(first))
            alice = await exit_stack.enter_async_context(first.room("alice"))
            before = [await alice.call("carts.add", item="x", customer=each) for each in customers]
        async with running_server(key=key, settings=settings), asyncio.timeout(60):
            await until_hosts(alice, "carts", len(REPLICAS))
            after = [await alice.call("carts.add", item="x", customer=each) for each in customers]
    assert after == before


async def test_a_call_without_its_affinity_is_refused_with_the_arguments_name() -> None:
    """CALL-23: a client of another language gets the argument's name from this error."""
    arguments = pack_body({"item": "x", "customer": "c"})
    async with running_server() as server, replicas(server), raw_participant(server, "eve") as eve:

        def call(number: int, options: dict[str, Any] | None) -> Call:
            name = CallId(f"c{number}")
            return Call(RequestId(number), name, "carts", "add", None, arguments, options)

        for number, options in enumerate([None, {"affinity": ""}, {"affinity": "x" * 129}], 1):
            eve.send_frame(call(number, options))
            refused = await eve.reply_to(number)
            assert isinstance(refused, Failed)
            assert (refused.code, refused.executed) == ("invalid_arguments", "no")
            assert details_of(refused)["argument"] == "customer"
        eve.send_frame(call(9, {"affinity": 7}))
        refused = await eve.reply_to(9)
        assert isinstance(refused, Failed)
        assert details_of(refused)["path"] == "/affinity"
        eve.send_frame(call(10, {"affinity": "c" * 128}))
        assert isinstance(await eve.reply_to(10), Result)


async def test_the_first_call_of_many_at_once_learns_it_without_an_error() -> None:
    async with running_server() as server, replicas(server), server.room("alice") as alice:
        calls = [alice.invoke("carts.add", {"item": "x"}, retry=False) for _ in range(10)]
        assert len({chunk.value for chunk in await asyncio.gather(*calls)}) == 1


async def test_explain_names_the_host_that_a_call_with_these_arguments_meets() -> None:
    """EXPLAIN-1, CALL-23: a missing argument counts as null, as it does in a call."""
    async with running_server() as server, replicas(server), server.room("alice") as alice:
        exit_stack = {each.id: each for each in await alice.participants()}
        met: set[str] = set()
        for customer in (None, *(f"customer-{n}" for n in range(12))):
            given = {} if customer is None else {"customer": customer}
            plans = [await alice.explain("carts.add", given)]
            if customer is None:
                plans.append(await alice.explain("carts.add"))
            ran_at = await alice.call("carts.add", item="x", **given)
            for plan in plans:
                assert plan.would_run
                assert plan.affinity
                assert plan.host is not None
                assert plan.host.id in exit_stack
                met.add(f"{plan.host.id} {ran_at}")
        assert len(met) == len(REPLICAS)


@pytest.mark.parametrize("sent_by", ["description", "event", "refused pin"])
async def test_new_definition_that_goes_by_another_argument_gets_no_text_of_the_old_one(
    sent_by: str,
) -> None:
    """CALL-23."""
    newer = ("four", "five", "six")
    async with running_server() as server, server.room("alice") as alice, asyncio.timeout(60):
        async with replicas(server), alice.events() as events:
            assert await alice.call("carts.add", item="x", customer="c") in REPLICAS
            old = (await alice.toolkit("carts")).info.digest
            if sent_by != "event":
                await events.aclose()
            async with replicas(server, "item", newer):
                if sent_by == "description":
                    await alice.toolkit("carts")
                if sent_by == "refused pin":
                    with pytest.raises(DefinitionChanged):
                        await alice.invoke("carts.anywhere", pin=old)
                if sent_by == "event":
                    while (event := await anext(events)).toolkit is None or (
                        event.toolkit.digest == old
                    ):
                        pass
                met = {
                    (await alice.call("carts.add", item=item, customer=f"c{n}"), item)
                    for n in range(5)
                    for item in "abcdefghijklmnopqrst"
                }
    assert len(met) == 20  # one host for each item
    assert {host for host, _ in met} == set(newer)


async def test_tool_without_an_affinity_any_more_is_sent_none() -> None:
    async with running_server() as server, server.room("alice") as alice:
        async with replicas(server):
            await alice.call("carts.add", item="x", customer="c")
            async with replicas(server, "none", ("four",)):
                await alice.toolkit("carts")
                assert connection_of(alice).caller.affinities.known == {}
                assert await alice.call("carts.add", item="x", customer="c") == "four"


async def test_arguments_that_break_the_schema_are_the_hosts_to_refuse() -> None:
    async with running_server() as server, replicas(server), server.room("alice") as alice:
        with pytest.raises(RoomException) as refused:
            await alice.call("carts.add", item=7, customer="c")
        assert isinstance(refused.value, InvalidArguments)
        assert refused.value.details["path"] == "/item"
