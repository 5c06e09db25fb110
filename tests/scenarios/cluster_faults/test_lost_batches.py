"""What is lost, or doubled, between two nodes: whose calls end, with what, and whose continue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import until_listed, until_present
from support.nodes.kits import error_of
from support.nodes.relayed import RelayedNodes, relayed_nodes
from support.nodes.tools import Holding, numbers, total
from support.redis.relay import Fate, carries, is_batch, is_delta, is_result_lost
from toolbus import RoomClient, RoomException, ToolContext, Toolkit, Unavailable, tool
from toolbus.errors import StreamBroken
from toolbus.permissions import Assessment
from toolbus.wire import (
    AssessDispatch,
    Cancel,
    Credit,
    Dispatch,
    Failed,
    Frame,
    Input,
    Progress,
    Result,
    StreamChunk,
)
from toolbus_server.cluster import node as node_module

TIME_S = 60


class Witness:
    """Tools that record that they ran."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def tool(self, name: str, *, idempotent: bool = False) -> Any:
        """Make a tool of this name."""

        @tool(name=name, idempotent=idempotent)
        async def run() -> int:
            """Record that this ran."""
            self.ran[name] += 1
            return self.ran[name]

        return run


@asynccontextmanager
async def caller_and_host(*tools: Any) -> AsyncIterator[tuple[RelayedNodes, RoomClient]]:
    """Run two nodes, with a host there and a caller here, which have called each other before."""
    holding, witness = Holding(), Witness()
    tools = (*tools, holding.tool, witness.tool("warm"), witness.tool("next"))
    async with asyncio.timeout(TIME_S), relayed_nodes() as nodes:
        async with nodes.there.room("host") as host, nodes.here.room("me") as me:
            async with host.host(Toolkit("kit", list(tools))):
                await until_listed(me, "kit")
                await me.call("kit.warm")
                other = asyncio.create_task(me.call("kit.hold"))
                await holding.began.wait()
                yield nodes, me
                assert not other.done(), "a call that nothing happened to has ended"
                other.cancel()
                await holding.ended.wait()


async def test_a_lost_dispatch_ends_its_call_alone_and_it_never_ran() -> None:
    witness = Witness()
    async with caller_and_host(witness.tool("run")) as (nodes, me):
        lost = nodes.there_way.intercept_inbox(carries(Dispatch, tool="run"))
        call = asyncio.create_task(me.invoke("kit.run", retry=False))
        await lost.met.wait()
        await me.call("kit.next")  # in the next batch
        error = await error_of(call)
        assert (error.code, error.executed, error.retryable) == ("unavailable", "no", True)
        assert not witness.ran


async def test_a_call_whose_dispatch_was_lost_is_sent_again_and_runs_once() -> None:
    witness = Witness()
    async with caller_and_host(witness.tool("run")) as (nodes, me):
        lost = nodes.there_way.intercept_inbox(carries(Dispatch, tool="run"))
        call = asyncio.create_task(me.call("kit.run"))
        await lost.met.wait()
        await me.call("kit.next")
        assert await call == 1
        assert witness.ran == {"run": 1}


async def test_a_lost_last_batch_is_found_with_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.2)
    witness = Witness()
    async with caller_and_host(witness.tool("run")) as (nodes, me):
        nodes.there_way.intercept_inbox(carries(Dispatch, tool="run"))
        assert (await error_of(me.invoke("kit.run", retry=False))).executed == "no"
        nodes.here_way.intercept_inbox(carries(Result))
        assert (await error_of(me.invoke("kit.run", retry=False))).executed == "yes"
        assert witness.ran == {"run": 1}


async def test_a_dispatch_without_a_subscriber_ends_its_call_at_once() -> None:
    witness = Witness()
    async with caller_and_host(witness.tool("run")) as (nodes, me):
        nodes.here_way.intercept_published(carries(Dispatch, tool="run"))
        error = await error_of(me.invoke("kit.run", retry=False))
        assert (error.code, error.executed, error.retryable) == ("unavailable", "no", True)
        assert not witness.ran
        assert await me.call("kit.run") == 1


async def test_a_question_about_a_call_that_was_lost_is_asked_again() -> None:
    """Its end is known at once, not at its deadline."""

    async def assess() -> Assessment:
        return Assessment("pass", read_only=True)

    @tool(assess=assess)
    async def run() -> None: ...

    async with caller_and_host(run) as (nodes, me):
        for intercept in (nodes.here_way.intercept_published, nodes.there_way.intercept_inbox):
            lost = intercept(carries(AssessDispatch))
            asked = asyncio.create_task(me.assess("kit.run", {}))
            await lost.met.wait()
            await me.call("kit.next")
            assert (await asked).source == "tool"


async def test_a_call_between_two_that_were_lost_is_not_taken_for_one() -> None:
    """Both gaps are reported in one message: the batch between them ran, and its reply is valid."""
    witness, go_on = Witness(), asyncio.Event()

    @tool
    async def second() -> str:
        """Run until released."""
        await go_on.wait()
        return "ran"

    lost = (witness.tool("first"), witness.tool("third"))
    async with caller_and_host(*lost, second) as (nodes, me):
        nodes.there_way.intercept_inbox(carries(Dispatch, tool="first"))
        held = nodes.there_way.intercept_inbox(carries(Dispatch, tool="second"), Fate.HELD)
        nodes.there_way.intercept_inbox(carries(Dispatch, tool="third"))
        calls = []
        for name in ("first", "second", "third", "next"):
            gone = nodes.here_way.intercept_published(carries(Dispatch, tool=name), Fate.PASSED)
            calls.append(asyncio.create_task(me.invoke(f"kit.{name}", retry=False)))
            await gone.met.wait()
        held.release()
        await calls.pop()
        go_on.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(end, "executed", None) for end in ends] == ["no", None, "no"]
        assert not witness.ran


@pytest.mark.parametrize(("idempotent", "runs"), [(False, 1), (True, 2)])
async def test_error_for_a_lost_reply_states_that_the_tool_ran(idempotent: bool, runs: int) -> None:
    witness = Witness()
    async with caller_and_host(witness.tool("run", idempotent=idempotent)) as (nodes, me):
        lost = nodes.here_way.intercept_inbox(carries(Result))
        call = asyncio.create_task(me.call("kit.run"))
        await lost.met.wait()
        await me.call("kit.next")
        if idempotent:
            assert await call == runs  # its caller has retried it
        else:
            error = await error_of(call)
            assert (error.code, error.executed, error.retryable) == ("unavailable", "yes", False)
        assert witness.ran == {"run": runs}


async def test_the_message_that_a_result_was_lost_may_be_lost_too() -> None:
    witness = Witness()
    async with caller_and_host(witness.tool("run")) as (nodes, me):
        answer = nodes.here_way.intercept_inbox(carries(Result))
        word = nodes.here_way.intercept_inbox(is_result_lost)
        call = asyncio.create_task(me.invoke("kit.run", retry=False))
        await answer.met.wait()
        await me.call("kit.next")
        await word.met.wait()
        await me.call("kit.next")
        assert (await error_of(call)).executed == "yes"


async def read(
    me: RoomClient, name: str, arguments: dict[str, Any] | None = None, **options: Any
) -> tuple[list[Any], RoomException | None]:
    """Read a stream until it ends or fails."""
    values: list[Any] = []
    try:
        async with me.stream(f"kit.{name}", arguments or {}, **options) as chunks:
            async for chunk in chunks:
                values.append(chunk.value)
    except RoomException as error:
        return values, error
    return values, None


@pytest.mark.parametrize("kind", [StreamChunk, Credit])
async def test_a_stream_that_lost_a_part_fails_after_the_received_chunks(kind: type[Frame]) -> None:
    count = 20_000
    async with caller_and_host(numbers) as (nodes, me):
        way = nodes.here_way if kind is StreamChunk else nodes.there_way
        whole = asyncio.create_task(read(me, "numbers", {"count": 100}))
        assert await whole == (list(range(100)), None)
        lost = way.intercept_inbox(carries(kind))
        reading = asyncio.create_task(read(me, "numbers", {"count": count}))
        await lost.met.wait()
        await me.call("kit.next")
        values, error = await reading
        assert isinstance(error, StreamBroken), error
        assert error.executed == "maybe"
        assert values == list(range(len(values)))
        assert len(values) < count
        assert await read(me, "numbers", {"count": 100}) == (list(range(100)), None)


async def test_an_input_that_lost_a_part_is_broken() -> None:
    async with caller_and_host(total) as (nodes, me):
        lost = nodes.there_way.intercept_inbox(carries(Input))
        reading = asyncio.create_task(read(me, "total", input=range(5_000)))
        await lost.met.wait()
        await me.call("kit.next")
        values, error = await reading
        assert values == []
        assert isinstance(error, StreamBroken), error
        assert error.executed == "maybe"
        assert await read(me, "total", input=range(10)) == ([45], None)


async def test_a_lost_cancel_is_sent_again() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def stop() -> None:
        """Run until cancelled."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with caller_and_host(stop) as (nodes, me):
        call = asyncio.create_task(me.call("kit.stop"))
        await began.wait()
        lost = nodes.there_way.intercept_inbox(carries(Cancel))
        call.cancel()
        await lost.met.wait()
        assert not ended.is_set()
        await me.call("kit.next")
        await ended.wait()


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_lost_or_doubled_or_cut_executed_is_never_wrong(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.2)
    random, ran = Random(seed), Counter[int]()

    @tool
    async def mark(number: int) -> int:
        """Record that this ran."""
        ran[number] += 1
        return number

    async def ends(me: RoomClient, first: int) -> dict[int, str]:
        received = {}
        for number in range(first, first + 25):
            try:
                await me.invoke("kit.mark", {"number": number}, timeout_s=15.0)
                received[number] = "yes"
            except RoomException as error:
                received[number] = error.executed
        return received

    async with asyncio.timeout(2 * TIME_S), relayed_nodes() as nodes:
        async with nodes.there.room("host") as host, nodes.here.room("me") as me:
            async with host.host(Toolkit("kit", [mark, numbers])):
                await until_listed(me, "kit")
                for way in (nodes.here_way, nodes.there_way):
                    way.intercept_inbox(
                        lambda m: is_batch(m) and random.random() < 0.1, times=100_000
                    )
                    way.intercept_inbox(
                        lambda m: is_batch(m) and random.random() < 0.1, Fate.TWICE, times=100_000
                    )
                callers = [asyncio.create_task(ends(me, 100 * each)) for each in range(8)]
                for way in (nodes.there_way, nodes.here_way):
                    values, error = await read(me, "numbers", {"count": 5_000})
                    assert values == list(range(len(values)))
                    assert error is not None or len(values) == 5_000
                    way.drop_inbox()
                received = {
                    n: e for each in await asyncio.gather(*callers) for n, e in each.items()
                }
    wrong = [
        (number, executed, ran[number])
        for number, executed in received.items()
        if ran[number] not in {"no": (0,), "yes": (1,), "maybe": (0, 1)}[executed]
    ]
    assert not wrong, f"seed {seed}"
    assert set(received.values()) >= {"yes"}


async def test_duplicate_batches_have_no_effect() -> None:
    witness = Witness()
    async with caller_and_host(witness.tool("run"), numbers, total) as (nodes, me):
        for way in (nodes.here_way, nodes.there_way):
            way.intercept_inbox(lambda _: True, Fate.TWICE, times=1_000_000)
        assert [await me.call("kit.run") for _ in range(20)] == list(range(1, 21))
        assert await read(me, "numbers", {"count": 5_000}) == (list(range(5_000)), None)
        assert await read(me, "total", input=range(1_000)) == ([sum(range(1_000))], None)
        assert witness.ran == {"run": 20}
        async with nodes.there.room("late") as late:
            await until_present(me, "late")
            await until_listed(late, "kit")


async def test_a_lost_delta_is_repaired_with_the_next_one() -> None:
    async with caller_and_host() as (nodes, me):
        lost = nodes.here_way.intercept_inbox(is_delta)
        witness = Witness()
        async with nodes.there.room("ann") as ann:
            await lost.met.wait()
            async with ann.host(Toolkit("lost", [witness.tool("run")])):
                await until_present(me, "ann", "host", "me")
                await until_listed(me, "lost")
                assert await me.call("lost.run") == 1
                await until_present(ann, "me", "host")
                assert await _listed(me) == await _listed(ann) == ["kit", "lost"]
        gone = nodes.here_way.intercept_inbox(is_delta)
        async with nodes.there.room("bob"):
            await gone.met.wait()
            async with nodes.there.room("cat") as cat:
                await until_present(me, "cat", "bob")
                names = {each.name for each in await me.participants()}
                assert names == {each.name for each in await cat.participants()}


async def _listed(room: RoomClient) -> list[str]:
    return [each.name async for each in room.toolkits()]


async def test_an_answer_to_a_node_that_has_gone_is_published_once() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> int:
        """Run until released."""
        began.set()
        await go_on.wait()
        return 1

    async with asyncio.timeout(TIME_S), relayed_nodes() as nodes:
        async with nodes.here.room("host") as host, nodes.there.room("far") as far:
            async with host.host(Toolkit("kit", [wait])), nodes.here.room("me") as me:
                await until_listed(far, "kit")
                call = asyncio.create_task(far.invoke("kit.wait", retry=False))
                await began.wait()
                nodes.there_way.cut()
                error = await error_of(call)
                assert (error.code, error.executed) == ("unavailable", "maybe")
                published = await until_unheard(nodes)
                gone = nodes.here_way.intercept_published(carries(Result), Fate.PASSED)
                go_on.set()
                await gone.met.wait()
                for _ in range(100):
                    await me.participants()
                assert await until_unheard(nodes) - published < 5


async def until_unheard(nodes: RelayedNodes) -> int:
    """Wait until Redis has only one subscriber, and return how much was published by then."""
    async with Redis.from_url(nodes.redis.url) as client:
        while len(await client.pubsub_channels("toolbus:inbox:*")) > 1:
            pass
        counts = await client.info("commandstats")
    return int(counts["cmdstat_publish"]["calls"])


async def test_a_lost_failure_keeps_its_executed() -> None:
    async with caller_and_host() as (nodes, me):
        lost = nodes.here_way.intercept_inbox(carries(Failed))
        call = asyncio.create_task(me.invoke("kit.next", {"none": 1}, retry=False))
        await lost.met.wait()
        await me.call("kit.next")
        error = await error_of(call)
        assert isinstance(error, Unavailable)
        assert (error.executed, error.retryable) == ("no", True)


async def test_a_progress_that_was_lost_ends_nothing() -> None:
    go_on = asyncio.Event()

    @tool
    async def send_progress(context: ToolContext) -> int:
        """Send progress, then run until released."""
        context.emit("under way")
        await go_on.wait()
        return 1

    async with caller_and_host(send_progress) as (nodes, me):
        lost = nodes.here_way.intercept_inbox(carries(Progress))
        call = asyncio.create_task(me.invoke("kit.send_progress", on_progress=print))
        await lost.met.wait()
        for _ in range(2):  # the first shows what is missing, the second reports that
            await me.call("kit.next")
        go_on.set()
        assert (await call).value == 1
