"""The scene of the demo in which a person elsewhere approves a change of a file before it is made.

The files are hosted by a process with a policy that asks about what changes something. The person
is another participant, here a function that reads the diff; so is the caller, who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from toolbus import ApiScope, ApprovalDenied, HeldCall, HoldInfo, RoomClient
from toolbus_toolkits.demo.processes import ROOM, DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneOutput, table
from toolbus_toolkits.demo.scenes import expect

__all__ = ["approval_scene"]

_SCOPE = ApiScope(approve_all=("files",))
"""All that the person may do is to approve calls of `files`, whoever makes them."""
_POLICY = 'mode = "default"\n'
_LIST = "milk\nbread\n"
_CHANGED = "milk\nbread\ncheese\n"


def approval_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene in which one change is approved, and another one denied."""
    return Scene(
        "A person approves a change",
        "host files that ask before they change anything; change a file and remove all of it, each "
        "with a time limit of one second, while a person elsewhere takes two",
        "each call waits; the person sees the diff, approves one and denies one",
        partial(_ask_person, processes, output),
    )


async def _ask_person(processes: DemoProcesses, output: SceneOutput) -> str:
    folder = processes.folder / "shared"
    folder.mkdir()
    (folder / "list.txt").write_text(_LIST, encoding="utf-8")
    policy = processes.folder / "policy.toml"
    policy.write_text(_POLICY, encoding="utf-8")
    await processes.host("files", "files", "--root", str(folder), "--policy", str(policy))
    await processes.wait_for_hosts(files=1)
    rows: list[tuple[str, str]] = []
    async with _person(processes, rows):
        room = processes.room
        await room.call("files.read", path="list.txt")  # what only reads does not wait
        held: list[HeldCall] = []
        await room.invoke(
            "files.write",
            {"path": "list.txt", "text": _CHANGED},
            timeout_s=1,
            purpose="we are out of cheese",
            on_held=held.append,
        )
        states = [wait.outcome for wait in held]
        expect(states == ["open", "approved"], f"the caller has heard of {states}")
        denial = await _denied(room)
    rows.append(("executed: no", denial.message))
    output.print_tables(table("what the person sees", ("event", "content"), rows, max_chars=72))
    text = (folder / "list.txt").read_text(encoding="utf-8")
    expect(text == _CHANGED, f"the file has {text!r}")
    return "the file has the change that was approved, and not the other one"


async def _denied(room: RoomClient) -> ApprovalDenied:
    try:
        await room.invoke("files.write", {"path": "list.txt", "text": ""}, timeout_s=1)
    except ApprovalDenied as error:
        expect(error.executed == "no", f"executed is {error.executed}")
        return error
    raise AssertionError("a call that was denied has run")


@asynccontextmanager
async def _person(processes: DemoProcesses, rows: list[tuple[str, str]]) -> AsyncIterator[None]:
    """Let a person answer while the block runs: more is approved, and nothing else."""
    token = processes.token("ann", _SCOPE)
    async with (
        RoomClient(processes.url, room=ROOM, token=token) as ann,
        ann.events(["holds"]) as events,
    ):

        async def answer() -> None:
            async for event in events:
                if event.name == "hold_added" and event.hold is not None:
                    await _answer(ann, await ann.hold(event.hold.id), rows)

        answering = asyncio.create_task(answer())
        try:
            yield
        finally:
            answering.cancel()


async def _answer(ann: RoomClient, hold: HoldInfo, rows: list[tuple[str, str]]) -> None:
    assert hold.caller is not None, "a call has a caller"
    assert hold.body is not None, "as the hold is open"
    rows.append((f"{hold.caller.name} waits", f"{hold.tool}: {hold.body.reason}"))
    rows += [("", line) for line in hold.body.preview.splitlines()[2:]]
    if hold.purpose:
        await asyncio.sleep(2)  # longer than the time limit of the call
        rows.append(("approved", f'it says: "{hold.purpose}"'))
        await ann.approve(hold)
    else:
        rows.append(("denied", ""))
        await ann.deny(hold, "say what for")
