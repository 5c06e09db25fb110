"""The inventory of the running interpreter, and packages whose metadata is broken."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any

import pytest

from toolbus_toolkits.inventory import (
    Dependency,
    Package,
    build_inventory,
    debian_packages,
    python_packages,
    write_inventory,
)


def _rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def _installed(folder: Path, name: str, **files: str | bytes) -> list[Distribution]:
    info = folder / f"{name}.dist-info"
    info.mkdir(parents=True)
    for file, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (info / file).write_bytes(data)
    return list(distributions(path=[str(folder)]))


def test_inventory_of_this_interpreter_has_what_toolbus_needs(tmp_path: Path) -> None:
    path = tmp_path / "new" / "inventory.sqlite"
    total = build_inventory(path, time_s=60)
    assert _rows(path, "SELECT count(*) FROM packages") == [(total,)]
    found = {
        row[0]: row[1:]
        for row in _rows(
            path,
            "SELECT name, version, files, size_bytes, licence FROM packages"
            " WHERE source = 'python'",
        )
    }
    for name in ("websockets", "msgpack", "pydantic", "jsonschema-rs", "pyjwt", "typer", "rich"):
        stated, files, size_bytes, licence = found[name]
        assert stated == version(name)
        assert 5 < files < 5_000
        assert 50_000 < size_bytes < 100_000_000
        assert licence
    assert "toolbus" in found


def test_dependencies_join_packages(tmp_path: Path) -> None:
    path = tmp_path / "inventory.sqlite"
    build_inventory(path, time_s=60)
    needed = _rows(
        path,
        """
        SELECT p.name FROM dependencies AS d JOIN packages AS p
        ON p.name = d.requires AND p.source = d.source
        WHERE d.package = 'pydantic' AND d.source = 'python' AND d.extra IS NULL
        """,
    )
    assert ("pydantic-core",) in needed
    assert ("typing-extensions",) in needed
    extras = _rows(
        path, "SELECT requires FROM dependencies WHERE package = 'pydantic' AND extra = 'email'"
    )
    assert extras == [("email-validator",)]
    stated = _rows(path, "SELECT requires FROM packages WHERE name = 'pydantic'")
    assert stated == [(len(needed),)]


def test_licence_is_an_expression_a_line_or_a_classifier(tmp_path: Path) -> None:
    prose = "Permission is hereby granted\n  to anybody\n"
    headers = {
        "expression": "License-Expression: MIT OR Apache-2.0\nLicense: something else\n",
        "line": "License: BSD\nClassifier: License :: OSI Approved :: MIT License\n",
        "classifier": "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
        "prose": f"License: {prose}Classifier: License :: OSI Approved :: ISC License\n",
        "nothing": "",
    }
    installed: list[Distribution] = []
    for name, lines in headers.items():
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{lines}"
        installed += _installed(tmp_path / name, name, METADATA=text)
    found = {package.name: package.licence for package in python_packages(installed)}
    assert found == {
        "expression": "MIT OR Apache-2.0",
        "line": "BSD",
        "classifier": "MIT License",
        "prose": "ISC License",
        "nothing": None,
    }


def test_broken_metadata_costs_only_what_cannot_be_read(tmp_path: Path) -> None:
    good = "Name: {}\nVersion: 2\n"
    installed = [
        *_installed(tmp_path / "a", "no_record", METADATA=good.format("No_Record")),
        *_installed(
            tmp_path / "b",
            "gone",
            METADATA=good.format("gone"),
            RECORD="gone/a.py,,\ngone.dist-info/METADATA,,\n",
        ),
        *_installed(
            tmp_path / "c", "binary", METADATA=good.format("binary"), RECORD=b"\xff\xfe\x00,,\n"
        ),
        *_installed(tmp_path / "d", "empty", METADATA=""),
        *_installed(tmp_path / "e", "bare"),
        *_installed(tmp_path / "f", "latin", METADATA=b"Name: latin\nSummary: caf\xe9\n"),
        *_installed(
            tmp_path / "g",
            "odd",
            METADATA=good.format("odd") + "Requires-Dist: ???\nRequires-Dist: Fine_One (>=1)\n",
        ),
    ]
    found = {package.name: package for package in python_packages(installed)}
    assert found["no-record"] == Package("no-record", "2", "python")
    assert found["gone"].files == 1
    assert found["gone"].size_bytes == len(good.format("gone"))
    assert found["binary"].version == "2"
    assert found["binary"].files is None
    assert found["odd"].dependencies == (Dependency("fine-one"),)
    assert write_inventory(tmp_path / "broken.sqlite", found.values()) == len(found)


def test_same_package_twice_counts_once_and_the_first_wins(tmp_path: Path) -> None:
    installed = [
        *_installed(tmp_path / "a", "twice-2", METADATA="Name: Twice\nVersion: 2\n"),
        *_installed(tmp_path / "b", "twice-1", METADATA="Name: twice\nVersion: 1\n"),
    ]
    path = tmp_path / "inventory.sqlite"
    assert write_inventory(path, python_packages(installed)) == 1
    assert _rows(path, "SELECT name, version FROM packages") == [("twice", "2")]


def test_without_time_packages_are_listed_without_sizes() -> None:
    hurried = list(python_packages(distributions(), time_s=0))
    assert len(hurried) > 10
    assert all(each.files is None and each.size_bytes is None for each in hurried)


def test_new_inventory_replaces_the_old_one_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "inventory.sqlite"
    write_inventory(path, [Package("old", "1", "python")])
    old_file = path.stat().st_ino
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader:
        assert reader.execute("SELECT name FROM packages").fetchall() == [("old",)]
        write_inventory(path, [Package("new", "1", "python")])
        assert reader.execute("SELECT name FROM packages").fetchall() == [("old",)]
        assert path.stat().st_ino != old_file
    assert _rows(path, "SELECT name FROM packages") == [("new",)]
    assert list(tmp_path.iterdir()) == [path]


def test_failed_build_leaves_the_old_inventory(tmp_path: Path) -> None:
    path = tmp_path / "inventory.sqlite"
    write_inventory(path, [Package("old", "1", "python")])
    with pytest.raises(UnicodeEncodeError):
        write_inventory(path, [Package("\ud800", "1", "python")])
    assert _rows(path, "SELECT name FROM packages") == [("old",)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg-query on this machine")
def test_debian_packages_have_sizes_files_and_dependencies() -> None:
    found = {package.name: package for package in debian_packages()}
    bash = found["bash"]
    assert bash.source == "debian"
    assert bash.version[0].isdigit()
    assert bash.summary
    assert bash.files is not None
    assert bash.files > 10
    assert bash.size_bytes is not None
    assert bash.size_bytes > 100_000
    assert Dependency("base-files") in bash.dependencies


def _fake_dpkg(folder: Path, answer: str) -> None:
    (folder / "answer").write_text(answer)
    command = folder / "dpkg-query"
    command.write_text(f"#!/bin/sh\ncat '{folder}/answer'\n")
    command.chmod(0o755)


def test_only_installed_debian_packages_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records = [
        ("installed", "one", "1:2-3", "First", "12", "libc6 (>= 2), b:any | c, b", " /.\n /x\n"),
        ("installed", "two", "1", "", "odd", "", ""),
        ("config-files", "removed", "1", "", "1", "", ""),
        ("installed", "too", "short"),
    ]
    _fake_dpkg(tmp_path, "\x1e".join("\x1f".join(record) for record in records))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert list(debian_packages()) == [
        Package(
            *("one", "1:2-3", "debian", None, "First", 2, 12 * 1024),
            dependencies=(Dependency("libc6"), Dependency("b")),
        ),
        Package("two", "1", "debian", files=0),
    ]


def test_machine_without_dpkg_has_no_debian_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(debian_packages()) == []
    _fake_dpkg(tmp_path, "nonsense")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert list(debian_packages()) == []
