"""Nested calls: time, depth, principal, and whose failure it is."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from support.clients.ending_tokens import calling
from support.nodes.tools import Holding
from support.rooms.failures import late_in_its_tool
from toolbus import ApiScope, ToolContext, Toolkit, tool
from toolbus.errors import (
    Cancelled,
    LoopDetected,
    PermissionDenied,
    RoomException,
    ToolFailed,
)
from toolbus_server.testing import TestServer


@tool
async def down(context: ToolContext, depth: int, via: list[str]) -> list[Any]:
    """Call the next toolkit of `via`, until `depth` is 0; return the callers and principals."""
    behalf = context.on_behalf_of
    received = [context.caller.name, behalf.name if behalf else None, context.deadline]
    if depth == 0:
        return [received]
    rest = await context.room.call(f"{via[0]}.down", depth=depth - 1, via=[*via[1:], via[0]])
    return [received, *rest]


async def test_two_hosts_may_call_each_other_sixteen_deep_and_no_deeper(server: TestServer) -> None:
    seen: list[RoomException] = []

    @tool
    async def again(context: ToolContext, others: list[str]) -> int:
        next_one, here = others
        try:
            return 1 + int(await context.room.call(f"{next_one}.again", others=[here, next_one]))
        except LoopDetected as error:
            seen.append(error)
            return 1

    async with (
        server.room("one") as one,
        server.room("two") as two,
        one.host(Toolkit("a", [again])),
        two.host(Toolkit("b", [again])),
        server.room("alice") as alice,
    ):
        assert await alice.call("a.again", others=["b", "a"]) == 16
        [error] = seen
        assert (error.executed, error.retryable) == ("no", False)


async def test_time_shrinks_and_the_principal_stays_through_nested_calls(
    server: TestServer,
) -> None:
    async with (
        server.room("one") as one,
        server.room("two") as two,
        one.host(Toolkit("a", [down])),
        two.host(Toolkit("b", [down])),
        server.room("alice") as alice,
    ):
        chunk = await alice.invoke("a.down", {"depth": 4, "via": ["b", "a"]}, timeout_s=20)
        callers, principals, times = zip(*chunk.value, strict=True)
        assert callers == ("alice", "one", "two", "one", "two")
        assert principals == (None, "alice", "alice", "alice", "alice")
        assert 20 >= times[0]
        # Hosts receive whole milliseconds; the server, which ends the call, keeps the exact time.
        assert all(inner <= outer + 0.002 for outer, inner in pairwise(times))


async def test_an_agent_in_between_builds_only_what_the_first_caller_may(
    server: TestServer,
) -> None:
    """BUILD-3: the host of a call within a call knows the grants of its caller and principal."""

    @tool
    async def grants(context: ToolContext, via: list[str]) -> list[Any]:
        if via:
            return list(await context.room.call(f"{via[0]}.grants", via=via[1:]))
        may = [name for name in ("sql", "weather") if context.may_build(name)]
        return [[list(grant) for grant in context.builders], may]

    async with (
        server.room("one", api=calling(builders=["*"], **HOSTING)) as one,
        server.room("two", api=calling(**HOSTING)) as two,
        one.host(Toolkit("a", [grants])),
        two.host(Toolkit("b", [grants])),
        server.room("alice", api=calling(builders=["sql*"])) as alice,
        server.room("bob", api=calling()) as bob,
    ):
        assert await alice.call("a.grants", via=[]) == [[["sql*"]], ["sql"]]
        assert await alice.call("a.grants", via=["b"]) == [[["*"], ["sql*"]], ["sql"]]
        assert await one.call("b.grants", via=[]) == [[["*"]], ["sql", "weather"]]
        for caller, via in ((bob, []), (bob, ["b"]), (alice, ["b", "a"])):
            assert await caller.call("a.grants", via=via) == [[], []]


async def test_an_inner_call_cannot_outlive_the_outer_one(server: TestServer) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    @tool
    async def outer(context: ToolContext) -> Any:
        return (await context.room.invoke("b.hold", timeout_s=60)).value

    async with (
        server.room("one") as one,
        server.room("two") as two,
        one.host(Toolkit("a", [outer])),
        two.host(Toolkit("b", [hold])),
        server.room("alice") as alice,
    ):
        await late_in_its_tool(
            lambda limit_s: alice.invoke("a.outer", timeout_s=limit_s), began.is_set
        )
        async with asyncio.timeout(60):
            await ended.wait()
            while server.server.hub.router.in_flight:  # noqa: ASYNC110 - there is no event for the last one
                await asyncio.sleep(0.01)


async def test_an_inner_error_that_escapes_a_tool_is_the_tools_failure(server: TestServer) -> None:
    runs = 0

    @tool
    async def outer(context: ToolContext) -> Any:
        nonlocal runs
        runs += 1
        return await context.room.call("nothing.here")

    async with (
        server.room("one") as one,
        one.host(Toolkit("a", [outer])),
        server.room("alice") as alice,
    ):
        with pytest.raises(ToolFailed) as caught:
            await alice.call("a.outer")
        assert (caught.value.executed, caught.value.retryable) == ("yes", False)
        assert caught.value.details == {"cause": "NotFound", "code": "not_found"}
    assert runs == 1


async def test_work_that_outlives_its_call_has_no_principal(server: TestServer) -> None:
    late: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def afterwards(context: ToolContext) -> Any:
        await go.wait()
        return await context.room.call("a.down", depth=0, via=[])

    @tool
    async def leave_behind(context: ToolContext) -> str:
        late.append(asyncio.ensure_future(afterwards(context)))
        return "done"

    async with (
        server.room("one") as one,
        one.host(Toolkit("a", [leave_behind, down])),
        server.room("alice") as alice,
    ):
        assert await alice.call("a.leave_behind") == "done"
        go.set()
        with pytest.raises(PermissionDenied):
            await late[0]


async def test_background_work_of_a_tool_gets_an_error_when_its_call_ends(
    server: TestServer,
) -> None:
    """CALL-25: for calls and streams that are in flight then; their tools are cancelled."""
    holding = [Holding(), Holding()]
    late: list[asyncio.Task[Any]] = []

    async def read(context: ToolContext) -> None:
        async with context.room.stream("second.hold") as chunks:
            async for _ in chunks:
                pass

    @tool
    async def leave_behind(context: ToolContext) -> str:
        late.append(asyncio.ensure_future(context.room.call("first.hold")))
        late.append(asyncio.ensure_future(read(context)))
        for each in holding:
            await each.began.wait()
        return "done"

    async with (
        server.room("one") as one,
        one.host(Toolkit("a", [leave_behind])),
        one.host(Toolkit("first", [holding[0].tool])),
        one.host(Toolkit("second", [holding[1].tool])),
        server.room("alice") as alice,
    ):
        assert await alice.call("a.leave_behind") == "done"
        for task, held in zip(late, holding, strict=True):
            with pytest.raises(Cancelled, match="nested in has ended") as caught:
                await task
            assert (caught.value.executed, caught.value.retryable) == ("maybe", False)
            await held.ended.wait()


HOST, PRINCIPAL = "the host that made a nested call", "the participant that the call is made for"
HOSTING = {"register_public_toolkit": True, "register_private_toolkit": True}


@tool
async def secret() -> None:
    """Return nothing."""


@tool
async def fetch(context: ToolContext) -> None:
    """Call a tool of another owner."""
    await context.room.invoke("vault.secret", participant="keeper")


@pytest.mark.parametrize(
    ("host", "caller", "is_public", "lacks", "named"),
    [
        (["vault"], calling(), True, "host", "vault.secret"),
        (["vault"], calling(), False, "host", None),
        (["vault"], calling(deny=["vault"]), True, "host", None),
        ([], calling(use_tools=True, allow=["help"]), True, "principal", None),
    ],
)
async def test_a_refused_nested_call_names_the_missing_grant_to_the_caller(
    server: TestServer, host: list[str], caller: ApiScope, is_public: bool, lacks: str, named: Any
) -> None:
    """ERR-9: the name of the tool is sent only to a caller that may list or call it."""
    shared = None if is_public else ["name:helper"]
    async with (
        server.room("keeper") as keeper,
        server.room("helper", api=calling(deny=host, **HOSTING)) as helper,
        server.room("alice", api=caller) as alice,
        keeper.host(Toolkit("vault", [secret]), public=is_public, shared_with=shared),
        helper.host(Toolkit("help", [fetch])),
    ):
        with pytest.raises(ToolFailed) as caught:
            await alice.call("help.fetch")
    who = HOST if lacks == "host" else PRINCIPAL
    assert caught.value.message == (
        f"the tool raised PermissionDenied: {who} has no grant to call "
        f"{named or 'a tool that you may not see'} (agents.call, agents.allow)"
    )
    refused = {"grant": "agents.call", "lacks": lacks} | ({} if named is None else {"tool": named})
    code = {"cause": "PermissionDenied", "code": "permission_denied"}
    assert caught.value.details == {**code, "refused": refused}


async def test_the_name_of_a_refused_tool_is_not_sent_beyond_its_caller(server: TestServer) -> None:
    """ERR-9."""

    @tool
    async def outer(context: ToolContext) -> Any:
        return await context.room.call("help.fetch")

    async with (
        server.room("keeper") as keeper,
        server.room("helper", api=calling(deny=["vault"], **HOSTING)) as helper,
        server.room("one") as one,
        server.room("alice") as alice,
        keeper.host(Toolkit("vault", [secret])),
        helper.host(Toolkit("help", [fetch])),
        one.host(Toolkit("a", [outer])),
    ):
        with pytest.raises(ToolFailed) as caught:
            await alice.call("a.outer")
    assert "vault" not in f"{caught.value.message} {caught.value.details}"
    assert caught.value.details["refused"] == {"grant": "agents.call", "lacks": "host"}


async def test_malformed_facts_about_a_refused_call_are_details_of_a_tool(
    server: TestServer,
) -> None:
    details = {"refused": {"grant": "agents.call", "lacks": ["host"]}}

    @tool
    async def fail() -> None:
        raise ToolFailed("out of stock", details=details)

    async with server.room("host") as host, host.host(Toolkit("shop", [fail])):
        with pytest.raises(ToolFailed, match="out of stock") as caught:
            await host.call("shop.fail")
    assert caught.value.details == details


async def test_a_nested_call_sees_the_toolkits_of_its_host(server: TestServer) -> None:
    @tool
    async def secret() -> str:
        return "treasure"

    @tool
    async def fetch(context: ToolContext) -> str:
        chunk = await context.room.invoke("vault.secret", participant="keeper")
        return str(chunk.value)

    vault = Toolkit("vault", [secret])
    async with (
        server.room("keeper") as keeper,
        server.room("helper") as helper,
        server.room("stranger") as stranger,
        keeper.host(vault, public=False, shared_with=["name:helper"]),
        helper.host(Toolkit("help", [fetch])),
        stranger.host(Toolkit("hope", [fetch])),
        server.room("alice") as alice,
    ):
        assert await alice.call("help.fetch") == "treasure"
        with pytest.raises(ToolFailed) as caught:
            await alice.call("hope.fetch")
        assert caught.value.details["code"] == "not_found"
