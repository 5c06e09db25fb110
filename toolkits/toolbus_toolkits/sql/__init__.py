"""Read-only SQL over one SQLite file, as a toolkit.

`read_only` decides which statements are allowed, and `reader` runs them; here are the tools, their
descriptions for agents, and the config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, ToolContext, Toolkit, tool
from toolbus.settings import expanded
from toolbus_toolkits.sql.read_only import ReadLimits
from toolbus_toolkits.sql.reader import (
    Parameter,
    Rows,
    SqliteReader,
    TableDescription,
    TableNames,
)

__all__ = ["DATABASE_VARIABLE", "ReadLimits", "SqlConfig", "SqlTools", "sql"]

DATABASE_VARIABLE = "TOOLBUS_SQL_DATABASE"
"""The environment variable that names the file for `toolbus host sql`."""


class SqlConfig(BaseModel, frozen=True, extra="forbid"):
    """The file that the toolkit `sql` reads, and the limits of one call.

    Raises `ValidationError` if there is no such file, or a limit is out of range.
    """

    database: Annotated[Path, OperatorOnly] = Field(description="The SQLite file.")
    time_s: float = Field(10.0, gt=0, le=60, description="Seconds that one call may take.")
    max_rows: int = Field(
        1_000, ge=1, le=1_000, description="Rows of one result, whatever the caller requests."
    )
    max_cell_bytes: int = Field(
        8 * 1024, ge=1, le=1024 * 1024, description="Longer text is cut, in bytes."
    )

    @field_validator("database")
    @classmethod
    def _must_exist(cls, database: Path) -> Path:
        path = expanded(database)
        if not path.is_file():
            raise ValueError(f"there is no such file: {str(path)!r}")
        return path


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


def sql(config: SqlConfig) -> Toolkit:
    """Read-only SQL over one SQLite file: `list_tables`, `describe` and `query`.

    It is a factory: `toolbus host sql --database PATH` hosts it, and
    `builder_of(sql, database=...)` offers it to agents.
    """
    limits = ReadLimits(config.time_s, config.max_rows, config.max_cell_bytes)
    tools = SqlTools(SqliteReader(config.database, limits))
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
