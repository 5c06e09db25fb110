"""Builds a SQLite file of the packages installed on this machine: real data to query with `sql`.

Python packages come from `importlib.metadata` of the running interpreter, Debian packages from
`dpkg-query` where there is one. A package whose metadata is broken is kept with what can be read of
it; one without a name is left out. Requirements are those that the package states, whether or not
they apply to this machine.
"""

from __future__ import annotations

import csv
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TypeVar

from toolbus.atomic_file import write_atomically

__all__ = [
    "Dependency",
    "Package",
    "build_inventory",
    "debian_packages",
    "python_packages",
    "write_inventory",
]

T = TypeVar("T")

_SCHEMA = """
    CREATE TABLE packages (
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        licence TEXT,
        summary TEXT,
        files INTEGER,
        size_bytes INTEGER,
        requires INTEGER NOT NULL,
        source TEXT NOT NULL,
        PRIMARY KEY (name, source)
    );
    CREATE TABLE dependencies (
        package TEXT NOT NULL,
        requires TEXT NOT NULL,
        extra TEXT,
        source TEXT NOT NULL,
        FOREIGN KEY (package, source) REFERENCES packages (name, source)
    );
    CREATE INDEX packages_by_size ON packages (size_bytes);
    CREATE INDEX dependencies_by_package ON dependencies (package, source);
    CREATE INDEX dependencies_by_requires ON dependencies (requires, source);
"""

_BROKEN_METADATA = (OSError, ValueError, TypeError, LookupError, AttributeError, csv.Error)
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]""")
_LONGEST_LICENCE = 80

_FIELD, _RECORD = "\x1f", "\x1e"
_DPKG_FIELDS = (
    "Package",
    "Version",
    "binary:Summary",
    "Installed-Size",
    "Depends",
    "db-fsys:Files",
)
_DPKG_TIME_S = 5.0


@dataclass(frozen=True, slots=True)
class Dependency:
    """One package that another requires."""

    requires: str
    extra: str | None = None
    """The optional feature that requires it; None where the package always does."""


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package."""

    name: str
    """Normalised as package indexes do: lower case, with single hyphens."""
    version: str
    source: str
    """`python` or `debian`."""
    licence: str | None = None
    """None where the package states none, or a long text."""
    summary: str | None = None
    files: int | None = None
    """How many of the files that it recorded exist; None where there is no record."""
    size_bytes: int | None = None
    """The size of those files now; None where there is no record, or no time to measure."""
    dependencies: tuple[Dependency, ...] = field(default=())


def build_inventory(path: str | Path, *, time_s: float = 5.0) -> int:
    """Write the inventory of this machine to `path`, in one step; return the number of packages.

    After `time_s` the remaining Python packages are written without files and sizes.
    """
    packages = [*python_packages(distributions(), time_s=time_s), *debian_packages()]
    return write_inventory(path, packages)


def write_inventory(path: str | Path, packages: Iterable[Package]) -> int:
    """Write packages to a new SQLite file, replace `path` with it, and return their number.

    Of two with the same name and source the first counts, as it does for `import`.
    """
    path = Path(path).absolute()
    first: dict[tuple[str, str], Package] = {}
    for package in packages:
        first.setdefault((package.name, package.source), package)
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        with connection:
            _insert(connection, first.values())
        write_atomically(path, connection.serialize())
    return len(first)


def python_packages(installed: Iterable[Distribution], *, time_s: float = 5.0) -> Iterator[Package]:
    """Read Python packages; for at most `time_s` also the number and size of their files."""
    ends_at = time.monotonic() + time_s
    for distribution in installed:
        name = _canonical(_header(distribution, "Name") or "")
        if not name:
            continue
        files, size_bytes = _measured(distribution, ends_at)
        yield Package(
            name=name,
            version=_header(distribution, "Version") or "",
            source="python",
            licence=_licence(distribution),
            summary=_header(distribution, "Summary"),
            files=files,
            size_bytes=size_bytes,
            dependencies=_python_dependencies(distribution),
        )


def debian_packages() -> Iterator[Package]:
    """Read Debian packages, which state no licence; none where there is no `dpkg-query`."""
    command = shutil.which("dpkg-query")
    if command is None:
        return
    form = _FIELD.join(f"${{{name}}}" for name in ("db:Status-Status", *_DPKG_FIELDS)) + _RECORD
    try:
        answer = subprocess.run(
            [command, "--show", f"--showformat={form}"], capture_output=True, timeout=_DPKG_TIME_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    for record in answer.stdout.decode("utf-8", "replace").split(_RECORD):
        status, *fields = record.split(_FIELD)
        if status != "installed" or len(fields) != len(_DPKG_FIELDS):
            continue
        name, version, summary, size_kib, depends, files = fields
        # Of "a | b (>= 2), c" the first alternative is the one Debian installs.
        first = (part.split("|")[0].split("(")[0].split(":")[0] for part in depends.split(","))
        names = filter(None, map(str.strip, first))
        yield Package(
            name=name,
            version=version,
            source="debian",
            summary=summary or None,
            files=sum(1 for line in files.splitlines() if line.strip()),
            size_bytes=int(size_kib) * 1024 if size_kib.isdigit() else None,
            dependencies=tuple(map(Dependency, dict.fromkeys(names))),
        )


def _insert(connection: sqlite3.Connection, packages: Iterable[Package]) -> None:
    for package in packages:
        always = {
            dependency.requires for dependency in package.dependencies if dependency.extra is None
        }
        connection.execute(
            "INSERT INTO packages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(package.name, package.version, package.licence, package.summary),
                *(package.files, package.size_bytes, len(always), package.source),
            ),
        )
        connection.executemany(
            "INSERT INTO dependencies VALUES (?, ?, ?, ?)",
            (
                (package.name, dependency.requires, dependency.extra, package.source)
                for dependency in package.dependencies
            ),
        )


def _attempt(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except _BROKEN_METADATA:
        return otherwise


def _headers(distribution: Distribution, name: str) -> list[str]:
    values = _attempt(lambda: distribution.metadata.get_all(name), None) or []
    # Metadata that is not UTF-8 arrives with lone surrogates, which SQLite would refuse.
    return [str(value).encode("utf-8", "replace").decode().strip() for value in values]


def _header(distribution: Distribution, name: str) -> str | None:
    return next((value for value in _headers(distribution, name) if value), None)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip("-").lower()


def _licence(distribution: Distribution) -> str | None:
    """Find the shortest valid name: an SPDX expression, a one-line licence, or a classifier."""
    classifiers = [
        classifier.rpartition("::")[2].strip()
        for classifier in _headers(distribution, "Classifier")
        if classifier.startswith("License ::")
    ]
    stated = (_header(distribution, "License-Expression"), _header(distribution, "License"))
    for licence in (*stated, " AND ".join(classifiers)):
        if licence and licence.upper() != "UNKNOWN":
            if len(licence) <= _LONGEST_LICENCE and "\n" not in licence:
                return licence
    return None


def _measured(distribution: Distribution, ends_at: float) -> tuple[int | None, int | None]:
    if time.monotonic() >= ends_at:
        return None, None
    recorded = _attempt(lambda: distribution.files, None)
    if recorded is None:
        return None, None
    sizes: list[int] = []
    for file in recorded:  # from Python 3.12 on these exist, before that some may be missing
        if time.monotonic() >= ends_at:
            return None, None
        with suppress(*_BROKEN_METADATA):
            sizes.append(Path(file.locate()).stat().st_size)
    return len(sizes), sum(sizes)


def _python_dependencies(distribution: Distribution) -> tuple[Dependency, ...]:
    requirements = _attempt(lambda: distribution.requires, None) or []
    found: dict[Dependency, None] = {}
    for requirement in requirements:
        if name := _REQUIREMENT.match(requirement):
            for extra in _EXTRA.findall(requirement) or [None]:
                found[Dependency(_canonical(name[1]), extra and _canonical(extra))] = None
    return tuple(found)
