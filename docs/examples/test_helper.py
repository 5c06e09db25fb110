import asyncio

from toolbus import Agent, open_model
from words import words


async def answer(text: str) -> list[str]:
    """Ask an agent with a scripted model; return what happened."""
    model = open_model("scripted:replies.jsonl")
    happened: list[str] = []
    async with Agent(None, model, always=[words]) as agent:
        async for event in agent.run_stream_events(text):
            match event:
                case {"type": "tool_result", "tool": tool, "state": state}:
                    happened.append(f"{tool} {state}")
                case {"type": "end", "text": text}:
                    happened.append(text)
    return happened


def test_helper_counts_words() -> None:
    happened = asyncio.run(answer("Which word is the most frequent one: the cat and the hat"))
    assert happened == ["words.count ok", "The most frequent word is 'the'."]
