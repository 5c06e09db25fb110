"""`tools.search` of a turn over the tools of a room: 1,000 or 10,000 of them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import cycle
from random import Random
from typing import Any

from bench.role import Facts, keep_calling, run_role, serve_orders
from bench.toolbus_leg import ROOM, route, set_up_tracing
from toolbus import RemoteToolkit, RoomClient, Tool, ToolContext, ToolSearch, Turn

TOOLKITS, TOOLS_EACH = 100, 100
VERBS = "get list create update delete send read find move copy".split()
NOUNS = "file user message invoice order ticket event page image table".split()
OTHERS = (
    "the of a for in and with from to by new old all any each next last own given other".split()
)
RARE = [f"{start}{end}" for start in NOUNS for end in ("ish", "let", "ware", "ling", "dom", "er")]
QUERIES = (
    "send a message to a user",
    "orders0.get_file",
    "update the orderware of an invoice",
    "list",
    "ticketling imageish",
    "mess",
    "what is the weather like",
)


class Act(Tool):
    """Does nothing. Ten thousand signatures would take 10 s to read."""

    input_schema = {"properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}}  # noqa: RUF012

    async def execute(self, context: ToolContext, /, *_: Any, text: str, limit: int = 10) -> str:
        return text


def toolkit(number: int) -> RemoteToolkit:
    """Make a toolkit whose tools have names and descriptions of common and of rare words."""
    random = Random(number)
    tools = []
    for at in range(TOOLS_EACH):
        words = random.choices(NOUNS + OTHERS + VERBS, k=20) + random.choices(RARE, k=5)
        name = f"{random.choice(VERBS)}_{random.choice(NOUNS)}{at or ''}"
        tools.append(Act(name, description=" ".join(words)))
    return RemoteToolkit(f"orders{number}", tools, description=" ".join(random.choices(RARE, k=5)))


async def host(facts: Facts) -> None:
    """Host all toolkits."""
    set_up_tracing("host", facts)
    async with AsyncExitStack() as stack:
        client = RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["host"])
        room = await stack.enter_async_context(client)
        for number in range(TOOLKITS):
            await stack.enter_async_context(room.host(toolkit(number)))
        await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    """Search the number of tools that an order names."""
    set_up_tracing("caller", facts)
    async with AsyncExitStack() as stack:
        client = RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["caller"])
        room = await stack.enter_async_context(client)
        turns: dict[int, Turn] = {}

        async def turn_over(count: int) -> Turn:
            if count not in turns:
                tools = ToolSearch(max_tools=count)
                await tools.start(room)
                stack.push_async_callback(tools.stop)
                turns[count] = await stack.enter_async_context(Turn(room, always=[tools.toolkit]))
            return turns[count]

        async def search(count: int, seconds: float, in_flight: int) -> Facts:
            turn = await turn_over(count)
            everything = await turn.call("tools.search", query="")
            if len(everything["tools"]) + everything["more"] != count:
                raise AssertionError(f"{everything['more']} tools and 10, not {count}")
            queries = cycle(QUERIES)

            async def call(*_: int) -> Any:
                return await turn.call("tools.search", query=next(queries))

            return await keep_calling(call, seconds, in_flight)

        await serve_orders({"call": search}, ready=True)


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
