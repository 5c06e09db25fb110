"""Required toolkits: what a turn waits for, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.parts.scripted_server import scripted_server
from support.rooms.events import until
from support.rooms.turns import Diary, Recorded, agent_and_host, greeter
from toolbus import (
    AgentsGrant,
    ApiScope,
    RequiredToolkit,
    RoomClient,
    Toolkit,
    ToolkitConfig,
    Turn,
)
from toolbus.errors import (
    NotFound,
    PermissionDenied,
    RoomException,
    Unavailable,
)
from toolbus.room.room import connection_of
from toolbus.wire import (
    Describe,
    Failed,
    Register,
    RequestId,
    Result,
    Subscribe,
    pack_body,
)
from toolbus_server.testing import room_of, running_server


async def test_turn_waits_for_a_required_toolkit_that_is_registered_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "toolbus.turns")
    async with room_of("agent", "host") as (agent, host), asyncio.timeout(60):
        finding = asyncio.create_task(RequiredToolkit("greeter", ["greet"]).find(agent))
        async with host.host(Toolkit("other")), host.host(greeter()):
            proxy = await finding
            assert await proxy.greet(name="x") == "hello x, from agent for agent"
    assert _told(caplog) == [
        ("INFO", "toolkit greeter does not exist; waiting up to 60 s for it"),
    ]


async def test_turn_waits_for_a_required_tool_of_a_newer_definition_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "toolbus.turns")
    async with room_of("agent", "host") as (agent, host), asyncio.timeout(60):
        async with host.host(Toolkit("greeter", [Recorded("great", [])])):
            missing = "toolkit greeter has no greet (did you mean great?); it has: great"
            with pytest.raises(NotFound) as raised:
                await RequiredToolkit("greeter", ["greet", "great"], timeout_s=0).find(agent)
            assert raised.value.message == missing
            finding = asyncio.create_task(RequiredToolkit("greeter", ["greet"]).find(agent))
            async with room_of_same(agent, host) as again, again.host(greeter()):
                assert (await finding).tool("greet").name == "greet"
    assert _told(caplog) == [("WARNING", f"{missing}; waiting up to 60 s for it")]


@pytest.mark.parametrize(
    ("needed", "text"),
    [
        (
            RequiredToolkit("gretter"),
            "toolkit gretter does not exist (did you mean greeter?); available toolkits: greeter; "
            "waiting up to 60 s more for it",
        ),
        (
            RequiredToolkit("secret", timeout_s=30),
            "toolkit secret does not exist; available toolkits: greeter; waiting up to 30 s more "
            "for it",
        ),
        (
            RequiredToolkit("greeter", participant="bob"),
            "toolkit greeter of bob does not exist; available toolkits of bob: none; waiting up to "
            "60 s more for it",
        ),
    ],
)
async def test_longer_wait_is_one_warning_with_the_names_that_the_agent_may_see(
    needed: RequiredToolkit,
    text: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolbus.turns.turn_toolkits._SILENT_WAIT_S", 0.0)
    async with agent_and_host(greeter()) as (server, agent), asyncio.timeout(60):
        async with (
            server.room("eve") as eve,
            eve.host(Toolkit("secrets", [Recorded("tell", [])]), public=False),
        ):
            finding = asyncio.create_task(needed.find(agent))
            await until(lambda: ("WARNING", text) in _told(caplog))
            finding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await finding
    assert len(_told(caplog)) == 1


def _told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    told = [each for each in caplog.records if each.name == "toolbus.turns.turn_toolkits"]
    return [(each.levelname, each.message) for each in told]


@asynccontextmanager
async def room_of_same(agent: RoomClient, host: RoomClient) -> AsyncIterator[RoomClient]:
    """Admit another instance of the host's identity."""
    settings = connection_of(host).settings
    async with RoomClient(settings.url, room=settings.room, token=settings.token) as another:
        yield another


async def test_turn_waits_for_many_required_toolkits_concurrently() -> None:
    wanted = [RequiredToolkit(f"t{n}") for n in range(20)]
    async with room_of("agent", "host") as (agent, host), asyncio.timeout(60):
        async with AsyncExitStack() as stack:
            finding = [asyncio.create_task(each.find(agent)) for each in wanted]
            for each in reversed(wanted):
                await stack.enter_async_context(
                    host.host(Toolkit(each.name, [Recorded("write", [])]))
                )
            found = await asyncio.gather(*finding)
    assert [proxy.info.name for proxy in found] == [each.name for each in wanted]


@pytest.mark.parametrize("timeout_s", [0, 0.1])
async def test_missing_toolkit_is_not_found_and_the_error_lists_the_available_ones(
    timeout_s: float,
) -> None:
    async with agent_and_host(greeter()) as (_, agent), asyncio.timeout(60):
        with pytest.raises(NotFound) as raised:
            await RequiredToolkit("gretter", timeout_s=timeout_s).find(agent)
        expected_message = str(raised.value)
        assert expected_message.startswith(
            "toolkit gretter does not exist (did you mean greeter?); available toolkits: greeter"
        )
        assert ("waited 0.1 s" in expected_message) == (timeout_s > 0)
        assert raised.value.details == {"toolkit": "gretter", "tools": []}
        with pytest.raises(
            NotFound, match="greeter of bob does not exist; available toolkits of bob: no"
        ):
            await RequiredToolkit("greeter", participant="bob", timeout_s=timeout_s).find(agent)


async def test_turn_whose_required_toolkit_is_missing_builds_nothing() -> None:
    diary: list[str] = []
    async with room_of("agent") as (agent,):
        turn = Turn(
            agent,
            always=[Toolkit("notes", [Recorded("write", diary)])],
            required=[RequiredToolkit("greeter", timeout_s=0)],
            builders=[Diary("extra", diary)],
            tools=[ToolkitConfig(name="extra")],
        )
        with pytest.raises(NotFound, match="greeter does not exist"):
            await turn.__aenter__()
    assert diary == []


async def test_turn_waits_until_a_toolkit_has_a_host_again() -> None:
    """REG-18."""
    manifest = greeter().manifest().model_dump(mode="json", exclude_defaults=True)
    needed = RequiredToolkit("greeter")
    async with running_server() as server, server.room("agent") as agent, asyncio.timeout(60):
        async with raw_participant(server, "host") as lost:
            lost.send_frame(Register(RequestId(1), pack_body(manifest), {}))
            assert isinstance(await lost.reply_to(1), Result)
            assert (await needed.find(agent)).info.hosts == 1
            async with agent.events(["toolkits"]) as events:
                lost.abort()
                assert (event := await anext(events)).toolkit is not None
                assert (event.toolkit.name, event.toolkit.hosts) == ("greeter", 0)
        with pytest.raises(NotFound, match="toolkit greeter has no host at the moment"):
            await RequiredToolkit("greeter", timeout_s=0).find(agent)
        async with Turn(agent, available=True) as turn:
            assert turn.tools == ()
        finding = asyncio.create_task(needed.find(agent))
        async with server.room("host") as back, back.host(greeter()):
            assert (await finding).info.hosts == 1


async def test_turn_waits_for_a_toolkit_whose_room_was_empty_since_its_host_ended() -> None:
    """REG-18: the name is reserved without its manifest."""
    manifest = greeter().manifest().model_dump(mode="json", exclude_defaults=True)
    async with running_server() as server, asyncio.timeout(60):
        async with raw_participant(server, "host") as lost:
            lost.send_frame(Register(RequestId(1), pack_body(manifest), {}))
            assert isinstance(await lost.reply_to(1), Result)
        await until(lambda: not server.server.hub.rooms)
        async with server.room("agent") as agent:
            with pytest.raises(NotFound, match="toolkit greeter has no host at the moment"):
                await RequiredToolkit("greeter", timeout_s=0).find(agent)
            finding = asyncio.create_task(RequiredToolkit("greeter").find(agent))
            async with server.room("host") as back, back.host(greeter()):
                assert (await finding).info.hosts == 1


async def test_private_toolkit_of_an_owner_is_required_and_called_by_its_owner() -> None:
    async with room_of("agent", "host") as (agent, host):
        async with host.host(greeter(), public=False, shared_with=["name:agent"]):
            needed = RequiredToolkit("greeter", participant="host", timeout_s=0)
            async with Turn(agent, required=[needed]) as turn:
                output = await turn.call("greeter.greet", {"name": "x"})
                assert output == "hello x, from agent for agent"


async def test_waiting_needs_the_grant_for_events_of_toolkits() -> None:
    api = ApiScope(agents=AgentsGrant(call=True), presence=True, messaging=True)
    async with agent_and_host(greeter(), api=api) as (_, agent), asyncio.timeout(60):
        assert await RequiredToolkit("greeter").find(agent)
        assert await RequiredToolkit("greeter", ["greet"]).find(agent)
        with pytest.raises(
            PermissionDenied, match="other does not exist, and waiting for it needs the grant"
        ):
            await RequiredToolkit("other").find(agent)
        with pytest.raises(NotFound, match=r"other does not exist$"):
            await RequiredToolkit("other", timeout_s=0).find(agent)


async def test_waiting_continues_after_a_connection_is_lost_during_a_request() -> None:
    manifest = greeter().manifest().model_dump(mode="json")
    owner = {"name": "host", "issuer": "test"}
    summary = {key: manifest[key] for key in ("name", "title", "description", "version")}
    summary |= {"digest": "d", "public": True, "owner": owner, "hosts": 1, "tools": ["greet"]}
    grants = ApiScope(agents=AgentsGrant(use_tools=True, call=True))
    async with scripted_server(grants) as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as agent:
            connection = await server.next_connection()
            finding = asyncio.ensure_future(RequiredToolkit("greeter").find(agent))
            asked = await connection.next_of(Describe)
            await connection.send(Failed(asked.id, "not_found", "no", False, "nothing", None, None))
            await connection.answer(Subscribe, {"topics": ["toolkits"]})
            await connection.next_of(Describe)
            await connection.websocket.close()
            connection = await server.next_connection()
            await connection.answer(Subscribe, {"topics": ["toolkits"]})
            await connection.answer(Describe, {"toolkit": summary, "manifest": manifest})
            await connection.answer(Subscribe, {"topics": []})
            assert (await finding).info.hosts == 1
            await connection.websocket.close()


async def test_requirement_keeps_its_timeout_if_no_server_is_reachable() -> None:
    async with AsyncExitStack() as exit_stack, asyncio.timeout(60):
        async with running_server() as server:
            agent = await exit_stack.enter_async_context(server.room("agent"))
        with pytest.raises(Unavailable, match="no reply from a server about toolkit greeter"):
            await RequiredToolkit("greeter", timeout_s=0.1).find(agent)


async def test_waiting_ends_with_the_room() -> None:
    async with running_server() as server, asyncio.timeout(60):
        async with server.room("agent") as agent:
            finding = asyncio.create_task(RequiredToolkit("missing").find(agent))
            async with server.room("host") as host, host.host(greeter()) as other:
                assert (await agent.toolkit(other.name)).info.name == "greeter"
        with pytest.raises(RoomException):
            await finding


@pytest.mark.parametrize(
    ("arguments", "expected_message"),
    [
        ({"name": "A"}, "not a toolkit name: a lower-case letter.*; did you mean 'a'?"),
        ({"name": 7}, "not a toolkit name"),
        ({"name": "a", "tools": "greet"}, "a list of names"),
        ({"name": "a", "tools": []}, "a list of names"),
        ({"name": "a", "tools": ["x.y"]}, "not a tool name"),
        ({"name": "a", "participant": ""}, "not a participant name"),
        ({"name": "a", "timeout_s": -1}, "seconds, 0 or more"),
        ({"name": "a", "timeout_s": float("inf")}, "seconds, 0 or more"),
        ({"name": "a", "timeout_s": "5"}, "seconds, 0 or more"),
        ({"name": "a", "timeout_s": 10**400}, "seconds, 0 or more"),
    ],
)
def test_invalid_requirement_is_refused(arguments: dict[str, Any], expected_message: str) -> None:
    with pytest.raises(ValueError, match=expected_message):
        RequiredToolkit(**arguments)
