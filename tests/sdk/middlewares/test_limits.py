"""RateLimit, TimeLimit and OutputLimit: what they refuse, and what their errors say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.parts.wrapped_calls import Outcome, Scripted, execute, person, run_chain
from support.patience import PATIENCE_S
from toolbus.chunks.chunk_types import FileChunk, LinkChunk, TextChunk
from toolbus.errors import NoHost, ToolFailed
from toolbus.middlewares import OutputLimit, RateLimit, Retry, TimeLimit
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.toolkit import Toolkit

ADA, BO = person("ada"), person("bo")
HOUR_S = 3_600


async def echo(text: str = "") -> str:
    return text


# RateLimit


@pytest.mark.parametrize(
    ("by", "third", "other"),
    [
        ("caller", "overloaded", "ok"),
        ("principal", "ok", "ok"),
        ("tool", "overloaded", "overloaded"),
    ],
)
async def test_calls_beyond_a_rate_are_refused(by: Any, third: str, other: str) -> None:
    kit = Toolkit("t", [echo], middlewares=[RateLimit(2, HOUR_S, by=by)])
    for _ in range(2):
        assert (await execute(kit, caller=ADA, on_behalf_of=BO)).code == "ok"
    assert (await execute(kit, caller=ADA)).code == third
    for caller in (person("cy"), person("ada", "another issuer")):
        assert (await execute(kit, caller=caller)).code == other


async def test_a_refusal_did_not_run_and_says_when_to_try_again() -> None:
    limit = RateLimit(1, HOUR_S)
    kit, innermost = Toolkit("t", [echo], middlewares=[limit]), Scripted([TextChunk("x")])
    await execute(kit)
    for found in (await execute(kit), await run_chain([limit], innermost)):
        error = found.error
        assert error is not None
        assert (error.code, error.executed, error.retryable) == ("overloaded", "no", True)
        assert 0 < (error.retry_after_s or 0) <= HOUR_S
    assert innermost.attempts == 0


@pytest.mark.parametrize(("calls", "per_s"), [(1, 0.5), (2, 7.25), (3, HOUR_S)])
async def test_after_the_first_calls_the_next_one_has_to_wait_its_share(
    calls: int, per_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    kit = Toolkit("t", [echo], middlewares=[RateLimit(calls, per_s)])
    assert [(await execute(kit)).code for _ in range(calls)] == ["ok"] * calls
    error = (await execute(kit)).error
    assert error is not None
    assert error.retry_after_s == pytest.approx(per_s / calls)


async def test_a_refusal_after_an_attempt_that_may_have_run_does_not_deny_it() -> None:
    chain = [Retry(backoff_s=0), RateLimit(1, HOUR_S)]
    error = (await run_chain(chain, Scripted(NoHost(executed="maybe")))).error
    assert error is not None
    assert (error.code, error.executed) == ("no_host", "maybe")

    async def busy() -> None:
        raise ToolFailed("busy", retryable=True)

    busy_tool = FunctionTool(busy, idempotent=True)
    kit = Toolkit("t", [busy_tool], middlewares=[Retry(backoff_s=0), RateLimit(1, HOUR_S)])
    error = (await execute(kit)).error
    assert error is not None
    assert (error.code, error.executed, error.retryable) == ("overloaded", "yes", False)


# TimeLimit


class Slow:
    """Tools that wait until they are cancelled."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.release = threading.Event()

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("wait")

    async def items(self) -> AsyncIterator[str]:
        yield "a"
        await self.wait()

    async def ignores_the_cancel(self) -> str:
        try:
            await self.wait()
        except asyncio.CancelledError:
            pass
        return "late"

    async def items_ignore_the_cancel(self) -> AsyncIterator[str]:
        yield await self.ignores_the_cancel()

    def in_thread(self) -> None:
        self.release.wait(PATIENCE_S)

    async def raises(self) -> None:
        raise TimeoutError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wait", ([], "deadline_exceeded", "yes")),
        ("items", (["a"], "deadline_exceeded", "yes")),
        ("ignores_the_cancel", ([], "deadline_exceeded", "yes")),
        ("items_ignore_the_cancel", ([], "deadline_exceeded", "yes")),
        ("in_thread", ([], "deadline_exceeded", "maybe")),
        ("raises", ([], "tool_failed", "yes")),
    ],
)
async def test_a_call_ends_when_its_time_is_over(name: str, expected: Any) -> None:
    slow = Slow()
    kit = Toolkit("t", [getattr(slow, name)], middlewares=[TimeLimit(0.2)])
    found = await execute(kit)
    slow.release.set()
    assert (found.values, found.code, found.executed) == expected
    assert slow.ended == (["wait"] if name not in ("in_thread", "raises") else [])


async def test_a_call_that_did_not_reach_its_tool_did_not_run() -> None:
    async def holds_back(call: Any, next: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    kit = Toolkit("t", [echo], middlewares=[TimeLimit(0.01), holds_back])
    found = await execute(kit)
    assert (found.code, found.executed) == ("deadline_exceeded", "no")


async def test_a_slow_reader_is_not_cancelled_and_its_stream_ends() -> None:
    is_late = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, is_late.set)

    async def reads_slowly(call: Any, next: Any) -> AsyncIterator[Any]:
        async for chunk in next(call):
            await is_late.wait()
            yield chunk

    chain, innermost = [reads_slowly, TimeLimit(0.02)], Scripted([TextChunk("a"), TextChunk("b")])
    found = await run_chain(chain, innermost)
    assert (found.values, found.code, found.executed) == (["a"], "deadline_exceeded", "maybe")


# OutputLimit


def in_pieces(size: int) -> FileChunk:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    return FileChunk.from_pieces(pieces())


TOO_LARGE: tuple[list[Any], str] = ([], "too_large")


@pytest.mark.parametrize(
    ("limit", "chunks", "expected"),
    [
        ({"max_bytes": 5}, ["hello"], (["hello"], "ok")),
        ({"max_bytes": 4}, ["hello"], TOO_LARGE),
        ({"max_bytes": 4}, ["héé"], TOO_LARGE),
        ({"max_bytes": 8}, [["abc", 1]], ([["abc", 1]], "ok")),
        ({"max_bytes": 5}, [["abc", 1]], TOO_LARGE),
        ({"max_bytes": 4}, [b"hello"], TOO_LARGE),
        ({"max_bytes": 4}, [LinkChunk("http://x")], TOO_LARGE),
        ({"max_bytes": 5}, ["abc", "d", "efg"], (["abc", "d"], "too_large")),
        ({"max_chunks": 2}, ["a", "b"], (["a", "b"], "ok")),
        ({"max_chunks": 2}, ["a", "b", "c"], (["a", "b"], "too_large")),
        ({"max_bytes": 4, "cut": True}, [b"hello"], TOO_LARGE),
    ],
)
async def test_a_result_has_no_more_than_its_limit(limit: Any, chunks: Any, expected: Any) -> None:
    async def give() -> AsyncIterator[Any]:
        for chunk in chunks:
            yield chunk

    found = await execute(Toolkit("t", [give], middlewares=[OutputLimit(**limit)]))
    assert (found.values, found.code) == expected
    assert found.executed == ("" if found.code == "ok" else "yes")


async def test_text_is_cut_in_whole_characters_with_a_note() -> None:
    cutting = OutputLimit(4, cut=True)
    found = await execute(Toolkit("t", [echo], middlewares=[cutting]), {"text": "abcé"})
    assert found.values == ["abc\n[cut here: a result has at most 4 bytes]"]
    innermost = Scripted([TextChunk("abc"), TextChunk("def"), TextChunk("ghi")])
    found = await run_chain([cutting], innermost)
    assert found.values == ["abc", "d\n[cut here: a result has at most 4 bytes]"]
    both = OutputLimit(9, max_chunks=1, cut=True)
    found = await run_chain([both], Scripted([TextChunk("abc"), TextChunk("def")]))
    assert found.values == ["abc", "\n[cut here: a result has at most 9 bytes and 1 chunks]"]


async def test_a_file_that_is_not_in_memory_is_counted_as_it_is_read(tmp_path: Path) -> None:
    async def give() -> FileChunk:
        return in_pieces(5)

    async def from_disk() -> FileChunk:
        (tmp_path / "file").write_bytes(b"hello")
        return FileChunk.from_path(tmp_path / "file")

    for most, code in ((5, "ok"), (4, "too_large")):
        limit = [OutputLimit(most)]
        found = await execute(Toolkit("t", [give], middlewares=limit))
        assert await read(found.values[0]) == code
        assert (await execute(Toolkit("t", [from_disk], middlewares=limit))).code == code


async def read(file: FileChunk) -> str:
    try:
        return "ok" if await file.read() == b"xxxxx" else "other"
    except Exception as error:
        return Outcome([], error).code  # type: ignore[arg-type]  # a RoomException
