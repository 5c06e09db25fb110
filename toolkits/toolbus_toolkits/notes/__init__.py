"""What an agent notes for itself: `tasks`, `todo` and `scratchpad`.

Who calls: an agent, for its own work. Who reads beside it: the program around it (`Tasks.of`), and
with `prompt=True` the prompt of each turn.

What is stored is one JSON object for each toolkit:

    tasks       {"last_id": 7, "tasks": [{"id": "7", "subject": "...", "blocked_by": ["3"], ...}]}
    todo        {"todos": [{"content": "...", "status": "pending", "active_form": ""}]}
    scratchpad  {"pages": {"plan": "..."}}

Which task blocks others is not stored: it follows from `blocked_by`. `last_id` only grows, so that
no id is used again.

Where: for a tool in the process of an agent it is `context.state`, the toolkit's own dict in the
agent's state, which is saved and forgotten with the conversation. For a call over a room it is a
row of a SQLite file, by the name of the toolkit and by the asker. `notes` has both; the tools do
not know which one they change.

Limits: 256 KiB for each toolkit and agent or asker, 500 tasks, 20 todos, 50 pages of 10,000
characters. What is beyond them is an error that says what to do, and nothing is cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, Toolkit
from toolbus.settings import expanded
from toolbus_toolkits.notes.scratchpad import PageSize, Scratchpad
from toolbus_toolkits.notes.tasks import Task, TaskLine, Tasks
from toolbus_toolkits.notes.todo import Todo, TodoCounts, TodoItem

__all__ = [
    "NotesConfig",
    "PageSize",
    "Scratchpad",
    "Task",
    "TaskLine",
    "Tasks",
    "Todo",
    "TodoCounts",
    "TodoItem",
    "scratchpad",
    "tasks",
    "todo",
]


class NotesConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the toolkits `tasks`, `todo` and `scratchpad` store what callers elsewhere note."""

    file: Annotated[Path | None, OperatorOnly] = Field(
        None,
        description="The SQLite file, which several hosts may share; by default notes.db in"
        " TOOLBUS_HOME.",
    )

    @field_validator("file")
    @classmethod
    def _expand(cls, file: Path | None) -> Path | None:
        return None if file is None else expanded(file)


_DEFAULT = NotesConfig()


def tasks(config: NotesConfig = _DEFAULT) -> Toolkit:
    """Make tasks of an agent, with dependencies: `create`, `get`, `list` and `update`."""
    return Tasks(file=config.file)


def todo(config: NotesConfig = _DEFAULT) -> Toolkit:
    """Make the todo list of an agent, which is written as a whole: `read` and `write`."""
    return Todo(file=config.file)


def scratchpad(config: NotesConfig = _DEFAULT) -> Toolkit:
    """Make named pages of text that an agent keeps for itself: `read` and `write`."""
    return Scratchpad(file=config.file)
