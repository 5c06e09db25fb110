"""What a model asks for: one result for each use, of tools in this process and elsewhere alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from support.rooms.turns import agent_and_host, message_of
from toolbus import (
    AgentsGrant,
    ApiScope,
    CallNext,
    Cancelled,
    Chunk,
    FileChunk,
    FunctionTool,
    InvalidArguments,
    NotFound,
    RequiredToolkit,
    RoomClient,
    TextChunk,
    ToolCall,
    ToolFailed,
    ToolGroup,
    Toolkit,
    ToolResult,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)
from toolbus.turns.tool_use import arguments_of
from toolbus.wire import MAX_FRAME_BYTES

KITS = ("near", "far")


class Work:
    """Tools that a test can watch, as two toolkits."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[str] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.go: asyncio.Queue[None] = asyncio.Queue()
        self.running = 0

        @tool(concurrency_safe=True)
        async def look(word: str) -> str:
            return await self.work(word)

        @tool
        async def change(word: str) -> str:
            return await self.work(word)

        @tool
        async def hang() -> None:
            try:
                self.began.put_nowait("hang")
                await asyncio.Event().wait()
            finally:
                self.ended.put_nowait("hang")

        @tool
        async def count(upto: int, then_hang: bool = False) -> AsyncIterator[int]:
            try:
                for number in range(upto):
                    yield number
                self.began.put_nowait("count")
                if then_hang:
                    await asyncio.Event().wait()
            finally:
                self.ended.put_nowait("count")

        @tool
        async def fail() -> None:
            raise ToolFailed("no such account")

        @tool
        async def pieces() -> AsyncIterator[bytes]:
            yield b"one"
            yield b"two"

        self.tools: list[Any] = [look, change, hang, count, fail, pieces]

    async def work(self, word: str) -> str:
        self.running += 1
        self.began.put_nowait(word)
        await self.go.get()
        self.running -= 1
        return word

    def let(self, count: int) -> None:
        """Let so many running calls of `look` and `change` end."""
        for _ in range(count):
            self.go.put_nowait(None)

    @asynccontextmanager
    async def turn(self, **options: Any) -> AsyncIterator[Turn]:
        """Enter a turn that has the tools twice: `near` in this process, `far` elsewhere."""
        async with asyncio.timeout(100), agent_and_host(Toolkit("far", self.tools)) as (_, agent):
            options = {"required": [RequiredToolkit("far")], **options}
            async with Turn(agent, always=[Toolkit("near", self.tools)], **options) as turn:
                yield turn


def uses_of(*names: str, **arguments: Any) -> list[ToolUse]:
    return [ToolUse(str(index), name, arguments) for index, name in enumerate(names)]


def ends(results: list[ToolResult]) -> list[tuple[str, str, str | None, str]]:
    """Return how uses ended: id, state, code, executed."""
    return [
        (each.id, each.state, each.error.code if each.error else None, each.executed)
        for each in results
    ]


# Results


async def test_every_use_has_one_result_in_the_order_asked_whatever_happens() -> None:
    work = Work()
    work.let(2)
    async with work.turn() as turn:
        for kit in KITS:
            asked = [
                ToolUse("a", f"{kit}.look", {"word": "x"}),
                ToolUse("b", f"{kit}.absent"),
                ToolUse("c", f"{kit}.look", {"word": 7}),
                ToolUse("d", turn.provider_name(f"{kit}.count"), {"upto": 2}),
                ToolUse("e", f"{kit}.fail"),
                ToolUse("f", f"{kit}.look", [1]),  # type: ignore[arg-type]  # as a model may
                ToolUse("a", f"{kit}.pieces"),
            ]
            results = await turn.run(asked)
            assert ends(results) == [
                ("a", "ok", None, "yes"),
                ("b", "failed", "not_found", "no"),
                ("c", "failed", "invalid_arguments", "no"),
                ("d", "ok", None, "yes"),
                ("e", "failed", "tool_failed", "yes"),
                ("f", "failed", "invalid_arguments", "no"),
                ("a", "ok", None, "yes"),
            ]
            assert [each.value for each in results[:4]] == ["x", None, None, [0, 1]]
            assert (results[3].tool, results[6].data) == (f"{kit}.count", b"onetwo")
            assert results[6].chunks == (FileChunk(b"one"), FileChunk(b"two"))
            timed_out = await turn.run(uses_of(f"{kit}.hang"), timeout_s=1)
            assert ends(timed_out)[0][1:3] == ("failed", "deadline_exceeded")
            assert timed_out[0].executed != "no"
        assert len(turn.results) == 16


async def test_refused_call_is_a_denied_result_and_names_lead_to_tools_and_back() -> None:
    limited = ApiScope(agents=AgentsGrant(use_tools=True, call=True))
    kit = Toolkit("far", Work().tools)
    async with agent_and_host(kit, api=limited) as (server, agent), server.room("bob"):
        required = [RequiredToolkit("far")]
        async with Turn(agent, required=required, message=message_of("bob")) as turn:
            (result,) = await turn.run([ToolUse("1", "far__fail")])
            assert ends([result]) == [("1", "denied", "permission_denied", "no")]
            assert turn.provider_name(turn.tools[0]) == "far__look"
            assert turn.tool_named("far__look") is turn.tools[0]
            for unknown in (turn.tool_named, turn.provider_name):
                with pytest.raises(NotFound, match=r"its tools: far\.look"):
                    unknown("far__absent")


async def test_uses_run_side_by_side_only_where_that_is_safe() -> None:
    for kit in KITS:
        work = Work()
        async with work.turn() as turn:
            names = ("look", "look", "change", "change", "look", "look")
            asked = [
                ToolUse(str(index), f"{kit}.{name}", {"word": f"{name}{index}"})
                for index, name in enumerate(names)
            ]
            running = asyncio.create_task(turn.run(asked))
            for expected in (["look0", "look1"], ["change2"], ["change3"], ["look4", "look5"]):
                assert {await work.began.get() for _ in expected} == set(expected)
                assert work.running == len(expected)
                work.let(len(expected))
            results = await running
            assert [each.value for each in results] == [arguments_of(use)["word"] for use in asked]


# Interruption


async def test_each_result_is_told_once_as_soon_as_its_call_has_ended() -> None:
    work = Work()
    told: asyncio.Queue[ToolResult] = asyncio.Queue()
    async with work.turn() as turn:
        asked = uses_of("near.absent", "near.look", "near.look", "near.change", word="x")
        running = asyncio.create_task(turn.run(asked, on_result=told.put_nowait))
        assert (await told.get()).state == "failed"
        for _ in range(2):
            await work.began.get()
        assert told.empty()
        work.let(1)
        first = await told.get()
        assert not running.done()
        assert first.id in ("1", "2")
        work.let(2)
        results = await running
        rest = [told.get_nowait() for _ in range(told.qsize())]
    assert [each.id for each in rest][-1] == "3"
    assert sorted([results[0].id, first.id, *(each.id for each in rest)]) == ["0", "1", "2", "3"]
    assert [each.state for each in results] == ["failed", "ok", "ok", "ok"]


@pytest.mark.parametrize("kit", KITS)
async def test_interrupted_uses_keep_their_chunks_and_later_ones_do_not_begin(kit: str) -> None:
    work, came = Work(), asyncio.Event()

    async def watch(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call):
            yield chunk
            if chunk.value == 2:
                came.set()

    async with work.turn(middlewares=[watch]) as turn:
        asked = [
            ToolUse("stream", f"{kit}.count", {"upto": 3, "then_hang": True}),
            ToolUse("unary", f"{kit}.hang"),
            ToolUse("later", f"{kit}.change", {"word": "x"}),
        ]
        running = asyncio.create_task(turn.run(asked))
        assert await work.began.get() == "count"
        await came.wait()
        await turn.interrupt("stream")
        assert await work.began.get() == "hang"
        await turn.interrupt()
        results = await running
        maybe = "yes" if kit == "near" else "maybe"
        assert ends(results) == [
            ("stream", "interrupted", "cancelled", maybe),
            ("unary", "interrupted", "cancelled", maybe),
            ("later", "interrupted", "cancelled", "no"),
        ]
        assert [each.value for each in results] == [[0, 1, 2], None, None]
        assert "interrupted" in results[0].for_model()
        assert turn.results == results
        calling = asyncio.create_task(turn.invoke(f"{kit}.hang"))
        assert await work.began.get() == "hang"
        await turn.interrupt()
        with pytest.raises(Cancelled, match="the call was interrupted"):
            await calling
        with pytest.raises(NotFound, match="no use 'absent'"):
            await turn.interrupt("absent")
        await turn.interrupt("stream")


@pytest.mark.parametrize("kit", KITS)
async def test_cancelled_task_raises_and_leaves_the_results_in_the_turn(kit: str) -> None:
    work = Work()
    async with work.turn() as turn:
        asked = uses_of(f"{kit}.fail", f"{kit}.hang", f"{kit}.fail")
        running = asyncio.create_task(turn.run(asked))
        assert await work.began.get() == "hang"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await work.ended.get() == "hang"
        assert [each.state for each in turn.results] == ["failed", "interrupted", "interrupted"]
        assert turn.results[2].executed == "no"


async def test_end_of_the_turn_interrupts_its_uses() -> None:
    work = Work()
    async with work.turn() as turn:
        running = asyncio.create_task(turn.run(uses_of("near.hang", "near.fail")))
        assert await work.began.get() == "hang"
    results = await running
    assert [each.state for each in results] == ["interrupted"] * 2
    assert results[0].error is not None
    assert results[0].error.message == "the turn has ended"
    with pytest.raises(Unavailable, match="has ended"):
        await turn.run([])


async def _invoked(turn: Turn, name: str) -> tuple[str, str]:
    with pytest.raises(Cancelled, match="interrupted") as caught:
        await turn.invoke(name)
    return "interrupted", caught.value.executed


async def _run(turn: Turn, name: str) -> tuple[str, str]:
    (result,) = await turn.run(uses_of(name))
    assert result.value == [1]
    return result.state, result.executed


async def _streamed(turn: Turn, name: str) -> tuple[str, str]:
    first, result = [each async for each in turn.stream(ToolUse("1", name))]
    assert isinstance(first, Chunk)
    assert isinstance(result, ToolResult)
    return result.state, result.executed


@pytest.mark.parametrize("call", [_invoked, _run, _streamed])
async def test_tool_that_does_not_end_when_it_is_cancelled_is_given_up(
    call: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolbus.turns.turn_runs._END_S", 0.05)
    began, go = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> AsyncIterator[int]:
        yield 1
        began.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with agent_and_host() as (_, agent), asyncio.timeout(100):
        async with Turn(agent, always=[Toolkit("near", [stubborn])]) as turn:
            running = asyncio.create_task(call(turn, "near.stubborn"))
            await began.wait()
            await turn.interrupt()
            assert await running == ("interrupted", "yes")
            go.set()
    assert "1 calls of a turn did not end when cancelled" in caplog.text


# Streams


@pytest.mark.parametrize("kit", KITS)
async def test_stream_gives_chunks_as_they_come_and_then_the_result(kit: str) -> None:
    work = Work()
    async with work.turn() as turn:
        got = [each async for each in turn.stream(ToolUse("1", f"{kit}.count", {"upto": 300}))]
        result = got.pop()
        assert isinstance(result, ToolResult)
        assert (result.state, result.value, result.omitted) == ("ok", list(range(300)), 0)
        assert tuple(got) == result.chunks
        work.let(1)
        unary = [each async for each in turn.stream(ToolUse("2", f"{kit}.look", {"word": "x"}))]
        assert unary[0] == TextChunk("x")
        assert len(unary) == 2
        (failed,) = [each async for each in turn.stream(ToolUse("3", f"{kit}.absent"))]
        assert isinstance(failed, ToolResult)
        assert failed.state == "failed"
        assert turn.results == [result, unary[1], failed]


@pytest.mark.parametrize("kit", KITS)
async def test_reader_that_leaves_a_stream_interrupts_it(kit: str) -> None:
    work = Work()
    async with work.turn() as turn:
        use = ToolUse("1", f"{kit}.count", {"upto": 2, "then_hang": True})
        async with aclosing(turn.stream(use)) as chunks:
            assert [(await anext(chunks)) for _ in range(2)]
        (result,) = turn.results
        assert (result.state, result.value) == ("interrupted", [0, 1])
        assert await work.ended.get() == "count"
        hanging = turn.stream(ToolUse("2", f"{kit}.hang"))
        reading = asyncio.ensure_future(anext(hanging))
        while await work.began.get() != "hang":
            pass
        await turn.interrupt("2")
        assert isinstance(last := await reading, ToolResult)
        assert (last.state, last.chunks) == ("interrupted", ())


async def test_stream_that_was_interrupted_before_it_is_read_does_not_begin() -> None:
    work = Work()
    async with work.turn() as turn:
        streams = [turn.stream(each) for each in uses_of("near.count", "far.count", upto=1)]
        await turn.interrupt("0")
        got = [each async for each in streams[0]]
    got += [each async for each in streams[1]]
    assert [each.state for each in got if isinstance(each, ToolResult)] == 2 * ["interrupted"]
    assert {each.executed for each in turn.results} == {"no"}
    assert len(got) == 2
    assert work.ended.empty()


async def test_chunks_that_fit_no_frame_together_are_passed_on_and_not_kept() -> None:
    parts = [*5 * ["x" * (MAX_FRAME_BYTES // 5)], "end"]

    @tool
    async def flood() -> AsyncIterator[str]:
        for part in parts:
            yield part

    kit: list[Any] = [flood]
    async with agent_and_host(Toolkit("far", kit)) as (_, agent), asyncio.timeout(100):
        async with Turn(
            agent, always=[Toolkit("near", kit)], required=[RequiredToolkit("far")]
        ) as turn:
            for name in ("near.flood", "far.flood"):
                got: list[Chunk | ToolResult] = [
                    each async for each in turn.stream(ToolUse("1", name))
                ]
                result = got.pop()
                assert isinstance(result, ToolResult)
                assert got == [TextChunk(part) for part in parts]
                assert (len(result.chunks), result.omitted) == (4, 2)
                (kept,) = await turn.run([ToolUse("2", name)])
                assert ends([kept])[0][1:3] == ("failed", "too_large")
                assert len(kept.chunks) == 4


async def test_arguments_of_a_use_may_be_the_json_text_that_an_api_sends() -> None:
    """FRAME-7 for JSON text: equal keys, numbers, depth."""
    near = Toolkit("near", [FunctionTool(lambda upto=0: upto, name="count")])
    deep = f'{{"upto": {"[" * 40}{"]" * 40}}}'
    read = {"": 0, " \n": 0, "null": 0, "{}": 0, '{"upto": 2}': 2, '{"upto": 1, "upto": 3}': 3}
    refused = {
        '{"upto": 2': "not JSON: Expecting ',' delimiter: line 1 column 11 (char 10).",
        '{\n"upto": two}': "not JSON: Expecting value: line 2 column 9 (char 10).",
        "x" * 2**20: "not JSON: Expecting value: line 1 column 1 (char 0).",
        '{"upto": "' + "x" * 2**20: "not JSON: Unterminated string starting at: line 1 column 10",
        '{"upto": NaN}': "/upto: ",
        '{"upto": [1e999]}': "/upto/0: ",
        f'{{"upto": {2**64}}}': "/upto: ",
        '{"upto": "\\ud800"}': "/upto: ",
        deep: "/upto/0",
        "[" * 2**20: "the arguments are nested too deeply",
        "9" * 2**20: "the arguments are nested too deeply, or have a number with too many digits",
        "[1]": "the arguments must be one JSON object",
        '"{}"': "the arguments must be one JSON object",
    }
    async with agent_and_host() as (_, agent), Turn(agent, always=[near]) as turn:
        for text, value in read.items():
            (result,) = await turn.run([ToolUse("1", "near__count", text)])
            assert result.value == value
        for text, words in refused.items():
            (result,) = await turn.run([ToolUse("1", "near__count", text)])
            assert (result.state, result.executed) == ("failed", "no")
            assert result.error is not None
            assert result.error.code == "invalid_arguments"
            assert words in result.for_model()
            assert len(result.for_model()) < 500
        with pytest.raises(InvalidArguments, match="not str: read JSON text with json"):
            await turn.invoke("near.count", '{"upto": 2}')  # type: ignore[arg-type]


async def test_unknown_tool_names_those_that_the_model_was_given_near_ones_first() -> None:
    async def do() -> None: ...

    kits = [Toolkit(f"kit-{n}", [FunctionTool(do, name=f"tool_{n}")]) for n in range(300)]
    hidden = ToolGroup("more", "More.", toolkits=[Toolkit("hidden", [FunctionTool(do)])])
    async with agent_and_host() as (_, agent):
        async with Turn(agent, always=kits, groups=[hidden]) as turn:
            for name, near in (
                ("kit-7__tool7", "kit-7__tool_7"),
                ("tool_7", "kit-7__tool_7"),
                ("kit-7.tool7", "kit-7.tool_7"),
                ("functions.kit-7__tool7", "kit-7__tool_7"),
                ("hidden__dou", ""),  # near one of an inactive group
                ("x" * 2**20, ""),
            ):
                (result,) = await turn.run([ToolUse("1", name)])
                words = result.for_model()
                assert f"did you mean {near}? Its tools: {near}, " in words or not near
                assert "more. The tool did not run. Call only tools that are listed." in words
                assert ("kit-0.tool_0" in words) is ("." in name and "__" not in name)
                assert "hidden__do?" not in words
                assert len(words) < 1_500
            with pytest.raises(NotFound, match=r"did you mean kit-7.tool_7\? Its"):
                await turn.call("tool_7")
            # A reply of a model may have thousands, and each search for a near one takes 5 ms.
            results = await turn.run([ToolUse(str(n), f"kit-7__tol{n}_7") for n in range(40)])
            guessed = ["did you mean" in result.for_model() for result in results]
            assert guessed[0] is True
            assert guessed[-1] is False


async def test_namespace_that_a_model_puts_before_a_name_is_read_unless_a_toolkit_has_it() -> None:
    async def do(text: str) -> str:
        return text

    async def other() -> str:
        return "other"

    kits = [
        Toolkit("kit", [FunctionTool(do)]),
        Toolkit("functions", [FunctionTool(other, name="kit__do")]),
    ]
    async with agent_and_host() as (_, agent), Turn(agent, always=kits) as turn:
        names = ["default_api.kit__do", "default_api:kit__do", "functions.kit.do"]
        results = await turn.run([ToolUse("1", name, {"text": "a"}) for name in names])
        assert [(each.tool, each.value) for each in results] == [("kit.do", "a")] * 3
        (result,) = await turn.run([ToolUse("1", "functions.kit__do")])
        assert (result.tool, result.value) == ("functions.kit__do", "other")


async def test_aliases_and_nulls_of_a_model_are_no_change_of_its_arguments() -> None:
    async def echo(**arguments: Any) -> Any:
        return arguments

    properties = {"a b": {"type": "string"}, "c": {"type": "string"}}
    kits = [Toolkit("kit", [FunctionTool(echo, args_schema={"properties": properties})])]
    async with agent_and_host() as (_, agent), Turn(agent, always=kits) as turn:
        (result,) = await turn.run([ToolUse("1", "kit__echo", '{"a_b": "x", "c": null}')])
        assert (result.value, result.changed_arguments) == ({"a b": "x"}, None)
        with pytest.raises(InvalidArguments, match="/c"):
            await turn.call("kit.echo", {"c": None})


async def test_anything_but_uses_is_a_type_error() -> None:
    turn = Turn(RoomClient("ws://127.0.0.1:1"))
    bad: Any = {"name": "kit.tool"}
    with pytest.raises(Unavailable, match="not entered"):
        await turn.run([bad])
    async with agent_and_host() as (_, agent), Turn(agent) as entered:
        with pytest.raises(TypeError, match="a turn runs ToolUse objects, not"):
            await entered.run([bad])
        with pytest.raises(TypeError, match="a turn runs ToolUse objects, not"):
            entered.stream(bad)
        single: Any = ToolUse("1", "kit.tool")
        with pytest.raises(TypeError, match="run takes a list of ToolUse objects, not"):
            await entered.run(single)
    assert turn.results == []
