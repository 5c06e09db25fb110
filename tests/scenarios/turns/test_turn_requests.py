"""Dynamic toolkits that a message requests: grants, and on whose behalf their tools run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.rooms.turns import Diary, Recorded, agent_and_host, greeter, message_of, names
from toolbus import (
    AgentsGrant,
    ApiScope,
    EventStream,
    Key,
    KeyRing,
    Message,
    Participant,
    ParticipantToken,
    RequiredToolkit,
    RoomClient,
    RoomEvent,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Turn,
    tool,
)
from toolbus.errors import (
    InvalidArguments,
    PermissionDenied,
)
from toolbus.room.room import Room
from toolbus.turns.builders import builder_infos
from toolbus.turns.turn_options import scope_of
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import room_of, running_server


class Asking(ToolkitBuilder[ToolkitConfig]):
    """Builds a tool that calls the greeter through its context's room, and while it is built."""

    def __init__(self) -> None:
        super().__init__("asking", ToolkitConfig)
        self.received: list[str] = []

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        self.received.append(await room.call("greeter.greet", name=model))
        plan = await room.explain("greeter.greet", {"name": "x"})
        self.received.append(f"would run: {plan.would_run}")

        @tool
        async def ask(context: ToolContext) -> str:
            proxy = await context.room.toolkit("greeter")
            principal = context.on_behalf_of or context.caller
            greeting: str = await proxy.greet(name=principal.name)
            return greeting

        return Toolkit("asking", [ask])


async def test_tools_requested_by_a_message_run_on_the_senders_behalf() -> None:
    asking = Asking()
    async with agent_and_host(greeter()) as (server, agent), server.room("bob"):
        async with Turn(
            agent,
            required=[RequiredToolkit("greeter")],
            builders=[asking],
            message=message_of("bob", {"name": "asking"}, builders=["ask*"]),
            model="m",
        ) as turn:
            assert asking.received == ["hello m, from agent for bob", "would run: True"]
            direct = await turn.call("greeter.greet", {"name": "x"})
            assert direct == "hello x, from agent for bob"
            assert await turn.call("asking.ask") == "hello bob, from agent for bob"


async def test_tools_that_were_built_are_started_for_the_sender_and_shared_ones_for_the_agent() -> (
    None
):
    diary: list[str] = []
    own, lent = Recorded("own", diary), Recorded("lent", diary)
    built: list[Recorded] = []

    class Building(Diary):
        async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
            built.append(Recorded("built", diary))
            return Toolkit("extra", built[:])

    async with agent_and_host(greeter()) as (server, agent), server.room("bob"):
        async with Turn(
            agent,
            always=[Toolkit("own", [own])],
            builders=[Toolkit("lent", [lent]), Building("extra", diary)],
            message=message_of("bob", {"name": "lent"}, {"name": "extra"}, builders=["*"]),
        ):
            assert own.room is agent
            assert lent.room is agent
            output = await built[0].room.call("greeter.greet", name="x")
            assert output == "hello x, from agent for bob"


async def test_tool_that_runs_in_process_gets_the_same_context_as_a_remote_one() -> None:
    @tool
    async def describe_context(context: ToolContext) -> list[str]:
        principal = context.on_behalf_of
        assert principal is None or principal.issuer == context.caller.issuer
        return [context.caller.id, context.caller.name, principal.name if principal else ""]

    async with (
        agent_and_host(Toolkit("far", [describe_context])) as (server, agent),
        server.room("bob"),
    ):
        own = Message(agent.me, "note", None, True)
        for message in (None, own, message_of("bob")):
            async with Turn(
                agent,
                always=[Toolkit("near", [describe_context])],
                required=[RequiredToolkit("far")],
                message=message,
            ) as turn:
                got = await turn.call("near.describe_context")
                assert got == await turn.call("far.describe_context")
                assert got == [agent.me.id, "agent", "bob" if message not in (None, own) else ""]


async def test_turn_is_not_made_with_the_room_of_a_running_tool() -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        with pytest.raises(TypeError, match=r"an agent's toolbus\.RoomClient, not toolbus\.room"):
            Turn(context.room)  # type: ignore[arg-type]  # what is tested
        return "refused"

    async with agent_and_host(Toolkit("far", [ask])) as (_, agent):
        assert await agent.call("far.ask") == "refused"


async def test_agent_that_is_the_sender_acts_for_itself() -> None:
    async with agent_and_host(greeter()) as (_, agent):
        async with Turn(
            agent, required=[RequiredToolkit("greeter")], message=message_of("agent")
        ) as turn:
            output = await turn.call("greeter.greet", {"name": "x"})
            assert output == "hello x, from agent for agent"


async def test_sender_of_another_issuer_is_acted_for_by_its_alias_only() -> None:
    other = Key.generate(kid="other", iss="elsewhere", alias="other")
    settings = ServerSettings(keys=KeyRing([other]), port=0, drain_s=1.0)
    api = ApiScope(agents=AgentsGrant(call=True, use_tools=True, act_for=["other/*"]))
    sender = ParticipantToken(name="agent", room=["lab"], api=ApiScope.full()).to_jwt(other)
    async with (
        running_server(settings=settings) as server,
        server.room("host") as host,
        host.host(greeter()),
        server.room("agent", api=api) as agent,
        RoomClient(server.url, room="lab", token=sender) as stranger,
    ):
        message = Message(stranger.me, "question", None, True)
        async with Turn(agent, required=[RequiredToolkit("greeter")], message=message) as turn:
            output = await turn.call("greeter.greet", {"name": "x"})
            assert output == "hello x, from agent for agent"
        with pytest.raises(PermissionDenied, match="gives no alias"):
            await Turn(agent, message=message_of("agent", issuer="elsewhere")).__aenter__()


async def test_agent_without_the_grant_to_act_for_its_sender_reaches_nothing_for_it() -> None:
    api = ApiScope(agents=AgentsGrant(use_tools=True, call=True))
    async with agent_and_host(greeter(), api=api) as (server, agent), server.room("bob"):
        async with Turn(
            agent, required=[RequiredToolkit("greeter")], message=message_of("bob")
        ) as turn:
            with pytest.raises(PermissionDenied):
                await turn.call("greeter.greet", {"name": "x"})
            asking, view = Asking(), scope_of(turn._options).view()
            assert view is not None
            with pytest.raises(PermissionDenied):
                await asking.make(view, "m", ToolkitConfig(name="asking"))
            assert not (await view.explain("greeter.greet", {"name": "x"})).would_run


async def test_sender_without_the_grant_for_a_builder_is_denied_and_nothing_is_built() -> None:
    asking, diary = Asking(), list[str]()
    async with agent_and_host(greeter()) as (_, agent):
        turn = Turn(
            agent,
            builders=[asking, Diary("extra", diary)],
            message=message_of("bob", {"name": "extra"}, {"name": "asking"}, builders=["extra"]),
        )
        with pytest.raises(PermissionDenied, match="/tools/1: no grant for builder asking"):
            await turn.__aenter__()
    assert (asking.received, diary) == ([], [])


async def test_requests_outside_of_the_bodys_tools_need_the_senders_grant_too() -> None:
    diary: list[str] = []
    builders = [Diary("extra", diary), Diary("hidden", diary)]
    async with room_of("agent", "bob") as (agent, _):
        for name, granted in (("extra", True), ("hidden", False)):
            message = message_of("bob", {"name": "nothing"}, builders=["extra"])
            turn = Turn(agent, builders=builders, message=message, tools=[{"name": name}])
            if granted:
                async with turn:
                    assert names(turn) == ["extra.extra"]
                continue
            with pytest.raises(PermissionDenied, match="/tools/0: no grant for builder hidden"):
                await turn.__aenter__()
    assert diary == ["+extra", "-extra"]


@pytest.mark.parametrize("tools", [[{"name": "extra"}], "extra", {"name": "extra"}, [None]])
def test_json_without_its_message_is_refused(tools: Any) -> None:
    """Otherwise configs of another participant would be built with the agent's own grants."""
    room = RoomClient("ws://127.0.0.1:1")
    with pytest.raises(TypeError, match="pass message= to build"):
        Turn(room, builders=[Diary("extra", [])], tools=tools)
    with pytest.raises(TypeError, match="message must be a Message, not Participant"):
        Turn(room, message=Participant(id="", name="bob"))  # type: ignore[arg-type]  # tested


@pytest.mark.parametrize("body", [None, "tools", ["tools"], {}, {"tools": None}, {"tools": []}])
async def test_message_without_requests_gets_a_turn_without_dynamic_toolkits(
    body: Any,
) -> None:
    async with room_of("agent", "bob") as (agent, bob):
        message = Message(bob.me, "question", body, True)
        async with Turn(agent, message=message, builders=[Diary("extra", [])]) as turn:
            assert names(turn) == []


@pytest.mark.parametrize("tools", ["extra", 7, {"name": "extra"}, [7]])
async def test_message_whose_tools_are_no_configs_is_refused_with_its_path(tools: Any) -> None:
    async with room_of("agent", "bob") as (agent, bob):
        message = Message(bob.me, "question", {"tools": tools}, True, ("*",))
        with pytest.raises(InvalidArguments, match=r"^/tools"):
            await Turn(agent, message=message, builders=[Diary("extra", [])]).__aenter__()


# By message


async def test_message_requests_toolkits_with_the_senders_grant() -> None:
    """SEND-3, BUILD-1, BUILD-2."""
    asking, diary = Asking(), list[str]()
    builders = [asking, Diary("extra", diary), Diary("hidden", diary)]
    grant = AgentsGrant(call=True, builders=("asking", "extra"))
    api = ApiScope(agents=grant, messaging=True)
    async with agent_and_host(greeter()) as (server, agent), asyncio.timeout(60):
        await agent.offer_builders(builder_infos(builders))
        async with agent.events(["messages"]) as events, server.room("bob", api=api) as bob:
            offered = await bob.list_builders("agent")
            assert [each.name for each in offered] == ["asking", "extra"]
            assert offered[0].schema["properties"]["name"] == {"type": "string", "const": "asking"}
            wanted = [{"name": each.name} for each in offered]
            await bob.send("agent", "question", {"text": "hello", "tools": wanted})
            message = await next_message(events)
            async with Turn(
                agent,
                builders=builders,
                message=message,
                model="m",
            ) as turn:
                assert names(turn) == ["asking.ask", "extra.extra"]
                assert await turn.call("asking.ask") == "hello bob, from agent for bob"
            await bob.send("agent", "question", {"tools": [{"name": "hidden"}]})
            message = await next_message(events)
            refused = Turn(
                agent,
                builders=builders,
                message=message,
            )
            with pytest.raises(PermissionDenied, match="/tools/0: no grant for builder hidden"):
                await refused.__aenter__()
    assert diary == ["+extra", "-extra"]


async def next_message(events: EventStream[RoomEvent]) -> Message:
    while (message := (await anext(events)).message) is None:
        pass
    return message
