"""Reads one SQLite file, and truncates results to what fits into one answer.

Every call opens its own connection (`read_only`) and closes it; nothing is kept between calls, and
nothing here depends on tools or rooms. Sorting and grouping may fill temporary files of
the machine for as long as `ReadLimits.time_s` allows.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from toolbus import ToolFailed
from toolbus_toolkits.sql.read_only import ReadLimits, guarded_connection, never

__all__ = [
    "Cell",
    "Column",
    "ForeignKey",
    "Index",
    "Parameter",
    "Rows",
    "SqliteReader",
    "TableDescription",
    "TableNames",
]

Parameter: TypeAlias = str | int | float | bool | None
"""A value for one `?` of a statement."""

Cell: TypeAlias = str | int | float | dict[str, int] | None
"""One value of a row: a BLOB is `{"blob_bytes": n}`, an infinite number the text "Infinity"."""

_LIST_TABLES = """
    SELECT name, type FROM sqlite_master
    WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name
"""
_FIND_TABLE = """
    SELECT name, type, sql FROM sqlite_master
    WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE
"""
_LIST_COLUMNS = """
    SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_xinfo(?)
    WHERE hidden <> 1 ORDER BY cid
"""
_LIST_FOREIGN_KEYS = """
    SELECT "from", "table", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq
"""
_LIST_INDEXES = """
    SELECT i.name, i."unique", (
        SELECT group_concat(coalesce(c.name, '(expression)'), ', ')
        FROM pragma_index_info(i.name) AS c
    )
    FROM pragma_index_list(?) AS i ORDER BY i.seq
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a query."""

    columns: list[str]
    rows: list[list[Cell]]
    truncated: bool = False
    """Whether rows, or parts of cells, are missing."""
    why: list[str] = field(default_factory=list)
    """What is missing, and how to get it."""


@dataclass(frozen=True, slots=True)
class TableNames:
    """The names of the tables and views."""

    tables: list[str]
    views: list[str]
    truncated: bool = False
    why: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table or view."""

    name: str
    type: str
    """As declared; SQLite does not enforce it."""
    not_null: bool
    default: str | None
    """The default, as SQL."""
    primary_key: int
    """Its position in the primary key, from 1; 0 where it is not part of it."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A column that points to another table."""

    column: str
    table: str
    references: str | None
    """The other table's column; None is its primary key."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index."""

    name: str
    unique: bool
    columns: str
    """Names, separated by commas."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """The columns, keys and indexes of a table or view."""

    name: str
    type: str
    """`table` or `view`."""
    columns: list[Column]
    foreign_keys: list[ForeignKey]
    indexes: list[Index]
    sql: str | None
    """The statement that created it."""
    truncated: bool = False
    why: list[str] = field(default_factory=list)


class SqliteReader:
    """Reads one SQLite file, within limits.

    Thread-safe. Every method raises `ToolFailed`, whose message says what to do. `stopped` is
    called while SQLite works, and the call ends soon after it returns True.

    Args:
        database: The file. It need not exist before the first call.
        limits: How long one call may take, and how much it may return.
    """

    def __init__(self, database: Path, limits: ReadLimits | None = None) -> None:
        self._database = database.absolute()
        self._limits = limits or ReadLimits()

    def query(
        self,
        sql: str,
        parameters: Sequence[Parameter] = (),
        *,
        max_rows: int = 100,
        stopped: Callable[[], bool] = never,
    ) -> Rows:
        """Run one statement that reads, and return at most `max_rows` rows."""
        limits = replace(self._limits, max_rows=min(max_rows, self._limits.max_rows))
        with guarded_connection(self._database, limits, stopped=stopped) as connection:
            return _read(connection, sql, parameters, limits)

    def list_tables(self, *, stopped: Callable[[], bool] = never) -> TableNames:
        """List all tables and views but SQLite's own."""
        with guarded_connection(self._database, self._limits, stopped=stopped) as connection:
            found = _read(connection, _LIST_TABLES, (), self._limits)
        return TableNames(
            tables=[str(name) for name, kind in found.rows if kind == "table"],
            views=[str(name) for name, kind in found.rows if kind == "view"],
            truncated=found.truncated,
            why=found.why,
        )

    def describe(self, table: str, *, stopped: Callable[[], bool] = never) -> TableDescription:
        """Describe one table or view; case does not matter in its name."""
        # Four queries share one result, and each grows when its columns get names.
        limits = replace(self._limits, max_result_bytes=self._limits.max_result_bytes // 8)
        with guarded_connection(self._database, limits, stopped=stopped) as connection:
            found = _read(connection, _FIND_TABLE, (table,), limits)
            if not found.rows:
                raise ToolFailed(
                    f"there is no table or view {table!r}; list_tables returns their names"
                )
            found_name, kind, sql = found.rows[0]
            name = str(found_name)
            columns, keys, indexes = (
                _read(connection, query, (name,), limits)
                for query in (_LIST_COLUMNS, _LIST_FOREIGN_KEYS, _LIST_INDEXES)
            )
        parts = (found, columns, keys, indexes)
        return TableDescription(
            name=name,
            type=str(kind),
            columns=[
                Column(str(column), str(form), bool(not_null), _text(default), int(str(position)))
                for column, form, not_null, default, position in columns.rows
            ],
            foreign_keys=[ForeignKey(str(a), str(b), _text(c)) for a, b, c in keys.rows],
            indexes=[Index(str(a), bool(b), _text(c) or "") for a, b, c in indexes.rows],
            sql=_text(sql),
            truncated=any(part.truncated for part in parts),
            why=[reason for part in parts for reason in part.why],
        )


def _text(cell: Cell) -> str | None:
    return None if cell is None else str(cell)


def _read(
    connection: sqlite3.Connection, sql: str, parameters: Sequence[Parameter], limits: ReadLimits
) -> Rows:
    cursor = connection.execute(sql, tuple(parameters))
    if cursor.description is None:
        raise ToolFailed("this SQL has no statement that returns rows; start with SELECT or WITH")
    page = _Page([str(column[0]) for column in cursor.description], limits)
    for row in cursor:
        if not page.add(row):
            break
    return page.finished()


class _Page:
    """Collects the rows that fit into one answer, and the reasons why others are missing."""

    def __init__(self, columns: list[str], limits: ReadLimits) -> None:
        self._limits = limits
        self._cut_cells = 0
        self._why: list[str] = []
        self._rows: list[list[Cell]] = []
        self._columns = [self._cut(column) for column in columns]
        self._left_bytes = limits.max_result_bytes - _size_bytes(self._columns)

    def add(self, row: Sequence[object]) -> bool:
        """Add one more row; False if it did not fit, and the page is full."""
        if len(self._rows) == self._limits.max_rows:
            self._why.append(
                f"there are more than {self._limits.max_rows} rows: "
                "request more with max_rows, or use WHERE, LIMIT and OFFSET"
            )
            return False
        cut_before = self._cut_cells
        cells = [self._cell(value) for value in row]
        self._left_bytes -= _size_bytes(cells)
        if self._left_bytes >= 0:
            self._rows.append(cells)
            return True
        self._cut_cells = cut_before
        if not self._rows:
            raise ToolFailed("not even one row fits into a result: select fewer columns")
        self._why.append(
            f"the result was full after {len(self._rows)} rows: "
            "select fewer columns, or use LIMIT and OFFSET"
        )
        return False

    def finished(self) -> Rows:
        if self._cut_cells:
            self._why.append(
                f"{self._cut_cells} texts were cut after {self._limits.max_cell_bytes} bytes, "
                "where they end with an ellipsis: read on with substr()"
            )
        return Rows(self._columns, self._rows, truncated=bool(self._why), why=self._why)

    def _cell(self, value: object) -> Cell:
        match value:
            case None | int():
                return value
            case float() if not math.isfinite(value):
                # NaN has no name: SQLite converts it to NULL.
                return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value)
            case float():
                return value
            case bytes():
                return {"blob_bytes": len(value)}
            case _:
                return self._cut(str(value))

    def _cut(self, text: str) -> str:
        limit = self._limits.max_cell_bytes
        # A character takes at most four bytes, so that most texts need not be encoded to check.
        if len(text) * 4 <= limit or len(raw := text.encode()) <= limit:
            return text
        self._cut_cells += 1
        return raw[:limit].decode(errors="ignore") + "…"


def _size_bytes(cells: Sequence[Cell]) -> int:
    as_json = json.dumps(cells, ensure_ascii=False)
    # A float may be shorter as JSON (5 bytes with its comma) than on the wire (9 bytes).
    return len(as_json.encode()) + 1 + 5 * sum(isinstance(cell, float) for cell in cells)
