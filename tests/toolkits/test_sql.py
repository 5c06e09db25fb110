"""The toolkit `sql`, called as a host calls it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from toolbus import InvalidArguments, ToolContext, ToolFailed, Toolkit
from toolbus.tools.context import run_of
from toolbus.tools.tool_run import LocalRun
from toolbus_toolkits.sql import SqlConfig, sql

ENDLESS = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "items.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE items (name TEXT, price REAL)")
        connection.executemany("INSERT INTO items VALUES (?, ?)", [("bolt", 0.5), ("gear", 12)])
    return path


class _WatchedContext(ToolContext):
    """Records when its tool first checks whether the call is cancelled."""

    def __init__(self) -> None:
        super().__init__(run=LocalRun())
        self.was_checked = threading.Event()

    @property
    def cancelled(self) -> bool:
        self.was_checked.set()
        return super().cancelled


async def _run(toolkit: Toolkit, tool: str, **arguments: Any) -> Any:
    return (await toolkit.execute(ToolContext(), tool, arguments)).value


async def test_tables_are_listed_described_and_queried(database: Path) -> None:
    toolkit = sql(SqlConfig(database=database))
    assert (await _run(toolkit, "list_tables"))["tables"] == ["items"]
    described = await _run(toolkit, "describe", table="items")
    assert [column["name"] for column in described["columns"]] == ["name", "price"]
    result = await _run(
        toolkit, "query", sql="SELECT name FROM items WHERE price > ?", parameters=[1]
    )
    assert result == {"columns": ["name"], "rows": [["gear"]], "truncated": False, "why": []}


async def test_parameters_keep_their_types(database: Path) -> None:
    given = ["1", 1, 1.5, True, None]
    result = await _run(
        sql(SqlConfig(database=database)),
        "query",
        sql="SELECT typeof(?), typeof(?), typeof(?), typeof(?), typeof(?)",
        parameters=given,
    )
    assert result["rows"] == [["text", "integer", "real", "integer", "null"]]


async def test_results_with_every_kind_of_cell_fit_the_output_schema(database: Path) -> None:
    result = await _run(
        sql(SqlConfig(database=database)), "query", sql="SELECT 1, 1.5, 'x', NULL, x'00', 9e999"
    )
    assert result["rows"] == [[1, 1.5, "x", None, {"blob_bytes": 1}, "Infinity"]]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sql": 5},
        {"sql": "SELECT 1", "max_rows": 0},
        {"sql": "SELECT 1", "max_rows": 1001},
        {"sql": "SELECT ?", "parameters": {"a": 1}},
        {"sql": "SELECT ?", "parameters": [[1]]},
        {"sql": "SELECT 1", "database": "/etc/passwd"},
    ],
)
async def test_bad_arguments_are_refused(database: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments):
        await sql(SqlConfig(database=database)).execute(ToolContext(), "query", arguments)


async def test_writing_is_refused_with_a_message(database: Path) -> None:
    with pytest.raises(ToolFailed, match="only reading is allowed"):
        await _run(sql(SqlConfig(database=database)), "query", sql="DELETE FROM items")


async def test_cancelled_call_stops_its_query(database: Path) -> None:
    context = _WatchedContext()
    toolkit = sql(SqlConfig(database=database, time_s=20))
    async with asyncio.timeout(60):
        running = asyncio.create_task(toolkit.execute(context, "query", {"sql": ENDLESS}))
        await asyncio.to_thread(context.was_checked.wait, PATIENCE_S)
        run_of(context).cancel()
        with pytest.raises(ToolFailed, match="its call was cancelled"):
            await running


async def test_time_limit_is_a_setting(database: Path) -> None:
    toolkit = sql(SqlConfig(database=database, time_s=0.02))
    with pytest.raises(ToolFailed, match=r"after 0\.02 s"):
        await _run(toolkit, "query", sql=ENDLESS)


def test_missing_file_is_an_error_before_hosting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no such file: .*nothing\.sqlite"):
        SqlConfig(database=tmp_path / "nothing.sqlite")


def test_every_tool_is_marked_harmless_and_runs_a_few_at_a_time(database: Path) -> None:
    tools = sql(SqlConfig(database=database)).tools
    assert [each.name for each in tools] == ["list_tables", "describe", "query"]
    assert all(each.read_only and each.idempotent and each.max_concurrency == 4 for each in tools)
    assert all("context" not in each.input_schema["properties"] for each in tools)
