import asyncio

from toolbus import AgentState, ToolFailed, Turn
from toolbus_toolkits.notes import Scratchpad, Tasks, Todo


async def main() -> None:
    state = AgentState()
    tasks = Tasks(initial=["Read the figures"], prompt=True)
    async with Turn(None, always=[tasks, Todo(), Scratchpad()], state=state) as turn:
        await turn.call("tasks.create", subject="Write the report", blocked_by=["1"])
        print(turn.prompt("{toolkits}"))
        try:
            await turn.call("tasks.update", task_id=1, add_blocked_by=[2])
        except ToolFailed as error:
            print(error)
        await turn.call("tasks.update", task_id=1, status="completed")
        await turn.call("scratchpad.write", name="figures", text="1, 2, 3")
    for task in Tasks.of(state):
        print(task.id, task.status, task.subject)
    print(Scratchpad.of(state))


asyncio.run(main())
