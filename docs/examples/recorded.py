import asyncio

from toolbus import Records, RoomException, ToolContext, Toolkit, tool


@tool(read_only=True)
async def length(text: str) -> int:
    """Count the letters of a text."""
    return len(text)


async def main() -> None:
    records = Records.memory(1_000)
    texts = Toolkit("texts", [length], records=records)
    for arguments in ({"text": "hat"}, {"txt": "hat"}):
        try:
            await texts.execute(ToolContext(), "length", arguments)
        except RoomException as error:
            print(error)
    for call in records.calls(tool="texts.*"):
        print(call.tool, call.caller, call.decision, call.outcome, call.executed)


asyncio.run(main())
