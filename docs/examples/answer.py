import asyncio

from toolbus import RoomClient, Toolkit, Turn, tool


@tool
async def upper(text: str) -> str:
    """Write a text in capital letters."""
    return text.upper()


async def main() -> None:
    async with (
        RoomClient(name="agent") as agent,
        RoomClient(name="ann") as ann,
        agent.events(["messages"]) as asked,
        ann.events(["messages"]) as answered,
    ):
        await ann.send("agent", "ask", {"text": "good day", "tools": [{"name": "case"}]})

        message = (await anext(asked)).message
        assert message is not None
        async with Turn(agent, message=message, builders=[Toolkit("case", [upper])]) as turn:
            reply = await turn.call("case.upper", text=message.body["text"])
        await agent.send(message.sender.full_name, "answer", reply)

        event = await anext(answered)
        print(event.message and event.message.body)


asyncio.run(main())
