"""Answers that wait for results from outside: parked, resumed elsewhere, given up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.models.model_server import KEY, ModelServer, model_server
from support.models.prepared_model import PreparedModel, uses
from support.models.wire_replies import APIS, Says
from support.processes.launch import clean_environment
from toolbus import (
    Agent,
    AgentEvent,
    ApprovalDenied,
    ConversationUnavailable,
    ExternalTool,
    InvalidResult,
    NotFound,
    ParkedUse,
    RoomClient,
    SqliteStateStore,
    Toolkit,
    Turn,
    Unavailable,
    agent_loop,
    open_model,
    tool,
)
from toolbus_server.testing import running_server

NAMED = {"properties": {"name": {"type": "string"}}}
COLOUR = ExternalTool("colour", NAMED, output_schema={"enum": ["red", "blue"]})
RAN: list[str] = []


@tool
async def note(name: str = "") -> str:
    RAN.append(name)
    return f"noted {name}"


SHOP = Toolkit("shop", [COLOUR, ExternalTool("size", NAMED), note])
STEP = uses("shop.colour", "shop.note", "shop.size", name="hat")


def prepared(*replies: Any, **options: Any) -> tuple[Agent, PreparedModel]:
    model = PreparedModel(*replies)
    return Agent(None, model, always=[SHOP], **options), model


def texts_of(request: Any) -> list[str]:
    """Return what the model reads of the last results."""
    return [result["text"] for result in request["messages"][-1]["results"]]


async def test_answer_waits_for_its_parked_uses_and_goes_on_with_their_results() -> None:
    helper, model = prepared("Let me ask.", STEP, "A red hat.")
    async with helper:
        await helper.run("Hello")
        first = await helper.run("A hat, please.")
        assert (first.reason, first.steps, first.text) == ("parked", 1, "")
        assert first.parked == (
            ParkedUse("use-1", "shop.colour", {"name": "hat"}),
            ParkedUse("use-3", "shop.size", {"name": "hat"}),
        )
        assert [result.state for result in first.results] == ["parked", "ok", "parked"]
        assert (await helper.about())["conversation"]["parked"] == 2
        with pytest.raises(ConversationUnavailable, match=r"\(shop.colour, shop.size\)") as raised:
            await helper.run("Is it there?")
        assert (raised.value.executed, raised.value.retryable) == ("no", False)
        with pytest.raises(InvalidResult):
            await helper.resume("", {"use-3": 56, "use-1": "green"})
        again = await helper.resume("", {"use-1": "red"})
        assert (again.reason, again.steps, len(again.parked)) == ("parked", 1, 1)
        assert len(model.requests) == 2
        last = await helper.resume("", {"use-3": ApprovalDenied("guess it", executed="no")})
        assert (last.reason, last.steps, last.text) == ("done", 2, "A red hat.")
        red, noted, size = texts_of(model.requests[-1])
        assert (red, noted, size.split(":")[0]) == ("red", "noted hat", "error approval_denied")
        assert RAN == ["hat"]
        roles = [message["role"] for message in last.conversation]
        assert roles == ["user", "model", "user", "model", "results", "model"]
        with pytest.raises(NotFound, match="no use is parked in the conversation"):
            await helper.resume("", {})
        assert (await helper.run("Thanks.")).reason == "done"


async def test_events_tell_of_parked_uses_and_of_their_results() -> None:
    helper, _ = prepared(uses("shop.colour", name="hat"), "Done.")
    async with helper:
        events: list[Any] = [event async for event in helper.run_stream_events("A hat.")]
        assert [event["type"] for event in events] == ["tool_call", "parked", "end"]
        assert events[1] == {
            "type": "parked",
            "id": "use-1",
            "tool": "shop.colour",
            "arguments": {"name": "hat"},
        }
        assert events[2]["reason"] == "parked"
        resumed = helper.resume_stream_events("", {"use-1": "blue"})
        events = [event async for event in resumed]
        assert [event["type"] for event in events] == ["tool_result", "text", "end"]
        assert (events[0]["text"], events[0]["executed"]) == ("blue", "yes")


async def test_interrupted_uses_free_the_conversation_and_so_does_forget() -> None:
    helper, model = prepared(uses("shop.colour", name="hat"), "Then not.")
    async with helper:
        await helper.run("A hat.")
        await helper.interrupt_parked()
        with pytest.raises(NotFound):
            await helper.interrupt_parked()
        assert (await helper.run("Never mind.")).text == "Then not."
        result = model.requests[-1]["messages"][2]["results"][0]
        assert result["state"] == "interrupted"
    helper, _ = prepared(uses("shop.colour", name="hat"), "Hello.")
    async with helper:
        await helper.run("A hat.")
        await helper.forget()
        assert (await helper.run("Hello")).text == "Hello."


def test_program_without_an_event_loop_resumes_too() -> None:
    helper, _ = prepared(uses("shop.colour", name="hat"), "Red.")
    assert helper.run_sync("A hat.", conversation="hats").reason == "parked"
    assert helper.resume_sync("hats", {"use-1": "red"}).text == "Red."


async def test_limits_count_from_the_first_run_on() -> None:
    helper, model = prepared(uses("shop.colour", name="hat"), max_steps=1)
    async with helper:
        await helper.run("A hat.")
        assert (await helper.resume("", {"use-1": "red"})).reason == "max_steps"
        assert len(model.requests) == 1


async def test_reader_that_leaves_after_the_calls_leaves_an_answer_that_can_be_resumed() -> None:
    helper, _ = prepared(STEP, "Done.")
    async with helper:
        async with aclosing(helper.run_stream_events("A hat.")) as events:
            async for event in events:
                if isinstance(event, dict) and event["type"] == "parked":
                    break
        result = await helper.resume("", {"use-1": "red", "use-3": 56})
        assert result.text == "Done."


async def test_loop_of_a_program_parks_and_goes_on_too() -> None:
    model = PreparedModel(uses("shop.colour", name="hat"), "Red.")
    conversation = [model.adapter.user("A hat.")]

    async def last_of(turn: Turn) -> AgentEvent:
        events = [event async for event in agent_loop(turn, model, conversation)]
        assert isinstance(events[-1], dict)
        return events[-1]

    async with Turn(None, always=[SHOP]) as turn:
        assert (await last_of(turn))["reason"] == "parked"
        assert (await last_of(turn))["reason"] == "parked"
        await turn.settle("use-1", "red")
        assert (await last_of(turn))["text"] == "Red."
    async with Turn(None, always=[SHOP]) as turn:
        await turn.run(model.adapter.uses({"uses": STEP}))
        with pytest.raises(Unavailable, match=r"Turn.take_results"):  # no loop has its reply
            await last_of(turn)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("moves", [False, True])
async def test_strictest_server_takes_the_result_also_from_another_model(
    api: str, moves: bool, tmp_path: Path
) -> None:
    """The server refuses a use without a result, and thoughts of another model."""
    look = Says("I look.", (("shop__note", {"name": "hat"}),))
    asks = Says("I ask.", (("shop__note", {"name": "hat"}), ("shop__colour", {"name": "hat"})))
    answers = (Says("Red."), Says("Bye."))

    @asynccontextmanager
    async def helper(server: ModelServer) -> AsyncIterator[Agent]:
        model = open_model(f"{api}:m", server.url(api), api_key=KEY, max_retries=0)
        store = SqliteStateStore(tmp_path / "states.db")
        async with aclosing(model), Agent(None, model, always=[SHOP], store=store) as agent:
            yield agent

    async with model_server(look, asks, *answers) as first, model_server(*answers) as second:
        second.compares = False
        async with helper(first) as agent:
            result = await agent.run("A hat.")
        assert result.reason == "parked"
        (use,) = result.parked
        async with helper(second if moves else first) as agent:
            assert (await agent.resume("", {use.id: "red"})).text == "Red."
            assert (await agent.run("Bye.")).text == "Bye."
        assert (first.wrongs, second.wrongs) == ([], [])


async def test_another_api_leaves_an_answer_parked_and_gives_it_up_if_told_to(
    tmp_path: Path,
) -> None:
    store = SqliteStateStore(tmp_path / "states.db")
    helper, _ = prepared(uses("shop.colour", name="hat"), store=store)
    await helper.run("A hat.")
    async with model_server(Says("Hello.")) as server:
        model = open_model("anthropic:m", server.url("anthropic"), api_key=KEY)
        async with aclosing(model), Agent(None, model, always=[SHOP], store=store) as other:
            words = r"in the words of another model \(scripted, not anthropic\)"
            with pytest.raises(ConversationUnavailable, match=words):
                await other.resume("", {"use-1": "red"})
            await other.interrupt_parked()
            assert (await other.run("Hello")).text == "Hello."


async def test_asker_in_a_room_learns_that_the_answer_is_parked_and_may_forget_it() -> None:
    model = PreparedModel(uses("shop.colour", name="hat"), "Hello.")

    async def ask(ann: RoomClient) -> list[Any]:
        async with ann.stream("helper.ask", {"text": "A hat."}, participant="helper") as chunks:
            return [chunk.value async for chunk in chunks]

    async with (
        running_server() as server,
        server.room("helper") as room,
        Agent(room, model, name="helper", always=[SHOP]),
        server.room("ann") as ann,
    ):
        *_, told, end = await ask(ann)
        assert (told["type"], told["tool"], end["reason"]) == ("parked", "shop.colour", "parked")
        with pytest.raises(Unavailable, match=r"parked uses \(shop.colour\)") as refused:
            await ask(ann)
        assert refused.value.executed == "no"
        await ann.invoke("helper.forget", participant="helper")
        assert (await ask(ann))[-1]["text"] == "Hello."


PROGRAM = """
import asyncio, sys
from toolbus import Agent, ExternalTool, SqliteStateStore, Toolkit, open_model

colour = ExternalTool("colour", {"properties": {"name": {"type": "string"}}})

async def main(answer: str = "") -> None:
    async with Agent(None, open_model("scripted:replies.jsonl"), always=[
        Toolkit("shop", [colour])
    ], store=SqliteStateStore("state.db")) as agent:
        if answer:
            result = await agent.resume("hats", {"use-1-1": answer})
        else:
            result = await agent.run("A hat.", conversation="hats")
        print(result.reason, result.text or result.parked[0].arguments, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
REPLIES = """
{"uses": [{"name": "shop.colour", "arguments": {"name": "hat"}}]}
{"text": "As you like."}
"""


async def test_answer_outlives_the_process_that_was_killed_while_it_waited(tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text(REPLIES)

    async def killed_after_first_line(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, *arguments),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                return (await process.stdout.readline()).decode().strip()
        finally:
            process.kill()
            await process.wait()

    assert await killed_after_first_line() == "parked {'name': 'hat'}"
    assert await killed_after_first_line("red") == "done As you like."
