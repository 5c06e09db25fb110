"""Programs that toolkits start: what they may see, how much they may use, and how they end.

A program gets the variables that it needs and no others: nothing of the host's settings, tokens
and keys reaches it unless its entry names it. It is the leader of a process group of its own, which
ends with it. Its limits are those of the operating system (setrlimit); they keep a faulty program
in bounds and are no sandbox: the program may read and write what its user may.
"""

from __future__ import annotations

from toolbus_toolkits.launcher.environment import program_environment
from toolbus_toolkits.launcher.program import (
    LaunchFailed,
    Program,
    ProgramLimits,
    RunningProgram,
    launch,
)

__all__ = [
    "LaunchFailed",
    "Program",
    "ProgramLimits",
    "RunningProgram",
    "launch",
    "program_environment",
]
