"""PROTOCOL.md, CALL-16, CALL-26 and CALL-27: for whom a call may be made, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest

from support.clients.ending_tokens import calling, ends_in
from support.clients.forged_tokens import KEY
from support.clients.raw_client import RawClient, raw_participant
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
from support.rooms.delegation import ACTING, ENDLESS, LOSSES, WEAK, delegation
from toolbus import ApiScope
from toolbus.wire import Cancel, Refresh, Result, Subscribe, unpack_body
from toolbus_server.testing import TestServer, running_server


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as server, asyncio.timeout(60):
        yield server


HOSTING = {"register_public_toolkit": True, "register_private_toolkit": True}
NO_GRANT = "no grant to act for"
ANOTHER = "a nested call acts for the principal of its parent only"
NO_PARENT = "the parent call is not in flight on this connection"


@pytest.mark.parametrize("acting", [False, True])
async def test_a_nested_call_is_made_for_its_principal_without_a_grant_and_for_nobody_else(
    server: TestServer, acting: bool
) -> None:
    """CALL-14, CALL-16, CALL-17: whether the caller of the parent is the principal, or names it."""
    async with AsyncExitStack() as stack:

        async def join(name: str, api: ApiScope) -> RawClient:
            token = server.token(name, api=api)
            return await stack.enter_async_context(raw_participant(server, token=token))

        host, inner = (
            await join("host", calling(**HOSTING)),
            await join("inner", calling(**HOSTING)),
        )
        ann, agent = await join("ann", calling()), await join("agent", ACTING)
        await ask(host, offer())
        await ask(inner, offer(toolkit_of("deep", "down")))
        first = call_of("echo.say", 7, **({"on_behalf_of": "ann"} if acting else {}))
        outer = await call_through(agent if acting else ann, host, first)
        numbers = count(10)

        async def refused(caller: RawClient, **options: Any) -> str:
            failed = await refusal(caller, call_of("deep.down", next(numbers), **options))
            assert (failed.code, failed.executed) == ("permission_denied", "no")
            return failed.message

        for named in ({}, {"on_behalf_of": "ann"}):
            nested = call_of("deep.down", next(numbers), parent=outer.id, **named)
            got = await call_through(host, inner, nested)
            assert unpack_body(got.header["on_behalf_of"])[:2] == [id_of(ann), "ann"]
            answer(inner, got)
        # The caller of the parent is another one if that names a principal. Absent ones are alike.
        for name in ("agent", "host", "inner", "zoe"):
            assert await refused(host, parent=outer.id, on_behalf_of=name) == ANOTHER
        assert (await refused(host, on_behalf_of="ann")).startswith(NO_GRANT)
        others = await call_through(ann, inner, call_of("deep.down", 8))
        forged = [outer.id - 1, outer.id + 1, others.id, 7, 0, 2**53]
        for parent in forged:
            assert await refused(host, parent=parent, on_behalf_of="ann") == NO_PARENT
        assert await refused(inner, parent=outer.id, on_behalf_of="ann") == NO_PARENT
        if acting:
            ann.abort()
            assert (await next_of(host, Cancel)).id == outer.id
        else:
            answer(host, outer)
        assert await refused(host, parent=outer.id, on_behalf_of="ann") == NO_PARENT


@pytest.mark.parametrize("loss", LOSSES)
async def test_calls_for_a_participant_end_when_it(server: TestServer, loss: str) -> None:
    """CALL-26: in every depth; new ones are refused."""
    async with raw_participant(server, "ann") as ann, delegation(server, server, server) as made:
        await LOSSES[loss](server, ann)
        await made.until_ended()
        await made.is_refused()


async def test_calls_for_a_participant_end_with_its_token(server: TestServer) -> None:
    """CALL-26, CONN-12: at the time of expiry, before its connection is closed."""
    async with (
        raw_participant(server, token=ends_in("ann", 2.0)),
        delegation(server, server, server) as made,
    ):
        await made.until_ended()


async def test_calls_end_when_their_agent_may_not_act_for_the_participant(
    server: TestServer,
) -> None:
    """CALL-26: a newer token without `act_for` ends them; those of its own go on."""
    async with raw_participant(server, "ann"), delegation(server, server, server) as made:
        own = await call_through(made.agent, made.host, call_of("echo.say", 9))
        made.agent.send_frame(Refresh(1, server.token("agent", api=calling())))
        await made.until_ended()
        answer(made.host, own)
        assert isinstance(await made.agent.reply_to(9), Result)


async def test_nested_call_ends_when_the_caller_of_its_parent_loses_the_grant(
    server: TestServer,
) -> None:
    """CALL-26: its parent goes on, and may make other calls."""
    async with (
        raw_participant(server, "ann") as ann,
        raw_participant(server, "host") as host,
    ):
        for number, name in enumerate(("echo", "deep", "free"), 1):
            await ask(host, offer(toolkit_of(name, "say"), number))
        outer = await call_through(ann, host, call_of("echo.say", 7))
        nested = call_of("deep.say", 8, parent=outer.id, **ENDLESS)
        inner = await call_through(host, host, nested)
        await ask(ann, Refresh(1, server.token("ann", api=calling(deny=["deep"]))))
        assert (await next_of(host, Cancel)).id == inner.id
        lost = await failure_of(host, 8)
        assert (lost.code, lost.executed) == ("cancelled", "maybe")
        assert (await refusal(host, call_of("deep.say", 9, parent=outer.id))).code == (
            "permission_denied"
        )
        answer(host, await call_through(host, host, call_of("free.say", 10, parent=outer.id)))
        answer(host, outer)
        assert isinstance(await ann.reply_to(7), Result)


# Several connections of one identity


async def test_calls_for_an_identity_end_with_its_last_connection(server: TestServer) -> None:
    """CALL-27: a nested call names a connection that is present."""
    async with (
        raw_participant(server, "ann", instance="one") as one,
        raw_participant(server, "ann", instance="two") as two,
        delegation(server, server, server) as made,
    ):
        await ask(two, Subscribe(1, ["participants"]))
        one.abort()
        while (await two.next_event()).name != "participant_left":
            pass
        assert await made.goes_on() == id_of(two)
        two.abort()
        await made.until_ended()


async def test_calls_for_an_identity_go_on_with_its_successor(server: TestServer) -> None:
    """CALL-27, CONN-11."""
    async with (
        raw_participant(server, "ann", instance="one"),
        delegation(server, server, server) as made,
    ):
        async with raw_participant(server, "ann", instance="one", epoch=2):
            await made.goes_on()
        await made.until_ended()


async def test_every_connection_of_an_identity_must_have_the_grant(server: TestServer) -> None:
    """CALL-27: a weaker one that joins ends no call in flight, but new ones are refused."""
    weak_token = server.token("ann", api=WEAK)
    async with (
        raw_participant(server, "ann", instance="one") as strong,
        raw_participant(server, "ann", instance="two"),
        delegation(server, server, server) as made,
        raw_participant(server, token=weak_token, instance="three"),
    ):
        await made.is_refused()
        outer = await call_through(strong, made.host, call_of("echo.say", 7))
        nested = await call_through(
            made.host, made.inner, call_of("deep.down", 50, parent=outer.id)
        )  # made for one connection, whose grants alone count
        answer(made.inner, nested)
        strong.abort()
        await made.until_ended()


async def test_a_connection_whose_token_expired_is_not_counted(server: TestServer) -> None:
    """CALL-27: the other connection of the identity is enough."""
    async with (
        raw_participant(server, "ann", instance="one"),
        raw_participant(server, "watch") as watch,
        raw_participant(server, token=ends_in("ann", 2.0), instance="two") as expiring,
        delegation(server, server, server) as made,
    ):
        await ask(watch, Subscribe(1, ["toolkits"]))
        await ask(expiring, offer(toolkit_of("anns", "say")))
        await call_through(watch, expiring, call_of("anns.say", 7))  # keeps it connected
        while (await watch.next_event()).name != "toolkit_removed":
            pass
        await made.goes_on()
