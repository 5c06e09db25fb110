"""One process: a turn with 200 tools in the words of the providers, and replies of their models.

No model is asked. Measured are the definitions of all tools, and one round of a loop: from the
reply of a model to the results of its uses, as messages. The uses alone, run by the turn, are what
the round is compared with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from bench.role import Facts, keep_calling, run_role, serve_orders
from support.models.wire_replies import Says, whole_reply
from toolbus import FunctionTool, Toolkit, ToolUse, Turn
from toolbus.models import anthropic, gemini, openai_chat, openai_responses
from toolbus.models.adapter import Adapter

TOOLS = 200
SAYS = Says("I add.", tuple((f"demo__add{number}", {"a": 35, "b": 7}) for number in range(4)))
ADAPTERS: dict[str, Adapter] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
GEMINI_PARTS = [{"text": SAYS.text}] + [
    {"function_call": {"name": name, "args": arguments}} for name, arguments in SAYS.uses
]
GEMINI_REPLY = {"candidates": [{"content": {"role": "model", "parts": GEMINI_PARTS}}]}
"""As its client gives it; what the API sends has other names."""


async def add(a: int, b: int, unit: str = "", tags: list[str] | None = None) -> dict[str, Any]:
    """Add two numbers."""
    return {"sum": a + b}


def reply_of(api: str) -> dict[str, Any]:
    """Return a reply with four uses."""
    return GEMINI_REPLY if api == "gemini" else whole_reply(api, SAYS)


def steps(turn: Turn) -> dict[str, Callable[[str], Awaitable[dict[str, Any]]]]:
    """Return what is measured, by name, for an API."""
    alone = [ToolUse(id_, name, arguments) for id_, name, arguments in SAYS.ids()]

    async def definitions(api: str) -> dict[str, Any]:
        return {"number": len(ADAPTERS[api].definitions(turn))}

    async def a_reply(api: str) -> dict[str, Any]:
        adapter, reply = ADAPTERS[api], reply_of(api)
        results = await turn.run(adapter.uses(reply))
        adapter.messages(reply, results)
        return {"sums": [result.value["sum"] for result in results]}

    async def uses(_: str) -> dict[str, Any]:
        results = await turn.run(alone)
        return {"sums": [result.value["sum"] for result in results]}

    return {"definitions": definitions, "reply": a_reply, "uses": uses}


async def caller(_facts: Facts) -> None:
    """Take the step that an order names, again and again."""
    kit = Toolkit("demo", [FunctionTool(add, name=f"add{number}") for number in range(TOOLS)])
    async with Turn(None, always=[kit]) as turn:
        made = steps(turn)

        async def measure(step: str, api: str, seconds: float, in_flight: int) -> Facts:
            async def call(*_: int) -> dict[str, Any]:
                return await made[step](api)

            found = await call()
            if found not in ({"number": TOOLS}, {"sums": [42] * 4}):
                raise AssertionError(f"the step {step} of {api} gave {found}")
            return await keep_calling(call, seconds, in_flight)

        await serve_orders({"call": measure}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
