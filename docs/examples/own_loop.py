import asyncio
from contextlib import aclosing

from toolbus import RoomClient, Turn, agent_loop, open_model


async def main() -> None:
    model = open_model("scripted:replies.jsonl")
    conversation = [model.adapter.user("Which word is the most frequent one: the cat and the hat")]
    async with RoomClient(name="agent") as room, Turn(room, required=["words"]) as turn:
        async with aclosing(agent_loop(turn, model, conversation, max_steps=5)) as events:
            async for event in events:
                match event:
                    case {"type": "tool_result", "tool": tool, "text": text}:
                        print(tool, "returned", text)
                    case {"type": "end", "text": text, "steps": steps}:
                        print(text, steps)


asyncio.run(main())
