import asyncio
from typing import Any

from toolbus import RoomClient, Turn


def model(tools: Any, messages: list[Any]) -> dict[str, Any]:
    """Replace a model: first ask for a tool, then answer."""
    if len(messages) == 1:
        return {"tool": tools[0].name, "arguments": {"text": messages[0], "top": 1}}
    return {"answer": f"The most frequent word is {next(iter(messages[-1]))!r}."}


async def main() -> None:
    async with RoomClient(name="agent") as room:
        async with Turn(room, required=["words"]) as turn:
            messages: list[Any] = ["the cat and the hat"]
            while "answer" not in (reply := model(turn.tools, messages)):
                messages.append(await turn.call(reply["tool"], reply["arguments"]))
            print(reply["answer"])


asyncio.run(main())
