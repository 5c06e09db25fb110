"""What reaches the tools of MCP servers through `mcp` is refused where the direct call is."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.clients.ending_tokens import calling
from support.mcp import scripted_server
from support.nodes.cluster import nodes, until_listed, until_present
from support.redis.server import any_redis
from support.rooms.approvals import approved
from toolbus import (
    AgentsGrant,
    ApiScope,
    Key,
    LoopDetected,
    NotFound,
    ParticipantToken,
    PermissionDenied,
    Permissions,
    Records,
    RoomClient,
    RoomException,
    Rule,
    ToolContext,
    Toolkit,
    Turn,
    Unavailable,
    tool,
)
from toolbus.auth.keys import KeyRing
from toolbus.client import caller
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server
from toolbus_toolkits.mcp import McpHub, McpToolkit

GOOD = {"command": sys.executable, "args": [scripted_server.__file__]}
SUM = {"a": 1, "b": 2}
HOME = Key.generate(kid="home", iss="https://home", alias="home")
AWAY = Key.generate(kid="away", iss="https://away", alias="away")
TWO = ServerSettings(keys=KeyRing([HOME, AWAY]), port=0)


def servers(**audiences: list[str] | None) -> dict[str, Any]:
    """Return entries of servers, by the audience of each; None is the whole room."""
    return {
        name: GOOD if shared is None else {**GOOD, "shared_with": shared}
        for name, shared in audiences.items()
    }


def hub_of(tmp_path: Path, entries: dict[str, Any]) -> McpHub:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return McpHub.from_config(path)


async def seen_hosted(hub: McpHub) -> None:
    for server in hub.servers:
        await server.hosted.wait()


@asynccontextmanager
async def hosting(room: RoomClient, hub: McpHub, *allow_import: str) -> AsyncIterator[RoomClient]:
    async with room, room.host(McpToolkit(hub, allow_import)):
        await seen_hosted(hub)
        yield room


@pytest.fixture
async def bus() -> AsyncIterator[TestServer]:
    async with asyncio.timeout(120), running_server() as server:
        yield server


class End(NamedTuple):
    """How a call ended: with a value, or with an error."""

    value: Any
    code: str = ""
    executed: str = ""
    words: str = ""
    retryable: bool = False
    details: Any = None


async def end_of(room: RoomClient, tool: str, arguments: Any, **options: Any) -> End:
    try:
        return End((await room.invoke(tool, arguments, retry=False, **options)).value)
    except RoomException as error:
        return End(None, error.code, error.executed, error.message, error.retryable, error.details)


async def both_ends(room: RoomClient, tool: str, arguments: Any = None, **more: Any) -> End:
    """Call a tool directly and through `mcp.call`; both must end alike."""
    direct = await end_of(room, tool, arguments or SUM, participant="host", **more)
    through = {"tool": tool, "arguments": arguments or SUM}
    forwarded = await end_of(room, "mcp.call", through, **more)
    explained = await room.explain(tool, participant="host", **more)
    assert forwarded == direct
    assert explained.would_run == (direct.executed != "no")
    return forwarded


RESULT = {"result": 3}
DENIED = "permission_denied"
OPEN, NAMED, ROLE, OTHER = "open", "named", "roled", "other"
AUDIENCES = {OPEN: None, NAMED: ["name:ann"], ROLE: ["role:agent"], OTHER: ["name:zoe"]}
ADD, MCP = "*.add", "mcp.*"
TOKENS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    # the role, the grants, and the code for each server whose call does not succeed
    ("user", {}, {ROLE: "not_found", OTHER: "not_found"}),
    ("agent", {}, {OTHER: "not_found"}),
    (
        "agent",
        {"allow": [MCP]},
        {OPEN: DENIED, NAMED: DENIED, ROLE: DENIED},
    ),
    (
        "agent",
        {"deny": ["open.*", "named.add", "roled.add"]},
        {OPEN: DENIED, NAMED: DENIED, ROLE: DENIED},
    ),
    (
        "agent",
        {"allow": [MCP, "open.add"]},
        {NAMED: DENIED, ROLE: DENIED},
    ),
    ("agent", {"allow": [MCP, ADD]}, {}),
]


async def test_a_call_by_name_ends_as_the_direct_call_for_every_token(
    bus: TestServer, tmp_path: Path
) -> None:
    """CALL-29: code, words, details and `executed`; what is hidden is as what is missing."""
    hub = hub_of(tmp_path, servers(**AUDIENCES))
    async with hosting(bus.room("host"), hub), bus.room("full") as full:
        for role, grants, codes in TOKENS:
            api = calling(use_tools=True, **grants)
            async with bus.room("ann", api=api, role=role) as ann:
                for name in AUDIENCES:
                    expected = "not_found" if name == OTHER else codes.get(name, "")
                    end = await both_ends(ann, f"{name}.add")
                    assert (end.code, end.value) == (expected, None if expected else RESULT), name
                    if expected:
                        assert end.executed == "no"
                hidden = await both_ends(ann, f"{OTHER}.add")
                missing = await both_ends(ann, "nowhere.add")
                assert hidden == missing._replace(words=missing.words.replace("nowhere", OTHER))
                await both_ends(ann, "open.nothing")
                await both_ends(ann, "mcp.nothing")
        assert (await both_ends(full, "open.add")).value == RESULT


@pytest.mark.parametrize(
    ("poor", "code"),
    [
        ({"allow": [MCP]}, DENIED),
        ({"deny": ["open.*"]}, DENIED),
        ({}, ""),
    ],
)
async def test_a_call_for_a_principal_needs_its_grants_too(
    bus: TestServer, tmp_path: Path, poor: dict[str, Any], code: str
) -> None:
    """CALL-29, CALL-16: and those of whoever acts for it."""
    hub = hub_of(tmp_path, servers(open=None))
    acting = calling(act_for=["bob"])
    async with (
        hosting(bus.room("host"), hub),
        bus.room("bob", api=calling(**poor)),
        bus.room("ann", api=acting) as ann,
        bus.room("eve", api=replace(acting, agents=replace(acting.agents, allow=(MCP,)))) as eve,
    ):
        assert (await both_ends(ann, "open.add", on_behalf_of="bob")).code == code
        assert (await both_ends(eve, "open.add", on_behalf_of="bob")).code == DENIED


async def test_a_host_that_calls_within_a_call_is_checked_as_for_its_own_nested_call(
    bus: TestServer, tmp_path: Path
) -> None:
    """CALL-29: the caller of `mcp.call` is a host then, and its principal the first caller."""

    @tool
    async def both(context: ToolContext) -> list[str]:
        ends = []
        for name, arguments in (
            ("open.add", SUM),
            ("mcp.call", {"tool": "open.add", "arguments": SUM}),
        ):
            try:
                await context.room.call(name, arguments)
            except RoomException as error:
                ends.append(f"{error.code} {error.message} {error.details['lacks']}")
            else:
                ends.append("")
        return ends

    hub = hub_of(tmp_path, servers(open=None))
    rows: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, ""),
        ({"deny": ["open"]}, {}, "host"),
        ({}, {"deny": ["open.add"]}, "principal"),
    ]
    for host_grants, caller_grants, lacks in rows:
        api = ApiScope(agents=AgentsGrant(call=True, register_public_toolkit=True, **host_grants))
        async with (
            hosting(bus.room("host"), hub),
            bus.room("between", api=api) as between,
            between.host(Toolkit("between", [both])),
            bus.room("ann", api=calling(**caller_grants)) as ann,
        ):
            direct, forwarded = await ann.call("between.both")
            assert direct == forwarded
            assert direct.endswith(lacks)


async def test_list_shows_what_the_room_shows(bus: TestServer, tmp_path: Path) -> None:
    """A tool that its caller can neither list nor call is not named."""
    hub = hub_of(tmp_path, servers(**AUDIENCES))
    tokens = [
        *((role, {"use_tools": True, **grants}) for role, grants, _ in TOKENS),
        ("user", {"deny": ["open.add", "open.hello"]}),  # may call and not list
    ]
    async with hosting(bus.room("host"), hub):
        for role, grants in tokens:
            api = calling(**grants)
            async with bus.room("ann", api=api, role=role) as ann:
                shown = {}
                for name in AUDIENCES:
                    try:
                        manifest = (await ann.toolkit(name, "host")).manifest
                    except (NotFound, PermissionDenied):
                        continue
                    shown[name] = [f"{name}.{each.name}" for each in manifest.tools]
                listed = (await ann.call("mcp.list"))["servers"]
                assert {
                    each["name"]: [tool["name"] for tool in each["tools"]] for each in listed
                } == shown


def away(server: TestServer, key: Key, name: str) -> RoomClient:
    token = ParticipantToken(name=name, room=["lab"], api=ApiScope.full(), role="user")
    return RoomClient(server.url, room="lab", token=token.to_jwt(key))


@pytest.mark.parametrize("command", [sys.executable, "no-such-program"])
async def test_names_and_roles_mean_what_they_mean_in_the_room(
    tmp_path: Path, command: str
) -> None:
    """NAME-1, NAME-4: also for a server that the room has not seen yet, as it never connected."""
    audiences = {
        "slash": ["name:away/ann"],
        "bare": ["name:ann"],
        "alias": ["name:home/away/ann"],
        "role": ["role:user"],
    }
    entries = {name: {**each, "command": command} for name, each in servers(**audiences).items()}
    hub = hub_of(tmp_path, entries)
    async with (
        asyncio.timeout(120),
        running_server(settings=TWO) as bus,
        away(bus, HOME, "host") as host,
        host.host(McpToolkit(hub)),
        AsyncExitStack() as stack,
    ):
        if command == sys.executable:
            await seen_hosted(hub)
        for key, name, seen in (
            (HOME, "away/ann", {"alias", "role"}),
            (AWAY, "ann", {"slash", "role"}),
            (HOME, "ann", {"bare", "role"}),
            (AWAY, "home/away/ann", {"role"}),
            (HOME, "host", {"slash", "bare", "alias", "role"}),
        ):
            room = await stack.enter_async_context(away(bus, key, name))
            listed = (await room.call("mcp.list"))["servers"]
            assert {each["name"] for each in listed} == seen, name
            for server in audiences:
                through = await end_of(
                    room, "mcp.call", {"tool": f"{server}.add", "arguments": SUM}
                )
                if command == sys.executable:
                    direct = await end_of(room, f"{server}.add", SUM, participant="home/host")
                    assert through == direct
                assert (through.code == "not_found") == (server not in seen), (name, server)


async def test_what_is_forwarded_to_import_is_asked_by_all_in_between(
    bus: TestServer, tmp_path: Path
) -> None:
    """CALL-31: this host forwards for whoever is allowed, and no other host does."""

    @tool
    async def add(context: ToolContext) -> Any:
        return (await context.forward("mcp.import", {"servers": {"evil": GOOD}})).value

    hub = hub_of(tmp_path, {})
    asked = {"tool": "mcp.import", "arguments": {"servers": {"more": GOOD}}}
    async with (
        hosting(bus.room("host"), hub, "ann", "host"),
        bus.room("other") as other,
        other.host(Toolkit("other", [add])),
        bus.room("ann") as ann,
        bus.room("bob") as bob,
    ):
        with pytest.raises(PermissionDenied, match="bob may not"):
            await bob.invoke("mcp.call", asked)
        with pytest.raises(PermissionDenied, match="other may not"):
            await ann.call("other.add")
        assert [each.name for each in hub.servers] == []
        added = await approved(ann, ann.call("mcp.call", asked))
        assert [each["name"] for each in added["servers"]] == ["more"]


async def test_calls_within_calls_by_name_are_counted(bus: TestServer, tmp_path: Path) -> None:
    """CALL-15: what the innermost was refused with is what its caller gets."""
    asked: dict[str, Any] = {"tool": "open.add", "arguments": SUM}
    async with (
        hosting(bus.room("host"), hub_of(tmp_path, servers(open=None))),
        bus.room("ann") as ann,
        bus.room("bob", api=calling(allow=[MCP])) as bob,
    ):
        for _ in range(14):
            assert await ann.call("mcp.call", asked) == RESULT
            with pytest.raises(PermissionDenied, match=r"^no grant to call open\.add\n"):
                await bob.call("mcp.call", asked)
            asked = {"tool": "mcp.call", "arguments": asked}
        for _ in range(3):
            asked = {"tool": "mcp.call", "arguments": asked}
        with pytest.raises(LoopDetected) as refused:
            await ann.call("mcp.call", asked)
        assert refused.value.executed == "no"


TRUSTED = {"open": {**GOOD, "trusted": True}, "shut": GOOD}
ASKED: list[tuple[dict[str, Any], tuple[str, bool, str] | None]] = [
    # arguments of mcp.call, and what it says of them; None where the call itself is refused
    ({"tool": "open.add", "arguments": SUM}, ("pass", True, "open.add")),
    ({"tool": "open.hello"}, ("ask", False, "open.hello")),
    ({"tool": "shut.add", "arguments": SUM}, ("ask", False, "shut.add")),
    ({"tool": "open.add", "arguments": {"a": "x"}}, None),
    ({"tool": "open.nothing"}, None),
    ({"tool": "nowhere.add"}, None),
    ({"tool": "nowhere"}, None),
]


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_a_call_by_name_is_judged_as_what_it_reaches(
    bus: TestServer, tmp_path: Path, is_hosted: bool
) -> None:
    """What refuses the call refuses the question, in the same words."""
    hub = hub_of(tmp_path, TRUSTED)
    kit = McpToolkit(hub)
    async with hosting(bus.room("host"), hub), bus.room("ann") as ann:
        for arguments, expected in ASKED:
            call = ann.invoke("mcp.call", arguments, retry=False)
            question = ann.assess("mcp.call", arguments)
            if not is_hosted:
                call.close()
                question.close()
                call = kit.execute(ToolContext(), "call", arguments)
                question = kit.assess(ToolContext(), "call", arguments)
            if expected is not None:
                call.close()
                said = await question
                assert (said.behavior, said.read_only, said.reaches) == expected
                assert [rule.tool for rule in said.suggestions] == [said.reaches]
                continue
            with pytest.raises(RoomException) as refused:
                await call
            with pytest.raises(type(refused.value)) as unanswered:
                await question
            assert unanswered.value.message == refused.value.message
            assert (refused.value.executed, unanswered.value.executed) == ("no", "no")


async def test_a_call_by_name_within_another_and_by_a_poor_token_is_judged_too(
    bus: TestServer, tmp_path: Path
) -> None:
    hub = hub_of(tmp_path, TRUSTED)
    asked: dict[str, Any] = {"tool": "open.add", "arguments": SUM}
    twice = {"tool": "mcp.call", "arguments": asked}
    async with (
        hosting(bus.room("host"), hub),
        bus.room("ann") as ann,
        bus.room("bob", api=calling(allow=[MCP])) as bob,
    ):
        said = await ann.assess("mcp.call", twice)
        assert (said.read_only, said.reaches) == (True, "open.add")
        with pytest.raises(PermissionDenied, match=r"^no grant to call open\.add$"):
            await bob.assess("mcp.call", asked)


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_a_policy_of_the_hub_covers_what_is_reached(
    bus: TestServer, tmp_path: Path, is_hosted: bool
) -> None:
    policy = Permissions("bypass", [Rule(behavior="deny", tool="open.*")])
    hub = hub_of(tmp_path, TRUSTED)
    kit = McpToolkit(hub)
    kit.policy = policy
    denied: dict[str, Any] = {"tool": "open.add", "arguments": SUM}
    twice = {"tool": "mcp.call", "arguments": denied}
    async with bus.room("host") as host, host.host(kit), bus.room("ann") as ann:
        await seen_hosted(hub)

        async def call(arguments: dict[str, Any]) -> Any:
            if is_hosted:
                return await ann.call("mcp.call", arguments)
            return (await kit.execute(ToolContext(), "call", arguments)).value

        for arguments in (denied, twice) if is_hosted else (denied,):
            with pytest.raises(PermissionDenied, match=r"open\.\*") as refused:
                await call(arguments)
            assert refused.value.executed == "no"
        assert await call({"tool": "shut.add", "arguments": SUM}) == RESULT
        assert await ann.call("open.add", SUM) == RESULT  # a toolkit of its own


@pytest.mark.parametrize("is_hosted", [True, False])
async def test_permissions_of_a_turn_cover_what_is_reached(
    bus: TestServer, tmp_path: Path, is_hosted: bool
) -> None:
    hub = hub_of(tmp_path, TRUSTED)
    permissions = Permissions(
        "explore", [Rule(behavior="deny", tool="*.hello")], trusted_owners=["host"]
    )
    options: dict[str, Any] = {"required": ["mcp"]}
    if not is_hosted:
        options = {"always": [McpToolkit(hub)]}
    async with AsyncExitStack() as stack:
        if is_hosted:
            await stack.enter_async_context(hosting(bus.room("host"), hub))
        ann = await stack.enter_async_context(bus.room("ann"))
        turn = await stack.enter_async_context(Turn(ann, permissions=permissions, **options))
        await hub.tried()
        assert await turn.call("mcp.call", tool="open.add", arguments=SUM) == RESULT
        for tool_name, words in (("shut.add", "explore"), ("open.hello", r"\*\.hello")):
            arguments = SUM if tool_name == "shut.add" else {}
            with pytest.raises(PermissionDenied, match=words) as refused:
                await turn.call("mcp.call", tool=tool_name, arguments=arguments)
            assert refused.value.executed == "no"


async def test_a_call_by_name_is_recorded_as_what_it_reaches(
    bus: TestServer, tmp_path: Path
) -> None:
    kit = McpToolkit(hub := hub_of(tmp_path, servers(open=None)))
    kit.records = Records.memory(arguments=True)
    asked = {"tool": "open.add", "arguments": SUM}
    async with bus.room("host") as host, host.host(kit), bus.room("ann") as ann:
        await seen_hosted(hub)
        await ann.call("mcp.call", asked)
        with pytest.raises(NotFound):
            await ann.call("mcp.call", {"tool": "nowhere.add"})
        await kit.execute(ToolContext(), "call", asked)
        with pytest.raises(NotFound):
            await kit.execute(ToolContext(), "call", {"tool": "nowhere.add"})
    found = [(each.tool, each.owner, each.decision, each.arguments) for each in kit.records.calls()]
    text = '{"a": 1, "b": 2}'
    assert sorted(found) == [
        ("mcp.call", "", "denied", '{"tool": "nowhere.add"}'),
        ("nowhere.add", "host", "denied", "{}"),
        ("open.add", "", "allowed", text),
        ("open.add", "host", "allowed", text),
    ]


async def test_a_server_of_an_older_version_is_never_asked(
    bus: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CALL-32: nothing runs, and the error names the version."""
    monkeypatch.setattr(caller, "FORWARD_VERSION", 99)
    async with (
        hosting(bus.room("host"), hub_of(tmp_path, servers(open=None)), "ann"),
        bus.room("ann") as ann,
    ):
        for name, arguments in (
            ("mcp.call", {"tool": "open.add", "arguments": SUM}),
            ("mcp.list", {}),
            ("mcp.connect", {"name": "open"}),
            ("mcp.import", {"servers": {"more": GOOD}}),
        ):
            with pytest.raises(Unavailable, match="needs version 4 of the protocol") as refused:
                await ann.invoke(name, arguments)
            assert (refused.value.executed, refused.value.retryable) == ("no", False)
        said = await ann.assess("mcp.call", {"tool": "open.add", "arguments": SUM})
        assert (said.behavior, said.immune, said.reaches) == ("ask", True, "open.add")


@pytest.mark.redis
async def test_callers_at_other_nodes_are_checked_alike(tmp_path: Path) -> None:
    """CALL-29, CALL-31: the servers are hosted at one node, their callers are at another one."""
    hub = hub_of(tmp_path, servers(**AUDIENCES))
    async with asyncio.timeout(120), any_redis() as redis, nodes(redis) as (here, there):
        async with hosting(here.room("host"), hub) as host:
            for role, grants, codes in TOKENS:
                api = calling(use_tools=True, **grants)
                async with there.room("ann", api=api, role=role) as ann:
                    await until_listed(ann, "mcp")
                    await until_present(host, "ann")
                    for name in AUDIENCES:
                        expected = "not_found" if name == OTHER else codes.get(name, "")
                        assert (await both_ends(ann, f"{name}.add")).code == expected
