"""Read-only SQL over one SQLite file, as a toolkit.

What may be asked is decided by `sqlite_guard`, what is brought by `sqlite_reader`; here are the
tools, their words for agents, and where the file's name comes from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from toolbus import ToolContext, Toolkit, tool
from toolbus_toolkits.sqlite_guard import ReadLimits
from toolbus_toolkits.sqlite_reader import (
    Parameter,
    Rows,
    SqliteReader,
    TableDescription,
    TableNames,
)

__all__ = ["DATABASE_VARIABLE", "ReadLimits", "SqlTools", "sql"]

DATABASE_VARIABLE = "TOOLBUS_SQL_DATABASE"
"""The environment variable that names the file where `sql()` is given none."""


class SqlTools:
    """The tools of the toolkit `sql`, over one reader."""

    def __init__(self, reader: SqliteReader) -> None:
        self._reader = reader

    @tool(read_only=True, idempotent=True, max_concurrency=4)
    def list_tables(self, context: ToolContext) -> TableNames:
        """Name the tables and views of the database."""
        return self._reader.list_tables(stopped=lambda: context.cancelled)

    @tool(read_only=True, idempotent=True, max_concurrency=4)
    def describe(self, context: ToolContext, table: str) -> TableDescription:
        """Describe one table or view: columns, keys, indexes.

        Args:
            context: The call; once it is given up, SQLite stops.
            table: Its name, as `list_tables` gives it.
        """
        return self._reader.describe(table, stopped=lambda: context.cancelled)

    @tool(read_only=True, idempotent=True, max_concurrency=4)
    def query(
        self,
        context: ToolContext,
        sql: str,
        parameters: list[Parameter] | None = None,
        max_rows: Annotated[int, Field(ge=1, le=1_000)] = 100,
    ) -> Rows:
        """Run one SELECT and bring its rows.

        Args:
            context: The call; once it is given up, SQLite stops.
            sql: One statement in SQLite's dialect that only reads.
            parameters: Values for the `?` of the statement, in their order.
            max_rows: Rows to bring at most.
        """
        return self._reader.query(
            sql, parameters or (), max_rows=max_rows, stopped=lambda: context.cancelled
        )


def sql(database: str | Path | None = None, *, limits: ReadLimits | None = None) -> Toolkit:
    """Make the toolkit `sql`: `list_tables`, `describe` and `query` over one SQLite file.

    Args:
        database: The file; `TOOLBUS_SQL_DATABASE` names it where this is None.
        limits: How much one call may take and bring.

    Raises:
        ValueError: No file is named, or there is none of that name.
    """
    tools = SqlTools(SqliteReader(_existing_file(database), limits))
    return Toolkit(
        name="sql",
        title="SQL",
        description="Reads a SQLite database. Nothing can be changed through it.",
        rules=[
            "Call list_tables and describe before the first query.",
            "Put values into `parameters`, never into the text of the SQL.",
            "Let the database count and sort: aggregate there, and ask for few rows.",
            "A result with `truncated` is not whole; `why` says what to do.",
        ],
        tools=[tools.list_tables, tools.describe, tools.query],
    )


def _existing_file(database: str | Path | None) -> Path:
    named = database or os.environ.get(DATABASE_VARIABLE)
    if not named:
        raise ValueError(
            f"the toolkit `sql` needs a SQLite file: set {DATABASE_VARIABLE} to its path"
        )
    path = Path(named).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} for the toolkit `sql` to read")
    return path
