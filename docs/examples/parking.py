import asyncio
import sys
from pathlib import Path

from toolbus import AgentState, ExternalTool, InvalidResult, Toolkit, ToolUse, Turn

colour = ExternalTool(
    "colour",
    {"properties": {"text": {"type": "string"}}, "required": ["text"]},
    output_schema={"enum": ["red", "blue"]},
    description="Ask the customer for a colour.",
)


async def ask(state: AgentState) -> None:
    async with Turn(None, always=[Toolkit("customer", [colour])], state=state) as turn:
        await turn.run([ToolUse("1", "customer__colour", {"text": "Which hat?"})])
        for use in turn.parked:
            print("parked", use.id, use.tool, use.arguments)


async def settle(state: AgentState, answer: str) -> None:
    async with Turn(None, always=[Toolkit("customer", [colour])], state=state) as turn:
        try:
            await turn.settle("1", answer)
        except InvalidResult as error:
            print(error.message)
            return
        for result in turn.take_results():
            print(result.id, result.state, result.value)


saved = Path("state.json")
if len(sys.argv) == 1:
    state = AgentState()
    asyncio.run(ask(state))
else:
    state = AgentState.from_json(saved.read_text())
    asyncio.run(settle(state, sys.argv[1]))
saved.write_text(state.to_json())
