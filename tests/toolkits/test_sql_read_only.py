"""What a guarded connection refuses, and that a refused statement leaves the file unchanged."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from toolbus import ToolFailed
from toolbus_toolkits.sql.read_only import ReadLimits, guarded_connection

LIMITS = ReadLimits(time_s=5)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "stock? of #1 100%.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("""
            CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL);
            INSERT INTO items (name, price) VALUES ('bolt', 0.5), ('nut', 0.25), ('gear', 12);
            CREATE VIEW cheap AS SELECT * FROM items WHERE price < 1;
            CREATE VIRTUAL TABLE notes USING fts5(body);
            INSERT INTO notes VALUES ('a bolt holds'), ('a gear turns');
            CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1);
            INSERT INTO boxes VALUES (1, 0, 2), (2, 5, 6);
        """)
    before, files = _digest(path), sorted(tmp_path.iterdir())
    yield path
    assert _digest(path) == before, "the file's bytes changed"
    assert sorted(tmp_path.iterdir()) == files, "a file was left beside it"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(database: Path, sql: str) -> list[tuple[object, ...]]:
    with guarded_connection(database, LIMITS) as connection:
        return connection.execute(sql).fetchall()


REFUSED = [
    "INSERT INTO items (name) VALUES ('x')",
    "REPLACE INTO items VALUES (1, 'x', 1)",
    "INSERT INTO notes VALUES ('x')",
    "INSERT INTO notes (notes) VALUES ('optimize')",
    "UPDATE items SET price = 0",
    "DELETE FROM items",
    "DELETE FROM items RETURNING id",
    "WITH doomed AS (SELECT id FROM items) DELETE FROM items WHERE id IN doomed RETURNING id",
    "WITH doomed AS (DELETE FROM items RETURNING id) SELECT * FROM doomed",
    "EXPLAIN DELETE FROM items",
    "CREATE TABLE x (a)",
    "CREATE TABLE x AS SELECT * FROM items",
    "CREATE TEMP TABLE x (a)",
    "CREATE INDEX x ON items (name)",
    "CREATE VIEW x AS SELECT 1",
    "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE TRIGGER x AFTER INSERT ON items BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE x USING fts5(a)",
    "CREATE VIRTUAL TABLE temp.x USING fts5(a)",
    "ALTER TABLE items RENAME TO x",
    "ALTER TABLE items ADD COLUMN x",
    "DROP TABLE items",
    "DROP VIEW cheap",
    "DROP TABLE notes",
    "REINDEX",
    "ANALYZE",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT x",
    "RELEASE x",
    "ATTACH ':memory:' AS x",
    "ATTACH '/etc/passwd' AS x",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO 'stolen.sqlite'",
    "PRAGMA writable_schema = 1",
    "PRAGMA writable_schema",
    "PRAGMA journal_mode",
    "PRAGMA journal_mode = WAL",
    "PRAGMA main.journal_mode(DELETE)",
    "PRAGMA query_only = 0",
    "PRAGMA trusted_schema = 1",
    "PRAGMA page_size = 512",
    "PRAGMA user_version = 7",
    "PRAGMA temp_store_directory = '/tmp'",
    "PRAGMA database_list",
    "PRAGMA wal_checkpoint",
    "PRAGMA incremental_vacuum",
    "PRAGMA optimize",
    "SELECT file FROM pragma_database_list",
    "SELECT * FROM pragma_compile_options",
    "SELECT load_extension('evil')",
    "SELECT Load_Extension('evil', 'main')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT sqlite_log(1, 'x')",
    "SELECT name FROM items WHERE load_extension('evil') IS NULL",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('x', 'y')",
    "SELECT edit('x')",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_whatever_does_more_than_read_is_refused(database: Path, sql: str) -> None:
    with pytest.raises(ToolFailed) as raised:
        _run(database, sql)
    assert raised.value.executed == "yes"
    assert not raised.value.retryable
    assert str(database) not in str(raised.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; DELETE FROM items",
        "SELECT 1; -- harmless\nDELETE FROM items",
        "SELECT 1 /* ; */ ; /* nothing here */ DELETE FROM items",
        "-- ;\nSELECT 1;\n\n;DELETE FROM items",
        "SELECT 1; SELECT 2",
    ],
)
def test_second_statement_is_refused_wherever_it_hides(database: Path, sql: str) -> None:
    with pytest.raises(ToolFailed, match="one statement at a time"):
        _run(database, sql)


def test_refusal_names_the_refused_value(database: Path) -> None:
    with pytest.raises(ToolFailed, match=r"only reading .* refused DELETE items"):
        _run(database, "DELETE FROM items")
    with pytest.raises(ToolFailed, match=r"only reading .* refused PRAGMA journal_mode"):
        _run(database, "PRAGMA journal_mode")


def test_authorizer_refuses_what_file_and_connection_would_allow(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed) as raised:
        _run(_empty(tmp_path), "CREATE TEMP TABLE x (a)")
    assert raised.value.details == {"sqlite": "SQLITE_AUTH"}


@pytest.mark.parametrize("query_only", ["ON", "OFF"])
def test_file_refuses_writing_even_without_the_authorizer(tmp_path: Path, query_only: str) -> None:
    with guarded_connection(_empty(tmp_path), LIMITS) as connection:
        connection.set_authorizer(None)
        connection.execute(f"PRAGMA query_only={query_only}")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("CREATE TABLE x (a)")


def _empty(folder: Path) -> Path:
    path = folder / "empty.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    return path


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) FROM items", [(3,)]),
        ("SELECT name FROM cheap ORDER BY name", [("bolt",), ("nut",)]),
        ("WITH a AS (SELECT 1 AS x) SELECT x FROM a", [(1,)]),
        (
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 3) "
            "SELECT i FROM n",
            [(1,), (2,), (3,)],
        ),
        ("SELECT value FROM json_each('[7, 8]')", [(7,), (8,)]),
        ("SELECT body FROM notes WHERE notes MATCH 'gear'", [("a gear turns",)]),
        ("SELECT highlight(notes, 0, '<', '>') FROM notes('bolt')", [("a <bolt> holds",)]),
        ("SELECT id FROM boxes WHERE x0 > 3", [(2,)]),
        ("SELECT name FROM pragma_table_info('items')", [("id",), ("name",), ("price",)]),
        ("VALUES (1), (2);  -- and no more", [(1,), (2,)]),
        ("SELECT sum(price) OVER (ORDER BY id) FROM items WHERE id < 3", [(0.5,), (0.75,)]),
    ],
)
def test_reading_statements_are_allowed(database: Path, sql: str, rows: list[object]) -> None:
    assert _run(database, sql) == rows


def test_missing_and_foreign_files_are_refused_without_their_path(tmp_path: Path) -> None:
    foreign = tmp_path / "letter.txt"
    foreign.write_text("Dear all, this is no database, and it is long enough to be asked. " * 20)
    for path in (tmp_path / "nothing.sqlite", foreign, tmp_path):
        with pytest.raises(ToolFailed, match="has to check its file") as raised:
            _run(path, "SELECT 1")
        assert str(tmp_path) not in str(raised.value)
    assert not (tmp_path / "nothing.sqlite").exists()


def test_locked_database_can_be_tried_again(tmp_path: Path) -> None:
    path = _empty(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ToolFailed, match="try again") as raised:
            _run(path, "SELECT 1 FROM sqlite_master")
    assert raised.value.retryable


def test_connection_is_closed_after_the_block_and_after_an_error(database: Path) -> None:
    with guarded_connection(database, LIMITS) as connection:
        pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    with pytest.raises(ToolFailed), guarded_connection(database, LIMITS) as connection:
        connection.execute("BEGIN")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT " + "1 + " * 200 + "1", "too large|depth"),
        ("SELECT " + "'" + "x" * 70_000 + "'", "too large"),
        (" UNION ALL ".join(["SELECT 1"] * 60), "too many terms"),
        ("SELECT ?2000", "variable number"),
        ("SELECT zeroblob(2000000)", "too big"),
        ("SELECT 'a' LIKE replace(hex(zeroblob(1000)), '0', '_')", "too complex"),
    ],
)
def test_oversized_statements_are_refused(database: Path, sql: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        _run(database, sql)
