"""Middlewares of a hosted toolkit run at its host, and their errors reach the caller unchanged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.rooms.failures import late_in_its_tool
from toolbus import (
    CallNext,
    Chunk,
    FileChunk,
    FunctionTool,
    LocalToolkit,
    RemoteToolkit,
    RoomException,
    ToolCall,
    Toolkit,
    Turn,
)
from toolbus.middlewares import Cache, Log, OutputLimit, RateLimit, Retry, TimeLimit
from toolbus_server.testing import running_server

HOUR_S = 3_600


class Shop:
    """Tools with middlewares of their own, and what happened to them."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.release = threading.Event()

    def tools(self) -> list[Any]:
        def wrapped(function: Any, *middlewares: Any, **options: Any) -> FunctionTool:
            return FunctionTool(function, middlewares=middlewares, **options)

        return [
            wrapped(self.price, Cache(), read_only=True, cache_ttl_s=60),
            wrapped(self.order, RateLimit(1, HOUR_S, by="caller")),
            wrapped(self.block, TimeLimit(0.05)),
            wrapped(self.file, OutputLimit(10)),
        ]

    async def price(self, item: str) -> int:
        self.runs.append(item)
        return len(self.runs)

    async def order(self) -> str:
        return "done"

    def block(self) -> None:
        self.release.wait(PATIENCE_S)

    async def file(self) -> FileChunk:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x"

        return FileChunk.from_pieces(pieces())


async def failure(awaitable: Any) -> RoomException:
    with pytest.raises(RoomException) as caught:
        await awaitable
    return caught.value


async def test_middlewares_run_at_the_host(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toolbus.calls")
    shop = Shop()
    kit = RemoteToolkit(name="shop", tools=shop.tools(), middlewares=[Log(), Retry()])
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(kit),
        server.room("ada") as ada,
        server.room("bo") as bo,
    ):
        assert [await ada.call("shop.price", item="a") for _ in range(2)] == [1, 1]
        assert await bo.call("shop.price", item="a") == 2
        assert await ada.call("shop.order") == "done"
        refused = await failure(ada.invoke("shop.order", {}, retry=False))
        assert (refused.code, refused.executed) == ("overloaded", "no")
        assert 0 < (refused.retry_after_s or 0) <= HOUR_S
        assert await bo.call("shop.order") == "done"

        stuck = await failure(ada.call("shop.block"))
        assert (stuck.code, stuck.executed) == ("deadline_exceeded", "maybe")
        shop.release.set()

        file = await failure(ada.invoke("shop.file"))
        assert (file.code, file.executed) == ("too_large", "yes")
    [*_, refusal, _] = [line for line in caplog.messages if "ended: tool=shop.order" in line]
    assert 'caller="ada"' in refusal
    assert "outcome=overloaded executed=no" in refusal


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_middleware_that_never_ends_ends_its_call_at_the_deadline_and_harms_no_other(
    is_stubborn: bool,
) -> None:
    began, release, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        began.set()
        try:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    if not is_stubborn:
                        raise
            async for chunk in next(call):
                yield chunk
        finally:
            left.set()

    shop = Shop()
    kit = RemoteToolkit(
        name="shop", tools=[FunctionTool(shop.order, middlewares=[never]), shop.price]
    )
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(kit),
        server.room("ada") as ada,
    ):
        await late_in_its_tool(
            lambda limit_s: ada.invoke("shop.order", {}, timeout_s=limit_s), began.is_set
        )
        assert await ada.call("shop.price", item="a") == 1
        release.set()
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()


async def test_answer_that_cannot_be_sent_has_the_code_that_a_result_of_the_tool_has() -> None:
    async def answer(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        yield "x" * 2_000_000 if call.arguments["item"] == "large" else {"text": object()}

    kit = Toolkit("shop", [Shop().price], middlewares=[answer])
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(kit),
        server.room("ada") as ada,
        Turn(ada, always=[LocalToolkit(kit, "near")]) as turn,
    ):
        for call in (partial(ada.call, "shop.price"), partial(turn.call, "near.price")):
            assert (await failure(call(item="large"))).code == "too_large"
            assert (await failure(call(item="odd"))).code == "invalid_result"
