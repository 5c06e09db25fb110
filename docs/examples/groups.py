import asyncio

from toolbus import RequiredToolkit, RoomClient, ToolGroup, Toolkit, ToolUse, Turn, tool


@tool(read_only=True)
async def read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


groups = [
    ToolGroup(
        "files",
        "Reads files.",
        [Toolkit("disk", [read])],
        instructions="Name the path of each file that you quote.",
    ),
    ToolGroup("language", "Counts words.", required=[RequiredToolkit("words")], active=True),
]


async def main() -> None:
    async with RoomClient(name="agent") as room, Turn(room, groups=groups) as turn:
        print(*(each.name for each in turn.tools))
        results = await turn.run(
            [
                ToolUse("1", "disk.read", {"path": "a.txt"}),
                ToolUse("2", "groups.reset_tools", {"files": True}),
                ToolUse("3", "disk.read", {"path": "a.txt"}),
            ]
        )
        for each in results:
            print(each.error.code if each.error else each.text.splitlines()[0])
        print(*(each.name for each in turn.tools))


asyncio.run(main())
