"""A limit of processes by a control group: the only one that holds for root."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from toolbus_toolkits.sandbox.plan import SandboxUnavailable

__all__ = ["PidsCgroup"]

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class PidsCgroup:
    """A control group for the processes of one program."""

    folder: Path

    @classmethod
    def make(cls, max_processes: int) -> PidsCgroup:
        """Make a group for so many processes and threads.

        Raises:
            SandboxUnavailable: This user may make none, or the system counts no processes.
        """
        # The first version has a tree for each kind of limit, the second one tree for all.
        first = _GROUPS / "pids"
        group = cls((first if first.is_dir() else _GROUPS) / f"toolbus-{secrets.token_hex(8)}")
        try:
            group.folder.mkdir()
            (group.folder / "pids.max").write_text(str(max_processes))
        except OSError:
            group.remove()
            raise SandboxUnavailable(
                "max_processes: the kernel limits no processes of root but by a control group, and"
                f" this host may not make one in {group.folder.parent} with the controller `pids`:"
                " leave it out, or run the host as another user"
            ) from None
        return group

    def add(self, pid: int) -> None:
        """Put a process into it; those that it starts from now on are in it too."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove it, once all in it has ended. Idempotent."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
