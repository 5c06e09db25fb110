import asyncio
import sys

from toolbus import Agent, ExternalTool, SqliteStateStore, Toolkit, open_model

colour = ExternalTool(
    "colour",
    {"properties": {"text": {"type": "string"}}, "required": ["text"]},
    output_schema={"enum": ["red", "blue"]},
    description="Ask the customer for a colour.",
)


async def main(use: str = "", answer: str = "") -> None:
    async with (
        SqliteStateStore("hats.db") as store,
        Agent(
            None,
            open_model("scripted:hats.jsonl"),
            always=[Toolkit("customer", [colour])],
            store=store,
        ) as agent,
    ):
        if use:
            result = await agent.resume("hats", {use: answer})
        else:
            result = await agent.run("A hat, please.", conversation="hats")
        print(result.reason, result.text)
        for parked in result.parked:
            print(parked.id, parked.tool, parked.arguments)


asyncio.run(main(*sys.argv[1:]))
