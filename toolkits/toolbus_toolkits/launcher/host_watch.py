"""One small process beside this one, which ends what this one started if it is killed.

It reads a pipe that only this process can write to, so that it sees the end of this process however
that came. It is a shell, which is on every system and costs a millisecond and a megabyte, once.
Each program that is started costs a line, and each that has ended another one: what ended is
forgotten before its id can be that of another process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Literal

from toolbus.bounded_logging import bounded_logger
from toolbus.forked_children import call_in_children
from toolbus_toolkits.launcher.marks import MARKS

__all__ = ["HOST_WATCH", "HostWatch", "Kind"]

Kind = Literal["command", "program"]
"""How what is watched ends: a command at once. A program has seen the end of its stdin, and gets
the time that `RunningProgram.stop` gives it."""

_SHELL = "/bin/sh"
# The groups are kept as names of variables: each line costs the same however many there are. A
# signal to the service that this process is part of must not end the shell before this process.
_SCRIPT = r"""
trap '' HUP INT TERM
signal() {
  set | while IFS== read -r name _; do
    case $name in "$1"_[0-9]*) kill "-$2" "-${name#*_}";; esac
  done
}
while read -r kind group; do
  case $kind in
    gone) unset "command_$group" "program_$group";;
    *) eval "${kind}_$group=1";;
  esac
done
signal command KILL
for round in 1 2 3 4 5 6 7 8 9 10; do
  found=$(grep -ls "^Max realtime timeout  *$1" /proc/[0-9]*/limits)
  [ -n "$found" ] || break
  for file in $found; do
    pid=${file#/proc/}
    kill -KILL "${pid%/limits}"
  done
done
set | grep -q '^program_[0-9]' || exit
sleep 1
signal program TERM
sleep 1
signal program KILL
"""

_logger = bounded_logger(__name__)


class HostWatch:
    """What is sent to the watching process, which is started at the first use.

    It is independent of event loops and may be used by any thread. A child of this process by fork
    has one of its own, and nothing in it: what runs belongs to the parent.
    """

    def __init__(self) -> None:
        self.pid: int | None = None
        """The process id of the watching process, while there is one."""
        self._pipe = -1
        self._groups: dict[int, Kind] = {}
        self._lock = threading.Lock()
        call_in_children(self._forget)

    def add(self, group: int, kind: Kind) -> None:
        """Watch over a process group from now on."""
        with self._lock:
            self._groups[group] = kind
            if not self._tell(f"{kind} {group}\n"):
                self._start()

    def remove(self, group: int) -> None:
        """Forget a process group, before its leader is waited for: until then its id is its own."""
        with self._lock:
            if self._groups.pop(group, None) is not None and not self._tell(f"gone {group}\n"):
                self._start()

    def _tell(self, lines: str) -> bool:
        if self.pid is None:
            return False
        data = lines.encode()
        with suppress(OSError):
            # The pipe does not block. A watcher that does not read a pipe full of lines is
            # replaced, because it would later kill groups that are long gone.
            return os.write(self._pipe, data) == len(data)
        return False

    def _start(self) -> None:
        """Start the process, in place of one that has ended or does not read."""
        if self.pid is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                # Before the end of its pipe lets it end everything.
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            os.close(self._pipe)
            self.pid = None
        if not self._groups:
            return
        reading, self._pipe = os.pipe()
        try:
            process = subprocess.Popen(
                [_SHELL, "-c", _SCRIPT, "sh", MARKS.prefix],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},
                cwd="/",
                start_new_session=True,  # a signal to the group of this process does not end it
            )
        except OSError as error:
            os.close(self._pipe)
            _logger.warning("a program is not ended if this process is killed: %s", error)
            return
        finally:
            os.close(reading)
        process.returncode = 0  # it ends after this process, which Popen would complain about
        self.pid = process.pid
        os.set_blocking(self._pipe, False)
        # This process may be a command of another host. The watch has to outlive the end of that
        # command, or what this process started would go on.
        MARKS.clear(self.pid)
        if not self._tell("".join(f"{kind} {group}\n" for group, kind in self._groups.items())):
            _logger.warning("programs are not ended if this process is killed: too many run")

    def _forget(self) -> None:
        """Let the pipe be that of the parent only, or its end would not be seen."""
        self._lock = threading.Lock()
        self._groups = {}
        if self.pid is not None:
            os.close(self._pipe)
        self.pid = None


HOST_WATCH = HostWatch()
