"""PROTOCOL.md, BUILD-3: what the header of a dispatch says that its host may be asked to build."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.clients.ending_tokens import calling
from support.clients.forged_tokens import KEY
from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ask, call_of, next_of, offer, toolkit_of
from toolbus.wire import Assess, AssessDispatch, Call, Dispatch, Refresh, unpack_body
from toolbus_server.testing import TestServer, running_server

MANY = [*"abcdefghij"] * 100
LARGE = [[f"{letter}{number:040}" for number in range(110)] for letter in "abcd"]
"""Lists that just fit a token, of many patterns or of many bytes."""
HOSTING = {"register_public_toolkit": True, "register_private_toolkit": True}


class Room:
    """A hub that calls a keeper; whoever joins has only the grants that a test gives it."""

    hub: RawClient
    keeper: RawClient

    def __init__(self, server: TestServer, stack: AsyncExitStack) -> None:
        self._server, self._stack = server, stack

    async def join(self, name: str, builders: list[str], **grants: Any) -> RawClient:
        token = self.token(name, builders, **grants)
        client = raw_participant(self._server, token=token, query="&assess=1")
        return await self._stack.enter_async_context(client)

    def token(self, name: str, builders: list[str], **grants: Any) -> str:
        return self._server.token(name, api=calling(builders=builders, **HOSTING, **grants))

    async def told(self, caller: RawClient, request: Call | Assess) -> tuple[int, Any]:
        """Send a request; return the id and the builders of what its host receives."""
        host = self.hub if request.toolkit == "out" else self.keeper
        caller.send_frame(request)
        kind: type[Any] = Dispatch if isinstance(request, Call) else AssessDispatch
        got = await next_of(host, kind)
        packed = got.header.get("builders")
        return got.id, None if packed is None else unpack_body(packed)


@asynccontextmanager
async def room_with_hub(builders: list[str]) -> AsyncIterator[Room]:
    async with (
        asyncio.timeout(60),
        running_server(key=KEY) as server,
        AsyncExitStack() as stack,
    ):
        made = Room(server, stack)
        made.hub, made.keeper = await made.join("hub", builders), await made.join("keeper", [])
        await ask(made.hub, offer(toolkit_of("out", "say")))
        await ask(made.keeper, offer(toolkit_of("deep", "say")))
        yield made


@pytest.mark.parametrize(
    ("ann", "agent", "hub", "outer", "nested"),
    [
        # what each may build; what the hub is told, and then the keeper
        (["a"], None, ["h"], [["a"]], [["h"], ["a"]]),
        (["a"], ["g"], ["h"], [["g"], ["a"]], [["h"], ["a"]]),
        (["a"], ["a"], ["a"], [["a"]], [["a"]]),
        ([], None, ["h"], None, None),
        ([], ["*"], ["*"], None, None),
        (["a"], [], ["h"], None, [["h"], ["a"]]),
        (["a"], None, [], [["a"]], None),
        (MANY, LARGE[0], ["*"], [LARGE[0], MANY], [["*"], MANY]),
    ],
)
async def test_a_host_is_told_what_caller_and_principal_may_build(
    ann: list[str], agent: list[str] | None, hub: list[str], outer: Any, nested: Any
) -> None:
    """BUILD-3: in calls and assessments; forwarded ones have the grants of their askers too."""
    async with room_with_hub(hub) as room:
        caller, options = await room.join("ann", ann), dict[str, Any]()
        if agent is not None:
            caller = await room.join("agent", agent, act_for=["ann"])
            options = {"on_behalf_of": "ann"}
        number, told = await room.told(caller, call_of("out.say", 7, **options))
        assert told == outer
        _, told = await room.told(room.hub, call_of("deep.say", 8, parent=number))
        assert told == nested
        forward = {"parent": number, "forward": True}
        _, told = await room.told(room.hub, call_of("deep.say", 9, **forward))
        behind = [hub, *([] if agent is None else [agent]), ann]
        distinct = [each for at, each in enumerate(behind) if each not in behind[:at]]
        assert told == (distinct if all(behind) else None)
        call = call_of("out.say", 10, **options)
        question = Assess(10, call.call_id, "out", "say", None, call.arguments, call.options, [])
        assert (await room.told(caller, question))[1] == outer


async def test_a_newer_token_counts_for_the_calls_after_it() -> None:
    """BUILD-3, REFRESH-1: also as the principal of a call that began before."""
    async with room_with_hub(["*"]) as room:
        ann = await room.join("ann", ["a"])
        number, told = await room.told(ann, call_of("out.say", 7))
        assert told == [["a"]]
        await ask(ann, Refresh(1, room.token("ann", ["b"])))
        assert (await room.told(ann, call_of("out.say", 8)))[1] == [["b"]]
        _, told = await room.told(room.hub, call_of("deep.say", 9, parent=number))
        assert told == [["*"], ["b"]]


async def test_every_connection_of_an_identity_counts_and_the_whole_is_bounded() -> None:
    """BUILD-3, CALL-27: more than 16 KiB are left out, so that nothing may be built."""
    async with room_with_hub([]) as room:
        agent = await room.join("agent", ["*"], act_for=["ann"])
        for at, builders in enumerate(LARGE):
            await room.join("ann", builders)
            call = call_of("out.say", 10 + at, on_behalf_of="ann")
            _, told = await room.told(agent, call)
            assert told == ([["*"], *LARGE[: at + 1]] if at < 3 else None)
