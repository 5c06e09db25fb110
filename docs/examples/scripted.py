import asyncio
from pathlib import Path

from toolbus import RoomClient, Turn
from toolbus_toolkits.skills import Skills, SkillSource


def write_script() -> None:
    Path("my-skills/letters/greet.sh").write_text('echo "Dear $1,"\n')


async def main() -> None:
    write_script()
    skills = Skills([SkillSource(Path("my-skills"), run=True)])
    async with RoomClient(name="agent") as room, Turn(room, skills=[skills]) as turn:
        ran = await turn.call("skills.run", skill="letters", script="greet.sh", args=["Ann"])
        print(ran["stdout"].strip())


asyncio.run(main())
