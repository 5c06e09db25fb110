import asyncio

from toolbus import Agent, SqliteStates, open_model


async def main() -> None:
    model, store = open_model("scripted:names.jsonl"), SqliteStates("helper.db")
    async with Agent(None, model, name="helper", store=store) as agent:
        for text, name in [("I am Ann.", ""), ("Who am I?", ""), ("I am Ann.", "work")]:
            async for event in agent.answer(text, conversation=name):
                match event:
                    case {"type": "end", "text": answer}:
                        print(answer)
    await store.aclose()


asyncio.run(main())
