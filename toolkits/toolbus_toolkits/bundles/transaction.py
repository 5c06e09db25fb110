"""Changes several files of a folder, all or none, also if the process is killed half way.

    staged: new files are written beside, with a journal of what is to be done
    applied: each old file is kept beside, the new one takes its place
    done: the journal is removed; the kept files go

An error rolls back at once. A process that was killed leaves its journal, and the next one that
takes the lock rolls back. Readers see each file as it was or as it is to be. POSIX only.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from toolbus.atomic_file import write_atomically
from toolbus.untrusted_text import one_line
from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.bundles.contents import BundleRefused, is_plain
from toolbus_toolkits.mcp.config import HOME_FILE

__all__ = ["INSTALLED_FILE", "apply_changes", "locked", "real_path", "recover"]

INSTALLED_FILE = "bundles.json"
"""Which bundle owns what."""
_STAGE = ".bundle-change"
_JOURNAL = "journal.json"
_LOCK = "bundles.lock"


class _Step(NamedTuple):
    """The change of one file, as the journal has it."""

    path: str
    existed: bool
    folders: list[str]
    """Those that are made for it, the innermost first."""


_STEPS = TypeAdapter(list[_Step])


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Let one process at a time change the bundles of a folder, which is created.

    A change that a killed process began is rolled back first. Raises `BundleRefused` if the folder
    cannot be written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BundleRefused(f"TOOLBUS_HOME: cannot write {home}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _roll_back(home)
        yield
    finally:
        os.close(lock)


def recover(home: Path) -> None:
    """Undo what a killed process began; wait for a change that is under way."""
    if (home / _STAGE).exists():
        with locked(home):
            pass


def apply_changes(home: Path, changes: Mapping[str, bytes | None]) -> None:
    """Write and remove files, all or none. The caller holds the lock.

    Args:
        home: The folder.
        changes: Paths in it, each with the new content; None removes the file. The last ones are
            changed last.

    Raises:
        OSError: A file cannot be changed; everything is as it was.
    """
    stage = home / _STAGE
    try:
        _stage(home, changes)
        for number, (path, content) in enumerate(changes.items()):
            _apply(home, number, path, content)
        for path, content in changes.items():
            if content is None:
                for folder in list(Path(path).parents)[:-2]:  # those at the top stay
                    with suppress(OSError):  # it is not empty
                        (home / folder).rmdir()
        # From here on the change counts: without a journal nothing is rolled back.
        (stage / _JOURNAL).unlink()
    except BaseException:
        _roll_back(home)
        raise
    shutil.rmtree(stage, ignore_errors=True)


def _stage(home: Path, changes: Mapping[str, bytes | None]) -> None:
    stage = home / _STAGE
    for part in ("new", "old"):
        (stage / part).mkdir(parents=True, mode=0o700)
    steps = []
    for number, (path, content) in enumerate(changes.items()):
        if content is not None:
            with _staged(home, "new", number).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _real(home, path, home)  # raises for one outside, before anything is changed
        existed = os.path.lexists(home / path)
        parents = [parent for parent in Path(path).parents if not (home / parent).exists()]
        steps.append(_Step(path, existed, [*map(str, parents)])._asdict())
    write_atomically(stage / _JOURNAL, json.dumps(steps).encode(), sync=True)


def _apply(home: Path, number: int, path: str, content: bytes | None) -> None:
    target = _real(home, path, home)
    old, new = (_staged(home, part, number) for part in ("old", "new"))
    if content is None:
        with suppress(FileNotFoundError):
            os.rename(target, old)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        os.chmod(new, target.stat().st_mode & 0o777)
        copy = old.with_suffix(".part")
        shutil.copy2(target, copy)
        os.replace(copy, old)
    os.replace(new, target)


def _roll_back(home: Path) -> None:
    """Undo a change that has not ended. May be repeated."""
    stage = home / _STAGE
    for number, step in reversed(list(enumerate(_steps(home)))):
        target, old = _real(home, step.path, home), _staged(home, "old", number)
        was_applied = not _staged(home, "new", number).exists()
        if old.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(old, target)
        elif was_applied and not step.existed:
            target.unlink(missing_ok=True)
        for folder in step.folders:
            with suppress(OSError):  # it has other files, or was not made yet
                (home / folder).rmdir()
    (stage / _JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(stage, ignore_errors=True)


def _steps(home: Path) -> list[_Step]:
    """Return the steps of the journal. Raises `BundleRefused`, also if one leads outside."""
    journal = home / _STAGE / _JOURNAL
    try:
        steps = _STEPS.validate_python(read_json_file(journal, missing=[]))
        for step in steps:
            _real(home, step.path, journal)
            if not {*step.folders} <= {str(parent) for parent in Path(step.path).parents}:
                raise ValueError(f"{journal}: a folder is not one of its file")
    except ValueError as error:
        why = f"{journal}: has another form" if isinstance(error, ValidationError) else error
        raise BundleRefused(
            f"{why}: the journal is damaged, so its change cannot be undone: move "
            f"{journal.parent} away, and compare the files in it with those of TOOLBUS_HOME"
        ) from None
    return steps


def _staged(home: Path, part: str, number: int) -> Path:
    return home / _STAGE / part / str(number)


def real_path(home: Path, path: str, source: Path) -> Path:
    """Return where a file of a bundle is, by its path below `TOOLBUS_HOME`, which may be a link.

    Raises `BundleRefused`, with the file that named it, if it leads outside of the home, as a text
    or by a link.
    """
    shown = one_line(path, 120)
    if not is_plain(path):
        raise BundleRefused(f"{source}: {shown!r} is not a plain path inside {home}: remove it")
    real = Path(os.path.realpath(home / path))
    if not real.is_relative_to(os.path.realpath(home)):
        raise BundleRefused(
            f"{source}: {shown!r} leads outside of {home} by a link: put the file, or the folder, "
            "in the place of the link"
        )
    return real


def _real(home: Path, path: str, source: Path) -> Path:
    """Return where a file is; the files that are not of bundles may be links, which stay."""
    if path in (HOME_FILE, INSTALLED_FILE):
        return Path(os.path.realpath(home / path))
    return real_path(home, path, source)
