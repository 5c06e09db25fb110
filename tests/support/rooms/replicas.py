"""Toolkits with several hosts, which count calls or return where a call ran."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from support.processes.server_process import ServerProcess
from toolbus import Toolkit, tool
from toolbus_server.testing import TestServer

REPLICAS = ("one", "two", "three")


def carts(instance: str, by: str = "customer") -> Toolkit:
    """Make a toolkit whose tools return the replica at which they ran."""

    @tool(affinity=by)
    async def add(item: str, customer: str | dict[str, int] | None = None) -> str:
        return instance

    @tool(affinity="caller")
    async def mine() -> str:
        return instance

    @tool
    async def anywhere() -> str:
        return instance

    return Toolkit("carts", [add, mine, anywhere])


class Pair:
    """Two hosts of one toolkit: a fast one, and one whose calls each take a while or never end."""

    def __init__(self, slow_s: float | None = None) -> None:
        self.served = {"quick": 0, "slow": 0}
        self.go = asyncio.Event()
        self._slow_s = slow_s

    def toolkit(self, host: str) -> Toolkit:
        @tool
        async def run() -> str:
            if host == "slow" and self._slow_s is None:
                await self.go.wait()
            elif host == "slow":
                await asyncio.sleep(self._slow_s or 0)
            self.served[host] += 1
            return host

        return Toolkit("work", [run])

    async def join(self, server: TestServer | ServerProcess, stack: AsyncExitStack) -> None:
        for host in self.served:
            room = await stack.enter_async_context(server.room("pair", instance=host))
            await stack.enter_async_context(room.host(self.toolkit(host)))
