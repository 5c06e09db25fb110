"""A person who takes two minutes to answer, where every time-out is a second."""

from __future__ import annotations

import textwrap
import time

import pytest

from support.processes.terminal_person import KEYS, Person

PROGRAM = textwrap.dedent(
    """
    import asyncio
    from toolbus import Permissions, Toolkit, ToolUse, Turn, approve_in_terminal, tool
    from toolbus.middlewares import TimeLimit
    from toolbus_server.testing import running_server

    @tool
    async def run(command: str) -> str:
        return f"ran {command}"

    async def main():
        async with running_server() as server, server.room("agent") as room:
            async with Turn(
                room,
                always=[Toolkit("shell", [run])],
                permissions=Permissions(),
                approve=approve_in_terminal,
                middlewares=[TimeLimit(1)],
                timeout_s=1,
            ) as turn:
                (result,) = await turn.run([ToolUse("1", "shell.run", {"command": "make"})])
                print("END", result.state, result.text, flush=True)

    asyncio.run(main())
    """
)


@pytest.mark.soak
def test_person_may_take_longer_than_every_time_out_of_the_call() -> None:
    with Person(PROGRAM) as person:
        person.reads(KEYS)
        time.sleep(120)  # the person thinks
        person.type("o")
        person.reads("END ")
        assert person.reads("make") == "ok ran "
