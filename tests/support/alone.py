"""Tests that measure time, marked `alone`: no other test runs meanwhile, in whatever worker.

Workers are processes. For as long as a test runs, its fixtures included, its worker holds a lock:
an `alone` test by itself, all others together. The locks lie on what is there anyway, so nothing
is left behind, and two runs in one clone do not disturb each other either.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["can_lock", "door_of", "on_the_floor"]


@contextmanager
def on_the_floor(root: Path, *, alone: bool) -> Iterator[None]:
    """Wait for this test's turn, and keep it for as long as the block runs.

    Whoever waits keeps the door, so that nobody enters before one who waits for all to leave.

    Args:
        root: The folder that is locked; its pyproject.toml is the door.
        alone: Whether no other test may run meanwhile.
    """
    with _opened(root) as floor:
        with _opened(door_of(root)) as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def door_of(root: Path) -> Path:
    """Name what is locked by whoever waits to run."""
    return root / "pyproject.toml"


def can_lock(path: Path, *, alone: bool) -> bool:
    """Tell whether another worker could have this now, by itself or with others."""
    with _opened(path) as descriptor:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file or folder; closing it gives its lock back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
