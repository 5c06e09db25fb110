"""The processes that a command left behind, wherever they are, known by a mark that all inherit.

The mark is the soft limit RLIMIT_RTTIME: microseconds that a process of the real-time scheduler may
run without a pause. Every process inherits it, also one that leaves the process group (`setsid`,
daemons), clears its environment or overwrites it with a title. A number of thousands of years,
another one for each command, limits nobody: it only tells whose process it is.

Considered and not used:

- Cgroups (v2). A process can be started in a group of its own only by moving it there, and a move
  waits until every processor has passed a grace period: 6 to 18 ms on an idle machine, where a
  command costs 2 ms. Few hosts may make groups at all, and a process that may be moved in by its
  user can be moved out by it.
- Namespaces of process ids: the ids that `ps`, `kill` and /proc show to an agent would be those of
  other processes outside.
- A mark in the environment: what clears its environment (`env -i`, `sudo`), or writes a title over
  it (nginx, PostgreSQL, Redis), loses it, and those are the daemons that are left behind.

What sets that limit itself after it has left the process group is not found, nor what another
process starts on a command's request (`docker`, `systemd-run`, `at`): it is no descendant of it.
"""

from __future__ import annotations

import itertools
import os
import resource
import secrets
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

from toolbus.forked_children import call_in_children

__all__ = ["MARKS", "Marks"]

_COMMAND_DIGITS = 7
_HOST_DIGITS = 11  # together 18, below 2 ** 63: the kernel compares limits as unsigned numbers
_MAX_WAITED = 64
"""Of so many processes that are killed in one round the end is waited for; then comes the next."""
_RECENT_S = 0.25
_RECENT_PROCESSES = 16_384
"""More processes than that are not started within `_RECENT_S`, on any machine."""
_DEFAULT_IDS = 32_768
"""As many ids as Linux has if nothing else is set; after the last one it begins again."""


class Marks:
    """The marks of this process's commands: one prefix, and a number for each command.

    They exist on Linux from 5.3; elsewhere a command has no mark.
    """

    def __init__(self) -> None:
        self._ids = _DEFAULT_IDS
        with suppress(OSError, ValueError):
            self._ids = int(Path("/proc/sys/kernel/pid_max").read_bytes())
        self._renew()
        call_in_children(self._renew)

    def _renew(self) -> None:
        lowest = 10 ** (_HOST_DIGITS - 1)
        self._prefix = lowest + secrets.randbelow(9 * lowest)
        self._numbers = itertools.count()

    @property
    def prefix(self) -> str:
        """The first digits of all marks of this process."""
        return str(self._prefix)

    def new(self) -> int | None:
        """Return a mark for a command; None where there are none."""
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            return None
        number = next(self._numbers) % 10**_COMMAND_DIGITS
        mark = self._prefix * 10**_COMMAND_DIGITS + number
        _, highest = resource.getrlimit(resource.RLIMIT_RTTIME)
        return mark if highest == resource.RLIM_INFINITY or mark < highest else None

    def set(self, pid: int, mark: int) -> None:
        """Mark a process; those that it starts from now on inherit the mark."""
        with suppress(OSError):
            _, highest = resource.prlimit(pid, resource.RLIMIT_RTTIME)
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (mark, highest))

    def clear(self, pid: int) -> None:
        """Take from a process the mark that it inherited."""
        if sys.platform == "linux":
            with suppress(OSError):
                _, highest = resource.prlimit(pid, resource.RLIMIT_RTTIME)
                resource.prlimit(pid, resource.RLIMIT_RTTIME, (highest, highest))

    def kill(self, mark: int, leader: int, age_s: float) -> list[int]:
        """Kill the processes that have a mark, once each.

        Args:
            mark: Of the command.
            leader: The process that was marked first.
            age_s: How long ago that was.

        Returns:
            Descriptors (pidfd) of at most 64 of those that were killed, readable once they have
            ended. No process was left if there is none.
        """
        killed: list[int] = []
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir("/proc")
        for pid in map(int, filter(str.isdecimal, names)):
            # Ids are given in turn. So a short command costs no system call for each of the
            # processes that were there before it, of which a machine may have thousands.
            if age_s < _RECENT_S and (pid - leader) % self._ids > _RECENT_PROCESSES:
                continue
            descriptor = _open(pid, mark)
            if descriptor is None:
                continue
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except OSError:  # it has ended, or is that of another user
                os.close(descriptor)
                continue
            if len(killed) < _MAX_WAITED:
                killed.append(descriptor)
            else:
                os.close(descriptor)
        return killed


def _open(pid: int, mark: int) -> int | None:
    """Return a pidfd of a process that has a mark and runs."""
    try:
        if resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] != mark:
            return None
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    with suppress(OSError):
        # Asked again, because the id may have been that of another process when it was opened.
        if resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] == mark:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(0):  # it would stay until its parent waits for it
                return descriptor
    os.close(descriptor)
    return None


MARKS = Marks()
