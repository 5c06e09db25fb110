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
        name="counter",
        instructions="You count words. Answer with a number.",
        always=[Toolkit("words", [count])],
    ) as agent:
        async for event in agent.answer("Count: the cat and the hat"):
            match event:
                case {"type": "end", "text": text}:
                    print(text)


asyncio.run(main())
