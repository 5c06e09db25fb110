import asyncio
from pathlib import Path

from toolbus import RoomClient, ToolGroup, Turn
from toolbus_toolkits.skills import Skills

LETTERS = """\
---
name: letters
description: How this office writes letters.
---
Begin with the date. The file closing.txt has the last line.
"""


def write_skill() -> None:
    folder = Path("my-skills", "letters")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(LETTERS)
    (folder / "closing.txt").write_text("With kind regards")


async def main() -> None:
    write_skill()
    office = ToolGroup("office", "Writes letters.", skills=[Skills(["my-skills"])], active=True)
    async with RoomClient(name="agent") as room, Turn(room, groups=[office]) as turn:
        print(turn.prompt("{skills}"))
        for file in (None, "closing.txt"):
            shown = await turn.call("skills.view_skill", name="letters", file=file)
            print(shown["text"].strip())


asyncio.run(main())
