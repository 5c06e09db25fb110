import asyncio
import sys

from toolbus import Agent, SqliteStateStore, open_model


async def main(text: str, conversation: str = "") -> None:
    model = open_model("scripted:names.jsonl")
    async with (
        SqliteStateStore("helper.db") as store,
        Agent(None, model, name="helper", store=store) as agent,
    ):
        async for event in agent.run_stream_events(text, conversation=conversation):
            match event:
                case {"type": "end", "text": answer}:
                    print(answer)


asyncio.run(main(*sys.argv[1:]))
