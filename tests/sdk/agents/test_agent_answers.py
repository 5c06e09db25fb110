"""What an agent says while it answers, and what stays in the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel, uses
from toolbus import (
    Agent,
    CallNextModel,
    FileChunk,
    InvalidArguments,
    ModelError,
    NotFound,
    RequestToModel,
    RoomClient,
    SqliteStateStore,
    TokenUsage,
    Tool,
    TooLarge,
    ToolContext,
    Toolkit,
    Unavailable,
    tool,
)
from toolbus.agents.agent_events import fitted_to_chunk
from toolbus.models import scripted

Events = list[Any]


@tool
async def count(text: str) -> int:
    """Count words."""
    return len(text.split())


@tool
async def report(context: ToolContext) -> str:
    """Report more progress than anybody reads."""
    for number in range(1_000):
        context.emit(number)
    await asyncio.sleep(0)
    context.emit("last")
    return "reported"


@tool
async def draw() -> FileChunk:
    return FileChunk(b"\x89PNG\r\n\x1a\n", "a.png", "image/png")


KIT = Toolkit("kit", [count, report, draw])


class Hanging:
    """A toolkit with a tool that ends when it is cancelled, and says so."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.saw: list[bool] = []

        @tool
        async def hang(context: ToolContext) -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.saw.append(context.cancelled)

        self.kit = Toolkit("slow", [hang])


def agent_of(*replies: Any, always: Sequence[Toolkit] = (KIT,), **options: Any) -> Agent:
    return Agent(None, PreparedModel(*replies), always=always, **options)


async def events_of(agent: Agent, text: str = "hi", **options: Any) -> Events:
    return [event async for event in agent.run_stream_events(text, **options)]


def heard(agent: Agent) -> list[Mapping[str, Any]]:
    """Return what the model was told in its latest request."""
    assert isinstance(agent.model, PreparedModel)
    return list(agent.model.requests[-1]["messages"])


async def test_each_step_is_told_and_kept() -> None:
    agent = agent_of(uses("kit.count", text="a b"), "two", "and now")
    async with agent:
        assert await events_of(agent) == [
            {"type": "tool_call", "id": "use-1", "tool": "kit.count", "arguments": {"text": "a b"}},
            {
                "type": "tool_result",
                "id": "use-1",
                "tool": "kit.count",
                "state": "ok",
                "executed": "yes",
                "text": "2",
            },
            {"type": "text", "text": "two"},
            {
                "type": "end",
                "reason": "done",
                "text": "two",
                "steps": 2,
                "tokens": {"input": 0, "output": 0},
                "trace": None,
            },
        ]
        await events_of(agent, "more")
        assert [message["role"] for message in heard(agent)] == [
            *("user", "model", "results", "model", "user")
        ]
        await events_of(agent, "elsewhere", conversation="other")
        assert [message.get("text") for message in heard(agent)] == ["elsewhere"]


async def test_progress_that_nobody_reads_does_not_pile_up() -> None:
    agent = agent_of(uses("kit.report"), "done")
    async with agent:
        events = await events_of(agent)
    progress = [event["value"] for event in events if event["type"] == "progress"]
    assert progress[-1] == "last"
    assert len(progress) <= 2


async def test_files_follow_their_result_and_come_with_a_question() -> None:
    agent = agent_of(uses("kit.draw"), "done")
    file = FileChunk.from_pieces(_pieces([b"\x89PNG", b"\r\n\x1a\n"]), "b.png", "image/png")
    async with agent:
        _, result, drawn, *_ = await events_of(agent, "look", files=[file])
    assert result["files"] == [{"name": "a.png", "mime_type": "image/png", "size": 8}]
    assert drawn == FileChunk(b"\x89PNG\r\n\x1a\n", "a.png", "image/png")
    assert heard(agent)[0]["files"] == ["[file 'b.png', image/png, 8 bytes]"]


@pytest.mark.parametrize(("name", "told"), [("", ""), ("n" * 4_000, "n" * 200)])
async def test_event_of_a_result_with_many_files_can_be_sent(name: str, told: str) -> None:
    @tool
    async def files() -> AsyncIterator[FileChunk]:
        for _ in range(100):
            yield FileChunk(b"", name)

    model = PreparedModel(uses("other.files"), "done")
    async with Agent(None, model, always=[Toolkit("other", [files])]) as agent:
        _, result, *more = await events_of(agent)
    assert result["files"] == 50 * [
        {"name": told, "mime_type": "application/octet-stream", "size": 0}
    ]
    assert more[:100] == 100 * [FileChunk(b"", name)]


async def _pieces(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize(
    ("question", "kind", "words"),
    [
        ({"text": ""}, InvalidArguments, "/text"),
        ({"text": 3}, InvalidArguments, "/text: must be text"),
        ({"text": "hi", "conversation": "x" * 201}, InvalidArguments, "/conversation"),
        ({"text": "hi", "conversation": None}, InvalidArguments, "/conversation"),
        ({"text": "hi", "files": ["a.png"]}, InvalidArguments, "/attachment"),
        ({"text": "hi", "files": [FileChunk(b"x" * (2**24 + 1))]}, TooLarge, "at most"),
        ({"text": "hi", "tools": [{"name": "clock"}]}, NotFound, "/tools/0"),
        ({"text": "hi", "tools": "clock"}, InvalidArguments, "/tools"),
    ],
)
async def test_question_that_cannot_be_asked_is_refused(
    question: dict[str, Any], kind: type[Exception], words: str
) -> None:
    agent = agent_of("fine")
    async with agent:
        with pytest.raises(kind, match=words) as caught:
            await events_of(agent, **question)
        assert getattr(caught.value, "executed", None) == "no"
        await events_of(agent)
    assert [message.get("text") for message in heard(agent)] == ["hi"]


async def _no_end() -> AsyncGenerator[Any, None]:
    yield {"text": "he"}


async def _no_mapping() -> AsyncGenerator[Any, None]:
    yield 3


async def _no_uses() -> AsyncGenerator[Any, None]:
    yield {"uses": [{"id": 3}]}


async def _ends_itself() -> AsyncGenerator[Any, None]:
    yield {"text": "he"}
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ModelError("overloaded", retryable=True), ModelError),
        (ValueError("of the client"), ValueError),
        (_no_end, ModelError),
        (_no_mapping, Exception),
        (_no_uses, Exception),
        (_ends_itself, asyncio.CancelledError),
    ],
)
async def test_question_that_no_reply_followed_is_not_kept(
    reply: Any, kind: type[BaseException]
) -> None:
    agent = agent_of("one", reply, uses("kit.count", text="a"), reply, "two")
    async with agent:
        await events_of(agent, "first")
        with pytest.raises(kind):
            await events_of(agent, "lost")
        with pytest.raises(kind):
            await events_of(agent, "begun")
        await events_of(agent, "last")
    told = [message.get("text", message["role"]) for message in heard(agent)]
    assert told == ["first", "one", "begun", "", "results", "last"]


async def _raises(call: RequestToModel, next: CallNextModel) -> AsyncIterator[Any]:
    raise RuntimeError("of the middleware")
    yield


async def _is_silent(call: RequestToModel, next: CallNextModel) -> AsyncIterator[Any]:
    return
    yield


@pytest.mark.parametrize(
    ("middleware", "kind"), [(_raises, RuntimeError), (_is_silent, ModelError)]
)
async def test_error_of_a_model_middleware_ends_the_question(
    middleware: Any, kind: type[Exception]
) -> None:
    agent = agent_of("never", model_middlewares=[middleware])
    async with agent:
        with pytest.raises(kind):
            await events_of(agent)
        assert (await agent.about())["conversation"]["messages"] == 0


async def test_reply_that_the_adapter_cannot_keep_runs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def messages(reply: Any, results: Any) -> Any:
        raise ModelError("no reply of this API")

    monkeypatch.setattr(scripted, "messages", messages)
    agent = agent_of(uses("kit.count", text="a"))
    async with agent:
        with pytest.raises(ModelError, match="no reply of this API"):  # before any `tool_call`
            await anext(agent.run_stream_events("hi"))
        assert (await agent.about())["conversation"]["messages"] == 0


async def test_uses_with_one_id_and_a_thousand_of_them_have_a_result_each() -> None:
    asked = [
        {"id": "same", "name": "kit.count", "arguments": {"text": "a " * (n % 3)}}
        for n in range(1_000)
    ]
    agent = agent_of(asked, "done")
    async with agent:
        events = await events_of(agent)
    results = [event["text"] for event in events if event["type"] == "tool_result"]
    assert results == [str(n % 3) for n in range(1_000)]
    kept = heard(agent)[-1]["results"]
    assert [result["text"] for result in kept] == results


LONG = "é" * 100_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"text": LONG}, f'{{"text": "{LONG}'[:16_384]),
        ("no JSON " + LONG, f"no JSON {LONG}"[:16_384]),
        ('{"text": "a"}', {"text": "a"}),
        (None, {}),
        (
            {"text": "\ud800", "more": [float("nan"), 2**70]},
            {"text": "�", "more": ["NaN", str(2**70)]},
        ),
    ],
)
async def test_event_of_a_call_is_bounded_and_can_be_sent(arguments: Any, told: Any) -> None:
    async def reply() -> AsyncGenerator[Any, None]:
        yield {"uses": [{"id": "i" * 999, "name": "n\ud800" * 999, "arguments": arguments}]}

    agent = agent_of(reply, "done")
    async with agent:
        call, result, *_ = await events_of(agent)
    assert call == {
        "type": "tool_call",
        "id": "i" * 200,
        "tool": ("n�" * 100),
        "arguments": told,
    }
    assert (result["id"], result["tool"]) == (call["id"], call["tool"])
    assert result["error"]["code"] == "not_found"


async def test_long_text_comes_in_pieces_and_is_whole_in_the_conversation() -> None:
    agent = agent_of(LONG, "done")
    async with agent:
        *pieces, end = await events_of(agent)
        assert "".join(piece["text"] for piece in pieces) == LONG
        assert max(len(piece["text"]) for piece in pieces) == 16_384
        assert end["text"] == LONG
        assert fitted_to_chunk(end) == {**end, "text": LONG[:60_000], "omitted": 40_000}
        await events_of(agent)
    assert heard(agent)[1]["text"] == LONG


async def test_steps_are_bounded() -> None:
    agent = agent_of(uses("kit.count", text="a"), max_steps=3)
    async with agent:
        end = (await events_of(agent))[-1]
    assert (end["reason"], end["steps"]) == ("max_steps", 3)


async def test_leaving_the_answer_interrupts_the_tool_and_keeps_the_step() -> None:
    hanging = Hanging()
    agent = agent_of(uses("slow.hang"), "again", always=[hanging.kit])
    async with agent:
        async with aclosing(agent.run_stream_events("go")) as events:
            async for _ in events:
                await hanging.began.wait()
                break
        assert hanging.saw == [True]
        await events_of(agent, "on")
    (result,) = heard(agent)[2]["results"]
    assert (result["tool"], result["state"]) == ("slow.hang", "interrupted")
    assert [message.get("text") for message in heard(agent)] == ["go", "", None, "on"]


async def test_tool_that_asks_in_the_conversation_that_waits_for_it_ends_with_its_time() -> None:
    @tool
    async def again() -> str:
        return str(await events_of(agent, "again"))

    agent = agent_of(uses("loop.again"), "done", always=[Toolkit("loop", [again])], timeout_s=0.05)
    async with agent:
        _, result, *_ = await events_of(agent)
    assert result["error"]["code"] == "deadline_exceeded"
    assert [message.get("text") for message in heard(agent)] == ["hi", "", None]


async def test_ask_is_the_last_reply_as_text() -> None:
    lost = ModelError("the provider is gone")
    async with agent_of(uses("kit.count", text="a b"), "two", "more", lost) as agent:
        texts = [(await agent.run(text)).text for text in ("how many?", "and now?")]
        assert texts == ["two", "more"]
        with pytest.raises(ModelError, match="is gone"):
            await agent.run("more")


async def test_cancelled_task_closes_the_stream_of_the_model() -> None:
    began = asyncio.Event()

    async def reply() -> AsyncGenerator[Any, None]:
        yield {"text": "I think"}
        began.set()
        await asyncio.Event().wait()

    agent = agent_of(reply, "again")
    async with agent:
        asking = asyncio.create_task(events_of(agent, "go"))
        await began.wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        assert agent.model.left_early == 1  # type: ignore[attr-defined]
        await events_of(agent, "on")
    assert [message.get("text") for message in heard(agent)] == ["on"]


async def test_questions_of_one_conversation_are_answered_in_turn() -> None:
    hanging = Hanging()
    agent = agent_of(uses("slow.hang"), "other", "second", always=[hanging.kit])
    async with agent:
        first = asyncio.create_task(events_of(agent, "first"))
        await hanging.began.wait()
        second = asyncio.create_task(events_of(agent, "second"))
        assert (await events_of(agent, "beside", conversation="b"))[-1]["text"] == "other"
        assert not second.done()
        assert (await agent.about())["conversation"]["messages"] == 3
        first.cancel()
        assert (await second)[-1]["text"] == "second"
    assert [message.get("text") for message in heard(agent)] == ["first", "", None, "second"]


async def test_run_returns_the_answer_and_what_led_to_it() -> None:
    agent = agent_of(uses("kit.count", text="a b"), LONG, "again")
    async with agent:
        result = await agent.run("how many?", conversation="a")
        assert (result.text, result.reason, result.steps) == (LONG, "done", 2)
        assert result.usage == TokenUsage(0, 0)
        assert [(done.tool, done.state) for done in result.results] == [("kit.count", "ok")]
        assert [message["role"] for message in result.conversation] == [
            "user",
            "model",
            "results",
            "model",
        ]
        later = await agent.run("and now?", conversation="a")
        assert later.conversation[: len(result.conversation)] == result.conversation
        assert later.results == ()


async def test_run_starts_and_stops_an_agent_that_is_not_started() -> None:
    starts = list[str]()

    class Pen(Tool):
        name = "pen"

        def __init__(self) -> None:
            super().__init__(input_schema={"type": "object"})

        async def start(self, room: object) -> None:
            starts.append("start")

        async def stop(self) -> None:
            starts.append("stop")

        async def execute(self, context: ToolContext, /) -> None:
            raise NotImplementedError

    failure = ModelError("no reply", retryable=False)
    agent = agent_of("one", "two", failure, always=[Toolkit("kit", [Pen()])])
    assert [(await agent.run(text)).text for text in ("hi", "there")] == ["one", "two"]
    assert starts == ["start", "stop"] * 2
    assert [message.get("text") for message in heard(agent)] == ["hi", "one", "there"]
    with pytest.raises(ModelError):
        await agent.run("hi")
    assert starts == ["start", "stop"] * 3
    with pytest.raises(Unavailable, match="is not started"):
        await anext(agent.run_stream_events("hi"))


def test_run_sync_is_for_programs_without_an_event_loop() -> None:
    loops = set[asyncio.AbstractEventLoop]()

    @tool
    async def look() -> str:
        loops.add(asyncio.get_running_loop())
        return "seen"

    agent = agent_of(*[uses("kit.look"), "one"] * 2, always=[Toolkit("kit", [look])])
    assert [agent.run_sync("hi").text for _ in range(2)] == ["one", "one"]
    assert len(loops) == 1  # connections of a client belong to their loop
    room = Agent(RoomClient("ws://127.0.0.1:1", token="e30.e30.t"), PreparedModel("one"))
    with pytest.raises(RuntimeError, match=r"Agent\(None, \.\.\.\); with a room: await agent.run"):
        room.run_sync("hi")

    async def within() -> None:
        agent.run_sync("hi")

    with pytest.raises(RuntimeError, match=r"an event loop runs in this thread: await agent\.run"):
        asyncio.run(within())

    async def beside(ask: Callable[[], object]) -> None:
        async with agent:
            await asyncio.to_thread(ask)

    for ask in (
        lambda: agent.run_sync("hi"),
        lambda: asyncio.run(events_of(agent)),
        lambda: asyncio.run(agent.about()),
    ):
        with pytest.raises(RuntimeError, match="is started on another event loop: ask it there"):
            asyncio.run(beside(ask))


def test_run_sync_serves_many_threads_on_one_loop() -> None:
    loops = set[asyncio.AbstractEventLoop]()

    @tool
    async def look() -> None:
        loops.add(asyncio.get_running_loop())

    agents = [agent_of(uses("kit.look"), "one", always=[Toolkit("kit", [look])]) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda agent: agent.run_sync("hi").text, agents))
    assert results == ["one"] * 8
    assert len(loops) == 1


def test_model_that_ends_the_program_does_not_end_the_loop_of_others() -> None:
    def leave() -> AsyncIterator[Mapping[str, Any]]:
        raise SystemExit(3)

    other = agent_of(lambda: leave())
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        other.run_sync("hi")
    assert agent_of("hello").run_sync("hi").text == "hello"


def test_agent_runs_on_one_loop_after_another(tmp_path: Path) -> None:
    replies = [uses("kit.count", text="a"), *["hello"] * 7]
    agent = agent_of(*replies, store=SqliteStateStore(tmp_path / "states.db"))

    async def several() -> list[str]:
        results = await asyncio.gather(*[agent.run("hi", conversation="a") for _ in range(3)])
        return [result.text for result in results]

    assert [asyncio.run(several()) for _ in range(2)] == [["hello"] * 3] * 2
