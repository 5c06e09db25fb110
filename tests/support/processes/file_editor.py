"""A caller that edits three files again and again, beside others: `URL TOKEN NAME HOST`.

It reads the files, says `read`, waits for a line, adds a line to each once, and says for each
whether that was `done` or `changed`. Then it adds ten lines to each, reading again where it was
told to, and says `ended`.
"""

from __future__ import annotations

import asyncio
import sys

from toolbus import RoomClient, ToolFailed

FILES = ("a.txt", "b.txt", "c.txt")


def say(words: str) -> None:
    """Say a line."""
    print(words, flush=True)  # noqa: T201 - the test reads it


async def edit(room: RoomClient, host: str, path: str, line: str) -> str:
    """Add a line before the last one; return "done", or the reason why not."""
    try:
        await room.invoke(
            "files.edit",
            {"path": path, "old_text": "end\n", "new_text": f"{line}\nend\n"},
            participant=host,
        )
    except ToolFailed as error:
        return str(error.details["reason"])
    return "done"


async def main(url: str, token: str, name: str, host: str) -> None:
    """Edit, and say what became of it."""
    async with RoomClient(url, room="lab", token=token) as room:
        for path in FILES:
            await room.invoke("files.read", {"path": path}, participant=host)
        say("read")
        await asyncio.to_thread(sys.stdin.readline)
        outcomes = [await edit(room, host, path, f"{name} first") for path in FILES]
        say(" ".join(outcomes))
        for number in range(10):
            for path in FILES:
                while (outcome := await edit(room, host, path, f"{name} {number}")) != "done":
                    assert outcome == "changed", outcome
                    await room.invoke("files.read", {"path": path}, participant=host)
        say("ended")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
