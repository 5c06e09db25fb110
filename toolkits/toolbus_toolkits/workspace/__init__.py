"""Working directories: what lies inside them, and which files need a person's decision.

Toolkits that read and change files of this machine share it. `roots` says what a path names and
whether that is inside a working directory; `locating` opens it, whatever is swapped meanwhile, and
`replacing` writes it. `sensitive` knows the files that hold secrets, those that change what
other programs do, and the folders where commands are found. `patterns` says which paths a pattern
of a rule covers.
"""

from __future__ import annotations

from toolbus_toolkits.workspace.locating import (
    FolderMoved,
    Location,
    NoFile,
    OutsideRoots,
    RootVanished,
    located,
)
from toolbus_toolkits.workspace.patterns import (
    PathPattern,
    RootedPattern,
    escaped,
    with_plain_brackets,
)
from toolbus_toolkits.workspace.replacing import Check, Draft, is_draft, replaced
from toolbus_toolkits.workspace.roots import (
    PATH_MAX,
    ProcessPath,
    Roots,
    UnresolvedPath,
    existing_folder,
    homes,
    is_same_or_below,
    link_target,
    resolve,
)
from toolbus_toolkits.workspace.sensitive import (
    HARMLESS_DEVICES,
    ProgramPaths,
    SensitivePaths,
    has_wildcard,
)

__all__ = [
    "HARMLESS_DEVICES",
    "PATH_MAX",
    "Check",
    "Draft",
    "FolderMoved",
    "Location",
    "NoFile",
    "OutsideRoots",
    "PathPattern",
    "ProcessPath",
    "ProgramPaths",
    "RootVanished",
    "RootedPattern",
    "Roots",
    "SensitivePaths",
    "UnresolvedPath",
    "escaped",
    "existing_folder",
    "has_wildcard",
    "homes",
    "is_draft",
    "is_same_or_below",
    "link_target",
    "located",
    "replaced",
    "resolve",
    "with_plain_brackets",
]
