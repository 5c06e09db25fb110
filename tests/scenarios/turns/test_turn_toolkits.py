"""The toolkits of a turn by their names: aliases, clashes, and every public toolkit of a room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.rooms.turns import agent_and_host, greeter, names
from toolbus import (
    AgentsGrant,
    ApiScope,
    DefinitionChanged,
    InvalidArguments,
    LocalToolkit,
    RequiredToolkit,
    RoomClient,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Turn,
    tool,
)
from toolbus_server.testing import TestServer, running_server


def kit(name: str, says: str, count: int = 1) -> Toolkit:
    def made(index: int) -> Any:
        @tool(name=f"say{index or ''}")
        async def say(context: ToolContext) -> str:
            if context.state is not None:
                context.state["by"] = says
            return says

        return say

    return Toolkit(name, [made(index) for index in range(count)])


# Aliases


async def test_toolkits_of_one_name_are_told_apart_by_an_alias() -> None:
    async with running_server() as server, server.room("agent") as agent:
        async with server.room("ann") as ann, server.room("bob") as bob:
            shared: Any = {"public": False, "shared_with": ["*"]}
            async with ann.host(kit("notes", "ann")), bob.host(kit("notes", "bob"), **shared):
                own = kit("notes", "own")
                async with Turn(
                    agent,
                    always=[own, LocalToolkit(own, "again")],
                    required=[
                        RequiredToolkit("notes", alias="public"),
                        RequiredToolkit("notes", ["say"], "bob", alias="of_bob"),
                    ],
                ) as turn:
                    assert {name: await turn.call(name) for name in names(turn)} == {
                        "notes.say": "own",
                        "again.say": "own",
                        "public.say": "ann",
                        "of_bob.say": "bob",
                    }
                    owners = [(each.toolkit, each.owner, each.issuer) for each in turn.tools]
                    issuer = agent.me.issuer
                    assert owners[2:] == [("public", "ann", issuer), ("of_bob", "bob", issuer)]
                    assert issuer
                    assert owners[0] == ("notes", "", "")
                    assert turn.tools[2].digest
                    assert set(turn._options.state.state) == {"notes", "again"}
                of_bob = RequiredToolkit("notes", participant="bob", alias="of_bob")
                async with Turn(agent, required=[of_bob], available=True) as turn:
                    assert names(turn) == ["of_bob.say", "notes.say"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"always": [kit("notes", "x")], "required": [RequiredToolkit("notes")]},
            "two toolkits of this turn are named 'notes', one of this process and one of another"
            " participant: .*alias=",
        ),
        (
            {"required": [RequiredToolkit("notes", None, each) for each in ("ann", "bob")]},
            "'notes', one of ann and one of bob: ",
        ),
        (
            {"always": [LocalToolkit(kit("a", "x"), "notes"), kit("notes", "x")]},
            "'notes', one of this process and one of this process: ",
        ),
    ],
)
def test_clash_of_names_names_both_owners(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Turn(RoomClient("ws://127.0.0.1:1"), **options)


class Notes(ToolkitBuilder[ToolkitConfig]):
    async def make(self, room: Any, model: Any, config: ToolkitConfig) -> Toolkit:
        return kit("greeter", "built")


async def test_toolkit_that_is_built_with_a_name_of_another_names_its_owner() -> None:
    async with agent_and_host(greeter()) as (_, agent):
        turn = Turn(
            agent,
            required=[RequiredToolkit("greeter")],
            builders=[Notes("notes", ToolkitConfig)],
            tools=[ToolkitConfig(name="notes")],
        )
        text = "/tools/0/name: .* a toolkit greeter, of host; the builder notes of this process"
        with pytest.raises(InvalidArguments, match=text):
            await turn.__aenter__()


def test_alias_that_is_no_name_is_refused() -> None:
    for make in (
        lambda alias: RequiredToolkit("notes", alias=alias),
        lambda alias: LocalToolkit(kit("notes", "x"), alias),
    ):
        for alias in ("", "a.b", "A", 7):
            with pytest.raises(ValueError, match=r"toolkit notes: .* is not a name for it: an al"):
                make(alias)
    wrong: Any = "notes"
    with pytest.raises(TypeError, match="LocalToolkit takes a Toolkit, not str"):
        LocalToolkit(wrong, "a")


# Every public toolkit


@asynccontextmanager
async def room_with(
    *toolkits: Toolkit, api: ApiScope | None = None
) -> AsyncIterator[tuple[TestServer, RoomClient]]:
    async with asyncio.timeout(100), agent_and_host(*toolkits, api=api) as (server, agent):
        yield server, agent


async def test_available_adds_what_may_be_called_and_nothing_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grant = AgentsGrant(
        use_tools=True, call=True, register_private_toolkit=True, deny=("*.say1", "hidden")
    )
    kits = [kit("one", "one", 2), kit("two", "two"), kit("own", "host"), kit("hidden", "x")]
    kits.append(kit("mine", "host"))  # a call by this name goes to the agent's private one
    async with room_with(*kits, api=ApiScope(agents=grant)) as (server, agent):
        assert (await agent.toolkit("mine")).info.public
        async with (
            server.room("host") as host,
            host.host(kit("private", "x"), public=False),
            agent.host(kit("mine", "agent"), public=False),
        ):
            required = [RequiredToolkit("two", alias="second")]
            always = [kit("own", "agent")]
            async with Turn(agent, always=always, required=required, available=True) as turn:
                assert names(turn) == ["own.say", "second.say", "one.say"]
                assert await turn.call("one.say") == "one"
                assert await turn.call("own.say") == "agent"
    assert "leaves out the toolkit own of host: it has one of this process" in caplog.text


async def test_list_does_not_change_while_toolkits_come_and_go() -> None:
    async with room_with(kit("stays", "stays")) as (server, agent):
        async with server.room("other") as other:
            async with other.host(kit("goes", "goes")), other.host(kit("changes", "old")):
                turn = Turn(agent, available=True)
                await turn.__aenter__()
                before = turn.tools
                assert names(turn) == ["changes.say", "goes.say", "stays.say"]
                assert await turn.call("goes.say") == "goes"
            async with other.host(kit("comes", "x")), other.host(kit("changes", "new", 2)):
                assert turn.tools == before
                assert await turn.call("stays.say") == "stays"
                with pytest.raises(DefinitionChanged):
                    await turn.call("changes.say")
                async with Turn(agent, available=True) as later:
                    expected = ["changes.say", "changes.say1", "comes.say", "stays.say"]
                    assert names(later) == expected
                    assert await later.call("changes.say") == "new"
        await turn.__aexit__(None, None, None)


async def test_toolkit_that_goes_while_the_turn_is_entered_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with room_with(kit("stays", "stays")) as (server, agent):
        async with server.room("other") as other:
            async with other.host(kit("goes", "goes")):
                listed = [each async for each in agent.toolkits()]

            async def stale(_: Any) -> AsyncIterator[Any]:
                for each in listed:
                    yield each

        monkeypatch.setattr(RoomClient, "toolkits", stale)
        async with Turn(agent, available=True) as turn:
            assert names(turn) == ["stays.say"]
        async with agent.host(kit("goes", "own"), public=False):
            async with Turn(agent, available=True) as turn:
                assert names(turn) == ["stays.say"]


async def test_rights_that_changed_show_in_the_next_turn() -> None:
    grant = AgentsGrant(use_tools=True, call=True, deny=("one.say1",))
    scope = ApiScope(agents=grant)
    async with room_with(kit("one", "one", 2)) as (server, _):
        wide = ApiScope(agents=AgentsGrant(use_tools=True, call=True))
        tokens = iter([server.token("agent", api=each) for each in (scope, wide)])

        async def token() -> str:
            return next(tokens)

        async with RoomClient(server.url, room="lab", token=token) as agent:
            for expected in (["one.say"], ["one.say", "one.say1"]):
                for _ in range(2):
                    both: Any = ({"required": [RequiredToolkit("one")]}, {"available": True})
                    for parts in both:
                        async with Turn(agent, **parts) as turn:
                            assert names(turn) == expected
                if len(expected) == 1:
                    await agent.refresh()
