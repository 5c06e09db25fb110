"""Notes as JSON objects: in the state of an agent, or in a SQLite file by who asks."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from toolbus import FunctionTool, ToolContext, ToolFailed, Toolkit, Unavailable
from toolbus.chunks.json_values import cut, json_pointer
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.settings import home_of
from toolbus.sqlite_files import FileKind, SqliteFile, is_locked
from toolbus_toolkits.callers import Commit, asker_of

__all__ = [
    "FILE",
    "FilePath",
    "Notes",
    "NotesToolkit",
    "NotesUnavailable",
    "Shape",
    "as_value_error",
    "fault_of",
]

FilePath: TypeAlias = str | os.PathLike[str] | None

_MAX_BYTES = 256 * 1024
"""Of all notes of one toolkit: they are written as a whole, and saved with each state."""


class Shape(BaseModel, extra="allow"):
    """What one toolkit stores. What a newer toolbus has added to it stays."""

    @classmethod
    def of(cls, plain: Any) -> Self:
        """Read a JSON value. Raises `ToolFailed`, which is a part of no shape."""
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise ToolFailed(
                f"what is stored is not of this toolkit: {fault_of(error)}; it stays as it is until"
                " it is removed by hand"
            ) from None

    def plain(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return self.model_dump()

    def lines(self) -> list[str]:
        """Return what of it a prompt has."""
        raise NotImplementedError


S = TypeVar("S", bound=Shape)
T = TypeVar("T")
Change: TypeAlias = Callable[[Any], tuple[dict[str, Any], bytes, T]]
"""Gets the stored value. Returns what is stored then, as a value and as text, and a result."""


def fault_of(error: ValidationError) -> str:
    """Return the first thing that is wrong with a value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return cut(f"{json_pointer(first['loc'])}: {first['msg']}")


class Notes(Protocol):
    """The notes that one call is about. They stay as they were if it fails."""

    async def read(self) -> Any:
        """Return what is stored; nothing, such as None, if nothing is. Raises `ToolFailed`."""

    async def change(self, change: Change[T]) -> T:
        """Store what a function returns, and return its result. Raises `ToolFailed`."""


class _StateNotes:
    """The notes of an agent, for a tool in its process."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    async def read(self) -> Any:
        return self._state

    async def change(self, change: Change[T]) -> T:
        after, _, result = change(self._state)
        self._state.update(after)
        return result


class NotesUnavailable(Unavailable):
    """The file of notes cannot be opened, read or written; `details` has `path` and `reason`."""

    next_step: str = "name a file in an existing folder that you may write, or remove the cause"


FILE = FileKind(
    what="the file of notes",
    application=0x74626E6F,
    version=1,
    create=(
        "CREATE TABLE IF NOT EXISTS notes (toolkit TEXT, asker TEXT, notes BLOB NOT NULL,"
        " PRIMARY KEY (toolkit, asker))",
    ),
    error=NotesUnavailable,
    is_durable=True,
)
"""Files of notes: a row for each toolkit and asker, with its JSON object as text."""
_SELECT = "SELECT notes FROM notes WHERE toolkit = ? AND asker = ?"
_REPLACE = "REPLACE INTO notes VALUES (?, ?, ?)"


class _NotesFile:
    """A file for calls over a room; one thread does all work on it."""

    def __init__(self, path: FilePath) -> None:
        self._path = path
        self._threads = WorkerThreads("notes", 1)
        self._file: SqliteFile | None = None

    async def run(self, work: Callable[[SqliteFile], T]) -> T:
        """Return what work on the file returns; raises as it does."""
        return await self._threads.run(lambda: work(self._made()))

    def _made(self) -> SqliteFile:
        if self._file is None:
            path = Path(self._path or home_of(os.environ) / "notes.db").absolute()
            if self._path is None:
                with suppress(OSError):  # opening the file tells the reason
                    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = SqliteFile(path, FILE)
        return self._file


class _FileNotes:
    """The notes of the asker of a call, in the file of the host."""

    def __init__(self, file: _NotesFile, toolkit: str, context: ToolContext) -> None:
        self._file = file
        self._context = context
        self._key = (toolkit, json.dumps(asker_of(context)))

    async def read(self) -> Any:
        return await self._file.run(self._read_now)

    async def change(self, change: Change[T]) -> T:
        commit = Commit()

        def change_now(file: SqliteFile) -> T:
            with _in_words(file), file.transaction() as connection:
                _, text, result = change(self._stored(connection))
                connection.execute(_REPLACE, (*self._key, text))
                commit.begin()
            return result

        try:
            return await self._file.run(change_now)
        except asyncio.CancelledError:
            if commit.give_up():
                self._context.enter()
            raise

    def _read_now(self, file: SqliteFile) -> Any:
        with _in_words(file):
            return self._stored(file.connection())

    def _stored(self, connection: sqlite3.Connection) -> Any:
        row = connection.execute(_SELECT, self._key).fetchone()
        try:
            return None if row is None else json.loads(row[0])
        except (ValueError, TypeError, RecursionError):
            return "no JSON"  # which no shape is read from


@contextmanager
def _in_words(file: SqliteFile) -> Iterator[None]:
    """Turn the errors of a file into `ToolFailed`; the transaction is rolled back then.

    Without its path, which is of no use to a caller.
    """
    try:
        yield
    except (Unavailable, sqlite3.Error) as error:
        cause = error.__cause__ or error
        reason = error.details["reason"] if isinstance(error, Unavailable) else error
        hint = "nothing was changed; who hosts this has to remove the cause"
        is_busy = isinstance(cause, sqlite3.Error) and is_locked(cause)
        if is_busy:
            hint = "another program uses it: call again"
        file.close()
        text = f"the file of this toolkit cannot be used: {reason}: {hint}"
        raise ToolFailed(text, retryable=is_busy) from error


class _NotesTool(FunctionTool):
    """A tool that steers nothing but the agent that calls it, where it runs in its process."""

    orchestration = True

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, affinity="caller")  # another host may have another file
        self.marks_entry = True  # by `enter`: before, nothing was changed


class NotesToolkit(Toolkit, Generic[S]):
    """A toolkit over notes: of the agent for calls in its process, else of the asker in a file.

    Args:
        name: The name of the toolkit.
        initial: The notes of an agent or asker that has not called yet.
        tools: The methods that are its tools.
        prompt: Whether `Turn.prompt` has the notes of the agent.
        file: The file; None for `notes.db` in `TOOLBUS_HOME`.
        options: As those of a `Toolkit`.

    Raises `ValueError` if the initial notes are too large.
    """

    def __init__(
        self,
        name: str,
        initial: S,
        tools: Iterable[Callable[..., Any]],
        *,
        prompt: bool,
        file: FilePath,
        **options: Any,
    ) -> None:
        self._shape = type(initial)
        self._initial = initial.plain()
        with as_value_error():
            self._changed(None, lambda _: None)
        self._file = _NotesFile(file)
        self._prompt = prompt
        super().__init__(name, map(_NotesTool, tools), **options)

    @asynccontextmanager
    async def hosting(self, room: Any) -> AsyncIterator[None]:
        """Open the file, so that one that cannot be used ends the host now."""
        await self._file.run(SqliteFile.connection)
        try:
            yield
        finally:
            await self._file.run(SqliteFile.close)

    def prompt_text(self, state: Mapping[str, Any]) -> str:
        """Return the notes of an agent, if `prompt` is set; empty where there are none."""
        if not self._prompt:
            return ""
        try:
            lines = self._shaped(state).lines()
        except ToolFailed as error:
            lines = [error.message]
        return "\n".join([f"# {self.title}", "", *lines]) if lines else ""

    async def read_notes(self, context: ToolContext, look: Callable[[S], T]) -> T:
        """Return what a function finds in the notes that a call is about. Raises `ToolFailed`."""
        with _unchanged(context):
            return look(self._shaped(await self._notes_of(context).read()))

    async def change_notes(self, context: ToolContext, change: Callable[[S], T]) -> T:
        """Let a function change the notes that a call is about. Raises `ToolFailed`."""
        with _unchanged(context):
            return await self._notes_of(context).change(lambda plain: self._changed(plain, change))

    def _notes_of(self, context: ToolContext) -> Notes:
        state = context.state
        if state is None:
            return _FileNotes(self._file, self.name, context)
        if not state:  # so that a program finds in it what the model has seen
            state.update(deepcopy(self._initial))
        return _StateNotes(state)

    def _shaped(self, plain: Any) -> S:
        return self._shape.of(plain or deepcopy(self._initial))

    def _changed(self, plain: Any, change: Callable[[S], T]) -> tuple[dict[str, Any], bytes, T]:
        notes = self._shaped(plain)
        result = change(notes)
        after = notes.plain()
        text = _json(after)
        # Where there was more already, some of it can still be removed.
        if len(text) > _MAX_BYTES and len(text) >= len(_json(plain)):
            raise ToolFailed(
                f"all notes of this toolkit together would have {len(text):,} bytes, and at most"
                f" {_MAX_BYTES:,} are stored: write less, or remove what is not needed"
            )
        return after, text, result


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolFailed(f"this cannot be stored as JSON: {cut(str(error))}") from None


@contextmanager
def as_value_error(what: str = "initial") -> Iterator[None]:
    """Raise `ValueError` in place of `ToolFailed`, for what a program gives or reads."""
    try:
        yield
    except ToolFailed as error:
        raise ValueError(f"{what}: {error.message}") from None


@contextmanager
def _unchanged(context: ToolContext) -> Iterator[None]:
    """Record whether the function of a call ran: what it raises has changed nothing."""
    try:
        yield
    except ToolFailed as error:
        error.executed = "no"
        context.refuse(error)
        raise
    context.enter()
