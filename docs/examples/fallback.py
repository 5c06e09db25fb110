import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from toolbus import RESTART, Agent, CallNextModel, Model, ModelError, RequestToModel, open_model


class Fallback:
    """Asks another model of the same API where a request fails."""

    def __init__(self, other: Model) -> None:
        self.other = other

    async def __call__(
        self, call: RequestToModel, next: CallNextModel
    ) -> AsyncIterator[Mapping[str, Any]]:
        has_begun = False
        try:
            async with aclosing(next(call)) as events:
                async for event in events:
                    has_begun = True
                    yield event
            return
        except ModelError as error:
            print("step", call.step, "asks the other model:", error)
        if has_begun:
            yield RESTART
        async with aclosing(next(call.replace(model=self.other))) as events:
            async for event in events:
                yield event


async def main() -> None:
    fallback = Fallback(open_model("scripted:names.jsonl"))
    model = open_model("scripted:outage.jsonl")
    async with Agent(None, model, model_middlewares=[fallback]) as agent:
        for text in ("I am Ann.", "Who am I?"):
            async for event in agent.run_stream_events(text):
                match event:
                    case {"type": "end", "text": answer}:
                        print(answer)


asyncio.run(main())
