"""The toolkit `tasks`: what an agent has to do, in which order, and how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from toolbus import AgentState, ToolContext, ToolFailed, tool
from toolbus.chunks.json_values import cut
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.notes.notes import (
    FilePath,
    NotesToolkit,
    Shape,
    as_value_error,
    fault_of,
)

__all__ = ["Task", "TaskLine", "Tasks"]

_MAX_TASKS = 500
"""A model reads the list of all of them."""
_MAX_IN_PROMPT = 50
"""Each request to a model has them."""

_Status: TypeAlias = Literal["pending", "in_progress", "completed"]
_Subject: TypeAlias = Annotated[str, Field(min_length=1)]
_Id: TypeAlias = str | int
"""Models write the id "3" as a number too."""


class Task(BaseModel, frozen=True, extra="allow"):
    """A task."""

    id: str = ""
    """Empty for one that gets its id when it is stored."""
    subject: _Subject
    """What is to be done, in one line."""
    description: str = ""
    status: _Status = "pending"
    owner: str = ""
    """Who does it; empty for nobody yet."""
    blocks: list[str] = Field(default_factory=list)
    """The ids of the tasks that wait for this one."""
    blocked_by: list[str] = Field(default_factory=list)
    """The ids of the tasks that this one waits for."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """JSON values for programs."""


_TASKS = TypeAdapter(dict[str, Task])


class TaskLine(TypedDict):
    """A task in the list of all."""

    id: str
    subject: str
    status: _Status
    owner: str
    waits_for: list[str]
    """The ids of the tasks that have to be completed before."""


class _TaskNotes(Shape):
    last_id: int = 0
    """The largest number that was an id."""
    tasks: dict[str, Any] = Field(default_factory=dict)
    """By id, as JSON without `id` and `blocks`; read one by one, since there may be many."""

    def plain(self) -> dict[str, Any]:
        return {**(self.model_extra or {}), "last_id": self.last_id, "tasks": self.tasks}

    def known(self, ids: Iterable[_Id]) -> list[str]:
        """Return ids as text. Raises `ToolFailed` that names those that no task has."""
        names = list(map(str, ids))
        if unknown := [name for name in names if name not in self.tasks]:
            text = cut(", ".join(map(repr, unknown)))
            there = cut(", ".join(self.tasks)) or "none"
            raise ToolFailed(f"there is no task {text}; the ids of the tasks: {there}")
        return names

    def get(self, name: str) -> Task:
        """Return a task without what it blocks. Raises `ToolFailed` for another shape."""
        stored = self.tasks[name]
        if isinstance(stored, dict):
            stored = {**stored, "id": name, "blocks": []}
        try:
            return Task.model_validate(stored)
        except ValidationError as error:
            raise ToolFailed(
                f"task {name} is stored in another shape: {fault_of(error)}; only"
                ' status="deleted" can change it'
            ) from None

    def whole(self, name: str) -> Task:
        """Return a task. Raises `ToolFailed` for another shape."""
        blocks = [other for other in self.tasks if name in self._blockers(other)]
        return self.get(name).model_copy(update={"blocks": blocks})

    def put(self, task: Task) -> None:
        """Store a task in place of the one with its id."""
        self.tasks[task.id] = task.model_dump(exclude={"id", "blocks"})

    def add(self, task: Task) -> str:
        """Store a further task, and return its id. Raises `ToolFailed`."""
        if len(self.tasks) >= _MAX_TASKS:
            raise ToolFailed(
                f"there are {_MAX_TASKS} tasks, and no more are stored: delete some with"
                ' status="deleted"'
            )
        # The ids that another program has stored may be larger than the last one.
        self.last_id = max([self.last_id, *map(_number, self.tasks)])
        name = task.id or str(self.last_id + 1)
        if name in self.tasks:
            raise ToolFailed(f"two tasks have the id {name}")
        self.last_id = max(self.last_id, _number(name)) if task.id else self.last_id + 1
        self.put(task.model_copy(update={"id": name}))
        return name

    def remove(self, name: str) -> None:
        """Delete a task; the others wait for it no more."""
        del self.tasks[name]
        for other in self.tasks:
            self.unlink(name, other)

    def link(self, blocker: str, blocked: str) -> None:
        """Let a task wait for another one. Raises `ToolFailed` if it would wait for itself."""
        task = self.get(blocked)
        if blocker not in task.blocked_by:
            self.put(task.model_copy(update={"blocked_by": [*task.blocked_by, blocker]}))
            self._refuse_cycle(blocked)

    def unlink(self, blocker: str, blocked: str) -> None:
        """Let a task not wait for another one."""
        blockers = self._blockers(blocked)
        if blocker in blockers:
            left = [name for name in blockers if name != blocker]
            self.tasks[blocked] = {**self.tasks[blocked], "blocked_by": left}

    def listed(self) -> list[TaskLine]:
        """Return all tasks in the order of their creation. Raises as `get`."""
        try:
            tasks = _TASKS.validate_python(self.tasks)  # at once, since there may be many
        except ValidationError:
            tasks = {name: self.get(name) for name in self.tasks}  # raises for the one
        open_ids = {name for name, task in tasks.items() if task.status != "completed"}
        return [
            TaskLine(
                id=name,
                subject=task.subject,
                status=task.status,
                owner=task.owner,
                waits_for=[other for other in task.blocked_by if other in open_ids],
            )
            for name, task in tasks.items()
        ]

    def lines(self) -> list[str]:
        open_tasks = [task for task in self.listed() if task["status"] != "completed"]
        lines = []
        for task in open_tasks[:_MAX_IN_PROMPT]:
            waits = ", ".join(task["waits_for"])
            facts = f"{task['status']}, waits for {waits}" if waits else task["status"]
            lines.append(f"- {task['id']} ({facts}): {one_line(task['subject'], SHOWN_CHARS)}")
        if len(open_tasks) > _MAX_IN_PROMPT:
            lines.append(f"- and {len(open_tasks) - _MAX_IN_PROMPT} more, which list returns")
        return lines

    def _blockers(self, name: str) -> list[str]:
        task = self.tasks[name]
        found = task.get("blocked_by") if isinstance(task, dict) else None
        return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []

    def _refuse_cycle(self, name: str) -> None:
        before: dict[str, str] = {}
        queue = deque([name])
        while queue:
            current = queue.popleft()
            for other in filter(self.tasks.__contains__, self._blockers(current)):
                if other == name:
                    path = [name, current]
                    while path[-1] != name:
                        path.append(before[path[-1]])
                    steps = " waits for ".join(reversed(path))
                    raise ToolFailed(f"no task can wait for itself: {cut(steps)}")
                if other not in before:
                    before[other] = current
                    queue.append(other)


def _number(name: str) -> int:
    """Return the number that an id is; 0 for any other text."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 16 else 0


class Tasks(NotesToolkit[_TaskNotes]):
    """Tasks of an agent: `create`, `get`, `list` and `update`.

    Args:
        name: The name of the toolkit.
        initial: The tasks at first, each as a `Task` or by its subject. Those without an id get
            "1", "2" and so on.
        prompt: Whether `Turn.prompt` has the open tasks.
        file: The SQLite file for calls over a room; `notes.db` in `TOOLBUS_HOME` by default.

    Raises `ValueError` if the initial tasks are too many or too large, if two have one id, or if
    their dependencies name others, or make a cycle.
    """

    def __init__(
        self,
        name: str = "tasks",
        *,
        initial: Iterable[Task | str] = (),
        prompt: bool = False,
        file: FilePath = None,
    ) -> None:
        super().__init__(
            name,
            _initial_notes(initial),
            [self._create, self._get, self._list, self._update],
            prompt=prompt,
            file=file,
            title="Tasks",
            description="What you have to do, with dependencies, for work of many steps.",
            rules=[
                "Set a task to in_progress when you begin it, and to completed when it is done.",
                "Begin with tasks whose `waits_for` in the list is empty.",
            ],
        )

    @staticmethod
    def of(state: AgentState, name: str = "tasks") -> list[Task]:
        """Return the tasks in the state of an agent; initial ones are there from its first call on.

        Args:
            state: The state.
            name: The name of the toolkit in the turns of the agent.

        Raises `ValueError` if something else is stored there.
        """
        with as_value_error(f"state of {name}"):
            notes = _TaskNotes.of(state.state.get(name, {}))
            return [notes.whole(name) for name in notes.tasks]

    @tool(name="create")
    async def _create(
        self,
        context: ToolContext,
        subject: _Subject,
        description: str = "",
        owner: str = "",
        blocked_by: Sequence[_Id] = (),
        metadata: dict[str, JsonValue] | None = None,
    ) -> Task:
        """Create a task that is pending, and return it.

        Args:
            context: The call.
            subject: What is to be done, in one line.
            description: All that is needed to do it.
            owner: Who does it.
            blocked_by: The ids of tasks that have to be completed before.
            metadata: JSON values for programs.
        """

        def change(notes: _TaskNotes) -> Task:
            values = _merged({}, metadata)
            task = Task(subject=subject, description=description, owner=owner, metadata=values)
            blockers = notes.known(blocked_by)
            name = notes.add(task)
            for blocker in blockers:
                notes.link(blocker, name)
            return notes.whole(name)

        return await self.change_notes(context, change)

    @tool(name="get", read_only=True, idempotent=True)
    async def _get(self, context: ToolContext, task_id: _Id) -> Task:
        """Return a task with all that is known of it.

        Args:
            context: The call.
            task_id: Its id.
        """
        return await self.read_notes(context, lambda notes: notes.whole(*notes.known([task_id])))

    @tool(name="list", read_only=True, idempotent=True)
    async def _list(self, context: ToolContext, status: _Status | None = None) -> list[TaskLine]:
        """List the tasks in the order in which they were created, without their descriptions.

        Args:
            context: The call.
            status: Only those with this status.
        """

        def look(notes: _TaskNotes) -> list[TaskLine]:
            return [line for line in notes.listed() if status in (None, line["status"])]

        return await self.read_notes(context, look)

    @tool(name="update")
    async def _update(  # noqa: PLR0913 - the arguments of the tool
        self,
        context: ToolContext,
        task_id: _Id,
        subject: _Subject | None = None,
        description: str | None = None,
        status: _Status | Literal["deleted"] | None = None,
        owner: str | None = None,
        metadata: dict[str, JsonValue] | None = None,
        add_blocks: Sequence[_Id] = (),
        add_blocked_by: Sequence[_Id] = (),
        unlink: Sequence[_Id] = (),
    ) -> Task | None:
        """Change a task; what is left out stays. Returns the task, or null if it is deleted.

        Args:
            context: The call.
            task_id: Its id.
            subject: Another subject.
            description: Another description.
            status: How far it is; "deleted" removes it, and the others wait for it no more.
            owner: Who does it; "" for nobody.
            metadata: Values that are added or replaced; null removes one.
            add_blocks: The ids of tasks that wait for it.
            add_blocked_by: The ids of tasks that it waits for.
            unlink: The ids of tasks that it neither waits for nor blocks any more.
        """
        given: dict[str, Any] = {
            "subject": subject,
            "description": description,
            "status": status,
            "owner": owner,
        }

        def change(notes: _TaskNotes) -> Task | None:
            (name,) = notes.known([task_id])
            if status == "deleted":
                notes.remove(name)
                return None
            task = notes.get(name)
            fields = {field: value for field, value in given.items() if value is not None}
            fields["metadata"] = _merged(task.metadata, metadata)
            notes.put(task.model_copy(update=fields))
            for other in notes.known(unlink):
                notes.unlink(name, other)
                notes.unlink(other, name)
            for other in notes.known(add_blocks):
                notes.link(name, other)
            for other in notes.known(add_blocked_by):
                notes.link(other, name)
            return notes.whole(name)

        return await self.change_notes(context, change)


def _merged(values: dict[str, Any], added: dict[str, JsonValue] | None) -> dict[str, Any]:
    merged = values | (added or {})
    return {name: value for name, value in merged.items() if value is not None}


def _initial_notes(initial: Iterable[Task | str]) -> _TaskNotes:
    """Store the tasks of a program. Raises `ValueError`."""
    notes = _TaskNotes()
    tasks = [Task(subject=task) if isinstance(task, str) else task for task in initial]
    with as_value_error():
        names = [notes.add(task.model_copy(update={"blocked_by": []})) for task in tasks]
        for name, task in zip(names, tasks, strict=True):
            for other in notes.known(task.blocks):
                notes.link(name, other)
            for other in notes.known(task.blocked_by):
                notes.link(other, name)
    return notes
