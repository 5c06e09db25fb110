"""PROTOCOL.md, ASSESS-1 to ASSESS-5: what a tool says about one input, as frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from support.clients.forged_tokens import KEY
from support.clients.raw_client import RawClient, details_of, raw_participant, with_grants
from support.clients.raw_requests import (
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
from toolbus import AgentsGrant
from toolbus.wire import (
    Assess,
    AssessDispatch,
    Call,
    Cancel,
    Describe,
    Explain,
    Failed,
    Result,
    StreamChunk,
    Subscribe,
    pack_body,
    unpack_body,
)
from toolbus_server.testing import TestServer, running_server

ASSESSES = "&assess=1"
READS = {"behavior": "pass", "read_only": True, "later": [1]}
FLAGS = {"read_only": True, "approval": True}


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as server, asyncio.timeout(60):
        yield server
        assert server.server.hub.router.in_flight == 0


def assess_of(tool: str = "echo.say", number: int = 8, *patterns: Any, **fields: Any) -> Assess:
    """Ask about the call that `call_of` makes of these."""
    return assessing(call_of(tool, number, **fields), *patterns)


def assessing(call: Call, *patterns: Any) -> Assess:
    fields = msgspec.structs.asdict(call)
    del fields["traceparent"]
    return Assess(**fields, patterns=list(patterns))


async def assessed(caller: RawClient, host: RawClient, request: Assess) -> AssessDispatch:
    """Send a request and return what its host receives."""
    caller.send_frame(request)
    return await next_of(host, AssessDispatch)


def hosted(server: TestServer, name: str = "keeper", instance: str = "") -> Any:
    return raw_participant(server, name, instance=instance, query=ASSESSES)


async def test_a_host_is_asked_about_the_call_and_its_answer_comes_back(server: TestServer) -> None:
    """ASSESS-1, ASSESS-3, ASSESS-6, CALL-20: it is not shown, counted or traced as a call."""
    router = server.server.hub.router
    async with (
        raw_participant(server, "ann") as ann,
        raw_participant(server, "watcher") as watcher,
        hosted(server) as keeper,
    ):
        await ask(watcher, Subscribe(1, ["calls"]))
        await ask(keeper, offer())
        running = await call_through(ann, keeper, call_of("echo.say", 7))
        own = pack_body({"thread": 1})
        request = assess_of("echo.say", 8, "a:*", call_id=running.call_id, caller_context=own)
        asked = await assessed(ann, keeper, request)
        assert (asked.tool, asked.patterns, asked.remaining_ms) == ("say", ["a:*"], 5_000)
        assert unpack_body(asked.header["caller"])[1] == "ann"
        assert asked.header["caller_context"] == own
        keeper.send_frame(StreamChunk(asked.id, 1, pack_body([2, "dropped"])))
        keeper.send_frame(Result(asked.id, pack_body(READS)))
        reply = await ann.reply_to(8)
        assert isinstance(reply, Result)
        assert unpack_body(reply.body) == READS
        assert (router.succeeded, router.failures.total(), router.in_flight) == (0, 0, 1)
        # The id of the call is still taken by the call.
        again = await refusal(ann, call_of("echo.say", 9, call_id=running.call_id))
        assert again.code == "duplicate_call_id"
        asked = await assessed(ann, keeper, assess_of("echo.say", 10, timeout_ms=4_000))
        assert asked.remaining_ms in range(1, 4_001)
        keeper.send_frame(Failed(asked.id, "tool_failed", "yes", False, "no luck", None, None))
        failed = await failure_of(ann, 10)
        assert (failed.code, failed.executed, failed.message) == ("tool_failed", "no", "no luck")
        answer(keeper, running)
        events = [await watcher.next_event()]
        while sum(event.data["ended"] for event in events) < 2:
            events.append(await watcher.next_event())
        # The call, and its duplicate that was refused.
        assert sum(event.data["started"] for event in events) == 2
        assert max(event.data["in_flight"] for event in events) <= 1
        summary = (await ask(ann, Describe(11, "echo", {})))["toolkit"]
        assert summary["assesses"] is True
        explained = await ask(ann, Explain(12, "echo", "say", {}))
        assert explained["assesses"] is True


REFUSED: list[dict[str, Any]] = [
    {"tool": "missing.say"},
    {"tool": "echo.missing"},
    {"tool": "secret.say"},
    {"tool": "denied.say"},
    {"tool": "shop.add"},
    {"tool": "away.say"},
    {"tool": "echo.say", "pin": "0" * 64},
    {"tool": "echo.say", "pin": 7},
    {"tool": "echo.say", "participant": "nobody"},
    {"tool": "echo.say", "on_behalf_of": "keeper"},
    {"tool": "echo.say", "parent": 5},
    {"tool": "echo.say", "parent": 5, "forward": True},
    {"tool": "echo.say", "forward": True},
    {"tool": "echo.say", "timeout_ms": 0},
    {"tool": "echo.say", "call_id": ""},
    {"tool": "echo.say", "call_id": "c" * 65},
]


async def test_it_is_refused_where_the_call_is_in_the_same_words(server: TestServer) -> None:
    """ASSESS-1, ASSESS-2."""
    grants = AgentsGrant(call=True, deny=["denied"])
    shop = {"name": "shop", "tools": [{"name": "add", "input_schema": {}, "affinity": "item"}]}
    async with with_grants(server, "ann", agents=grants) as ann, hosted(server) as keeper:
        await ask(keeper, offer())
        await ask(keeper, offer(shop, 2))
        await ask(keeper, offer(toolkit_of("denied", "say"), 3))
        await ask(keeper, offer(toolkit_of("secret", "say"), 4, public=False))
        async with hosted(server, "other") as other:
            await ask(other, offer(toolkit_of("away", "say")))
        for fields in REFUSED:
            tool, options = fields["tool"], {**fields}
            del options["tool"]
            call = call_of(tool, 7, **options)
            as_call = await refusal(ann, call)
            as_assess = await refusal(ann, assessing(call))
            assert as_assess == as_call, fields
        for patterns in ([1], [""], ["x"] * 65, ["é" * 8_193]):
            refused = await refusal(ann, assess_of("echo.say", 7, *patterns))
            assert details_of(refused)["path"] == "/patterns"


async def test_a_host_that_does_not_assess_is_answered_for_by_its_flags(server: TestServer) -> None:
    """ASSESS-4: nothing is sent to it; in a mixed pool the chosen host counts."""
    manifest = toolkit_of("echo", "say")
    manifest["tools"][0] |= FLAGS
    async with raw_participant(server, "ann") as ann, raw_participant(server, "keeper") as older:
        await ask(older, offer(manifest))
        by_flags = await ask(ann, assess_of())
        assert by_flags == {
            "behavior": "ask",
            "read_only": True,
            "immune": True,
            "message": "its author wants a person to approve each call",
            "source": "manifest",
        }
        answer(older, await call_through(ann, older, call_of()))  # the first that it was sent
        async with hosted(server, instance="newer") as newer:
            await ask(newer, offer(manifest))
            assert "assesses" not in (await ask(ann, Describe(9, "echo", {})))["toolkit"]
            sources: set[str] = set()
            answering = asyncio.create_task(answer_all(newer))
            while sources != {"tool", "manifest"}:
                sources.add((await ask(ann, assess_of())).get("source", "tool"))
            answering.cancel()


async def answer_all(host: RawClient) -> None:
    while True:
        asked = await next_of(host, AssessDispatch)
        host.send_frame(Result(asked.id, pack_body(READS)))


async def test_nothing_runs_within_an_assessment_but_further_ones(server: TestServer) -> None:
    """ASSESS-5, CALL-29, CALL-31: a host that is only asked cannot act for who asks."""
    async with (
        raw_participant(server, "ann") as ann,
        hosted(server, "hub") as hub,
        hosted(server) as keeper,
    ):
        await ask(hub, offer(toolkit_of("out", "say")))
        await ask(keeper, offer(toolkit_of("deep", "say")))
        outer = await assessed(ann, hub, assess_of("out.say", 7))
        for options in ({"parent": outer.id}, {"parent": outer.id, "forward": True}):
            refused = await refusal(hub, call_of("deep.say", 8, **options))
            assert (refused.code, refused.message) == (
                "permission_denied",
                "nothing runs within an assessment",
            )
            assert not (await ask(hub, Explain(9, "deep", "say", options)))["would_run"]
        inner = await assessed(hub, keeper, assess_of("deep.say", 10, "x", **options))
        assert unpack_body(inner.header["on_behalf_of"])[1] == "ann"
        [asker] = unpack_body(inner.header["forwarded_for"], binary=True)
        assert unpack_body(asker)[1] == "ann"
        hub.send_frame(Result(outer.id, pack_body(READS)))
        # It ends with the one around it.
        assert (await failure_of(hub, 10)).code == "cancelled"
        assert (await next_of(keeper, Cancel)).id == inner.id


ENDS = ["cancel", "caller_gone", "host_lost", "principal"]


@pytest.mark.parametrize("end", ENDS)
async def test_it_ends_as_a_call_does(server: TestServer, end: str) -> None:
    """ASSESS-1, ASSESS-3, CALL-10, CALL-12, CALL-13, CALL-26."""
    async with hosted(server) as keeper, raw_participant(server, "agent") as agent:
        await ask(keeper, offer())
        async with raw_participant(server, "ann") as ann:
            request = assess_of("echo.say", 7, on_behalf_of="ann")
            asked = await assessed(agent, keeper, request)
            if end == "cancel":
                agent.send_frame(Cancel(7, "cancelled"))
            elif end == "caller_gone":
                agent.abort()
            elif end == "host_lost":
                keeper.abort()
            else:
                ann.abort()
            if end != "host_lost":
                cancel = await next_of(keeper, Cancel)
                expected = "caller_gone" if end == "caller_gone" else "cancelled"
                assert (cancel.id, cancel.reason) == (asked.id, expected)
            if end != "caller_gone":
                failed = await failure_of(agent, 7)
                code = "host_lost" if end == "host_lost" else "cancelled"
                assert (failed.code, failed.executed) == (code, "no")
                assert failed.retryable


async def test_it_counts_among_the_calls_in_flight(server: TestServer) -> None:
    """ASSESS-1, CALL-18, FRAME-10."""
    async with raw_participant(server, "ann") as ann, hosted(server) as keeper:
        await ask(keeper, offer())
        assert ann.welcome is not None
        most = ann.welcome.facts["limits"]["max_calls"]
        for number in range(most):
            ann.send_frame(assess_of("echo.say", number))
        assert (await refusal(ann, assess_of("echo.say", 0))).code == "duplicate_call_id"
        assert (await refusal(ann, call_of("echo.say", most))).code == "quota_exceeded"
        assert (await refusal(ann, assess_of("echo.say", most))).code == "quota_exceeded"
        for number in range(most):
            ann.send_frame(Cancel(number, "cancelled"))
        await failure_of(ann, most - 1)
