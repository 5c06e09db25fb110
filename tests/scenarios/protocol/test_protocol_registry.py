"""PROTOCOL.md, sections "The registry", "Events" and orderly leaving, between raw participants."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.clients.raw_client import RawClient, details_of, raw_participant
from support.clients.raw_requests import (
    ECHO,
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    next_of,
    offer,
    refusal,
    toolkit_of,
)
from toolbus import AgentsGrant, ApiScope, KeyRing, TooLarge
from toolbus.wire import (
    Describe,
    ListToolkits,
    Notice,
    Register,
    Result,
    Subscribe,
    Unregister,
    pack_body,
)
from toolbus_server import ServerSettings
from toolbus_server.limits import Limits
from toolbus_server.registry.toolkit_definition import read_definition
from toolbus_server.rooms import room_changes
from toolbus_server.testing import TestServer, running_server


def as_agent(server: TestServer, name: str, role: str = "user", **grants: Any) -> Any:
    token = server.token(name, api=ApiScope(agents=AgentsGrant(**grants)), role=role)
    return raw_participant(server, token=token)


async def listed(client: RawClient, **options: Any) -> list[str]:
    page = await ask(client, ListToolkits(900, options))
    return [toolkit["name"] for toolkit in page["toolkits"]]


async def test_registering_needs_the_grant_for_its_kind_and_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """REG-1: a manifest that may not be registered is not read, and the refusal is logged."""
    async with running_server() as server:
        async with as_agent(server, "eve") as eve:
            assert (await refusal(eve, Register(1, b"\xc1", {}))).code == "permission_denied"
            assert "'eve'" in caplog.text
            assert server.server.hub.rooms["lab"].toolkit_requests.denied == 1
        async with as_agent(server, "a", register_public_toolkit=True, register=["ec*"]) as a:
            assert (await refusal(a, offer(public=False))).code == "permission_denied"
            assert (await refusal(a, offer(toolkit_of("other", "x")))).code == "permission_denied"
            await ask(a, offer())
        async with as_agent(server, "b", register_private_toolkit=True) as b:
            assert (await refusal(b, offer())).code == "permission_denied"
            await ask(b, offer(public=False))


NO_TOOL_NAMES: list[Any] = ["", "a b", "a.b", "a\x00", "a\n", "\u0430dd", "\uff41d", "d\u200b", 7]
NO_TOOL_NAMES += ["x" * 65, "x" * 5_000]


@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        ({"name": "Echo"}, "/name"),
        ({"name": "e" * 65}, "/name"),
        ({"tools": []}, "/name"),
        ({"name": "e", "title": "x" * 1_001}, "/title"),
        *[(toolkit_of("e", "good", name), "/tools/1/name") for name in NO_TOOL_NAMES],
        ({"name": "e", "tools": [{"name": "a"}]}, "/tools/0/input_schema"),
        (toolkit_of("e", "a", "a"), "/tools"),
        (toolkit_of("e", *(f"t{n}" for n in range(1_001))), "/tools"),
        ({"name": "e", "tools": [{"name": "a", "input_schema": []}]}, "/tools/0/input_schema"),
        ({"name": "e", "annotations": []}, "/annotations"),
        ([], ""),
    ],
)
async def test_manifest_that_breaks_a_rule_is_refused_with_the_path(
    manifest: Any, path: str
) -> None:
    """REG-2, REG-3, ERR-6."""
    async with running_server() as server, raw_participant(server) as host:
        failed = await refusal(host, offer(manifest))
        assert (failed.code, failed.executed) == ("invalid_arguments", "no")
        assert details_of(failed)["path"] == path
        assert len(failed.message) < 1_000
        assert await listed(host) == []


async def test_manifest_within_its_limits_is_accepted() -> None:
    """REG-2, REG-3."""
    async with running_server() as server, raw_participant(server) as host:
        names = [f"Tool_{number}-x" for number in range(1_000)]
        await ask(host, offer(toolkit_of("e" + "-" * 63, *names)))
        failed = await refusal(host, Register(2, bytes(2**20 - 12), {}))
        assert failed.code == "invalid_arguments"


async def test_public_name_has_one_owner_and_private_names_are_each_ones_own() -> None:
    """REG-6, REG-8."""
    async with (
        running_server() as server,
        raw_participant(server, "alice") as alice,
        raw_participant(server, "bob") as bob,
    ):
        await ask(alice, offer())
        for manifest in (None, toolkit_of("echo", "say", version="2")):
            taken = await refusal(bob, offer(manifest))
            assert (taken.code, taken.executed) == ("already_exists", "no")
        await ask(alice, offer(public=False, request_id=2))
        await ask(bob, offer(public=False, request_id=2))
        assert await listed(bob) == ["echo", "echo"]


async def test_private_toolkit_is_visible_only_to_those_it_is_shared_with() -> None:
    """REG-7, REG-8, REG-11."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        as_agent(server, "bob", use_tools=True, call=True) as bob,
        as_agent(server, "eve", "auditor", use_tools=True, call=True) as eve,
    ):
        for shared_with, seen_by in (
            (["name:bob"], [bob]),
            (["role:auditor"], [eve]),
            (["*"], [bob, eve]),
            ([], []),
        ):
            await ask(host, offer(public=False, shared_with=shared_with, request_id=3))
            for client in (bob, eve):
                sees = client in seen_by
                assert await listed(client) == (["echo"] if sees else [])
                assert (await refusal(client, call_of())).code == "not_found"
                describe = Describe(4, "echo", {"participant": "host"})
                if sees:
                    assert (await ask(client, describe))["toolkit"]["owner"]["name"] == "host"
                else:
                    assert (await refusal(client, describe)).code == "not_found"


async def test_higher_version_serves_and_hosts_in_reserve_serve_when_it_is_gone() -> None:
    """REG-9, REG-12: calls in flight finish where they are."""
    async with (
        running_server() as server,
        raw_participant(server, "host", instance="one") as old,
        raw_participant(server, "host", instance="two") as same,
        raw_participant(server, "host", instance="three") as new,
        raw_participant(server, "alice") as alice,
    ):
        first = await ask(old, offer())
        assert (first["base"], first["serving"]) == (0, True)
        assert await ask(same, offer()) == first
        await ask(same, Unregister(2, "echo", True))
        in_flight = await call_through(alice, old, call_of(request_id=1))
        second = await ask(new, offer(toolkit_of("echo", "say", version="2")))
        assert second["generation"] > first["generation"]
        assert second["digest"] != first["digest"]
        await call_through(alice, new, call_of(request_id=2))
        instead = {"version": "2", "digest": second["digest"]}
        reserve = first | {"serving": False, "instead": instead}
        assert await ask(same, offer(request_id=3)) == reserve
        await call_through(alice, new, call_of(request_id=3))
        answer(old, in_flight)
        assert isinstance(await alice.reply_to(1), Result)
        await ask(same, Unregister(4, "echo", True))
        await ask(alice, Subscribe(9, ["toolkits"]))
        await ask(new, Unregister(2, "echo", True))
        changed = await alice.next_event()
        assert (changed.name, changed.data["toolkit"]["digest"]) == (
            "toolkit_changed",
            first["digest"],
        )
        await call_through(alice, old, call_of(request_id=4))


async def test_generation_is_adopted_by_a_server_that_does_not_know_it() -> None:
    """REG-10."""
    async with running_server() as server, raw_participant(server, "host") as host:
        received = await ask(host, offer(generation=40))
        assert received["generation"] == 40
        newer = await ask(host, offer(toolkit_of("echo", "say", version="2"), 2))
        assert newer["generation"] > 40


async def test_host_that_returns_supersedes_nothing_that_came_while_it_was_away() -> None:
    """REG-10, REG-24: it repeats what it said and received; the others get notices."""
    lower, other, higher = (toolkit_of("echo", "say", version=each) for each in ("1", "2", "3"))
    async with running_server() as server, raw_participant(server, "host") as old:
        async with raw_participant(server, "host", instance="two") as gone:
            await ask(old, offer(other))
            place = await ask(gone, offer(lower, supersede=True))
            assert (place["generation"], place["base"], place["serving"]) == (2, 2, True)
            assert (await next_of(old, Notice)).data["instead"]["version"] == "1"
            gone.abort()
        served = await next_of(old, Notice)
        assert (served.name, served.data["serving"], served.data["base"]) == ("serving", True, 0)
        async with (
            raw_participant(server, "host", instance="three") as new,
            raw_participant(server, "host", instance="two", epoch=2) as back,
        ):
            assert (await ask(new, offer(higher)))["serving"]
            again = await ask(back, offer(lower, supersede=True, generation=2, base=2))
            assert (again["base"], again["serving"]) == (2, False)
            assert again["instead"]["version"] == "3"


async def test_private_definition_in_reserve_is_listed_to_those_it_is_shared_with() -> None:
    """REG-14, REG-11, EVENT-2."""
    closed, shared = (toolkit_of("echo", "say", version=each) for each in ("1", "2"))
    async with (
        running_server() as server,
        raw_participant(server, "host") as one,
        raw_participant(server, "host", instance="two") as two,
        raw_participant(server, "bob") as bob,
    ):
        await ask(one, offer(closed, public=False))
        await ask(two, offer(shared, public=False, shared_with=["name:bob"]))
        for reader, versions in ((one, ["1"]), (bob, [])):
            [kit] = (await ask(reader, ListToolkits(5, {})))["toolkits"]
            assert [each["version"] for each in kit.get("reserve", ())] == versions
        await ask(bob, Subscribe(6, ["toolkits"]))
        await ask(one, offer(closed, 7, public=False, shared_with=["*"], supersede=True))
        assert [(await bob.next_event()).name for _ in range(2)] == [
            "toolkit_changed",
            "toolkit_superseded",
        ]


async def test_host_drains_before_it_leaves() -> None:
    """LEAVE-1, REG-12."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "alice") as alice,
    ):
        await ask(host, offer())
        running = await call_through(alice, host, call_of())
        await ask(host, Unregister(2, "echo", True))
        assert (await refusal(host, Unregister(3, "echo", True))).code == "not_found"
        assert (await refusal(alice, call_of(request_id=8))).code == "not_found"
        await ask(alice, offer(request_id=9))  # the name is free
        answer(host, running)
        assert isinstance(await alice.reply_to(7), Result)


async def test_list_is_paged_in_order_and_searched() -> None:
    """REG-13, REG-14."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        as_agent(server, "bob", use_tools=True, deny=["secret"], allow=["*", "b.x"]) as bob,
        as_agent(server, "eve", call=True) as eve,
    ):
        manifest = toolkit_of("a", "x", "y", title="Alpha", description="w" * 600)
        manifest["tools"][0]["description"] = "Finds RAIN."
        received = await ask(host, offer(manifest))
        for number, name in enumerate(("c", "b", "secret")):
            await ask(host, offer(toolkit_of(name, "x"), number + 2))
        await ask(host, offer(toolkit_of("b", "x"), 9, public=False, shared_with=["*"]))
        assert (await refusal(eve, ListToolkits(1, {}))).code == "permission_denied"
        assert await listed(bob) == ["a", "b", "b", "c"]
        assert await listed(bob, search="rain") == ["a"]
        assert await listed(bob, search="SECRET") == []
        seen: list[tuple[str, bool]] = []
        cursor = None
        while cursor is not None or not seen:
            page = await ask(bob, ListToolkits(1, {"limit": 1, "cursor": cursor}))
            seen += [(item["name"], item["public"]) for item in page["toolkits"]]
            cursor = page["cursor"]
        assert seen == [("a", True), ("b", True), ("b", False), ("c", True)]
        page = await ask(bob, ListToolkits(1, {"limit": 1}))
        assert page["toolkits"][0] == {
            "name": "a",
            "title": "Alpha",
            "description": "w" * 500,
            "version": "",
            "digest": received["digest"],
            "public": True,
            "owner": {"name": "host", "issuer": server.key.iss},
            "hosts": 1,
            "tools": ["x", "y"],
        }


async def test_description_has_the_readable_tools_or_unchanged() -> None:
    """REG-15, REG-5."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        as_agent(server, "bob", call=True, allow=["echo.say"]) as bob,
        as_agent(server, "eve") as eve,
    ):
        received = await ask(host, offer(toolkit_of("echo", "say", "hush")))
        body = await ask(bob, Describe(1, "echo", {}))
        assert [each["name"] for each in body["manifest"]["tools"]] == ["say"]
        assert body["manifest"]["tools"][0]["affinity"] == "none"
        assert body["toolkit"]["digest"] == received["digest"]
        body = await ask(bob, Describe(1, "echo", {"digest": received["digest"]}))
        assert body["unchanged"] is True
        assert "manifest" not in body
        body = await ask(bob, Describe(1, "echo", {"digest": "0" * 64}))
        assert ("unchanged" in body, body["manifest"]["name"]) == (False, "echo")
        assert (await refusal(eve, Describe(1, "echo", {}))).code == "permission_denied"
        await ask(host, offer(toolkit_of("p", "x"), 2, public=False, shared_with=["*"]))
        hidden = await refusal(eve, Describe(2, "p", {"participant": "host"}))
        assert hidden.code == "not_found"


async def test_number_of_toolkits_of_a_participant_is_limited() -> None:
    """REG-16."""
    async with running_server() as server, raw_participant(server) as host:
        for number in range(Limits().max_toolkits):
            host.send_frame(offer({"name": f"t{number}"}, number))
        failed = await refusal(host, offer({"name": "last"}, 5_000))
        assert (failed.code, failed.executed) == ("quota_exceeded", "no")


async def test_number_of_toolkits_of_a_room_is_limited_and_existing_ones_continue() -> None:
    """REG-21, REG-6: replicas of registered toolkits join, and a reserved name is taken up by its
    owner.
    """
    limits = Limits(max_room_toolkits=3)
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, limits=limits)
    async with (
        running_server(settings=settings) as server,
        raw_participant(server, "ann", instance="1") as ann,
        raw_participant(server, "bob") as bob,
    ):
        assert bob.welcome is not None
        assert bob.welcome.facts["limits"]["max_room_toolkits"] == 3
        await ask(ann, offer())
        await ask(ann, offer(toolkit_of("mine", "x"), 2, public=False))
        async with raw_participant(server, "lost", instance="1") as lost:
            await ask(lost, offer(toolkit_of("kept", "x")))
        for public in (True, False):
            failed = await refusal(bob, offer(toolkit_of("more", "x"), 3, public=public))
            assert (failed.code, failed.executed) == ("quota_exceeded", "no")
        assert (await refusal(bob, offer(request_id=4))).code == "already_exists"
        assert sorted(await listed(ann)) == ["echo", "kept", "mine"]
        answer(ann, await call_through(bob, ann, call_of()))
        assert isinstance(await bob.reply_to(7), Result)

        await ask(ann, offer(toolkit_of("echo", "say", version="2"), 5))
        async with (
            raw_participant(server, "ann", instance="2") as second,
            raw_participant(server, "lost", instance="2") as back,
        ):
            await ask(second, offer(toolkit_of("echo", "say", version="2")))
            await ask(back, offer(toolkit_of("kept", "x")))
        await ask(ann, Unregister(6, "mine", False))
        await ask(bob, offer(toolkit_of("more", "x"), 7))


async def test_answer_that_does_not_fit_one_frame_is_too_large() -> None:
    """REG-17: with its defaults filled in, a manifest grows."""
    async with running_server() as server, raw_participant(server) as host:
        tools = [{"name": f"t{n}", "input_schema": {}, "title": "x" * 995} for n in range(1_000)]
        await ask(host, offer({"name": "big", "tools": tools}))
        failed = await refusal(host, Describe(2, "big", {}))
        assert (failed.code, failed.executed) == ("too_large", "no")


async def test_events_report_visible_toolkits_and_count_without_gaps() -> None:
    """EVENT-2, REG-8."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        as_agent(server, "bob", use_tools=True, deny=["secret"]) as bob,
    ):
        await ask(bob, Subscribe(1, ["toolkits"]))
        received = []
        steps: list[tuple[Register | Unregister, str]] = [
            (offer(), "toolkit_added"),
            (offer(toolkit_of("secret", "x")), ""),
            (offer(toolkit_of("mine", "x"), public=False), ""),
            (offer(toolkit_of("echo", "say", version="2")), "toolkit_changed"),
            (Unregister(0, "secret", True), ""),
            (Unregister(0, "echo", True), "toolkit_removed"),
        ]
        for number, (request, name) in enumerate(steps):
            await ask(host, replace(request, id=number))
            if name:
                event = await bob.next_event()
                received.append(event.number)
                assert (event.name, event.data["toolkit"]["name"]) == (name, "echo")
        assert received == [1, 2, 3]


async def test_changes_within_one_delay_are_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EVENT-3."""
    assert room_changes.COALESCE_S == 0.02
    monkeypatch.setattr(room_changes, "COALESCE_S", 1.0)
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "bob") as bob,
    ):
        await ask(bob, Subscribe(1, ["toolkits"]))
        one_breath: list[Register | Unregister] = [
            *(offer(toolkit_of("brief", "x"), 1), Unregister(2, "brief", True)) * 3,
            offer(toolkit_of("hidden", "x"), 1, public=False),
            Unregister(2, "hidden", False),
            offer(ECHO, 3),
            offer(toolkit_of("echo", "say", version="2"), 4),
            offer(toolkit_of("echo", "say", version="3"), 5),
        ]
        for request in one_breath:
            await ask(host, request)
        event = await bob.next_event()  # it could have been listed meanwhile
        assert (event.name, event.data["toolkit"]["name"]) == ("toolkit_removed", "brief")
        event = await bob.next_event()
        assert (event.number, event.name) == (2, "toolkit_added")
        assert event.data["toolkit"]["version"] == "3"
        await ask(host, Unregister(6, "echo", True))
        assert (await bob.next_event()).name == "toolkit_removed"


def test_too_many_bytes_of_manifest_are_refused_before_they_are_read() -> None:
    """REG-2: a manifest that a larger frame could contain."""
    with pytest.raises(TooLarge) as refused:
        read_definition(pack_body({"name": "x" * 2**20}))
    assert refused.value.executed == "no"


async def test_registration_with_an_invalid_manifest_is_refused() -> None:
    """BODY-1, BODY-2."""
    async with running_server() as server, raw_participant(server) as host:
        failed = await refusal(host, Register(1, b"\xc1", {}))
        assert (failed.code, details_of(failed)["path"]) == ("invalid_arguments", "")
        host.send_frame(call_of("no.no"))
        assert (await failure_of(host, 7)).code == "not_found"
