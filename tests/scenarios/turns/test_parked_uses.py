"""Uses of tools without code: parked with their step, settled, and gone on with elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.patience import PATIENCE_S
from support.processes.launch import clean_environment
from toolbus import (
    AgentState,
    ApprovalDecision,
    ApprovalDenied,
    ApprovalRequest,
    CallNext,
    Cancelled,
    Chunk,
    ExternalTool,
    FileChunk,
    NotFound,
    Overloaded,
    ParkedUse,
    Permissions,
    Records,
    RoomException,
    Rule,
    TextChunk,
    ToolCall,
    ToolFailed,
    ToolGroup,
    Toolkit,
    ToolQuestion,
    ToolResult,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)
from toolbus.telemetry.tracing import Tracing

COLOUR = ExternalTool(
    "colour",
    {"properties": {"question": {"type": "string"}}, "required": ["question"]},
    output_schema={"enum": ["red", "blue"]},
)
PAPER = ExternalTool("paper", {"properties": {"page": {"type": "integer"}}})
ASKED = ToolUse("1", "shop__colour", {"question": "which?"})
WANTED = ToolUse("2", "shop__paper", '{"page": 3}')


@tool
async def count(text: str) -> int:
    return len(text.split())


@tool
async def fail(reason: str) -> str:
    raise ToolFailed(reason, details={"reason": reason})


@tool
async def draw() -> FileChunk:
    return FileChunk(b"\x89PNG", "a.png", "image/png")


@tool
async def report() -> FileChunk:
    return FileChunk.from_path(__file__)


SHOP = Toolkit("shop", [COLOUR, PAPER, count, fail, draw, report])


async def parked(*uses: ToolUse, **options: Any) -> AgentState:
    """Return the state of a turn that has run uses and ended, as another process reads it."""
    state = AgentState()
    async with Turn(None, always=[SHOP], state=state, **options) as turn:
        await turn.run(uses)
    return AgentState.from_json(state.to_json())


def resumed(state: AgentState, **options: Any) -> Turn:
    return Turn(None, always=[SHOP], state=state, **options)


async def test_step_waits_with_the_results_that_it_has_and_goes_on_in_another_turn() -> None:
    uses = [
        ASKED,
        ToolUse("3", "shop.count", {"text": "a b"}),
        ToolUse("4", "shop.fail", {"reason": "no ink"}),
        ToolUse("5", "shop.draw"),
        ToolUse("6", "shop.report"),
        ToolUse("7", "shop.colour", {}),  # what is invalid is not parked
        WANTED,
    ]
    state = AgentState()
    async with Turn(None, always=[SHOP], state=state) as turn:
        before = await turn.run(uses)
        assert [result.state for result in before] == [
            *("parked", "ok", "failed", "ok", "ok", "failed", "parked")
        ]
        assert (before[0].executed, before[0].error) == ("no", None)
        assert before[0].for_model() == "(there is no result yet)"
    async with resumed(AgentState.from_json(state.to_json())) as turn:
        assert turn.parked == (
            ParkedUse("1", "shop.colour", {"question": "which?"}),
            ParkedUse("2", "shop.paper", {"page": 3}),
        )
        with pytest.raises(Unavailable, match=r"settle them first \(1, 2\)"):
            turn.take_results()
        with pytest.raises(Unavailable, match=r"settle its uses first \(1, 2\)"):
            await turn.run([ASKED])
        page = FileChunk.from_path(__file__)
        await turn.settle("2", "page 3:", page)
        (settled,) = await turn.settle_all({"1": (("red",), None)})
        assert (settled.state, settled.value, settled.executed) == ("ok", "red", "yes")
        results = turn.take_results()
        assert [result.id for result in results] == ["1", "3", "4", "5", "6", "7", "2"]
        assert results[1:4] == [before[1], results[2], before[3]]
        assert results[2].for_model() == before[2].for_model()
        assert results[4].for_model() == before[4].for_model()  # a file that was not in memory
        assert isinstance(results[6].chunks[1], FileChunk)
        assert results[6].chunks[1].data == await page.read()
        (more,) = await turn.run([ToolUse("8", "shop.count", {"text": "a"})])
        assert (more.value, turn.take_results()) == (1, [])


@pytest.mark.parametrize(
    ("use_id", "given", "error", "words"),
    [
        ("9", ("red",), None, "no use '9' is parked; parked are: 1, 2"),
        ("1", ("green",), None, 'breaks its schema at /: the value is not one of "red" or "blue"'),
        ("1", (), None, "breaks its schema"),
        ("1", ("red", "blue"), None, "breaks its schema"),
        ("1", (object(),), None, "object cannot be written as JSON"),
        ("2", ("x" * 2**20,), None, r"has 1048\d\d\d bytes, at most"),
        ("2", (FileChunk(bytes(17 * 2**20)),), None, "bytes, at most"),
        ("2", ("page",), "no paper", "with chunks or with an error"),
        ("2", (), 7, "must be a RoomException or text, not int"),
    ],
)
async def test_result_that_is_refused_leaves_the_use_parked(
    use_id: str, given: Any, error: Any, words: str
) -> None:
    async with resumed(await parked(ASKED, WANTED)) as turn:
        with pytest.raises((RoomException, TypeError), match=words) as raised:
            await turn.settle_all({"2": (("page",), None), use_id: (given, error)})
        assert getattr(raised.value, "executed", "no") == "no"
        assert [use.id for use in turn.parked] == ["1", "2"]


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        ("no answer", "failed", "error tool_failed: no answer. The tool ran."),
        (ApprovalDenied("the customer refuses"), "denied", "error approval_denied: the customer"),
        (Cancelled("gone", executed="no"), "failed", "error cancelled: gone"),
    ],
)
async def test_use_is_settled_once_also_with_an_error(error: Any, state: str, words: str) -> None:
    async with resumed(await parked(ASKED)) as turn:
        result = await turn.settle("1", error=error)
        assert (result.state, result.for_model().startswith(words)) == (state, True)
        with pytest.raises(NotFound, match="'1' is settled already"):
            await turn.settle("1", "red")
        assert turn.take_results() == [result]
        with pytest.raises(NotFound, match="parked are: none"):
            await turn.settle("1", "red")


async def test_interrupt_gives_parked_uses_up() -> None:
    async with resumed(await parked(ASKED, WANTED)) as turn:
        await turn.interrupt("2")
        assert [use.id for use in turn.parked] == ["1"]
        await turn.interrupt()
        assert [result.state for result in turn.take_results()] == ["interrupted"] * 2


async def test_permissions_and_policies_judge_a_use_before_it_is_parked_and_not_again() -> None:
    asked: list[ApprovalRequest] = []

    async def person(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(request)
        if request.tool.name == "shop.colour":
            return ApprovalDecision.allow(arguments={"question": "red or blue?"})
        return ApprovalDecision.deny("no paper")

    everything = [Rule(behavior="ask", tool="shop.*")]
    shop = Toolkit("shop", [COLOUR, PAPER], policy=Permissions("bypass", everything))
    state = AgentState()
    async with Turn(
        None,
        always=[shop],
        state=state,
        permissions=Permissions("bypass", everything),
        approve=person,
    ) as turn:
        results = await turn.run([ASKED, WANTED])
    assert [result.state for result in results] == ["parked", "denied"]
    changed = {"question": "red or blue?"}
    assert (results[0].changed_arguments, len(asked)) == (changed, 2)
    saved = AgentState.from_json(state.to_json())
    strict = Permissions("dont_ask")
    async with Turn(None, always=[shop], state=saved, permissions=strict) as turn:
        assert turn.parked == (ParkedUse("1", "shop.colour", changed, has_changed=True),)
        result = await turn.settle("1", "blue")
        assert (result.value, result.changed_arguments) == ("blue", changed)
    assert len(asked) == 2


async def test_middlewares_and_records_see_the_result_and_what_one_refuses_stays_parked() -> None:
    refusals = [Overloaded("not now", executed="no")]

    async def loud(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call):
            yield TextChunk(f"{chunk.value}!")

    async def busy(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        if refusals:
            raise refusals.pop()
        async for chunk in next(call):
            yield chunk

    records = Records.memory()
    state = await parked(WANTED, records=records, middlewares=[loud])
    async with resumed(state, records=records, middlewares=[loud, busy]) as turn:
        with pytest.raises(Overloaded):
            await turn.settle("2", "page")
        assert (await turn.settle("2", "page")).value == "page!"
    outcomes = [(call.outcome, call.executed) for call in records.calls()]
    assert outcomes == [("ok", "yes"), ("overloaded", "no"), ("parked", "no")]
    assert len(list(records.calls(outcome="parked"))) == 1


async def test_spans_of_a_parked_call_and_of_the_one_with_its_result_are_no_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("toolbus.turns.turn_options.Tracing", lambda: Tracing(provider))
    async with resumed(await parked(ASKED)) as turn:
        await turn.settle("1", "red")
    calls = [span for span in exporter.get_finished_spans() if "colour" in span.name]
    assert [(span.attributes or {})["toolbus.executed"] for span in calls] == ["no", "yes"]
    assert [span.status.is_ok for span in calls] == [True, True]


async def test_of_two_results_at_once_the_first_counts_and_one_at_the_end_is_refused() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call):
            entered.set()
            await leave.wait()
            yield chunk

    state = await parked(ASKED, WANTED)
    async with resumed(state, middlewares=[wait]) as turn:
        first = asyncio.create_task(turn.settle("1", "red"))
        await entered.wait()
        with pytest.raises(NotFound, match="settled already"):
            await turn.settle("1", "blue")
        leave.set()
        assert (await first).value == "red"
        leave.clear()
        entered.clear()
        last = asyncio.create_task(turn.settle("2", "page"))
        await entered.wait()
    with pytest.raises(Cancelled, match="the turn has ended"):
        await last
    assert state.parked is not None
    assert [use.id for use in state.parked.open] == ["2"]


async def test_use_can_be_settled_only_where_its_tool_is_and_has_no_code() -> None:
    @tool
    async def colour(question: str) -> str:
        raise AssertionError

    for kits in ([], [Toolkit("shop", [colour])]):
        async with Turn(None, always=kits, state=await parked(ASKED)) as turn:
            with pytest.raises(NotFound):
                await turn.settle("1", "red")
            assert turn.parked
    group = ToolGroup("shopping", "For the shop.", [SHOP])
    async with Turn(None, groups=[group], state=await parked(ASKED)) as turn:
        assert (await turn.settle("1", "red")).state == "ok"  # also while its group is inactive


async def ended_by_cancelling(turn: Turn) -> None:
    entered = asyncio.Event()

    async def wait(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        entered.set()
        await asyncio.Event().wait()
        async for chunk in next(call):
            yield chunk

    kit = Toolkit("slow", [count], middlewares=[wait])
    async with Turn(None, always=[SHOP, kit], state=turn.state) as slow:
        task = asyncio.create_task(slow.run([ASKED, ToolUse("2", "slow.count", {"text": "a"})]))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [result.state for result in slow.results] == ["interrupted"] * 2


async def ended_by_call(turn: Turn) -> None:
    with pytest.raises(Unavailable, match=r"Turn.run parks its uses"):
        await turn.call("shop.colour", question="which?")


@pytest.mark.parametrize("end", [ended_by_cancelling, ended_by_call])
async def test_nothing_is_parked_by_what_nobody_goes_on_with(end: Callable[[Turn], Any]) -> None:
    async with resumed(AgentState()) as turn:
        await end(turn)
        assert turn.state.parked is None


async def test_turn_that_has_somebody_to_ask_parks_nothing() -> None:
    async def answer(question: ToolQuestion) -> str:
        return "red" if question.arguments else "blue"

    async with resumed(AgentState(), answer=answer) as turn:
        (result,) = await turn.run([ASKED])
        assert (result.value, turn.parked) == ("red", ())


async def test_stream_of_a_use_ends_as_parked() -> None:
    async with resumed(AgentState()) as turn:
        (result,) = [item async for item in turn.stream(ASKED)]
        assert isinstance(result, ToolResult)
        assert (result.state, turn.parked[0].id) == ("parked", "1")


PROGRAM = """
import asyncio, sys
from pathlib import Path
from toolbus import AgentState, ExternalTool, Toolkit, ToolUse, Turn

shop = Toolkit("shop", [ExternalTool("colour", {})])
file = Path("state.json")

async def main(*answer: str) -> None:
    state = AgentState.from_json(file.read_text()) if answer else AgentState()
    async with Turn(None, always=[shop], state=state) as turn:
        if answer:
            await turn.settle("1", *answer)
            [result] = turn.take_results()
        else:
            [result] = await turn.run([ToolUse("1", "shop__colour")])
    file.write_text(state.to_json())
    print(result.state, result.executed, result.value)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_use_is_settled_by_another_process_once_the_first_has_ended(tmp_path: Path) -> None:
    async def printed(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, *arguments),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
        return output.decode().strip()

    assert await printed() == "parked no None"
    assert await printed("red") == "ok yes red"
