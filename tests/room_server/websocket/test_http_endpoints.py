"""Requests before a websocket: probes, metrics, origins, and floods."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.clients.handshakes import ask, code_for_browser, rest_of
from support.clients.plain_http import numbers_at, read
from support.clients.raw_checks import dispatched, host_slow
from support.clients.raw_client import (
    Head,
    RawClient,
    bearer,
    browser_bearer,
    raw_connection,
    raw_participant,
    upgrade_request,
)
from support.processes.command_line import CommandLine
from support.rooms.approvals import person_in
from support.rooms.unharmed_server import check_call, unharmed_server
from toolbus import ApiScope, KeyRing, RoomException, Toolkit, tool
from toolbus.errors import ERRORS
from toolbus.transport.client_addresses import address_of
from toolbus.wire import Call, Failed, Register, Result, pack_body
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server

PATHS = ("/healthz", "/readyz", "/metrics")


def settings(**values: Any) -> ServerSettings:
    return ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, **values)


# Probes


async def test_server_that_accepts_participants_is_healthy_and_ready() -> None:
    async with unharmed_server() as server:
        assert (await read(server.url, "/healthz"))[::2] == (200, "ok\n")
        assert (await read(server.url, "/readyz"))[::2] == (200, "ready\n")
        assert (await read(server.url, "/readyz?x=1", headers="Authorization: Bearer no\r\n"))[
            0
        ] == 200


async def test_draining_server_is_healthy_and_not_ready() -> None:
    """Calls in flight keep it running for a while, and it answers probes."""
    async with running_server() as server, raw_participant(server, "host") as host:
        await host_slow(host)
        async with raw_participant(server, "bob") as bob:
            bob.send_frame(Call(1, "c", "slow", "wait", None, pack_body({}), {}, None))
            await dispatched(host)
            stopping = asyncio.create_task(server.server.stop())
            await asyncio.sleep(0)  # it has started
            ready, health = await read(server.url, "/readyz"), await read(server.url, "/healthz")

            assert (ready.status, ready.body) == (404, "leaving\n")
            assert health.status == 200
            await asyncio.gather(stopping, host.closed_by_both(), bob.closed_by_both())


@pytest.mark.parametrize("path", PATHS)
async def test_head_is_answered_like_get_without_the_body(path: str) -> None:
    async with running_server() as server, raw_connection(server.url) as client:
        got = await read(server.url, path)
        client.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await rest_of(client)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 ")
    assert f"Content-Length: {got.headers['content-length']}".encode() in head
    assert body == b""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "get"])
async def test_other_methods_are_refused(path: str, method: str) -> None:
    async with running_server() as server:
        head = await read(server.url, path, method)
        assert (head.status, head.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/healthz/", "/Healthz", "/metrics/x", "//metrics", "/", "/x"])
async def test_other_paths_are_not_endpoints(path: str) -> None:
    async with unharmed_server() as server:
        assert (await read(server.url, path)).status == 426
        assert (await ask(server, path, bearer(server.token("bob")))).status == 404


async def test_websocket_at_an_endpoint_gets_the_plain_answer() -> None:
    async with unharmed_server() as server:
        for headers in (bearer(server.token("bob")), browser_bearer(server.token("bob"))):
            assert (await ask(server, "/healthz", headers)).status == 200


# Metrics


@tool
async def fail() -> str:
    """Fail."""
    raise RoomException("no")


async def test_metrics_count_participants_and_call_outcomes() -> None:
    async with unharmed_server() as server, server.room("bob", room="den") as bob:
        before = await numbers_at(server.url)
        for name in ("den.x", "echo.say"):
            with pytest.raises(RoomException):
                await bob.call(name)
        async with bob.host(Toolkit("mine", [fail])):
            with pytest.raises(RoomException):
                await bob.call("mine.fail")
            now = await numbers_at(server.url)

    assert {name: before[f"toolbus_{name}"] for name in ("rooms", "participants", "toolkits")} == {
        "rooms": 2,
        "participants": 3,
        "toolkits": 1,
    }
    changed = {name: value - before[name] for name, value in now.items() if value != before[name]}
    assert changed == {
        "toolbus_toolkits": 1,
        "toolbus_calls_total not_found": 2,
        "toolbus_calls_total tool_failed": 1,
    }
    assert before["toolbus_calls_total ok"] == 1  # of a bystander


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_waits_for_persons_are_counted_and_measured_by_their_outcome() -> None:
    async with running_server() as server, server.room("ann") as ann, server.room("bob") as bob:
        async with bob.host(Toolkit("mine", [pay]), public=True), person_in(ann) as person:
            for answer in (ann.approve, ann.deny):
                call = asyncio.ensure_future(ann.call("mine.pay"))
                hold = await person.asked()
                assert (await numbers_at(server.url))["toolbus_holds_open"] == 1
                await answer(hold)
                await asyncio.gather(call, return_exceptions=True)
                await person.settled()
            found = await numbers_at(server.url)
    changed = {name: value for name, value in found.items() if "hold" in name and value}
    assert 0 < changed.pop("toolbus_hold_duration_seconds_sum approved") < 60
    assert 0 < changed.pop("toolbus_hold_duration_seconds_sum denied") < 60
    for end in ("approved", "denied"):
        assert changed.pop(f"toolbus_holds_settled_total {end}") == 1
        assert changed.pop(f"toolbus_hold_duration_seconds_count {end}") == 1
        assert changed.pop(f"toolbus_hold_duration_seconds_bucket +Inf {end}") == 1
    assert {name.split()[-1] for name in changed} == {"approved", "denied"}


async def test_calls_in_flight_and_dropped_replies_are_counted() -> None:
    async with running_server() as server, raw_participant(server, "host") as host:
        await host_slow(host)
        async with raw_participant(server, "bob") as bob:
            bob.send_frame(Call(1, "c", "slow", "wait", None, pack_body({}), {}, None))
            dispatch = await dispatched(host)
            assert (await numbers_at(server.url))["toolbus_calls_in_flight"] == 1
            for _ in range(3):
                host.send_frame(Result(dispatch.id, pack_body([0])))
            host.send_frame(Register(9, b"", {}))
            assert isinstance(await host.reply_to(9), Failed)
            found = await numbers_at(server.url)

    assert found["toolbus_calls_in_flight"] == 0
    assert found["toolbus_replies_dropped_total"] == 2


async def test_no_text_of_an_untrusted_party_becomes_a_series() -> None:
    """Names of tools, participants and rooms, and codes that hosts invent."""
    async with running_server() as server, raw_participant(server, "host-zebra") as host:
        await host_slow(host)
        before = await numbers_at(server.url)
        async with raw_participant(server, "bob-zebra") as bob:
            for number in range(1, 51):
                toolkit = "slow" if number % 2 else f"zebra{number}"
                bob.send_frame(
                    Call(number, f"c{number}", toolkit, "wait", None, pack_body({}), {}, None)
                )
                if number % 2:
                    dispatch = await dispatched(host)
                    invented = Failed(
                        dispatch.id, f"zebra_{number}", "yes", False, "zebra", None, None
                    )
                    host.send_frame(invented)
                assert isinstance(await bob.reply_to(number), Failed)
        await ask(server, "/rooms/zebra", bearer("zebra"))
        found = await numbers_at(server.url)
        text = (await read(server.url, "/metrics")).body

    assert "zebra" not in text
    assert found.keys() - before.keys() == {"toolbus_connections_refused_total malformed"}
    assert found["toolbus_calls_total _OTHER"] == 25
    assert found["toolbus_calls_total not_found"] == 25
    codes = {name.split()[1] for name in found if name.startswith("toolbus_calls_total")}
    assert codes == {"ok", "_OTHER", *ERRORS}


async def test_denied_registrations_are_counted_also_in_rooms_that_have_ended() -> None:
    async with running_server() as server:
        for room in ("lab", "den"):
            async with server.room("bob", room=room, api=ApiScope()) as bob:
                with pytest.raises(RoomException):
                    async with bob.host(Toolkit("mine", [fail])):
                        pass
        async with asyncio.timeout(60):
            while (found := await numbers_at(server.url))["toolbus_rooms"]:
                pass
        assert found["toolbus_registrations_denied_total"] == 2


async def test_slow_consumers_are_counted_once() -> None:
    """CONN-14 closes them; unread pongs make a slow consumer too."""
    async with running_server() as server, raw_participant(server, "bob") as bob:
        (room,) = server.server.hub.rooms.values()
        (connection,) = room.routed.connections.values()
        connection.port.close_with(4430, "slow consumer")  # type: ignore[attr-defined]
        connection.port.close_with(4430, "slow consumer")  # type: ignore[attr-defined]
        assert await bob.close_code() == 4430
        assert (await numbers_at(server.url))["toolbus_slow_consumers_total"] == 1


async def test_metrics_can_be_turned_off() -> None:
    async with unharmed_server(settings=settings(metrics=False)) as server:
        assert (await read(server.url, "/metrics")).status == 404
        assert (await read(server.url, "/healthz")).status == 200


async def test_server_without_prometheus_client_logs_it_and_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "toolbus_server.websocket.metrics", raising=False)
    async with running_server() as server, raw_participant(server):
        assert (await read(server.url, "/metrics")).status == 501
        assert (await read(server.url, "/readyz")).status == 200
    assert "pip install 'toolbus[server]'" in caplog.text


async def test_servers_in_one_process_have_metrics_of_their_own() -> None:
    async with running_server() as one, running_server() as other, raw_participant(one):
        assert (await numbers_at(one.url))["toolbus_participants"] == 1
        assert (await numbers_at(other.url))["toolbus_participants"] == 0


# Origins


OWN, FOREIGN = "http://localhost:8000", "https://evil.example"


async def ask_from(server: TestServer, *origins: str) -> int:
    headers = [*bearer(server.token("bob")), *(("Origin", each) for each in origins)]
    return (await ask(server, "/rooms/lab", headers)).status


@pytest.mark.parametrize(
    ("trusted", "origin", "status"),
    [
        ((), OWN, 101),
        ((), "HTTPS://LOCALHOST", 101),
        ((), FOREIGN, 403),
        ((), "null", 403),
        ((), "", 403),
        ((), "http://[", 403),
        ((), "http://localhost.evil.example", 403),
        ((), "http://localhost@evil.example", 403),
        ((FOREIGN,), FOREIGN, 101),
        ((FOREIGN,), "https://EVIL.example", 101),
        ((FOREIGN,), OWN, 101),
        ((FOREIGN,), "https://evil.example:444", 403),
        ((FOREIGN,), "http://evil.example", 403),
        (("null",), "null", 101),
        (("*",), FOREIGN, 101),
    ],
)
async def test_page_of_another_origin_is_refused(
    trusted: tuple[str, ...], origin: str, status: int
) -> None:
    """CONN-5: before the token is checked, and as an HTTP response for a browser too."""
    async with unharmed_server(settings=settings(trusted_origins=trusted)) as server:
        assert await ask_from(server, origin) == status
        headers = [*browser_bearer(server.token("bob")), ("Origin", origin)]
        assert (await ask(server, "/rooms/lab", headers)).status == status
        refused = {"bad_origin": 2} if status == 403 else {}
        assert server.server.admission.refused == refused


async def test_two_origins_are_refused_and_a_request_without_one_is_a_program() -> None:
    async with unharmed_server() as server:
        assert await ask_from(server, OWN, OWN) == 403
        assert await ask_from(server) == 101


# Floods


def refusal_of(head: Head) -> tuple[int, str | None, str | None]:
    """Return the status, the pause and the limit of a refusal."""
    return head.status, head.headers.get("retry-after"), head.headers.get("toolbus-limit")


async def test_connection_over_the_limit_of_an_address_is_refused_until_one_closes() -> None:
    """CONN-5: 429 for a program, 4429 for a browser, and the address is free again at once."""
    async with running_server(settings=settings(max_per_address=3)) as server:
        token = server.token("bob")
        async with AsyncExitStack() as stack:
            for name in ("ann", "bob", "eve"):
                await stack.enter_async_context(raw_participant(server, name))
            head = await ask(server, "/rooms/lab", bearer(token))

            assert refusal_of(head) == (429, "1", "address")
            assert await code_for_browser(server, "/rooms/lab", token) == 4429
            assert (await read(server.url, "/healthz")).status == 200
            assert server.server.admission.refused == {"address_full": 2}
        async with asyncio.timeout(60):
            while (await ask(server, "/rooms/lab", bearer(token))).status != 101:
                pass


async def test_flood_of_one_address_does_not_harm_participants() -> None:
    """Hundreds of silent connections: some wait, the rest is dropped, calls go on."""
    async with (
        unharmed_server(settings=settings(max_per_address=20)) as server,
        server.room("ann") as ann,
    ):
        quotas = server.server.admission.quotas
        flood = [await RawClient.connect(server.url) for _ in range(600)]
        assert await rest_of(flood[-1]) == b""
        head = await flood[100].upgrade("/rooms/lab", bearer(server.token("mallory")))
        assert head.status == 429  # one of those that may wait for the answer
        assert quotas.dropped >= 600 - 20 - 256
        for client in flood:
            client.abort()
        async with asyncio.timeout(60):
            while quotas.is_over_limit("127.0.0.1"):
                await check_call(ann)
        async with server.room("bob") as bob:
            await check_call(bob)


async def test_flood_of_handshakes_does_not_block_other_addresses() -> None:
    async with unharmed_server(settings=settings(max_per_address=50)) as server:
        token = server.token("mallory", room="den")

        async def connect(number: int) -> int:
            path = f"/rooms/den?instance={number}"
            return (await ask(server, path, bearer(token))).status

        for _ in range(3):
            flood = asyncio.gather(*map(connect, range(200)))
            elsewhere = await asyncio.open_connection(
                "127.0.0.1", server.server.port, local_addr=("127.0.0.2", 0)
            )
            other = RawClient(*elsewhere)
            assert (await other.upgrade("/rooms/lab", bearer(server.token("eve")))).status == 101
            other.abort()
            assert set(await flood) <= {101, 429}
        assert server.server.admission.refused["address_full"] > 0


async def test_participant_over_the_limit_of_an_identity_is_refused_and_a_successor_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """CONN-5, CONN-11: a successor replaces a connection that is counted already."""
    async with (
        running_server(settings=settings(max_per_identity=2)) as server,
        raw_participant(server, "bob", instance="one"),
        raw_participant(server, "bob", instance="two") as two,
    ):
        token = server.token("bob", room="*")
        for path in ("/rooms/lab", "/rooms/den"):
            assert refusal_of(await ask(server, path, bearer(token))) == (429, "1", "identity")
            assert await code_for_browser(server, path, token) == 4429
        assert server.server.admission.refused == {"identity_full": 4}
        [warning] = [each for each in caplog.messages if "connections are refused" in each]
        assert "identity bob (issuer " in warning
        assert warning.endswith("is at its limit of 2 (--max-per-identity)")
        async with (
            raw_participant(server, "ann"),
            raw_participant(server, "bob", instance="two", epoch=2),
        ):
            assert await two.close_code() == 4409


async def test_participant_over_the_limit_of_a_room_is_refused_until_one_leaves() -> None:
    """CONN-5, CONN-11: other rooms accept participants, and this one accepts a successor."""
    async with running_server(settings=settings(max_per_room=2)) as server:
        token = server.token("eve", room="*")
        async with (
            raw_participant(server, "ann", instance="one") as ann,
            raw_participant(server, "bob"),
        ):
            head = await ask(server, "/rooms/lab", bearer(token))
            assert refusal_of(head) == (429, "1", "room")
            assert await code_for_browser(server, "/rooms/lab", token) == 4429
            assert server.server.admission.refused == {"room_full": 2}
            assert (await numbers_at(server.url))[
                "toolbus_connections_refused_total room_full"
            ] == 2
            assert (await ask(server, "/rooms/den", bearer(token))).status == 101
            async with raw_participant(server, "ann", instance="one", epoch=2):
                assert await ann.close_code() == 4409
        async with asyncio.timeout(60):
            while (await ask(server, "/rooms/lab", bearer(token))).status != 101:
                pass


async def test_client_without_access_does_not_learn_that_a_room_is_full() -> None:
    async with (
        running_server(settings=settings(max_per_room=1)) as server,
        raw_participant(server, "ann"),
    ):
        elsewhere = server.token("eve", room="den")
        assert (await ask(server, "/rooms/lab", bearer(elsewhere))).status == 403
        assert (await ask(server, "/rooms/lab", bearer("none"))).status == 401


async def test_of_many_simultaneous_clients_a_room_accepts_up_to_its_limit() -> None:
    """None has joined the room yet when the next one is checked."""
    full_with_five = settings(max_per_room=5)
    async with running_server(settings=full_with_five) as server, AsyncExitStack() as stack:
        token = server.token("eve")
        clients = [await stack.enter_async_context(raw_connection(server.url)) for _ in range(20)]
        heads = await asyncio.gather(
            *(client.upgrade("/rooms/lab", bearer(token)) for client in clients)
        )
        assert sorted(head.status for head in heads) == [101] * 5 + [429] * 15


async def test_limits_of_zero_are_no_limits() -> None:
    unlimited = settings(max_per_address=0, max_per_identity=0, max_per_room=0)
    async with unharmed_server(settings=unlimited) as server, AsyncExitStack() as stack:
        for number in range(20):
            name = raw_participant(server, "bob", instance=str(number))
            await stack.enter_async_context(name)


async def test_closed_connections_are_no_longer_counted() -> None:
    async with running_server() as server:
        quotas = server.server.admission.quotas
        for request in (b"", b"x\r\n\r\n", upgrade_request("/rooms/lab"), b"GET /healthz HTTP/1.1"):
            async with raw_connection(server.url) as client:
                client.send(request)
        async with raw_participant(server, "bob"):
            pass
        async with asyncio.timeout(60):
            # The request is counted too, and may still be when the next one arrives.
            while sum(quotas._counts.values()) > 2:
                await read(server.url, "/healthz")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 0), "fe80::/64"),
        ("/run/socket", ""),
        ("", ""),
        (None, ""),
        (("host", 1), ""),
    ],
)
def test_addresses_are_counted_by_network(peer: Any, address: str) -> None:
    assert address_of(peer) == address


# From the command line


def test_flags_of_serve_reach_the_server(tmp_path: Path) -> None:
    toolbus = CommandLine(tmp_path)
    flags = ("--metrics", "off", "--max-per-address", "3", "--trusted-origins", FOREIGN)
    with toolbus.serving("--dev", *flags) as (_, url):
        asyncio.run(_check_flags(url))


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_limit_of_a_room_reaches_the_server(tmp_path: Path, source: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text("max_per_room = 1\n")
    flags = {"flag": ("--max-per-room", "1"), "file": ("--config", str(config))}.get(source, ())
    variables = {"TOOLBUS_MAX_PER_ROOM": "1"} if source == "variable" else {}
    toolbus = CommandLine(tmp_path, variables)
    with toolbus.serving("--dev", *flags) as (_, url):
        keys = str(tmp_path / "home" / "dev-keys.toml")
        who = ("--name", "ann", "--preset", "user", "--room", "lab")
        minted = toolbus.run_here("token", "create", "--keys", keys, *who)
        assert minted.code == 0, minted.err
        asyncio.run(_check_limit_of_a_room(url, minted.out.strip()))


async def _check_limit_of_a_room(url: str, token: str) -> None:
    async with raw_connection(url) as first, raw_connection(url) as second:
        assert (await first.upgrade("/rooms/lab", bearer(token))).status == 101
        assert (await second.upgrade("/rooms/lab", bearer(token))).status == 429


async def _check_flags(url: str) -> None:
    async def status(path: str, origin: str) -> int:
        async with raw_connection(url) as client:
            headers = [("Sec-WebSocket-Protocol", "toolbus.v1"), ("Origin", origin)]
            return (await client.upgrade(path, headers)).status

    assert await status("/metrics", FOREIGN) == 404
    assert await status("/rooms/lab", FOREIGN) == 401
    assert await status("/rooms/lab", "https://other.example") == 403
    async with raw_connection(url), raw_connection(url), raw_connection(url):
        assert await status("/rooms/lab", FOREIGN) == 429


@pytest.mark.parametrize(
    "flag",
    [
        ("--trusted-origins", "https://app.example/path"),
        ("--trusted-origins", "app.example"),
        ("--trusted-origins", "http://["),
        ("--max-per-address", "-1"),
        ("--max-per-identity", "many"),
        ("--max-per-room", "-1"),
        ("--metrics", "perhaps"),
    ],
)
def test_invalid_flag_ends_with_2(tmp_path: Path, flag: tuple[str, str]) -> None:
    assert CommandLine(tmp_path).run_here("serve", "--dev", "--port", "0", *flag).code == 2


def test_variables_and_the_settings_file_work_like_flags(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('trusted_origins = ["https://a.example", "b/c"]\n')
    toolbus = CommandLine(tmp_path)
    by_file = toolbus.run_here("serve", "--dev", "--json", "--config", str(config))
    by_variable = toolbus.run_here(
        "serve", "--dev", "--json", TOOLBUS_TRUSTED_ORIGINS="https://a.example d/e"
    )
    assert "'b/c'" in json.loads(by_file.err.splitlines()[-1])["message"]
    assert "'d/e'" in json.loads(by_variable.err.splitlines()[-1])["message"]
