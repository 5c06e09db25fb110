import asyncio
import os

from toolbus import Agent, Toolkit, open_model


def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def main() -> None:
    async with Agent(
        None,
        open_model(os.environ["MODEL"]),
        instructions="Answer briefly.",
        always=[Toolkit("words", [count])],
        max_steps=5,
    ) as agent:
        async for event in agent.run_stream_events("How many words: the cat and the hat"):
            match event:
                case {"type": "text", "text": text}:
                    print(text, end="")
    print()


asyncio.run(main())
