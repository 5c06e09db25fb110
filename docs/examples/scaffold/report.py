"""The workflow report: plain Python whose steps are calls of tools.

An agent is a step too: `turn.call("helper.ask", text=...)`.
"""

import asyncio
import sys

from toolbus import RoomException, Toolkit, Turn, tool
from toolbus.middlewares import Retry

DEADLINE_S = 60
NEXT = {
    "no": "nothing was published: run it again",
    "maybe": "it may be published: look there before you run it again",
    "yes": "it was begun: look there before you run it again",
}
"""What to do after a failed call, by whether its tool has run (`executed`)."""


@tool(read_only=True)
async def title(topic: str) -> str:
    """Return a title for a topic."""
    return topic.title()


@tool(read_only=True)
async def facts(topic: str) -> list[str]:
    """Return what is known about a topic."""
    return [f"There are {topic}.", f"Some {topic} are old."]


@tool
async def publish(text: str) -> int:
    """Publish a text, and return how many characters it has."""
    return len(text)


# Of toolkits that others host: `Turn(room, required=["research", "press"])`.
TOOLKITS = [Toolkit("research", [title, facts]), Toolkit("press", [publish])]


async def run(turn: Turn, topic: str) -> str:
    """Run all steps.

    Raises `RoomException` for a call that failed, and `TimeoutError`.
    """
    async with asyncio.timeout(DEADLINE_S):
        # These two do not wait for each other.
        heading, known = await asyncio.gather(
            turn.call("research.title", topic=topic),
            turn.call("research.facts", topic=topic),
        )
        text = "\n".join([heading, *known])
        await turn.call("press.publish", text=text)
        return text


async def main(topic: str, toolkits: list[Toolkit] = TOOLKITS) -> str:
    """Return the text, or what failed and what to do next."""
    # `Retry` calls again only what has not run, or does no harm a second time.
    async with Turn(None, always=toolkits, middlewares=[Retry(3)]) as turn:
        try:
            return await run(turn, topic)
        except RoomException as error:
            return f"{error.message}; {NEXT[error.executed]}"
        except TimeoutError:
            return f"not done within {DEADLINE_S} s; {NEXT['maybe']}"


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1])))
