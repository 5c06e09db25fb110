"""The agent counter, with a tool of its own.

`MODEL=openai:gpt-5-mini python counter.py` joins a room, where others call its tool `ask`;
`MODEL=scripted:test_counter.jsonl` needs no key.
"""

import os

from toolbus import Agent, Model, Toolkit, open_model, tool


@tool(read_only=True)
async def count(text: str) -> int:
    """Count the words of a text.

    Args:
        text: The text.
    """
    return len(text.split())


def make_agent(model: Model) -> Agent:
    """Return the agent; a test gives it a model whose replies are in a file."""
    return Agent(
        None,  # `run` joins a room
        model,
        name="counter",
        instructions="Answer briefly. Count words by the tool.",
        always=[Toolkit("words", [count])],
    )


if __name__ == "__main__":
    make_agent(open_model(os.environ["MODEL"])).toolkit.run()
