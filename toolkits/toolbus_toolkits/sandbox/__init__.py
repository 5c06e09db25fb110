"""Confinement of programs: what a toolkit starts reaches only what its config names.

A config (`SandboxConfig`) is turned into the words before a command, by a backend: bubblewrap,
Landlock or docker. `launcher` does so for each start. No program is started without confinement:
what a backend cannot enforce raises `SandboxUnavailable`.
"""

from __future__ import annotations

from toolbus_toolkits.sandbox.config import (
    BACKENDS,
    Backend,
    Protect,
    SandboxConfig,
    SandboxOption,
    read_sandbox,
)
from toolbus_toolkits.sandbox.holds import HOLDS, Holding, summary
from toolbus_toolkits.sandbox.plan import Confinement, SandboxUnavailable, confinement
from toolbus_toolkits.sandbox.policy import Risk, SandboxPolicy, ToolRiskProfile
from toolbus_toolkits.sandbox.probe import backend_for, confined_command, would_protect
from toolbus_toolkits.sandbox.starting import ConfinedStart

__all__ = [
    "BACKENDS",
    "HOLDS",
    "Backend",
    "ConfinedStart",
    "Confinement",
    "Holding",
    "Protect",
    "Risk",
    "SandboxConfig",
    "SandboxOption",
    "SandboxPolicy",
    "SandboxUnavailable",
    "ToolRiskProfile",
    "backend_for",
    "confined_command",
    "confinement",
    "read_sandbox",
    "summary",
    "would_protect",
]
