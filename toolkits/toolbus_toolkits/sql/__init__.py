"""Read-only SQL over one SQLite file, as a toolkit.

`read_only` decides which statements are allowed, and `reader` runs them; here are the tools, their
descriptions for agents, and the setting that names the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from toolbus import ToolContext, Toolkit, tool
from toolbus_toolkits.sql.read_only import ReadLimits
from toolbus_toolkits.sql.reader import (
    Parameter,
    Rows,
    SqliteReader,
    TableDescription,
    TableNames,
)

__all__ = ["DATABASE_VARIABLE", "ReadLimits", "SqlTools", "sql"]

DATABASE_VARIABLE = "TOOLBUS_SQL_DATABASE"
"""The environment variable that names the file where `sql()` gets none."""


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
            context: The call; once it is cancelled, SQLite stops.
            table: Its name, as `list_tables` returns it.
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
        """Run one SELECT and return its rows.

        Args:
            context: The call; once it is cancelled, SQLite stops.
            sql: One statement in SQLite's dialect that only reads.
            parameters: Values for the `?` of the statement, in their order.
            max_rows: The maximum number of rows to return.
        """
        return self._reader.query(
            sql, parameters or (), max_rows=max_rows, stopped=lambda: context.cancelled
        )


def sql(database: str | Path | None = None, *, limits: ReadLimits | None = None) -> Toolkit:
    """Make the toolkit `sql`: `list_tables`, `describe` and `query` over one SQLite file.

    Args:
        database: The file; `TOOLBUS_SQL_DATABASE` names it where this is None.
        limits: How long one call may take, and how much it may return.

    Raises:
        ValueError: No file is named, or it does not exist.
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
            "A result with `truncated` is incomplete; `why` says what to do.",
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
        raise ValueError(f"the toolkit `sql` cannot read {str(path)!r}: there is no such file")
    return path
