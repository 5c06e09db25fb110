"""Middlewares of a hosted toolkit run at its host, and their errors reach the caller unchanged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolbus import FileChunk, FunctionTool, RemoteToolkit, RoomException
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
            wrapped(self.wait, TimeLimit(0.05)),
            wrapped(self.block, TimeLimit(0.05)),
            wrapped(self.lines, OutputLimit(max_chunks=2)),
            wrapped(self.file, OutputLimit(10)),
        ]

    async def price(self, item: str) -> int:
        self.runs.append(item)
        return len(self.runs)

    async def order(self) -> str:
        return "done"

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.runs.append("cancelled")

    def block(self) -> None:
        self.release.wait(30)

    async def lines(self) -> AsyncIterator[str]:
        try:
            for letter in "abc":
                yield letter
        finally:
            self.runs.append("closed")

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

        late = await failure(ada.call("shop.wait"))
        assert (late.code, late.executed, shop.runs[-1]) == (
            "deadline_exceeded",
            "yes",
            "cancelled",
        )
        stuck = await failure(ada.call("shop.block"))
        assert (stuck.code, stuck.executed) == ("deadline_exceeded", "maybe")
        shop.release.set()

        chunks: list[Any] = []

        async def read() -> None:
            async with ada.stream("shop.lines", {}) as stream:
                async for chunk in stream:
                    chunks.append(chunk.value)

        long = await failure(read())
        assert (long.code, long.executed, chunks) == ("too_large", "yes", ["a", "b"])
        assert shop.runs[-1] == "closed"

        file = await failure(ada.invoke("shop.file"))
        assert (file.code, file.executed) == ("too_large", "yes")
    [*_, refusal, _] = [line for line in caplog.messages if "ended: tool=shop.order" in line]
    assert 'caller="ada"' in refusal
    assert "outcome=overloaded executed=no" in refusal
