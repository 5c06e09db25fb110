import os

from toolbus import Agent, Toolkit, open_model


def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


agent = Agent(
    None,
    open_model(os.environ["MODEL"]),
    name="counter",
    instructions="You count words. Answer with a number.",
    always=[Toolkit("words", [count])],
)
print(agent.run_sync("Count: the cat and the hat").text)
