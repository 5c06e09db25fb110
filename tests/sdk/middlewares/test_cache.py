"""Cache: which calls are equal, what is kept, and which tools it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from support.parts.wrapped_calls import REMOTE, Scripted, execute, person, run_chain
from toolbus.chunks.chunk_types import FileChunk, JsonChunk, TextChunk
from toolbus.errors import NoHost
from toolbus.middlewares import Cache, TimeLimit
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.input_stream import InputStream
from toolbus.tools.tool_run import LocalRun
from toolbus.tools.toolkit import Toolkit

FAR = replace(REMOTE, read_only=True, cache_ttl_s=60.0)


class Forwarded(LocalRun):
    """A call that its caller made for somebody else."""

    forwarded_for = (person("bo", "i"),)


class Counter:
    """Tools that count their runs."""

    def __init__(self) -> None:
        self.runs = 0

    async def look(self, at: Any = None, then: Any = None) -> list[int]:
        self.runs += 1
        return [self.runs]

    async def items(self, fails: bool = False) -> AsyncIterator[int]:
        self.runs += 1
        yield self.runs
        if fails:
            raise RuntimeError
        yield 0

    def kit(self, function: Any, cache: Cache, **options: Any) -> Toolkit:
        options = {"read_only": True, "cache_ttl_s": 60, **options}
        return Toolkit("t", [FunctionTool(function, **options)], middlewares=[cache])


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ({"at": 1, "then": 2}, {"then": 2, "at": 1}, True),
        ({"at": {"a": 1, "b": [1]}}, {"at": {"b": [1], "a": 1}}, True),
        ({"at": 1}, {"at": 1.0}, False),
        ({"at": 1}, {"at": True}, False),
        ({"at": 0}, {"at": False}, False),
        ({"at": "1"}, {"at": 1}, False),
        ({"at": None}, {}, False),
    ],
)
async def test_equal_arguments_have_equal_types(first: Any, second: Any, is_equal: bool) -> None:
    counter = Counter()
    kit = counter.kit(counter.look, Cache())
    await execute(kit, first)
    assert (await execute(kit, second)).values == [[1 if is_equal else 2]]


@pytest.mark.parametrize(
    ("facts", "options", "is_equal"),
    [
        ({"caller": person("ada", "i")}, {}, True),
        ({"caller": person("bo", "i")}, {}, False),
        ({"caller": person("ada", "j")}, {}, False),
        ({"caller": person("ada", "i"), "on_behalf_of": person("bo")}, {}, False),
        ({"run": Forwarded(caller=person("ada", "i"))}, {}, False),
        ({"caller": person("ada", "i"), "caller_context": {"a": 1}}, {}, True),
        (
            {"caller": person("ada", "i"), "caller_context": {"a": 1}},
            {"supports_context": True},
            False,
        ),
    ],
)
async def test_equal_calls_have_one_caller_and_principal_and_context_where_it_is_read(
    facts: Any, options: Any, is_equal: bool
) -> None:
    counter = Counter()
    kit = counter.kit(counter.look, Cache(), **options)
    await execute(kit, caller=person("ada", "i"))
    await execute(kit, **facts)
    assert counter.runs == (1 if is_equal else 2)


@pytest.mark.parametrize(
    "change", [{"owner": "eve"}, {"issuer": "x"}, {"digest": "d2"}, {"name": "far.b"}]
)
async def test_equal_calls_have_one_owner_and_definition(change: Any) -> None:
    cache, innermost = Cache(), Scripted([JsonChunk(1)])
    for tool in (FAR, replace(FAR, description="not part of it"), replace(FAR, **change)):
        await run_chain([cache], innermost, tool)
    assert innermost.attempts == 2


async def test_two_toolkits_of_one_process_share_nothing() -> None:
    cache, one, other = Cache(), Counter(), Counter()
    await execute(one.kit(one.look, cache))
    await execute(other.kit(other.look, cache))
    assert (one.runs, other.runs, len(cache)) == (1, 1, 2)


async def test_a_result_cannot_be_changed_by_who_got_it_and_ends_with_its_time() -> None:
    now, counter = 0.0, Counter()
    cache = Cache(clock=lambda: now)
    kit = counter.kit(counter.look, cache)
    (await execute(kit)).values[0].append("poison")
    assert (await execute(kit)).values == [[1]]
    now = 59.0
    assert (await execute(kit)).values == [[1]]
    now = 60.0
    assert (await execute(kit)).values == [[2]]
    cache.clear()
    assert (await execute(kit)).values == [[3]]
    brief = counter.kit(counter.look, Cache(clock=lambda: now, tools={"t.look": 5}))
    assert (await execute(brief)).values == [[4]]
    now += 5
    assert (await execute(brief)).values == [[5]]


async def test_a_stream_is_cached_when_it_is_whole() -> None:
    counter, cache = Counter(), Cache()
    kit = counter.kit(counter.items, cache)
    assert (await execute(kit, {"fails": True})).values == [1]

    async def first_only(call: Any, next: Any) -> AsyncIterator[Any]:
        async for chunk in next(call):
            yield chunk
            return

    cut = Toolkit("t", kit.tools, middlewares=[first_only, cache])
    assert (await execute(cut)).values == [2]
    assert len(cache) == 0
    assert (await execute(kit)).values == (await execute(kit)).values == [3, 0]


async def test_failures_and_files_in_pieces_are_not_cached() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    cache = Cache()
    steps = (NoHost(), [FileChunk.from_pieces(pieces())], [FileChunk(b"y", "f")])
    innermost = Scripted(*steps)
    for _ in range(5):
        found = await run_chain([cache], innermost, FAR)
    assert (innermost.attempts, len(cache)) == (3, 1)
    assert found.values == [FileChunk(b"y", "f")]


async def test_entries_and_bytes_are_bounded() -> None:
    counter, few, small = Counter(), Cache(max_entries=2), Cache(max_bytes=2_000)
    kit = counter.kit(counter.look, few)
    for at in (1, 2, 1, 3, 1, 2):  # 2 is the least recently used when 3 comes
        await execute(kit, {"at": at})
    assert (counter.runs, len(few)) == (4, 2)
    large = Scripted([TextChunk("x" * 2_000)])
    for is_stream in (False, False, True, True):
        await run_chain([small], large, replace(FAR, streaming=is_stream))
    assert (large.attempts, len(small)) == (4, 0)
    for name in "abcdef":
        await run_chain([small], Scripted([TextChunk("x" * 200)]), replace(FAR, name=name))
    assert len(small) == 2


async def test_equal_calls_at_a_time_each_run_so_that_a_cancel_ends_only_its_own() -> None:
    release, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def slow() -> str:
        begun.release()
        await release.wait()
        return "done"

    kit = Counter().kit(slow, Cache())
    calls = [asyncio.create_task(execute(kit)) for _ in range(2)]
    for _ in calls:
        await begun.acquire()
    calls[0].cancel()
    release.set()
    assert (await calls[1]).values == ["done"]


# Tools that are not cached


async def upload(attachment: InputStream[bytes]) -> int:
    return 0


@pytest.mark.parametrize(
    ("options", "function", "words"),
    [
        ({"middlewares": [Cache()]}, Counter().look, "not read_only"),
        ({"middlewares": [Cache()], "read_only": True}, Counter().look, "needs its cache_ttl_s"),
        (
            {"middlewares": [Cache()], "read_only": True, "cache_ttl_s": 5},
            upload,
            "takes an input",
        ),
        ({"name": "listed"}, Counter().look, "not read_only"),
    ],
)
def test_a_toolkit_is_not_made_with_a_tool_that_cannot_be_cached(
    options: Any, function: Any, words: str
) -> None:
    tool = FunctionTool(function, **options)
    with pytest.raises(ValueError, match=rf"tool t\.\w+ .*{words}|tool t\.\w+: .*{words}"):
        Toolkit("t", [tool], middlewares=[TimeLimit(9), Cache(tools={"t.listed": 5})])


async def test_other_tools_run_each_time() -> None:
    counter = Counter()
    silent = counter.kit(counter.look, Cache(), cache_ttl_s=None)
    writes = counter.kit(counter.look, Cache(), cache_ttl_s=None, read_only=False)
    for kit in (silent, silent, writes, writes):
        await execute(kit)
    claims = Scripted([JsonChunk(1)])  # a stranger's tool: its cache_ttl_s alone is not enough
    for tool in (replace(FAR, read_only=False), replace(FAR, takes="input")):
        cache = Cache()
        for _ in range(2):
            await run_chain([cache], claims, tool)
    assert (counter.runs, claims.attempts) == (4, 4)


async def test_a_listed_tool_that_is_not_read_only_is_refused_in_the_call() -> None:
    cache, innermost = Cache(tools={"far.away": 5}), Scripted([JsonChunk(1)])
    error = (await run_chain([cache], innermost, REMOTE)).error
    assert error is not None
    assert (error.code, error.executed) == ("invalid_arguments", "no")
    assert error.details["path"] == "/tools/far.away"
    for _ in range(2):
        await run_chain([cache], innermost, replace(REMOTE, read_only=True))
    assert innermost.attempts == 1
