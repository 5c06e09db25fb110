"""Two issuers at one server: what a name means, for each way to name a participant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

import pytest

from support.clients.ending_tokens import calling
from support.clients.raw_client import raw_participant
from support.clients.raw_requests import ask, call_of, call_through, failure_of, offer
from support.redis.server import RedisPlace
from support.rooms.delegation import ENDLESS
from toolbus import (
    AgentsGrant,
    ApiScope,
    BuilderInfo,
    Key,
    Message,
    ParticipantToken,
    RoomClient,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.auth.keys import KeyRing
from toolbus.errors import NotFound, PermissionDenied, RoomException
from toolbus.room.events import RoomEvent
from toolbus.wire import Explain, Refresh, RequestId
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_nodes, running_server

HOME = Key.generate(kid="home", iss="https://home", alias="home")
AWAY = Key.generate(kid="away", iss="https://away", alias="away")
TWO = ServerSettings(keys=KeyRing([HOME, AWAY]), port=0)
ALL = ("*", "home/*", "away/*")
ACTING = replace(ApiScope.full(), agents=replace(ApiScope.full().agents, act_for=ALL))
_steps = count()


def room_of(server: TestServer, key: Key, name: str, api: ApiScope = ACTING) -> RoomClient:
    token = ParticipantToken(name=name, room=["lab"], api=api).to_jwt(key)
    return RoomClient(server.url, room="lab", token=token)


def alias_of(issuer: str) -> str:
    return issuer.removeprefix("https://")


@dataclass
class Case:
    """`eve` of the last issuer, and an `ann` of each of them, who may be at another node."""

    here: TestServer
    keys: Sequence[Key]
    eve: RoomClient
    anns: Mapping[str, RoomClient]

    async def settle(self) -> None:
        """Wait until all see what the others published so far."""
        everybody = (self.eve, *self.anns.values())
        step = next(_steps)
        for member in everybody:
            await member.set_attributes(step=step)
        for member in everybody:
            async with member.events(["participants"]) as events:
                while [p.attributes.get("step") for p in await member.participants()].count(
                    step
                ) < len(everybody):
                    await anext(events)


def box(alias: str) -> Toolkit:
    @tool
    def owner() -> str:
        return alias

    return Toolkit("box", [owner])


@tool
def principal(context: ToolContext) -> str:
    """Name the issuer of the one for whom the call is made."""
    assert context.on_behalf_of is not None
    return alias_of(context.on_behalf_of.issuer)


# The ways: each returns the aliases of those that it reached


async def call(case: Case, text: str) -> set[str]:
    return {str((await case.eve.invoke("box.owner", participant=text)).value)}


async def describe(case: Case, text: str) -> set[str]:
    return {alias_of((await case.eve.toolkit("box", text)).info.issuer)}


async def explain(case: Case, text: str) -> set[str]:
    found = await case.eve.explain("box.owner", participant=text)
    return {found.code} if found.host is None else {alias_of(found.host.issuer)}


async def act_for(case: Case, text: str) -> set[str]:
    return {await principal_of(case.eve, text)}


async def principal_of(room: RoomClient, text: str) -> str:
    return str((await room.invoke("echo.principal", on_behalf_of=text)).value)


async def grant(case: Case, text: str) -> set[str]:
    """A token with the text in `act_for`."""
    may = ApiScope(agents=AgentsGrant(call=True, act_for=[text]))
    covered = set()
    async with room_of(case.here, case.keys[-1], "agent", may) as agent:
        for ann in case.anns.values():
            try:
                covered.add(await principal_of(agent, ann.me.full_name))
            except PermissionDenied:
                continue
    return covered


async def next_message(inbox: AsyncIterator[RoomEvent]) -> Message:
    async for event in inbox:
        if event.message is not None:
            return event.message
    raise AssertionError("the room is closed")


async def send(case: Case, text: str) -> set[str]:
    async with AsyncExitStack() as stack:
        inboxes = {
            alias: await stack.enter_async_context(ann.events(["messages"]))
            for alias, ann in case.anns.items()
        }
        await case.settle()
        delivered = await case.eve.send(text, "hello")
        await case.eve.broadcast("end")
        first = {alias: await next_message(inbox) for alias, inbox in inboxes.items()}
        reached = {alias for alias, message in first.items() if message.name == "hello"}
        assert len(reached) == delivered
        return reached


async def builders(case: Case, text: str) -> set[str]:
    return {builder.name for builder in await case.eve.list_builders(text)}


async def share(case: Case, text: str) -> set[str]:
    async with case.eve.host(box("eve"), public=False, shared_with=[f"name:{text}"]):
        await case.settle()
        return {
            alias
            for alias, ann in case.anns.items()
            if "eve" in {toolkit.owner async for toolkit in ann.toolkits()}
        }


async def kick(case: Case, text: str) -> set[str]:
    async with case.eve.events(["participants"]) as events:
        closed = (await case.eve.admin("kick", room="lab", participant=text))["closed"]
        while True:
            listed = await case.eve.participants()
            left = {
                alias_of(participant.issuer) for participant in listed if participant.name == "ann"
            }
            if len(case.anns) - len(left) == closed:
                return case.anns.keys() - left
            await anext(events)


Way: TypeAlias = Callable[[Case, str], Awaitable[set[str]]]
WAYS: dict[Way, str] = {
    call: "not_found",
    describe: "not_found",
    explain: "not_found",
    act_for: "permission_denied",
    grant: "",
    send: "not_found",
    builders: "",
    share: "",
    kick: "",
}
"""Each way, and the outcome for a name that no participant has."""
MEANT = {"ann": "away", "away/ann": "away", "home/ann": "home", "home/zoe": None, "zoe": None}
"""The issuer that `eve` of `away` means; None if no participant has the name."""


@asynccontextmanager
async def case_at(here: TestServer, there: TestServer, *keys: Key) -> AsyncIterator[Case]:
    async with AsyncExitStack() as stack:

        async def join(server: TestServer, key: Key, name: str) -> RoomClient:
            return await stack.enter_async_context(room_of(server, key, name))

        host = await join(here, keys[0], "host")
        await stack.enter_async_context(host.host(Toolkit("echo", [principal])))
        anns = {str(key.alias): await join(there, key, "ann") for key in keys}
        for alias, ann in anns.items():
            await stack.enter_async_context(ann.host(box(alias), public=False, shared_with=["*"]))
            await ann.offer_builders([BuilderInfo(alias, "", {})])
        case = Case(here, keys, await join(here, keys[-1], "eve"), anns)
        await case.settle()
        yield case


async def outcome(way: Way, case: Case, text: str) -> str:
    try:
        return " ".join(sorted(await way(case, text)))
    except RoomException as error:
        return error.code


def expected(way: Way, alias: str | None) -> str:
    return WAYS[way] if alias is None else alias


@pytest.mark.parametrize("way", WAYS)
async def test_a_bare_name_means_the_senders_own_issuer(way: Way) -> None:
    """NAME-1, NAME-2, NAME-3."""
    async with running_server(key=HOME, settings=replace(TWO, keys=KeyRing([AWAY]))) as server:
        for text, alias in MEANT.items():
            async with case_at(server, server, HOME, AWAY) as case:
                assert (text, await outcome(way, case, text)) == (text, expected(way, alias))
        async with case_at(server, server, HOME, AWAY) as case:
            unknown = "" if way is grant else "invalid_arguments"
            assert await outcome(way, case, "none/ann") == unknown


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_of_one_issuer_reads_its_own_alias_and_no_other(way: Way) -> None:
    """NAME-1, NAME-2: an unknown alias is part of a name then."""
    async with running_server(key=HOME) as server:
        for text, alias in {"ann": "home", "home/ann": "home", "none/ann": None}.items():
            async with case_at(server, server, HOME) as case:
                assert (text, await outcome(way, case, text)) == (text, expected(way, alias))


async def test_a_name_that_begins_like_an_alias_is_shown_so_that_it_means_no_other() -> None:
    """NAME-4: one issuer. An agent that acts for the sender of a message acts for no other."""

    @tool
    def acting_for(context: ToolContext) -> str:
        assert context.on_behalf_of is not None
        return context.on_behalf_of.name

    async with (
        running_server(key=HOME) as server,
        room_of(server, HOME, "ann") as ann,
        room_of(server, HOME, "home/ann") as other,
        room_of(server, HOME, "agent") as agent,
        agent.host(Toolkit("who", [acting_for])),
        agent.events(["messages"]) as inbox,
        ann.host(box("ann"), public=False, shared_with=["*"]),
        other.host(box("other"), public=False, shared_with=["*"]),
    ):
        await other.send("agent", "hello")
        sender = (await next_message(inbox)).sender
        assert (sender.full_name, ann.me.full_name) == ("home/home/ann", "ann")
        asked = await agent.invoke("who.acting_for", on_behalf_of=sender.full_name)
        assert asked.value == "home/ann"
        for owner in [
            toolkit.full_owner async for toolkit in agent.toolkits() if toolkit.name == "box"
        ]:
            reached = await agent.invoke("box.owner", participant=owner)
            assert reached.value == ("ann" if owner == "ann" else "other")


async def test_nodes_agree_on_the_meaning_of_a_name(redis: RedisPlace) -> None:
    """NAME-1: those who are meant are at another node."""
    async with running_nodes(redis.url, settings=TWO) as (here, there):
        for way in WAYS:
            for text in ("ann", "home/ann"):
                async with case_at(here, there, HOME, AWAY) as case:
                    shown = {participant.full_name for participant in await case.eve.participants()}
                    assert shown == {"home/ann", "away/ann", "home/host", "away/eve"}
                    assert await outcome(way, case, text) == MEANT[text], (way, text)


async def test_people_see_the_alias_before_the_name() -> None:
    """NAME-4, WATCH-2."""

    @tool
    def caller(context: ToolContext) -> str:
        return context.caller.full_name

    async with (
        running_server(key=HOME, settings=replace(TWO, keys=KeyRing([AWAY]))) as server,
        room_of(server, HOME, "ann") as ann,
        room_of(server, AWAY, "eve") as eve,
        ann.host(Toolkit("who", [caller])),
        ann.events(["messages"]) as inbox,
        eve.watch_calls() as watched,
    ):
        assert await eve.call("who.caller") == "away/eve"
        while not (ended := (await anext(watched)).calls):
            pass
        assert [(call.caller, call.host) for call in ended] == [("away/eve", "home/ann")]
        assert (eve.me.full_name, eve.name) == ("away/eve", "eve")
        assert [participant.full_name for participant in await eve.participants()] == [
            "home/ann",
            "away/eve",
        ]
        assert [toolkit.full_owner async for toolkit in eve.toolkits()] == ["home/ann"]
        explained = await eve.explain("who.caller")
        assert explained.host is not None
        assert explained.host.full_name == "home/ann"
        await eve.send("home/ann", "hello")
        assert (await next_message(inbox)).sender.full_name == "away/eve"


async def test_an_unknown_alias_is_refused_with_the_senders_own_only() -> None:
    """NAME-2: the aliases of others are not named."""
    async with running_server(key=HOME, settings=replace(TWO, keys=KeyRing([AWAY]))) as server:
        async with room_of(server, AWAY, "eve") as eve:
            with pytest.raises(RoomException, match="no issuer has the alias 'none'") as refused:
                await eve.send("none/ann", "hello")
            assert (refused.value.code, refused.value.details["path"]) == (
                "invalid_arguments",
                "/to",
            )
            assert "'away'" in refused.value.message
            assert "home" not in refused.value.message


async def test_participants_stay_apart_when_the_second_issuer_comes_and_goes() -> None:
    """NAME-1, TOKEN-6: keys are reloaded while both are connected."""
    async with running_server(key=HOME) as server:
        async with room_of(server, HOME, "ann") as ann, ann.events(["participants"]) as events:
            assert ann.me.full_name == "ann"
            server.server.trust(KeyRing([HOME, AWAY]))
            seen = (await anext(events)).participant
            assert seen is not None
            assert seen.full_name == "home/ann"
            async with room_of(server, AWAY, "eve") as eve:
                server.server.trust(KeyRing([HOME]))
                with pytest.raises(NotFound):
                    await eve.send("ann", "hello")
                assert await eve.send("home/ann", "hello") == 0
                with pytest.raises(ValueError, match="'https://away' has no alias"):
                    server.server.trust(KeyRing([HOME, replace(AWAY, alias=None)]))


async def test_calls_within_and_newer_tokens_name_the_issuer_of_the_principal() -> None:
    """NAME-1, NAME-3, CALL-16, CALL-26."""
    async with running_server(key=HOME, settings=replace(TWO, keys=KeyRing([AWAY]))) as server:
        acting = [
            server.token("agent", api=calling(act_for=[pattern])) for pattern in ("away/*", "*")
        ]
        ann = ParticipantToken(name="ann", room=["lab"], api=ApiScope.full()).to_jwt(AWAY)
        async with (
            raw_participant(server, "host") as host,
            raw_participant(server, "ann"),
            raw_participant(server, token=ann),
            raw_participant(server, token=acting[0]) as agent,
        ):
            await ask(host, offer())
            outer = call_of("echo.say", 7, on_behalf_of="away/ann", **ENDLESS)
            dispatched = await call_through(agent, host, outer)
            within = {"parent": dispatched.id}
            for at, (name, runs) in enumerate({"away/ann": True, "ann": False}.items()):
                options = {**within, "on_behalf_of": name}
                explained = await ask(host, Explain(RequestId(20 + at), "echo", "say", options))
                assert explained["would_run"] is runs
            agent.send_frame(Refresh(RequestId(9), acting[1]))
            assert (await failure_of(agent, 7)).code == "cancelled"
