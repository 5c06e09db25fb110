import asyncio
import time
from collections.abc import AsyncIterator

from toolbus import (
    CallNext,
    Chunk,
    PermissionDenied,
    RoomException,
    ToolCall,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.middlewares import RateLimit, Retry, TimeLimit


async def timed(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    began_s = time.perf_counter()
    async for chunk in next(call):
        yield chunk
    took_s = time.perf_counter() - began_s
    print(f"{call.tool.name} took {'less' if took_s < 60 else 'more'} than a minute")


async def trimmed(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    text = call.arguments["text"].strip()
    async for chunk in next(call.replace(arguments={"text": text})):
        yield chunk


async def authorised(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    if call.arguments["text"].startswith("/"):
        raise PermissionDenied(f"{call.context.caller.name} may not shout commands")
    async for chunk in next(call):
        yield chunk


@tool(middlewares=[authorised])
async def shout(text: str) -> str:
    """Write a text in capital letters."""
    return text.upper()


kit = Toolkit(
    "texts",
    [shout],
    middlewares=[timed, RateLimit(3, per_s=3_600), Retry(), TimeLimit(10), trimmed],
)


async def main() -> None:
    for text in ("  hello ", "/stop", "again", "and again"):
        try:
            print((await kit.execute(ToolContext(), "shout", {"text": text})).value)
        except RoomException as error:
            print(f"{error.code}, executed {error.executed}: {error}")


asyncio.run(main())
