import asyncio

from pydantic import BaseModel, Field

from toolbus import Records, RoomException, ToolContext, ToolFailed, Toolkit, tool
from toolbus.middlewares import Retry, TimeLimit

attempts: list[str] = []


class Search(BaseModel):
    query: str = Field(min_length=3, description="What to look for.")


@tool(args_schema=Search, read_only=True, idempotent=True)
async def search(query: str) -> str:
    """Search the archive."""
    attempts.append(query)
    if len(attempts) == 1:
        raise ToolFailed("the archive is busy", retryable=True)
    return f"results for {query}"


records = Records.memory(1_000)
archive = Toolkit("archive", [search], middlewares=[Retry(3), TimeLimit(30)], records=records)


async def main() -> None:
    for query in ("hats", "x"):
        try:
            print((await archive.execute(ToolContext(), "search", {"query": query})).value)
        except RoomException as error:
            print(error.code, error.details["path"])
    for record in reversed(records.calls()):
        print(record.tool, record.outcome, record.executed)


asyncio.run(main())
