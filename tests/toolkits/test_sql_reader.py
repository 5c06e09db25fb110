"""Reading: the form of results, and where each limit cuts."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from toolbus import ToolFailed
from toolbus_toolkits.sql.read_only import ReadLimits
from toolbus_toolkits.sql.reader import Column, ForeignKey, Index, SqliteReader

ENDLESS = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
COUNT_TO = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT {}) "


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            CREATE TABLE "Makers" (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
            CREATE TABLE items (
                maker INTEGER REFERENCES makers (id),
                code TEXT DEFAULT 'none',
                price REAL,
                shown AS (upper(code)),
                PRIMARY KEY (maker, code)
            );
            CREATE INDEX by_price ON items (price, lower(code));
            CREATE VIEW cheap AS SELECT code, price FROM items WHERE price < 1;
            CREATE TABLE "odd ""name"" [x]" ("a b" BLOB);
        """)
    return path


def test_query_brings_columns_and_rows(database: Path) -> None:
    result = SqliteReader(database).query("SELECT ? AS a, ? AS a, NULL, 2.5", ["x", 3])
    assert result.columns == ["a", "a", "NULL", "2.5"]
    assert result.rows == [["x", 3, None, 2.5]]
    assert not result.truncated
    assert result.why == []


def test_every_kind_of_cell_becomes_json(database: Path) -> None:
    result = SqliteReader(database).query(
        "SELECT x'00ff', zeroblob(70000), 9e999, -9e999, 9e999 - 9e999, CAST(x'61ff' AS TEXT),"
        " 9223372036854775807, 'å'"
    )
    assert result.rows == [
        [
            *({"blob_bytes": 2}, {"blob_bytes": 70000}, "Infinity", "-Infinity", None),
            *("a\N{REPLACEMENT CHARACTER}", 9223372036854775807, "å"),
        ]
    ]
    assert json.loads(json.dumps(asdict(result), allow_nan=False)) == asdict(result)


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing", ";", "/* SELECT 1 */"])
def test_empty_statement_is_an_error_with_a_first_step(database: Path, sql: str) -> None:
    with pytest.raises(ToolFailed, match="start with SELECT"):
        SqliteReader(database).query(sql)


def test_message_of_sqlite_reaches_the_caller(database: Path) -> None:
    with pytest.raises(ToolFailed, match="no such column: colour"):
        SqliteReader(database).query("SELECT colour FROM items")
    with pytest.raises(ToolFailed, match="syntax error"):
        SqliteReader(database).query("SELEC 1")


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT ?", []),
        ("SELECT ?", [1, 2]),
        ("SELECT ?", [2**70]),
        ("SELECT '\0'", []),
        ("SELECT '\ud800'", []),
    ],
)
def test_parameter_that_sqlite_cannot_take_is_a_tool_failure(
    database: Path, sql: str, parameters: list[int]
) -> None:
    with pytest.raises(ToolFailed) as raised:
        SqliteReader(database).query(sql, parameters)
    assert str(raised.value).startswith("SQLite: ")


def test_rows_stop_at_max_rows_with_a_note(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(max_rows=20))
    numbers = COUNT_TO.format(30) + "SELECT i FROM n"
    few = reader.query(numbers, max_rows=5)
    assert few.rows == [[1], [2], [3], [4], [5]]
    assert few.truncated
    assert "more than 5 rows" in few.why[0]
    assert len(reader.query(numbers, max_rows=500).rows) == 20
    whole = reader.query(COUNT_TO.format(5) + "SELECT i FROM n", max_rows=5)
    assert len(whole.rows) == 5
    assert not whole.truncated


def test_row_limit_does_not_wait_for_an_endless_query(database: Path) -> None:
    numbers = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert len(SqliteReader(database, ReadLimits(time_s=5)).query(numbers, max_rows=7).rows) == 7


def test_long_texts_are_cut_between_characters_with_a_note(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(max_cell_bytes=10))
    result = reader.query("SELECT 'å' || hex(zeroblob(5)) a, 'abcdefghijk' b, 'abcdefghij' c")
    assert result.rows == [["å00000000…", "abcdefghij…", "abcdefghij"]]
    assert reader.query("SELECT 'xååååå' AS a").rows == [["xåååå…"]]
    assert result.truncated
    assert result.why == [
        "2 texts were cut after 10 bytes, where they end with an ellipsis: read on with substr()"
    ]


@pytest.mark.parametrize(
    "cells",
    [
        "printf('%.*c', 8000, 'x')",
        "printf('%.*c', 2000, '\"')",
        "printf('%.*c', 2000, char(1))",
        "printf('%.*c', 2000, char(128512))",
        "0.5" + ", 0.5" * 1500,
        "0" + ", 0" * 1500,
        "NULL" + ", NULL" * 1500,
        "x''" + ", x''" * 1500,
    ],
)
def test_results_stay_under_512_kib_as_json_and_on_the_wire(database: Path, cells: str) -> None:
    msgpack = pytest.importorskip("msgpack")
    reader = SqliteReader(database)
    result = reader.query(COUNT_TO.format(2000) + f"SELECT {cells} FROM n", max_rows=1000)
    assert result.truncated
    assert "the result was full" in result.why[0]
    assert 10 < len(result.rows) < 1000
    plain = asdict(result)
    assert 100 * 1024 < len(json.dumps(plain, ensure_ascii=False).encode()) < 512 * 1024
    assert len(msgpack.packb(plain)) < 512 * 1024


def test_cut_texts_of_rows_that_are_left_out_are_not_counted(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(max_cell_bytes=50, max_result_bytes=60))
    result = reader.query("SELECT 'short' AS a UNION ALL SELECT hex(zeroblob(99))")
    assert result.rows == [["short"]]
    assert result.why == [
        "the result was full after 1 rows: select fewer columns, or use LIMIT and OFFSET"
    ]


def test_row_that_alone_is_too_large_is_a_failure(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(max_result_bytes=1000))
    with pytest.raises(ToolFailed, match="select fewer columns"):
        reader.query("SELECT printf('%.*c', 2000, 'x') AS a")
    with pytest.raises(ToolFailed, match="select fewer columns"):
        reader.query(f'SELECT 1 AS "{"x" * 2000}"')


def test_stored_value_over_the_limit_ends_the_query_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "large.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE photos (id INTEGER, photo BLOB)")
        connection.execute("INSERT INTO photos VALUES (1, zeroblob(2000000))")
    reader = SqliteReader(path)
    with pytest.raises(ToolFailed, match="leave the column"):
        reader.query("SELECT * FROM photos")
    assert reader.query("SELECT id, length(photo) FROM photos").rows == [[1, 2000000]]


def test_time_limit_ends_an_endless_query(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(time_s=0.05))
    with pytest.raises(ToolFailed, match=r"after 0\.05 s: narrow it") as raised:
        reader.query(ENDLESS)
    assert not raised.value.retryable


def test_time_limit_holds_while_rows_are_being_brought(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(time_s=0.05))
    with pytest.raises(ToolFailed, match="narrow it"):
        reader.query(ENDLESS.replace("max(i)", "i") + " WHERE i % 10000000 = 1")


async def test_cancel_in_the_middle_of_an_endless_query_stops_it(database: Path) -> None:
    reader = SqliteReader(database, ReadLimits(time_s=20))
    running, given_up = threading.Event(), threading.Event()

    def stopped() -> bool:
        running.set()
        return given_up.is_set()

    async with asyncio.timeout(60):
        query = asyncio.create_task(asyncio.to_thread(reader.query, ENDLESS, stopped=stopped))
        await asyncio.to_thread(running.wait, PATIENCE_S)
        assert not query.done()
        given_up.set()
        with pytest.raises(ToolFailed, match="its call was cancelled"):
            await query


async def test_cancel_stops_between_slow_steps(database: Path) -> None:
    """Each row costs half a million hexadecimal digits: formatting may not wait for many."""
    reader = SqliteReader(database, ReadLimits(time_s=20))
    running, given_up = threading.Event(), threading.Event()

    def stopped() -> bool:
        running.set()
        return given_up.is_set()

    slow = ENDLESS.replace("max(i)", "max(length(hex(randomblob(250000 + i))))")
    async with asyncio.timeout(60):
        query = asyncio.create_task(asyncio.to_thread(reader.query, slow, stopped=stopped))
        await asyncio.to_thread(running.wait, PATIENCE_S)
        given_up.set()
        with pytest.raises(ToolFailed, match="its call was cancelled"):
            await query


def test_tables_and_views_are_listed_without_those_of_sqlite(database: Path) -> None:
    listed = SqliteReader(database).list_tables()
    assert listed.tables == ["Makers", "items", 'odd "name" [x]']
    assert listed.views == ["cheap"]
    assert not listed.truncated


def test_list_of_very_many_tables_is_cut_with_a_note(database: Path) -> None:
    listed = SqliteReader(database, ReadLimits(max_rows=2)).list_tables()
    assert len(listed.tables + listed.views) == 2
    assert listed.truncated
    assert listed.why


def test_description_names_columns_keys_and_indexes(database: Path) -> None:
    items = SqliteReader(database).describe("ITEMS")
    assert (items.name, items.type) == ("items", "table")
    assert items.columns == [
        Column("maker", "INTEGER", False, None, 1),
        Column("code", "TEXT", False, "'none'", 2),
        Column("price", "REAL", False, None, 0),
        Column("shown", "", False, None, 0),
    ]
    assert items.foreign_keys == [ForeignKey("maker", "makers", "id")]
    assert Index("by_price", False, "price, (expression)") in items.indexes
    assert Index("sqlite_autoindex_items_1", True, "maker, code") in items.indexes
    assert items.sql is not None
    assert items.sql.startswith("CREATE TABLE items")
    assert not items.truncated


def test_views_and_oddly_named_tables_are_described(database: Path) -> None:
    reader = SqliteReader(database)
    cheap = reader.describe("cheap")
    assert cheap.type == "view"
    assert [column.name for column in cheap.columns] == ["code", "price"]
    assert [column.name for column in reader.describe('odd "name" [x]').columns] == ["a b"]


@pytest.mark.parametrize("table", ["nothing", "", "items; --", "sqlite_master", "by_price"])
def test_describing_an_unknown_table_is_an_error_that_names_list_tables(
    database: Path, table: str
) -> None:
    with pytest.raises(ToolFailed, match="list_tables returns their names"):
        SqliteReader(database).describe(table)


def test_hidden_columns_of_full_text_tables_are_not_described(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIRTUAL TABLE notes USING fts5(title, body)")
    described = SqliteReader(path).describe("notes")
    assert [column.name for column in described.columns] == ["title", "body"]


def test_description_of_a_huge_table_stays_under_512_kib(tmp_path: Path) -> None:
    path = tmp_path / "wide.sqlite"
    names = [f"c{i:0>300}" for i in range(1900)]
    columns = ", ".join(f"{name} REFERENCES {name * 3} ({name})" for name in names)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE wide ({columns})")
        for name in names[:500]:
            connection.execute(f"CREATE INDEX {name * 3} ON wide ({name})")
    limits = ReadLimits(max_sql_bytes=8 * 1024 * 1024, max_value_bytes=8 * 1024 * 1024)
    wide = SqliteReader(path, limits).describe("wide")
    assert wide.truncated
    assert len(wide.why) == 4
    assert len(json.dumps(asdict(wide)).encode()) < 512 * 1024


def test_file_that_appears_later_is_read(tmp_path: Path) -> None:
    reader = SqliteReader(tmp_path / "later.sqlite")
    with pytest.raises(ToolFailed, match="has to check its file"):
        reader.query("SELECT 1")
    sqlite3.connect(tmp_path / "later.sqlite").close()
    assert reader.query("SELECT 1").rows == [[1]]


def test_many_threads_read_at_once(database: Path) -> None:
    reader = SqliteReader(database, replace(ReadLimits(), time_s=30))
    result: list[object] = []

    def read() -> None:
        result.append(reader.query(COUNT_TO.format(20_000) + "SELECT sum(i) FROM n").rows[0][0])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    assert result == [200_010_000] * 8
