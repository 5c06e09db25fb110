"""An agent that is asked by others in a room: refusals, ends of all kinds, many at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.models.prepared_model import PreparedModel, uses
from toolbus import (
    Agent,
    AgentsGrant,
    ApiScope,
    DeadlineExceeded,
    FileChunk,
    InvalidArguments,
    ModelError,
    NotFound,
    PermissionDenied,
    RequiredToolkit,
    RoomClient,
    RoomException,
    Tool,
    TooLarge,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    open_model,
    tool,
)
from toolbus.agents import agent_events
from toolbus_server.testing import FaultProxy, room_of, running_server

Events = list[dict[str, Any]]


class ClockConfig(ToolkitConfig):
    """A clock."""

    zone: str = "UTC"


class Clocks(ToolkitBuilder[ClockConfig]):
    async def make(self, room: Any, model: Any, config: ClockConfig) -> Toolkit:
        @tool
        async def now() -> str:
            return f"noon in {config.zone}"

        return Toolkit("clock", [now])


CLOCKS = Clocks("clock", ClockConfig)


class Hanging(Tool):
    """A tool that hangs until it is cancelled."""

    name = "hang"
    input_schema: Any = {"properties": {}}  # noqa: RUF012 - as a tool's author writes it

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self.ended: asyncio.Queue[bool] = asyncio.Queue()

    async def execute(self, context: ToolContext, /, **_: Any) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.put_nowait(context.cancelled)


async def ask(asker: RoomClient, text: str = "hi", **options: Any) -> Events:
    """Ask the agent of the participant `helper`, and return all events."""
    arguments = {"text": text, **options.pop("arguments", {})}
    stream = asker.stream("helper.ask", arguments, participant="helper", **options)
    async with stream as chunks:
        return [_event(chunk) async for chunk in chunks]


def _event(chunk: Any) -> dict[str, Any]:
    assert isinstance(chunk.value, dict)
    return chunk.value


def roles(agent: Agent) -> list[str]:
    """Return who said what, as the model was told last."""
    assert isinstance(agent.model, PreparedModel)
    messages = agent.model.requests[-1]["messages"]
    return [message.get("text") or message["role"] for message in messages]


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"text": ""}, InvalidArguments, "/text"),
        ({"text": None}, InvalidArguments, "text"),
        ({"conversation": "x" * 201}, InvalidArguments, "200"),
        ({"bogus": 1}, InvalidArguments, "/bogus"),
        ({"tools": [{"name": "sundial"}]}, NotFound, "/tools/0"),
        ({"tools": [{"name": "clock", "zone": 3}]}, InvalidArguments, "/tools/0/zone"),
        ({"tools": [{"name": "clock"}, {"name": "clock"}]}, InvalidArguments, "/tools/1/name"),
        ({"tools": [{"name": "clock", "hands": 2}]}, InvalidArguments, "/tools/0"),
    ],
)
async def test_refused_question_ran_nothing_and_says_where(
    arguments: dict[str, Any], kind: type[RoomException], words: str
) -> None:
    model = PreparedModel("never")
    async with room_of("ann", "helper") as (ann, helper):
        async with Agent(helper, model, name="helper", builders=[CLOCKS]):
            with pytest.raises(kind, match=words) as caught:
                await ask(ann, arguments=arguments)
            about = await ann.invoke("helper.about", participant="helper")
    assert (caught.value.executed, model.requests) == ("no", [])
    assert about.value["conversation"]["messages"] == 0


async def test_refused_question_does_not_wait_for_the_one_before() -> None:
    hanging = Hanging()
    async with room_of("ann", "helper") as (ann, helper):
        agent = Agent(
            helper,
            PreparedModel(uses("slow.hang")),
            name="helper",
            always=[Toolkit("slow", [hanging])],
        )
        async with agent:
            first = asyncio.create_task(ask(ann))
            await hanging.began.wait()
            with pytest.raises(NotFound, match="/tools/0") as caught:
                await ask(ann, arguments={"tools": [{"name": "sundial"}]})
            first.cancel()
    assert caught.value.executed == "no"


async def test_asker_may_have_built_what_its_grant_covers() -> None:
    poor = ApiScope(agents=AgentsGrant(call=True, use_tools=True, builders=["sundial"]))
    clock = {"tools": [{"name": "clock", "zone": "Rome"}]}
    async with running_server() as server, server.room("helper") as helper:
        model = PreparedModel(uses("clock.now"), "noon")
        other = Agent(helper, model, name="other", builders=[Clocks("hours", ClockConfig)])
        plain = Agent(helper, model, name="plain")
        async with Agent(helper, model, name="helper", builders=[CLOCKS]), other, plain:
            async with server.room("ann", api=poor) as ann:
                with pytest.raises(PermissionDenied, match="no grant for builder clock") as caught:
                    await ask(ann, arguments=clock)
                assert caught.value.executed == "no"
                assert (caught.value.details["path"], model.requests) == ("/tools/0", [])
            async with server.room("bob") as bob:
                events = await ask(bob, arguments=clock)
                told = await bob.list_builders("helper")
                await other.__aexit__(None, None, None)
                left = await bob.list_builders("helper")
    assert events[1]["text"] == "noon in Rome"
    assert [builder.name for builder in told] == ["clock", "hours"]
    assert [builder.name for builder in left] == ["clock"]


async def test_question_without_a_required_toolkit_is_refused_until_it_is_back() -> None:
    sql = Toolkit("sql", [Hanging()])
    model = PreparedModel("here")
    needed = RequiredToolkit("sql", timeout_s=0)
    async with room_of("ann", "helper", "host") as (ann, helper, host), AsyncExitStack() as stack:
        async with host.host(sql):
            await stack.enter_async_context(Agent(helper, model, name="helper", required=[needed]))
            await ask(ann)
        with pytest.raises(NotFound, match="sql") as caught:
            await ask(ann)
        assert caught.value.executed == "no"
        async with host.host(sql):
            assert (await ask(ann))[-1]["text"] == "here"


async def test_public_toolkits_come_and_go_while_the_agent_runs() -> None:
    hanging = Hanging()
    model = PreparedModel(uses("slow.hang"), "on", uses("slow.hang"), "done")
    async with room_of("ann", "helper", "host") as (ann, helper, host):
        async with Agent(helper, model, name="helper"):
            async with host.host(Toolkit("slow", [hanging])):
                question = asyncio.create_task(ask(ann))
                await hanging.began.wait()
                await host.__aexit__(None, None, None)  # in the middle of a call
                first = await question
            second = await ask(ann)
    assert [event["state"] for event in first[1:2]] == ["failed"]
    assert first[1]["error"]["code"] == "host_lost"
    assert second[1]["error"]["code"] == "not_found"
    assert [first[-1]["text"], second[-1]["text"]] == ["on", "done"]


@pytest.mark.parametrize("retryable", [True, False])
async def test_failure_of_the_model_has_its_words(retryable: bool) -> None:
    failure = ModelError("the provider is overloaded", retryable=retryable, retry_after_s=7)
    model = PreparedModel(failure, "again")
    async with room_of("ann", "helper") as (ann, helper):
        async with Agent(helper, model, name="helper") as agent:
            with pytest.raises(ToolFailed, match="the provider is overloaded") as caught:
                await ask(ann, "lost")
            await ask(ann, "kept")
    error = caught.value
    assert (error.executed, error.retryable, error.retry_after_s) == ("yes", retryable, 7)
    assert roles(agent) == ["kept"]


async def test_file_comes_with_a_question_and_a_large_one_is_refused() -> None:
    model = PreparedModel("seen")
    picture = FileChunk(b"\x89PNG\r\n\x1a\n" * 100_000, "a.png", "image/png")
    async with room_of("ann", "helper") as (ann, helper):
        async with Agent(helper, model, name="helper"):
            await ask(ann, attachment=picture)
            with pytest.raises(TooLarge, match="at most") as caught:
                await ask(ann, attachment=FileChunk(b"x" * (2**24 + 1), "b.png"))
    assert caught.value.executed == "no"
    assert model.requests[-1]["messages"][-1]["files"] == [
        "[file 'a.png', image/png, 800000 bytes]"
    ]


class Asking(NamedTuple):
    """A participant with a question that is being answered."""

    ann: RoomClient
    line: FaultProxy
    question: asyncio.Task[Events]


async def _cancels(asking: Asking) -> None:
    asking.question.cancel()


async def _leaves_the_room(asking: Asking) -> None:
    await asking.ann.__aexit__(None, None, None)


async def _is_cut_off(asking: Asking) -> None:
    await asking.line.refuse()
    asking.line.reset()


async def _waits(asking: Asking) -> None:
    with pytest.raises(DeadlineExceeded):
        await asking.question


@pytest.mark.parametrize("place", ["here", "there"])
@pytest.mark.parametrize("leave", [_cancels, _leaves_the_room, _is_cut_off, _waits])
async def test_tool_of_an_asker_that_leaves_is_interrupted_and_not_forgotten(
    leave: Callable[[Asking], Awaitable[None]], place: str
) -> None:
    hanging = Hanging()
    kit = Toolkit("slow", [hanging])
    model = PreparedModel([*uses("slow.hang"), *uses("slow.hang")], "on")
    own = [kit] if place == "here" else []
    async with running_server() as server, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        helper = await enter(server.room("helper"))
        if place == "there":
            host = await enter(server.room("host"))
            await enter(host.host(kit))
        agent = await enter(Agent(helper, model, name="helper", always=own))
        line = await enter(FaultProxy(server.url))
        ann = await enter(server.room("ann", via=line))
        timeout_s = 2 if leave is _waits else None
        question = asyncio.create_task(ask(ann, "go", timeout_s=timeout_s))
        await hanging.began.wait()
        await leave(Asking(ann, line, question))
        was_told = await hanging.ended.get()
        # A tool in this process whose own time is over first gets CancelledError alone.
        assert was_told or (leave is _waits and place == "here")
        question.cancel()
        await asyncio.wait([question])
        again = await enter(server.room("ann", instance="again"))
        await ask(again, "and")
    assert roles(agent) == ["go", "model", "results", "and"]
    results = model.requests[-1]["messages"][2]["results"]
    states = [result["state"] for result in results]
    # The time of the question and that of its call end together: either is noticed first.
    firsts = ("failed", "interrupted") if leave is _waits else ("interrupted",)
    assert states[0] in firsts
    assert states[1] == "interrupted"


async def test_stream_of_the_model_is_closed_when_the_asker_leaves() -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def reply() -> AsyncGenerator[Any, None]:
        try:
            yield {"text": "I think"}
            began.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with room_of("ann", "helper") as (ann, helper):
        async with Agent(helper, PreparedModel(reply, "on"), name="helper") as agent:
            asking = asyncio.create_task(ask(ann, "go"))
            await began.wait()
            asking.cancel()
            await closed.wait()
            await ask(ann, "and")
    assert roles(agent) == ["and"]


async def test_waiting_is_told_while_the_model_thinks_and_while_a_tool_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_events, "WAITING_S", 0.01)
    may_think = asyncio.Event()

    async def reply() -> AsyncGenerator[Any, None]:
        await may_think.wait()
        yield {"uses": uses("slow.hang")}

    hanging = Hanging()
    model = PreparedModel(reply)
    async with room_of("ann", "helper") as (ann, helper):
        agent = Agent(helper, model, name="helper", always=[Toolkit("slow", [hanging])])
        async with agent, ann.stream("helper.ask", {"text": "?"}, participant="helper") as chunks:
            kinds = []
            async for chunk in chunks:
                kinds.append(_event(chunk)["type"])
                if kinds[-2:] == ["waiting", "waiting"]:
                    if may_think.is_set() and hanging.began.is_set():
                        break
                    may_think.set()
    assert kinds[0] == "waiting"
    assert set(kinds) == {"waiting", "tool_call"}


async def test_fifty_conversations_at_once_are_each_its_own(tmp_path: Path) -> None:
    script = tmp_path / "model.jsonl"
    lines: list[Any] = [{"uses": [{"name": "far.whose"}]}, {"text": "first"}, {"text": "second"}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))

    @tool
    async def whose(context: ToolContext) -> str:
        principal = context.on_behalf_of
        return "nobody" if principal is None else principal.name

    askers = [f"asker-{number}" for number in range(50)]
    async with room_of("helper", "host", *askers) as (helper, host, *people):
        async with (
            host.host(Toolkit("far", [whose])),
            Agent(helper, open_model(f"scripted:{script}"), name="helper"),
        ):
            first = await asyncio.gather(*(ask(person) for person in people))
            second = await asyncio.gather(*(ask(person) for person in people))
            again = await ask(people[0])  # the script begins again
    assert [events[1]["text"] for events in first] == askers
    assert {events[-1]["text"] for events in first} == {"first"}
    assert {events[-1]["text"] for events in second} == {"second"}
    assert again[-1]["text"] == "first"


async def test_asker_stays_with_one_of_several_hosts_of_an_agent() -> None:
    models = [PreparedModel("hello"), PreparedModel("hello")]
    async with running_server() as server, AsyncExitStack() as stack:
        for number, model in enumerate(models):
            room = await stack.enter_async_context(server.room("helper", instance=f"i{number}"))
            await stack.enter_async_context(Agent(room, model, name="helper"))
        for name in ("ann", "bob"):
            asker = await stack.enter_async_context(server.room(name))
            for _ in range(4):
                await ask(asker)
            about = await asker.invoke("helper.about", participant="helper")
            assert about.value["conversation"]["messages"] == 8
