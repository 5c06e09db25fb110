"""Confines by Landlock and seccomp, without namespaces: `confine.py` does it before the program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from toolbus_toolkits.sandbox.plan import Confinement, SandboxUnavailable, is_below_any

__all__ = ["landlock_options", "landlock_words"]

_PROGRAM = Path(__file__).with_name("confine.py")


def landlock_words(descriptor: int) -> list[str]:
    """Return the words before a command; the descriptor gives what `landlock_options` returns."""
    return [sys.executable, "-I", "-S", str(_PROGRAM), str(descriptor)]


def landlock_options(plan: Confinement, environment: Mapping[str, str], scratch: str) -> bytes:
    """Return what confines a command as planned.

    Args:
        plan: What it gets.
        environment: All its variables.
        scratch: A folder that it may change: its user's folder, and that of its temporary files.

    Raises:
        SandboxUnavailable: Something is to be hidden or protected in a folder that may be changed.
    """
    inside = [path for path in plan.hide if is_below_any(path, plan.write)]
    if inside or plan.protected:
        raise SandboxUnavailable(
            "landlock can neither hide nor protect files within a folder that a program changes,"
            f" such as {(*inside, *plan.protected)[0]!a}: use bubblewrap"
        )
    for path in (sys.executable, str(_PROGRAM)):
        if is_below_any(path, plan.write) or is_below_any(os.path.realpath(path), plan.write):
            raise SandboxUnavailable(
                f"{path!a} confines by landlock, and programs may change it: install toolbus"
                " outside the folders that they change, or use bubblewrap"
            )
    options = {
        "read": [*_without(plan.read, frozenset(plan.hide)), "/proc"],
        "write": [*plan.write, scratch],
        "network": plan.network,
        "unix_sockets": plan.unix_sockets,
        "max_processes": plan.max_processes,
        "environment": dict(environment),
    }
    return json.dumps(options).encode()


def _without(paths: Iterable[str], hidden: frozenset[str]) -> Iterator[str]:
    """Give folders, in place of one with something hidden in it all else that is in it now.

    Landlock allows a whole folder, and takes back nothing.
    """
    for path in paths:
        if path in hidden:
            continue
        within = frozenset(below for below in hidden if below.startswith(f"{path}/"))
        if not within:
            yield path
            continue
        try:
            with os.scandir(path) as entries:
                found = [entry.path for entry in entries if not entry.is_symlink()]
        except OSError:  # its user may not read it either
            continue
        yield from _without(found, within)
