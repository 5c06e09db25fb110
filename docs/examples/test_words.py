import asyncio

from toolbus import ToolContext
from toolbus_server.testing import running_server
from words import words


def test_count_without_a_room() -> None:
    chunk = asyncio.run(words.execute(ToolContext(), "count", {"text": "a b a", "top": 1}))
    assert chunk.value == {"a": 2}


async def count_in_a_room() -> object:
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(words),
        server.room("ann") as ann,
    ):
        return await ann.call("words.count", text="a b a", top=1)


def test_count_in_a_room() -> None:
    assert asyncio.run(count_in_a_room()) == {"a": 2}
