"""A client in Node, written from PROTOCOL.md alone, with a server and participants of ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clients.cuttable_relay import cuttable_relay
from support.clients.living_tokens import LIFE_S, MovedClock, living
from support.clients.other_services import NOT_FOUND, other_service
from support.deploy.balancer import balancer
from support.parts.scripted_server import scripted_server
from support.processes.node_js_client import (
    NodeProgram,
    installed_client,
    node_command,
    node_program,
)
from support.rooms.approvals import person_in
from toolbus import (
    ApiScope,
    ExternalTool,
    Key,
    KeyRing,
    RoomClient,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.errors import ApprovalDenied, HostLost, InvalidArguments, ToolFailed
from toolbus.wire import (
    PROTOCOL_HEADER,
    Call,
    Describe,
    Dispatch,
    Drain,
    Failed,
    Notice,
    Register,
    Result,
    decode_from_client,
    pack_body,
)
from toolbus_server import ServerSettings
from toolbus_server.calls.router import Connection
from toolbus_server.testing import TestServer, running_server

VECTORS = Path(__file__).parents[2] / "wire_vectors"
MANY = 10_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the client; without Node, its tests are not verified."""
    return installed_client(tmp_path_factory.mktemp("node"))


@asynccontextmanager
async def host_of(client: Path, server: TestServer, *, url: str = "") -> AsyncIterator[NodeProgram]:
    """A process that hosts the toolkit `lines`."""
    token = server.token("node-host")
    async with node_program(client, "demo_host.mjs", url or server.url, token) as host:
        await host.wait_for(hosting="lines")
        yield host


@asynccontextmanager
async def caller_of(
    client: Path, server: TestServer, name: str = "node-caller"
) -> AsyncIterator[NodeProgram]:
    """A process that makes the calls of its arguments."""
    token = server.token(name)
    async with node_program(client, "demo_caller.mjs", server.url, token) as caller:
        await caller.wait_for(joined=name)
        yield caller


@asynccontextmanager
async def pair(client: Path) -> AsyncIterator[tuple[NodeProgram, NodeProgram, TestServer]]:
    """A server, and a caller and a host in Node."""
    async with (
        running_server() as server,
        host_of(client, server) as host,
        caller_of(client, server) as caller,
    ):
        yield caller, host, server


def sums(entered: asyncio.Event, stopped: asyncio.Event) -> Toolkit:
    """A toolkit hosted by the SDK."""

    @tool
    async def add(one: int, other: float) -> float:
        """Add two numbers."""
        return one + other

    @tool
    async def refuse(words: str) -> None:
        """Fail with a text."""
        raise ToolFailed(words)

    @tool
    async def wait() -> None:
        """Wait for ever."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    return Toolkit("sums", [add, refuse, wait], description="Sums, at any speed")


def test_every_golden_vector_is_read_and_written(client: Path) -> None:
    """FRAME-2 to FRAME-9, BODY-1 to BODY-4, by a client that was written from PROTOCOL.md alone."""
    node, _ = node_command()
    command = [node, "check_vectors.mjs", str(VECTORS)]
    output = subprocess.run(command, cwd=client, capture_output=True, text=True, timeout=60)
    assert output.returncode == 0, output.stderr
    there = {
        folder: len(list((VECTORS / folder).glob("*.json"))) for folder in json.loads(output.stdout)
    }
    assert json.loads(output.stdout) == there
    assert min(there.values()) > 10


async def test_node_client_calls_toolkits_of_the_sdk(client: Path) -> None:
    """CONN-3, CONN-10, REG-13, REG-15, CALL-10, ERR-1, ERR-6, ASSESS-6."""
    entered, stopped = asyncio.Event(), asyncio.Event()
    async with (
        running_server() as server,
        server.room("host") as room,
        room.host(sums(entered, stopped)),
        caller_of(client, server) as caller,
    ):
        (found,) = (await caller.ask("list", search="any SPEED"))["toolkits"]
        assert (found["name"], found["tools"]) == ("sums", ["add", "refuse", "wait"])
        assert (await caller.ask("list", search="other"))["toolkits"] == []
        described = await caller.ask("describe", toolkit="sums")
        assert described["toolkit"] == found
        assert described["manifest"]["tools"][0]["input_schema"]["required"] == ["one", "other"]

        added = await caller.ask("call", name="sums.add", args={"one": 2**40, "other": 2})
        assert added["value"] == 2**40 + 2
        refused = await caller.ask("call", name="sums.add", args={"one": 1, "other": "two"})
        assert refused["error"].items() >= {"code": "invalid_arguments", "executed": "no"}.items()
        assert refused["error"]["details"]["path"] == "/other"
        failed = await caller.ask("call", name="sums.refuse", args={"words": "not today"})
        expected = {"code": "tool_failed", "executed": "yes", "message": "not today"}
        assert failed["error"].items() >= expected.items()
        missing = await caller.ask("call", name="sums.sub", args={})
        assert missing["error"].items() >= {"code": "not_found", "executed": "no"}.items()
        late = await caller.ask("call", name="sums.wait", timeoutMs=50)
        assert late["error"].items() >= {"code": "deadline_exceeded", "executed": "maybe"}.items()

        said = await caller.ask("assess", name="sums.add", args={"one": 1}, patterns=["one:*"])
        assert said["error"]["code"] == "invalid_arguments"
        said = await caller.ask("assess", name="sums.refuse", args={"words": "x"}, patterns=["a"])
        assert said["assessment"].items() >= {"behavior": "pass", "matches": []}.items()

        entered.clear()
        stopped.clear()
        waiting = caller.send_order("call", name="sums.wait")
        async with asyncio.timeout(60):
            await entered.wait()
            await caller.ask("cancel", of=waiting)
            given_up = (await caller.answer(waiting))["error"]
            await stopped.wait()
        assert given_up.items() >= {"code": "cancelled", "executed": "maybe"}.items()


async def test_sdk_calls_toolkits_of_the_node_client(client: Path) -> None:
    """REG-1, CALL-9, CALL-11, ERR-4, ERR-5, STREAM-1: its refusals and its errors are read."""
    async with (
        running_server() as server,
        host_of(client, server) as host,
        server.room("alice") as alice,
    ):
        for value in (None, 7, 2**40, -(2**53), 2.5, "Snø ❄", [1, {"a": [None, True]}]):
            assert await alice.call("lines.echo", value=value) == value
        description = await alice.toolkit("lines")
        assert (description.info.hosts, description.info.assesses) == (1, False)
        assert (await alice.assess("lines.echo", {"value": 1})).source == "manifest"
        with pytest.raises(InvalidArguments) as refused:
            await alice.call("lines.zeros", size="many")
        assert (refused.value.executed, refused.value.details["path"]) == ("no", "/size")
        with pytest.raises(ToolFailed, match=r"^not today\n") as failed:
            await alice.call("lines.refuse", words="not today")
        assert (failed.value.executed, failed.value.retryable) == ("yes", True)
        with pytest.raises(ToolFailed) as crashed:
            await alice.call("lines.crash")
        assert crashed.value.details["cause"] == "TypeError"
        assert "must not travel" not in str(crashed.value)

        calling = asyncio.ensure_future(alice.call("lines.wait"))
        await host.wait_for(began="wait")
        calling.cancel()
        assert "cancelled" in (await host.wait_for(stopped="wait"))["why"]


@pytest.mark.parametrize("window", [{"chunks": 8, "bytes": 2**20}, {"chunks": 2**20, "bytes": 100}])
async def test_ten_thousand_chunks_pass_small_windows_in_order(
    client: Path, window: dict[str, int]
) -> None:
    """STREAM-1 to STREAM-5: too little credit would end it, too much would break it."""
    async with pair(client) as (caller, _, server):
        got = await caller.ask("stream", name="lines.count", args={"to": MANY}, window=window)
        assert got["values"] == [{"n": number} for number in range(1, MANY + 1)]
        assert server.server.hub.router.in_flight == 0


async def test_input_and_stream_are_sent_at_the_same_time(client: Path) -> None:
    """INPUT-1, INPUT-2, PROGRESS-1."""
    async with pair(client) as (caller, _, _):
        window = {"chunks": 4, "bytes": 1000}
        doubling = caller.send_order(
            "stream", name="lines.doubled", input={"to": MANY}, window=window
        )
        adding = caller.send_order("call", name="lines.total", input={"to": MANY}, progress=True)
        assert (await caller.answer(doubling))["values"] == list(range(2, 2 * MANY + 1, 2))
        added = await caller.answer(adding)
        assert added["value"] == MANY * (MANY + 1) // 2
        received = [each["sum"] for each in added["told"]]
        assert received  # some may be lost, but their order is kept
        assert received == sorted(received)
        empty = await caller.ask("stream", name="lines.doubled", input={"to": 0})
        assert empty["values"] == []


async def test_file_larger_than_a_frame_is_sent_in_pieces(client: Path) -> None:
    """STREAM-8, STREAM-9."""
    async with pair(client) as (caller, _, _):
        got = await caller.ask("call", name="lines.zeros", args={"size": 3_000_001})
        assert got["value"] == {"file": "application/octet-stream", "size": 3_000_001}


async def test_chunks_before_a_failure_are_read_before_it(client: Path) -> None:
    """STREAM-1, ERR-1, ERR-5."""
    async with pair(client) as (caller, _, _):
        broken = await caller.ask("stream", name="lines.break_off")
        assert broken["values"] == [1, 2, 3]
        expected = {"code": "tool_failed", "executed": "yes", "message": "no more than three"}
        assert broken["error"].items() >= expected.items()
        unasked = await caller.ask("call", name="lines.break_off")
        assert unasked["error"].items() >= {"code": "invalid_arguments", "executed": "no"}.items()


async def test_abandoned_or_cancelled_stream_is_stopped_at_its_host(client: Path) -> None:
    """CALL-10, CALL-11, STREAM-6."""
    async with pair(client) as (caller, host, server):
        left = await caller.ask("stream", name="lines.for_ever", take=3)
        assert left["values"] == [1, 2, 3]
        assert "cancelled" in (await host.wait_for(stopped="for_ever"))["why"]
        await host.wait_for(began="for_ever")
        streaming = caller.send_order("stream", name="lines.for_ever")
        await host.wait_for(began="for_ever")
        await caller.ask("cancel", of=streaming)
        given_up = (await caller.answer(streaming))["error"]
        assert given_up.items() >= {"code": "cancelled", "executed": "maybe"}.items()
        await host.wait_for(stopped="for_ever")
        caller.send_order("call", name="lines.wait")
        await host.wait_for(began="wait")
        caller.kill()
        assert "caller_gone" in (await host.wait_for(stopped="wait"))["why"]
        assert server.server.hub.router.in_flight == 0


async def test_loss_of_the_node_client_is_host_lost_for_both_kinds_of_callers(client: Path) -> None:
    """CALL-13, ERR-2."""
    async with pair(client) as (caller, host, server), server.room("alice") as alice:
        theirs = caller.send_order("stream", name="lines.for_ever")
        await host.wait_for(began="for_ever")
        ours = asyncio.ensure_future(alice.call("lines.wait"))
        await host.wait_for(began="wait")
        host.kill()
        lost = (await caller.answer(theirs))["error"]
        assert lost.items() >= {"code": "host_lost", "executed": "maybe"}.items()
        assert lost["retryable"] is False
        with pytest.raises(HostLost) as received:
            await ours
        assert received.value.executed == "maybe"


async def test_node_client_reconnects_with_a_higher_epoch_and_registers_again(client: Path) -> None:
    """CONN-4, CONN-11, LEAVE-4, REG-10: although the server considers the old one alive."""
    async with (
        running_server() as server,
        cuttable_relay(server.url) as relay,
        host_of(client, server, url=relay.url) as host,
        server.room("alice") as alice,
    ):
        before = await alice.explain("lines.echo")
        (connection,) = connections_of(server, "node-host")
        assert connection.participant.epoch == 1
        calling = asyncio.ensure_future(alice.call("lines.wait"))
        await host.wait_for(began="wait")
        relay.cut()
        assert (await host.wait_for("stopped"))["stopped"] == "wait"
        with pytest.raises(HostLost):
            await calling
        await host.wait_for("returned")
        (successor,) = connections_of(server, "node-host")
        assert (successor.participant.epoch > 1, successor.participant.instance) == (
            True,
            connection.participant.instance,
        )
        after = await alice.explain("lines.echo")
        assert (after.generation, after.hosts) == (before.generation, 1)
        assert await alice.call("lines.echo", value="again") == "again"


async def test_node_client_reconnects_to_a_restarted_server_and_repeats_its_generation(
    client: Path,
) -> None:
    """LEAVE-2, LEAVE-4, REG-10."""
    key = Key.generate(kid="test", iss="acme")
    async with AsyncExitStack() as stack:
        settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=0.0)
        async with running_server(key=key, settings=settings) as first:
            async with first.room("alice") as alice:
                async with (
                    first.room("node-host") as older,
                    older.host(Toolkit("lines", description="an older definition")),
                ):
                    host = await stack.enter_async_context(host_of(client, first))
                before = (await alice.explain("lines.echo")).generation
                assert before > 1
            port = int(first.url.rpartition(":")[2])
        settings = ServerSettings(keys=KeyRing([]), port=port)
        async with running_server(key=key, settings=settings) as second:
            await host.wait_for("returned")
            async with second.room("alice") as alice:
                assert (await alice.explain("lines.echo")).generation == before
                assert await alice.call("lines.echo", value="again") == "again"


@pytest.mark.parametrize("notice", ["leaving", "move"])
async def test_node_client_that_is_asked_for_another_connection_moves_its_new_calls(
    client: Path, notice: str
) -> None:
    """LEAVE-9, LEAVE-11: it stays until another server accepts it, and its calls end at the old."""
    async with (
        asyncio.timeout(60),
        balancer() as address,
        scripted_server(ApiScope.full()) as server,
        other_service(NOT_FOUND) as other,
    ):
        address.lead_to(server.url)
        async with node_program(client, "demo_caller.mjs", address.url, "no.token") as caller:
            first = await server.next_connection()
            await caller.wait_for(joined="alice")
            before = caller.send_order("call", name="kit.run")
            call = await first.next_of(Call)
            address.lead_to(other)
            await first.send(Notice(notice, {}))
            while address.connections < 2:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)
            meanwhile = caller.send_order("call", name="kit.run")
            if notice == "move":
                await first.send(Result((await first.next_of(Call)).id, pack_body([1, "stayed"])))
                assert (await caller.answer(meanwhile))["value"] == "stayed"
            else:
                refused = (await caller.answer(meanwhile))["error"]
                assert (refused["code"], refused["executed"]) == ("unavailable", "no")

            address.lead_to(server.url)
            while server.connections.empty():
                await first.send(Notice(notice, {}))  # as servers do
                await asyncio.sleep(0.05)
            second = await server.next_connection()
            assert (second.instance, second.asks_elsewhere) == (first.instance, notice == "move")
            assert second.epoch > first.epoch
            await first.answer(Drain, {})
            await caller.wait_for("returned")
            after = caller.send_order("call", name="kit.run")
            await second.send(Result((await second.next_of(Call)).id, pack_body([1, "moved"])))
            assert (await caller.answer(after))["value"] == "moved"
            await first.send(Result(call.id, pack_body([1, "done"])))
            assert (await caller.answer(before))["value"] == "done"
            await first.websocket.wait_closed()
            assert first.websocket.close_code == 1000


async def test_node_client_ends_for_a_refusal_and_not_for_that_of_another_service(
    client: Path,
) -> None:
    """CONN-17, LEAVE-4: such as a proxy while the server is restarted."""
    header = f"\r\n{PROTOCOL_HEADER}: toolbus.v1\r\n\r\n".encode()
    async with (
        asyncio.timeout(60),
        balancer() as address,
        scripted_server(ApiScope.full()) as server,
        other_service(NOT_FOUND) as other,
        other_service(NOT_FOUND.replace(b"\r\n\r\n", header)) as refusing,
    ):
        address.lead_to(server.url)
        async with node_program(client, "demo_host.mjs", address.url, "no.token") as host:
            connection = await server.next_connection()
            await connection.answer(Register, {"digest": "d" * 64, "generation": 1})
            await host.wait_for(hosting="lines")
            address.lead_to(other)
            connection.websocket.transport.abort()
            while address.connections < 3:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)
            address.lead_to(server.url)
            connection = await server.next_connection()
            await connection.answer(Register, {"digest": "d" * 64, "generation": 1})
            await host.wait_for("returned")
            address.lead_to(refusing)
            connection.websocket.transport.abort()
            assert await host.wait_for("gone") == {"gone": "refused: HTTP 404"}


def connections_of(server: TestServer, name: str) -> list[Connection]:
    """Return the server's connections of this name."""
    sessions = server.server.hub.rooms["lab"].sessions.values()
    return [
        each.connection for each in sessions if each.connection.participant.identity.name == name
    ]


async def test_unknown_frames_and_fields_of_a_newer_server_are_ignored(client: Path) -> None:
    """FRAME-8, FRAME-9, FRAME-12, GROW-1: unknown kinds, fields, keys and replies."""
    async with (
        scripted_server() as server,
        node_program(client, "demo_caller.mjs", server.url, "no.token") as caller,
    ):
        connection = await server.next_connection()
        await caller.wait_for(joined="alice")
        asked = caller.send_order("describe", toolkit="any")
        request = await connection.next_of(Describe)
        body = pack_body({"name": "any", "new": [1]})
        for frame in (
            [200],
            [201, request.id, {"new": [None, 1.5]}],
            [2, request.id + 100, body],
            [4, 1, "unheard_of", {"data": b"x"}],
            [2, request.id, body, "a field more", b"x"],
        ):
            await connection.websocket.send(pack_body(frame))
        assert (await caller.answer(asked))["name"] == "any"


async def test_node_client_requests_no_stream_from_a_server_of_the_first_version(
    client: Path,
) -> None:
    """GROW-2: it would ignore what makes a call one."""
    async with (
        scripted_server() as server,
        node_program(client, "demo_caller.mjs", server.url, "no.token") as caller,
    ):
        connection = await server.next_connection()
        refused = (await caller.ask("stream", name="lines.count", args={"to": 1}))["error"]
        assert refused.items() >= {"code": "unavailable", "executed": "no"}.items()
        caller.send_order("call", name="lines.echo")
        call = await connection.next_of(Call)
        assert (call.id, call.tool) == (1, "echo")  # no frame came before it


async def test_connection_to_a_server_that_breaks_the_rules_is_closed_with_the_code_for_that(
    client: Path,
) -> None:
    """FRAME-2, FRAME-3."""
    for data, code in ((b"\xc1", 1007), (pack_body([4, 1, "x", []]), 1002)):
        async with (
            scripted_server() as server,
            node_program(client, "demo_caller.mjs", server.url, "no.token") as caller,
        ):
            connection = await server.next_connection()
            await caller.wait_for(joined="alice")
            await connection.websocket.send(data)
            async with asyncio.timeout(60):
                await connection.websocket.wait_closed()
            assert connection.websocket.close_code == code
            assert await caller.end() in (0, -15)


DECISIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("approve", {}, {"value": 7}),
    ("approve", {"changes": {"args": {"value": 8}}}, {"value": 8}),
    ("approve", {"changes": {"args": {"value": "8"}}}, {"code": "invalid_arguments"}),
    ("deny", {"reason": "not today"}, {"code": "approval_denied", "message": "not today"}),
]


async def test_node_host_runs_only_what_a_person_approves(client: Path) -> None:
    """HOLD-1 to HOLD-3, HOLD-6, HOLD-8, HOLD-10, HOLD-14: and the time of the call stands still."""
    call: dict[str, Any] = {"name": "lines.guarded", "args": {"value": 7}, "timeoutMs": 300}
    async with pair(client) as (caller, host, _):
        waiting, told = [], []
        for _ in DECISIONS:
            waiting.append(caller.send_order("call", **call))
            told.append(await caller.wait_for(held="lines.guarded", may_settle=True))
        late = await caller.ask("call", name="lines.wait", timeoutMs=300)
        assert late["error"]["code"] == "deadline_exceeded"  # as late as all of them would be
        listed = (await caller.ask("holds"))["holds"]
        assert [hold["id"] for hold in listed] == [held["hold"] for held in told]
        for number, held, (decision, options, expected) in zip(
            waiting, told, DECISIONS, strict=True
        ):
            settled = await caller.ask(decision, hold=held["hold"], **options)
            end = await caller.answer(number)
            if "code" in expected:
                assert end["error"].items() >= {**expected, "executed": "no"}.items()
            else:
                assert end["value"] == expected["value"]
                assert (await host.wait_for(began="guarded"))["value"] == expected["value"]
            assert await caller.wait_for(held="lines.guarded", outcome=settled["outcome"])
            again = await caller.ask(decision, hold=held["hold"], **options)
            assert again["outcome"] == settled["outcome"]


async def test_approvals_between_the_node_client_and_the_sdk(client: Path) -> None:
    """HOLD-1, HOLD-6, HOLD-11: each as host, as caller and as who approves."""

    @tool(approval=True)
    async def guarded(value: int) -> int:
        """Give back what a person approved."""
        return value

    async with (
        pair(client) as (caller, _, server),
        server.room("alice") as alice,
        alice.host(Toolkit("kit", [guarded])),
        alice.events(["holds"]) as events,
    ):
        ours = asyncio.ensure_future(alice.call("lines.guarded", value=3))
        hold = (await anext(events)).hold
        assert hold is not None
        shown = await alice.hold(hold.id)
        assert shown.body is not None
        assert shown.body.arguments == {"value": 3}
        await alice.approve(shown)
        assert await ours == 3
        theirs = caller.send_order("call", name="kit.guarded", args={"value": 4})
        held = await caller.wait_for(held="kit.guarded")
        await caller.ask("approve", hold=held["hold"])
        assert (await caller.answer(theirs))["value"] == 4


async def test_node_client_parks_calls_and_answers_them(client: Path) -> None:
    """HOLD-15 to HOLD-17: beside the SDK, each as host, as caller and as who answers."""

    @tool
    async def ask(context: ToolContext) -> Any:
        """Ask a person."""
        return await context.ask("How many?", schema={"type": "integer", "maximum": 9})

    async with (
        pair(client) as (caller, _, server),
        server.room("alice") as alice,
        alice.host(Toolkit("kit", [ask, ExternalTool("review", {})])),
        person_in(alice) as person,
    ):
        ours = asyncio.ensure_future(alice.call("lines.review", value=3))
        hold = await person.asked()
        assert hold.body is not None
        assert (hold.body.is_result, hold.body.arguments) == (True, {"value": 3})
        await alice.answer(hold, {"mark": 1})
        assert await ours == {"mark": 1}
        denied = asyncio.ensure_future(alice.call("lines.review", value=4))
        await person.settled()
        await alice.deny(await person.asked(), "not mine")
        with pytest.raises(ApprovalDenied) as refused:
            await denied
        assert (refused.value.message, refused.value.executed) == ("not mine", "no")
        asking = caller.send_order("call", name="lines.ask", args={})
        held = await caller.wait_for(held="lines.ask", kind="answer")
        answered = await caller.ask("answer", hold=held["hold"], value="green")
        assert answered["asked"] == {"question": "Which?", "options": ["red", "blue"]}
        held = await caller.wait_for(held="lines.ask", kind="answer")
        answered = await caller.ask("answer", hold=held["hold"], value="red")
        assert answered["asked"]["reason"].endswith("it must be red or blue")
        assert (await caller.answer(asking))["value"] == "red"
        for name, answers in (("kit.ask", [10, 7]), ("kit.review", ["good"])):
            theirs = caller.send_order("call", name=name, args={})
            for value in answers:
                held = await caller.wait_for(held=name, kind="answer")
                await caller.ask("answer", hold=held["hold"], value=value)
            assert (await caller.answer(theirs))["value"] == answers[-1]


async def test_node_client_asks_no_person_at_a_server_of_a_lower_version(client: Path) -> None:
    """HOLD-1, GROW-2: its host ends the call, and says that nothing ran."""
    async with asyncio.timeout(60), scripted_server(ApiScope.full()) as server:
        server.version = 5
        async with node_program(client, "demo_caller.mjs", server.url, "no.token") as caller:
            refused = (await caller.ask("holds"))["error"]
            assert refused.items() >= {"code": "unavailable", "executed": "no"}.items()
            await server.next_connection()
        async with node_program(client, "demo_host.mjs", server.url, "no.token"):
            connection = await server.next_connection()
            await connection.answer(Register, {"digest": "d" * 64, "generation": 1})
            header = {"caller": pack_body(["p2", "bob", "user", "test"])}
            arguments = pack_body({"value": 1})
            await connection.send(
                Dispatch(9, "c" * 32, "lines", "guarded", None, arguments, header)
            )
            reply = decode_from_client(await connection.websocket.recv(decode=False))
            assert isinstance(reply, Failed)
            assert (reply.code, reply.executed, reply.retryable) == ("unavailable", "no", False)


async def test_a_token_that_lives_on_keeps_the_client_connected_without_a_change(
    client: Path, tmp_path: Path
) -> None:
    """TOKEN-8: for 20 lives; its host is not asked for a newer token."""
    clock = MovedClock()
    settings = ServerSettings(keys=KeyRing([]), port=0, state=tmp_path / "state")
    async with running_server(settings=settings, clock=clock) as server:
        token = living(server.key, "node-host", clock.now())
        async with (
            node_program(client, "demo_host.mjs", server.url, token) as host,
            RoomClient(server.url, room="lab", token=living(server.key, "ann", clock.now())) as ann,
        ):
            await host.wait_for(hosting="lines")
            for _ in range(20):
                clock.move(LIFE_S)
                assert [each.name async for each in ann.toolkits()] == ["lines"]
