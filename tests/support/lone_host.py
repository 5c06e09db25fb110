"""A host without a server: what is dispatched to it, and what it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from toolbus import ToolContext, Toolkit, tool
from toolbus.errors import RoomException
from toolbus.runner import Runner
from toolbus.telemetry import Tracing
from toolbus.wire import (
    CallId,
    Cancel,
    Dispatch,
    Failed,
    Frame,
    RequestId,
    Result,
    encode,
    exception_of,
    pack_body,
    unpack_body,
)

ALICE = pack_body(["p1", "alice", "user", "acme"])


class Server:
    """The other end: dispatches, and takes the answers."""

    def __init__(self, max_inflight: int) -> None:
        self.answers: asyncio.Queue[Result | Failed] = asyncio.Queue()
        self.rooms: list[tuple[int, float | None]] = []
        self.runner = Runner(
            send=self._take,
            room_of=lambda call, deadline_at: self.rooms.append((call, deadline_at)),
            room_name="lab",
            tracing=Tracing(),
            max_inflight=max_inflight,
        )

    def _take(self, frame: Frame) -> None:
        encode(frame)
        assert isinstance(frame, Result | Failed)
        self.answers.put_nowait(frame)

    def dispatch(
        self, number: int, tool: str, /, *, packed: bytes | None = None, **more: Any
    ) -> None:
        """Hand over a call; `more` are its arguments, but for `header`."""
        header = {"caller": ALICE, **more.pop("header", {})}
        arguments = pack_body(more) if packed is None else packed
        call_id = CallId(str(number))
        self.runner.dispatch(Dispatch(number, call_id, "t", tool, 60_000, arguments, header))

    def cancel(self, number: int) -> None:
        self.runner.cancel(Cancel(RequestId(number), "cancelled"))

    async def answer(self) -> Any:
        """Take the next answer: a value, or the error it stands for."""
        async with asyncio.timeout(5):
            frame = await self.answers.get()
        return exception_of(frame) if isinstance(frame, Failed) else unpack_body(frame.body)[-1]

    async def error(self) -> RoomException:
        answer = await self.answer()
        assert isinstance(answer, RoomException), answer
        return answer

    async def idle(self) -> None:
        """Wait until nothing runs, queues or was left behind."""
        async with asyncio.timeout(5):
            while tasks := [run.task for run in self.runner._alive if run.task]:
                await asyncio.wait(tasks)
        assert self.runner._runs == {}
        assert self.answers.empty()


class Stage:
    """Makes servers with tools on them, and lets go of everything at the end."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = asyncio.Event()
        self.ended: list[str] = []
        self._servers: list[Server] = []
        self._loop = asyncio.get_running_loop()

    def server(self, *tools: Any, kit: type[Toolkit] = Toolkit, max_inflight: int = 256) -> Server:
        server = Server(max_inflight)
        server.runner.host(kit("t", tools), public=True)
        self._servers.append(server)
        return server

    def enter(self) -> None:
        self._loop.call_soon_threadsafe(self.entered.set)

    async def wait_entered(self) -> None:
        async with asyncio.timeout(5):
            await self.entered.wait()
        self.entered.clear()

    async def close(self) -> None:
        self.gate.set()
        for server in self._servers:
            async with asyncio.timeout(5):
                await server.runner.stop()
            await server.idle()


def hold(stage: Stage, **options: Any) -> Callable[..., Any]:
    """Make an async tool that waits until it is cancelled."""

    @tool(name="hold", **options)
    async def hold(number: int = 0) -> str:
        stage.enter()
        try:
            await asyncio.Event().wait()
        finally:
            stage.ended.append(f"hold {number}")
        return ""

    return hold


def hold_thread(stage: Stage, **options: Any) -> Callable[..., Any]:
    """Make a sync tool that waits until the gate is open, whatever it is told."""

    @tool(name="hold_thread", **options)
    def hold_thread(context: ToolContext, number: int = 0) -> str:
        stage.enter()
        stage.gate.wait(10)
        stage.ended.append(f"cancelled {context.cancelled}")
        return str(number)

    return hold_thread


@tool
async def echo(text: str) -> str:
    return text
