"""One process: the steps of an agent whose model and tool do nothing.

A step is a reply with one use, and its result. It is measured from one result to the next; the use
alone, run by a turn, is what it is compared with.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from bench.role import Facts, keep_calling, run_role, serve_orders
from toolbus import Agent, FunctionTool, Toolkit, ToolUse, Turn
from toolbus.models import openai_chat
from toolbus.models.adapter import Adapter, Plain

STEPS = 20
"""Of an answer: so long is a conversation at most."""


class Asks:
    """A model that asks for the tool at once, in each step."""

    adapter: Adapter = openai_chat

    async def reply(self, request: Mapping[str, Any]) -> Plain:
        """Return no reply: an agent asks for a stream."""
        raise NotImplementedError

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Plain, None]:
        """Yield a reply with one use."""
        function = {"name": "demo__nothing", "arguments": "{}"}
        use = {"index": 0, "id": "1", "type": "function", "function": function}
        choice = {"index": 0, "delta": {"tool_calls": [use]}, "finish_reason": "tool_calls"}
        yield {"choices": [choice]}

    async def aclose(self) -> None:
        """Do nothing."""


async def nothing() -> None:
    """Do nothing."""


async def caller(_facts: Facts) -> None:
    """Take the steps of an agent, again and again."""
    kit = Toolkit("demo", [FunctionTool(nothing)])
    async with Agent(None, Asks(), always=[kit], max_steps=STEPS) as agent:

        async def answer() -> AsyncGenerator[str, None]:
            while True:
                await agent.forget()
                async with aclosing(agent.run_stream_events("Do nothing.")) as events:
                    async for event in events:
                        if isinstance(event, dict) and event["type"] == "tool_result":
                            yield event["state"]

        async with aclosing(answer()) as steps:

            async def step(*_: int) -> Any:
                if (state := await anext(steps)) != "ok":
                    raise AssertionError(f"a step ended {state}")

            async with Turn(None, always=[kit]) as turn:
                use = ToolUse("1", "demo__nothing", {})

                async def call(*_: int) -> Any:
                    await turn.run([use])

                async def measure(of: str, seconds: float, in_flight: int) -> Facts:
                    return await keep_calling(step if of == "agent" else call, seconds, in_flight)

                await serve_orders({"call": measure}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
