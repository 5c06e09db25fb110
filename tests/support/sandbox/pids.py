"""Ids of processes that are in a namespace of their own."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def host_pid(leader: int, pid: int) -> int:
    """Return the id outside of a process that a started one knows by the id within its sandbox."""
    first = psutil.Process(leader)
    if first.name() != "bwrap":
        return pid
    for process in first.children(recursive=True):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            if f"\t{pid}\n" in status.partition("NSpid:")[2].partition("NSpgid")[0]:
                return process.pid
    raise LookupError(pid)
