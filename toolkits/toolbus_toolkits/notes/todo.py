"""The toolkit `todo`: one list, which an agent writes as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field

from toolbus import AgentState, ToolContext, ToolFailed, tool
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.notes.notes import (
    FilePath,
    NotesToolkit,
    Shape,
    as_value_error,
)

__all__ = ["Todo", "TodoCounts", "TodoItem"]

_MAX_TODOS = 20
"""A model writes all of them again for each change."""
_Status: TypeAlias = Literal["pending", "in_progress", "completed"]
_MARKS: dict[_Status, str] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


class TodoItem(BaseModel, frozen=True):
    """One thing to do."""

    content: Annotated[str, Field(min_length=1)]
    """What is to be done, in one line."""
    status: _Status = "pending"
    active_form: str = ""
    """What is being done while it is in progress, for people, such as "Running the tests"."""


class TodoCounts(BaseModel, frozen=True):
    """How many things have each status."""

    pending: int
    in_progress: int
    completed: int


class _TodoNotes(Shape):
    todos: list[TodoItem] = Field(default_factory=list)

    def replace(self, todos: Iterable[TodoItem]) -> TodoCounts:
        """Store a list in place of the former one. Raises `ToolFailed`."""
        self.todos = [*todos]
        if len(self.todos) > _MAX_TODOS:
            raise ToolFailed(
                f"these are {len(self.todos)} todos, and at most {_MAX_TODOS} are stored: leave out"
                " completed ones, or put several into one"
            )
        counts: Counter[str] = Counter(todo.status for todo in self.todos)
        if counts["in_progress"] > 1:
            raise ToolFailed(
                f"{counts['in_progress']} todos are in_progress, and at most one may be: set the"
                " others to pending"
            )
        return TodoCounts(**{status: counts[status] for status in _MARKS})

    def lines(self) -> list[str]:
        """Return the list with a mark for each status."""
        return [
            f"- {_MARKS[todo.status]} {one_line(todo.content, SHOWN_CHARS)}" for todo in self.todos
        ]


class Todo(NotesToolkit[_TodoNotes]):
    """The todo list of an agent: `read` and `write`.

    Args:
        name: The name of the toolkit.
        initial: The list at first, each as a `TodoItem` or by its content.
        prompt: Whether `Turn.prompt` has the list.
        file: The SQLite file for calls over a room; `notes.db` in `TOOLBUS_HOME` by default.

    Raises `ValueError` for an initial list that could not be written.
    """

    def __init__(
        self,
        name: str = "todo",
        *,
        initial: Iterable[TodoItem | str] = (),
        prompt: bool = False,
        file: FilePath = None,
    ) -> None:
        notes = _TodoNotes()
        given = (TodoItem(content=todo) if isinstance(todo, str) else todo for todo in initial)
        with as_value_error():
            notes.replace(given)
        super().__init__(
            name,
            notes,
            [self._read, self._write],
            prompt=prompt,
            file=file,
            title="Todo list",
            description="The steps of your present work, as one short list.",
            rules=[
                "Write the list before work of several steps, and after each step.",
                "Have one todo in_progress while you work.",
            ],
        )

    @staticmethod
    def of(state: AgentState, name: str = "todo") -> list[TodoItem]:
        """Return the list in the state of an agent; see `Tasks.of`."""
        with as_value_error(f"state of {name}"):
            return _TodoNotes.of(state.state.get(name, {})).todos

    @tool(name="read", read_only=True, idempotent=True)
    async def _read(self, context: ToolContext) -> list[TodoItem]:
        """Return the list."""
        return await self.read_notes(context, lambda notes: notes.todos)

    @tool(name="write", idempotent=True)
    async def _write(self, context: ToolContext, todos: Sequence[TodoItem]) -> TodoCounts:
        """Write the whole list: it replaces the former one. Returns how many have each status.

        Args:
            context: The call.
            todos: All todos, done ones too: at most 20, of which at most one is in_progress.
        """
        return await self.change_notes(context, lambda notes: notes.replace(todos))
