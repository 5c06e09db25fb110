"""Programs and commands that toolkits start: what they see, what they may use, and how they end.

They get the variables that they need and no others: nothing of the host's settings, tokens and keys
reaches them unless somebody names it. Each is the leader of a process group of its own. Limits are
those of the operating system (setrlimit); they keep a faulty program in bounds, and it may read and
write what its user may. A sandbox (`toolbus_toolkits.sandbox`) keeps it to what its config names.

- `launch` is for a program that serves for long (an MCP server). It is asked to end, and its group
  ends with it; what has left the group goes on.
- `run_command` and `start_command` are for a command that runs once. All of it ends at once, also
  what has left the group, as far as `launcher.marks` finds it.

Both end if this process is killed: one small process watches over that (`launcher.host_watch`).
"""

from __future__ import annotations

from toolbus_toolkits.launcher.command import RunningCommand, run_command, start_command
from toolbus_toolkits.launcher.process import LaunchFailed, Program, ProgramLimits
from toolbus_toolkits.launcher.program import RunningProgram, launch, program_environment

__all__ = [
    "LaunchFailed",
    "Program",
    "ProgramLimits",
    "RunningCommand",
    "RunningProgram",
    "launch",
    "program_environment",
    "run_command",
    "start_command",
]
