"""Confinement of programs: what a toolkit starts reaches only what its config names.

A config (`SandboxConfig`) is turned into the words before a command, by a backend: bubblewrap,
Landlock or docker. `launcher` does so for each start. Nothing ever starts unconfined instead: what
a config asks and a backend cannot hold is an error (`SandboxUnavailable`).
"""

from __future__ import annotations

from toolbus_toolkits.sandbox.config import BACKENDS, Backend, Protect, SandboxConfig
from toolbus_toolkits.sandbox.holds import HOLDS, Holding, summary
from toolbus_toolkits.sandbox.plan import Confinement, SandboxUnavailable, confinement

__all__ = [
    "BACKENDS",
    "HOLDS",
    "Backend",
    "Confinement",
    "Holding",
    "Protect",
    "SandboxConfig",
    "SandboxUnavailable",
    "confinement",
    "summary",
]
