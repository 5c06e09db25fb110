"""Two issuers at one server: whom a name means, for each way in which a request names somebody."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from toolbus import (
    AgentsGrant,
    ApiScope,
    BuilderInfo,
    Key,
    ParticipantToken,
    RoomClient,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.auth.keys import KeyRing
from toolbus.errors import PermissionDenied, RoomException
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

KEYS = {
    name: Key.generate(kid=name, iss=f"https://{name}", alias=name) for name in ("home", "away")
}
Room = Callable[..., RoomClient]
Way = Callable[["Case", str], Awaitable[Any]]


class Case:
    """`eve` of the issuer `away`, and an `ann` of each issuer."""

    def __init__(self, room: Room, eve: RoomClient, anns: Mapping[str, RoomClient]) -> None:
        self.room, self.eve, self.anns = room, eve, anns


def alias_of(issuer: str) -> str:
    return issuer.removeprefix("https://")


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


async def call(case: Case, text: str) -> set[str]:
    return {str((await case.eve.invoke("box.owner", participant=text)).value)}


async def describe(case: Case, text: str) -> set[str]:
    return {alias_of((await case.eve.toolkit("box", text)).info.issuer)}


async def explain(case: Case, text: str) -> set[str]:
    found = await case.eve.explain("box.owner", participant=text)
    return {found.code} if found.host is None else {alias_of(found.host.issuer)}


async def principal_of(room: RoomClient, text: str) -> str:
    return str((await room.invoke("echo.principal", on_behalf_of=text)).value)


async def act_for(case: Case, text: str) -> set[str]:
    return {await principal_of(case.eve, text)}


async def grant(case: Case, text: str) -> set[str]:
    """Say whom a token may act for that has the text in `act_for`."""
    may = ApiScope(agents=AgentsGrant(call=True, act_for=[text]))
    covered = set()
    async with case.room("away", "agent", api=may) as agent:
        for ann in case.anns.values():
            try:
                covered.add(await principal_of(agent, ann.me.full_name))
            except PermissionDenied:
                continue
    return covered


async def send(case: Case, text: str) -> set[str]:
    async with AsyncExitStack() as stack:
        inboxes = {
            alias: await stack.enter_async_context(ann.events(["messages"]))
            for alias, ann in case.anns.items()
        }
        delivered = await case.eve.send(text, "hello")
        await case.eve.broadcast("end")
        first = {alias: (await anext(inbox)).message for alias, inbox in inboxes.items()}
        reached = {alias for alias, message in first.items() if message and message.name == "hello"}
        assert len(reached) == delivered
        return reached


async def builders(case: Case, text: str) -> set[str]:
    return {each.name for each in await case.eve.list_builders(text)}


async def share(case: Case, text: str) -> set[str]:
    async with case.eve.host(box("away"), public=False, shared_with=[f"name:{text}"]):
        [own] = [each async for each in case.eve.toolkits() if each.owner == "eve"]
        sees = set()
        for alias, ann in case.anns.items():
            owners = {each.owner async for each in ann.toolkits()}
            sees |= {alias} if own.owner in owners else set()
        return sees


async def kick(case: Case, text: str) -> set[str]:
    async with case.room("away", "observer") as observer:
        closed = (await case.eve.admin("kick", room="lab", participant=text))["closed"]
        left = {
            alias_of(each.issuer) for each in await observer.participants() if each.name == "ann"
        }
        assert len(case.anns) - len(left) == closed
        return case.anns.keys() - left


WAYS: dict[str, tuple[Way, str, str]] = {
    # the way, and the outcomes for an unknown name and, with one issuer, for an unknown alias
    "call": (call, "not_found", "not_found"),
    "describe": (describe, "not_found", "not_found"),
    "explain": (explain, "not_found", "not_found"),
    "act_for": (act_for, "permission_denied", "permission_denied"),
    "grant": (grant, "", ""),
    "send": (send, "not_found", "not_found"),
    "builders": (builders, "", ""),
    "share": (share, "", ""),
    "kick": (kick, "", ""),
}


@asynccontextmanager
async def case_of(*aliases: str) -> AsyncIterator[Case]:
    """Run a server with these issuers; eve is of the last one."""
    settings = ServerSettings(keys=KeyRing([KEYS[each] for each in aliases[1:]]), port=0)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            running_server(key=KEYS[aliases[0]], settings=settings)
        )
        room = room_at(server)
        host = await stack.enter_async_context(room(aliases[0], "host"))
        await stack.enter_async_context(host.host(Toolkit("echo", [principal])))
        anns = {each: await stack.enter_async_context(room(each, "ann")) for each in aliases}
        for alias, ann in anns.items():
            shared = box(alias)
            await stack.enter_async_context(ann.host(shared, public=False, shared_with=["*"]))
            await ann.offer_builders([BuilderInfo(alias, "", {})])
        everybody = replace(
            ApiScope.full().agents, act_for=[*(f"{each}/*" for each in aliases), "*"]
        )
        may = replace(ApiScope.full(), agents=everybody)
        eve = await stack.enter_async_context(room(aliases[-1], "eve", may))
        yield Case(room, eve, anns)


def room_at(server: TestServer) -> Room:
    def room(alias: str, name: str, api: ApiScope | None = None) -> RoomClient:
        token = ParticipantToken(name=name, room=["lab"], api=api or ApiScope.full())
        return RoomClient(server.url, room="lab", token=token.to_jwt(KEYS[alias]))

    return room


async def outcome(way: Way, case: Case, text: str) -> str:
    try:
        return " ".join(sorted(await way(case, text)))
    except RoomException as error:
        return error.code


@pytest.mark.parametrize("way", WAYS)
async def test_a_bare_name_means_the_speakers_own_issuer(way: str) -> None:
    """NAME-1, NAME-2."""
    meant, nobody, _ = WAYS[way]
    for text, expected in {
        "ann": "away",
        "away/ann": "away",
        "home/ann": "home",
        "home/zoe": nobody,
        "zoe": nobody,
        "none/ann": "invalid_arguments" if way != "grant" else "",
    }.items():
        async with case_of("home", "away") as case:
            assert (text, await outcome(meant, case, text)) == (text, expected)
