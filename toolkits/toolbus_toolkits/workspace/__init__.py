"""Working directories: what lies inside them, and which files need a person's decision.

Toolkits that read and change files of this machine share it. `roots` says what a path names and
whether that is inside a working directory; `sensitive` knows the files that hold secrets, and those
that change what other programs do.
"""

from __future__ import annotations

from toolbus_toolkits.workspace.roots import (
    ProcessPath,
    Roots,
    UnresolvedPath,
    homes,
    is_same_or_below,
    resolve,
)
from toolbus_toolkits.workspace.sensitive import HARMLESS_DEVICES, SensitivePaths, has_wildcard

__all__ = [
    "HARMLESS_DEVICES",
    "ProcessPath",
    "Roots",
    "SensitivePaths",
    "UnresolvedPath",
    "has_wildcard",
    "homes",
    "is_same_or_below",
    "resolve",
]
