"""What each grant allows a participant, and what it cannot even detect without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import astuple

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ask, call_of
from support.rooms.events import listed
from toolbus import ApiScope, RoomClient, Toolkit, tool
from toolbus.auth.grants import AgentsGrant
from toolbus.errors import NotFound, PermissionDenied, RoomException
from toolbus.wire import (
    Describe,
    Failed,
    Frame,
    ListToolkits,
    Register,
    RequestId,
    Subscribe,
    Unregister,
    pack_body,
)
from toolbus_server.rooms import room_changes
from toolbus_server.testing import TestServer


@tool
async def read() -> str:
    """Read the content."""
    return "read"


@tool
async def write() -> str:
    """Write the secret."""
    return "written"


def box(name: str = "box", **options: Any) -> Toolkit:
    return Toolkit(name, [read, write], **options)


def may(**agents: Any) -> ApiScope:
    return ApiScope(agents=AgentsGrant(**agents))


@pytest.fixture
async def host(server: TestServer) -> AsyncIterator[RoomClient]:
    """A host of the public toolkit `box`."""
    async with server.room("host") as host, host.host(box()):
        yield host


async def outcome(room: RoomClient, tool: str, participant: str | None = None) -> str:
    """Return the result of a call, or the code of its error; refused calls never ran."""
    toolkit, _, name = tool.partition(".")
    try:
        chunk = await room.invoke(f"{toolkit}.{name}", participant=participant, retry=False)
    except RoomException as error:
        return f"{error.code}/{error.executed}"
    return str(chunk.value)


# Lists and calls


@pytest.mark.usefixtures("host")
async def test_without_grants_one_may_join_and_nothing_else(server: TestServer) -> None:
    async with server.room("eve", api=ApiScope()) as eve:
        assert await outcome(eve, "box.read") == "permission_denied/no"
        assert await outcome(eve, "no.read") == "not_found/no"
        with pytest.raises(PermissionDenied):
            await listed(eve)
        with pytest.raises(PermissionDenied):
            await eve.toolkit("box")
        with pytest.raises(PermissionDenied):
            await eve.events().__aenter__()


@pytest.mark.usefixtures("host")
async def test_use_tools_lists_and_inspects_and_does_not_call(server: TestServer) -> None:
    async with server.room("eve", api=may(use_tools=True)) as eve:
        [info] = await listed(eve)
        assert (info.name, info.owner, info.hosts, info.tools) == (
            "box",
            "host",
            1,
            ("read", "write"),
        )
        assert [each.name for each in (await eve.toolkit("box")).manifest.tools] == list(info.tools)
        assert await outcome(eve, "box.read") == "permission_denied/no"


@pytest.mark.usefixtures("host")
async def test_call_describes_and_calls_its_tool_and_does_not_list(
    server: TestServer,
) -> None:
    async with server.room("eve", api=may(call=True, allow=["box.read"])) as eve:
        assert await outcome(eve, "box.read") == "read"
        assert await outcome(eve, "box.write") == "permission_denied/no"
        assert await outcome(eve, "box.fly") == "not_found/no"
        assert [each.name for each in (await eve.toolkit("box")).manifest.tools] == ["read"]
        with pytest.raises(PermissionDenied):
            await listed(eve)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("grant", "seen"),
    [
        ({"allow": ["box"]}, ("read", "write")),
        ({"allow": ["*.read"]}, ("read",)),
        ({"allow": ["b*.w*e"]}, ("write",)),
        ({"deny": ["box.write"]}, ("read",)),
        ({"allow": ["box.write"], "deny": ["*"]}, None),
        ({"allow": ["Box"[1:]]}, None),
        ({"deny": ["box"]}, None),
    ],
    ids=str,
)
async def test_allow_and_deny_decide_visibility_and_calls(
    server: TestServer, grant: dict[str, Any], seen: tuple[str, ...] | None
) -> None:
    async with server.room("eve", api=may(use_tools=True, call=True, **grant)) as eve:
        assert [each.tools for each in await listed(eve)] == ([] if seen is None else [seen])
        outcomes = [await outcome(eve, f"box.{name}") for name in ("read", "write")]
        assert [each != "permission_denied/no" for each in outcomes] == [
            name in (seen or ()) for name in ("read", "write")
        ]


@pytest.mark.usefixtures("host")
async def test_a_search_finds_nothing_in_tools_that_are_not_seen(server: TestServer) -> None:
    async with server.room("eve", api=may(use_tools=True, deny=["box.write"])) as eve:
        assert await listed(eve, search="secret") == []
        assert len(await listed(eve, search="THE CONTENT")) == 1


@pytest.mark.parametrize(
    ("preset", "can"),
    [
        (ApiScope.host_default(), {"public", "private", "list", "call"}),
        (ApiScope.agent_default(), {"private", "list", "call"}),
        (ApiScope.user_default(), {"private", "list", "call"}),
        (ApiScope.full(), {"public", "private", "list", "call", "act_for"}),
        (ApiScope(), set()),
    ],
    ids=["host", "agent", "user", "full", "none"],
)
@pytest.mark.usefixtures("host")
async def test_a_preset_allows_its_purpose(
    server: TestServer, preset: ApiScope, can: set[str]
) -> None:
    done = set()
    async with server.room("alice"), server.room("eve", api=preset) as eve:

        async def attempt(what: str, action: Any) -> None:
            try:
                await action
            except PermissionDenied:
                return
            done.add(what)

        async def host_one(public: bool) -> None:
            async with eve.host(box("mine"), public=public):
                pass

        await attempt("public", host_one(True))
        await attempt("private", host_one(False))
        await attempt("list", listed(eve))
        await attempt("call", eve.call("box.read"))
        await attempt("act_for", eve.invoke("box.read", on_behalf_of="alice"))
    assert done == can


# Private toolkits


async def test_a_private_toolkit_is_there_for_its_owner_and_whom_it_is_shared_with(
    server: TestServer,
) -> None:
    async with (
        server.room("owner") as owner,
        server.room("owner") as twin,
        server.room("friend") as friend,
        server.room("clerk", role="clerk") as clerk,
        server.room("eve") as eve,
        owner.host(box(), public=False, shared_with=["name:friend", "role:clerk"]),
    ):
        for mine in (owner, twin):
            assert await outcome(mine, "box.read") == "read"
            assert len(await listed(mine)) == 1
        for guest in (friend, clerk):
            assert await outcome(guest, "box.read", "owner") == "read"
            assert await outcome(guest, "box.read") == "not_found/no"
            [info] = await listed(guest)
            assert (info.name, info.owner, info.public) == ("box", "owner", False)
            assert (await guest.toolkit("box", participant="owner")).info == info
        assert await listed(eve) == []
        for participant in (None, "owner"):
            assert await outcome(eve, "box.read", participant) == "not_found/no"


async def test_sharing_with_everybody_shadows_no_name(server: TestServer) -> None:
    async with (
        server.room("owner") as owner,
        server.room("mallory") as mallory,
        server.room("eve") as eve,
        owner.host(Toolkit("box", [read])),
        mallory.host(Toolkit("box", [write]), public=False, shared_with=["*"]),
    ):
        assert await outcome(eve, "box.read") == "read"
        assert await outcome(eve, "box.write") == "not_found/no"
        assert await outcome(eve, "box.write", "mallory") == "written"
        assert [(each.owner, each.public) for each in await listed(eve)] == [
            ("owner", True),
            ("mallory", False),
        ]


async def test_sharing_a_public_toolkit_is_refused(server: TestServer) -> None:
    async with server.room("owner") as owner:
        with pytest.raises(ValueError, match="public"):
            async with owner.host(box(), public=True, shared_with=["*"]):
                pass


async def test_no_request_reveals_whether_a_hidden_toolkit_exists(
    server: TestServer,
) -> None:
    """The answers are equal, byte for byte, before a private toolkit exists and while it exists."""
    manifest = pack_body({"name": "box", "tools": [{"name": "read", "input_schema": {}}]})

    def questions(first: int) -> list[Any]:
        ids = iter(range(first, first + 100))

        def call(**options: Any) -> Frame:
            return call_of("box.read", next(ids), timeout_ms=100, **options)

        def ask(kind: Any, *fields: Any) -> Any:
            return kind(RequestId(next(ids)), *fields)

        return [
            call(),
            call(participant="owner"),
            call(pin="0" * 64),
            call(parent=1),
            call(on_behalf_of="owner"),
            ask(ListToolkits, {}),
            ask(ListToolkits, {"search": "box", "limit": 1}),
            ask(Describe, "box", {}),
            ask(Describe, "box", {"participant": "owner"}),
            ask(Unregister, "box", True),
            ask(Unregister, "box", False),
        ]

    async def answers(eve: RawClient, first: int) -> list[Any]:
        received: list[Any] = []
        for question in questions(first):
            eve.send_frame(question)
            reply = await eve.reply_to(question.id)
            received.append((type(reply), *astuple(reply)[1:]))
        return received

    async with server.room("owner") as owner, raw_participant(server, "eve") as eve:
        before = await answers(eve, 0)
        async with owner.host(box(), public=False, shared_with=["name:friend"]):
            assert await answers(eve, 1_000) == before
            for number, public in enumerate((True, False)):
                eve.send_frame(Register(RequestId(5_000 + number), manifest, {"public": public}))
                assert not isinstance(await eve.reply_to(5_000 + number), Failed)


async def test_changes_of_hidden_toolkits_leave_no_gaps_in_event_numbers(
    server: TestServer,
) -> None:
    async with server.room("owner") as owner, raw_participant(server, "eve") as eve:
        eve.send_frame(Subscribe(RequestId(1), ["toolkits"]))
        await eve.reply_to(1)
        for name in ("one", "two"):
            async with owner.host(box("hidden"), public=False):
                async with owner.host(box(name)):
                    event = await eve.next_event()
                    assert event.data["toolkit"]["name"] == name
                    assert (event.name, event.number % 2) == ("toolkit_added", 1)
                assert (await eve.next_event()).name == "toolkit_removed"
        async with owner.host(box("last")):
            assert (await eve.next_event()).number == 5


async def test_subscriber_without_access_sees_a_removal_and_no_later_definition(
    server: TestServer,
) -> None:
    async with (
        server.room("owner") as one,
        server.room("owner") as two,
        raw_participant(server, "friend") as friend,
        one.host(box(), public=False, shared_with=["name:friend"]),
    ):
        friend.send_frame(Subscribe(RequestId(1), ["toolkits"]))
        await friend.reply_to(1)
        async with two.host(box(description="Now secret.", version="2"), public=False):
            event = await friend.next_event()
            assert event.name == "toolkit_removed"
            received = event.data["toolkit"]
            assert (received["name"], received["owner"]["name"]) == ("box", "owner")
            assert (received["description"], received["digest"], received["tools"]) == ("", "", [])
        assert (await friend.next_event()).name == "toolkit_added"


@pytest.mark.parametrize("lives_on", [True, False])
async def test_last_event_of_a_toolkit_does_not_reveal_whether_it_still_exists(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, lives_on: bool
) -> None:
    monkeypatch.setattr(room_changes, "COALESCE_S", 0.5)  # no await in between
    private: dict[str, Any] = {"public": False}
    shown = {"name": "box", "title": "Box", "description": "Open.", "version": "1"}
    secret = {"name": "box", "title": "Safe", "description": "Secret.", "version": "2"}
    async with (
        raw_participant(server, "owner") as owner,
        raw_participant(server, "friend") as friend,
    ):
        await ask(owner, Register(RequestId(1), pack_body(shown), private | {"shared_with": ["*"]}))
        await ask(friend, Subscribe(RequestId(1), ["toolkits"]))
        await ask(owner, Register(RequestId(2), pack_body(secret), private))
        if not lives_on:
            await ask(owner, Unregister(RequestId(3), "box", False))
        event = await friend.next_event()
    assert (event.number, event.name) == (1, "toolkit_removed")
    nothing = dict.fromkeys(("title", "description", "version", "digest"), "")
    owned = {"name": "box", "public": False, "owner": {"name": "owner", "issuer": server.key.iss}}
    assert event.data["toolkit"] == owned | nothing | {"hosts": 0, "tools": []}


async def test_events_contain_only_visible_toolkits(
    server: TestServer,
) -> None:
    async with (
        server.room("owner") as owner,
        server.room("eve", api=may(use_tools=True, allow=["seen.read"])) as eve,
        eve.events() as events,
    ):
        async with owner.host(box("unseen")), owner.host(box("seen")), asyncio.timeout(60):
            event = await anext(events)
            assert event.toolkit is not None
            assert (event.toolkit.name, event.toolkit.tools) == ("seen", ("read",))


async def test_a_participant_that_does_not_exist_owns_nothing(server: TestServer) -> None:
    async with server.room("eve") as eve:
        with pytest.raises(NotFound):
            await eve.toolkit("box", participant="nobody")
