"""What one start of a program gets: a config, its working directory, and what exists by now."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from toolbus.settings import home_of, user_folder
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.sandbox.config import SandboxConfig
from toolbus_toolkits.workspace import UnresolvedPath, is_same_or_below, resolve
from toolbus_toolkits.workspace.sensitive import SECRETS

__all__ = [
    "Confinement",
    "SandboxUnavailable",
    "confinement",
    "is_below_any",
    "pythons",
    "system_folders",
]

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc"),
    *("/nix/store", "/gnu/store", "/run/current-system"),
    "/sys/devices/system/cpu",  # how many processors there are
)
"""The folders with programs, libraries and settings of a system: each program may read them."""

_SYSTEM_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"),
    *("/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private", "/etc/krb5.keytab"),
    "/etc/NetworkManager/system-connections",
    *(f"/etc/ssh/ssh_host_{kind}_key" for kind in ("rsa", "dsa", "ecdsa", "ed25519")),
)


class SandboxUnavailable(OSError):
    """A program cannot be confined as its config asks. Nothing was started.

    The message says what to install, to allow or to change.
    """


@dataclass(frozen=True, slots=True)
class Confinement:
    """What one start gets. All paths are real: no symlink is in them, and each exists."""

    read: tuple[str, ...]
    """What may be read, with the system. None lies below another one, or below one of `write`."""
    write: tuple[str, ...]
    """What may be changed. None lies below another one."""
    hide: tuple[str, ...]
    """What cannot be read. Each lies below one of `read` or `write`."""
    protected: tuple[str, ...]
    """What cannot be changed. Each lies below one of `write`."""
    own: tuple[str, ...]
    """The folders of `pythons` below one of `write`. They cannot be changed: this process runs what
    is in them, outside of any sandbox."""
    network: bool
    unix_sockets: bool
    max_processes: int | None
    cwd: str
    home: str
    """The user's folder: it is empty, but for what lies in it of `read` and `write`."""

    def shows(self, path: str) -> bool:
        """Whether a real path may be read."""
        return is_below_any(path, (*self.read, *self.write)) and not is_below_any(path, self.hide)


def pythons() -> tuple[str, ...]:
    """Return the folders of the Python that runs this, and of its virtual environment.

    One that has the whole of a user's folder in it is left out. Some may be symlinks.
    """
    user = os.path.realpath(user_folder())
    folders = dict.fromkeys((sys.prefix, sys.base_prefix))
    return tuple(path for path in folders if not is_same_or_below(user, os.path.realpath(path)))


def system_folders() -> tuple[str, ...]:
    """Return the folders of the system that exist, and `pythons`. Some may be symlinks."""
    # A Python that was installed for one user is in no folder of the system; each `python` and
    # `pytest` of a shell is as a rule that one.
    return tuple(filter(os.path.exists, (*_SYSTEM, *pythons())))


def is_below_any(path: str, folders: Iterable[str]) -> bool:
    """Whether a real path is one of some folders, or lies in one."""
    return any(is_same_or_below(path, folder) for folder in folders)


def confinement(config: SandboxConfig, cwd: str | os.PathLike[str], home: str = "") -> Confinement:
    """Return what a program gets that starts now.

    What `protect` asks for is not in it: `toolbus_toolkits.sandbox.protection` finds that.

    Args:
        config: What it may reach.
        cwd: The folder that it starts in.
        home: Its user's folder; that of this process's user if empty.

    Raises:
        SandboxUnavailable: A folder of the config has gone or has become a symlink, or the program
            may not read the folder that it starts in.
    """
    for path in (*config.write, *config.read):
        if not os.path.exists(path):
            raise SandboxUnavailable(f"{_shown(path)} of the sandbox does not exist any more")
        if _real(path) != path:
            raise SandboxUnavailable(f"{_shown(path)} of the sandbox is reached by a symlink now")
    write = _outermost(config.write)
    system = map(os.path.realpath, system_folders())
    read = tuple(
        path for path in _outermost((*system, *config.read)) if not is_below_any(path, write)
    )
    home = _real(home or os.fspath(user_folder()))
    plan = Confinement(
        read=read,
        write=write,
        hide=_hidden(config, home, (*read, *write)),
        protected=tuple(path for path in config.read if is_below_any(path, write)),
        own=tuple(
            path
            for path in dict.fromkeys(map(os.path.realpath, pythons()))
            if is_below_any(path, write) and path not in write
        ),
        network=config.network,
        unix_sockets=config.unix_sockets,
        max_processes=config.max_processes,
        cwd=_real(os.fspath(cwd)),
        home=home,
    )
    if plan.cwd != "/" and not plan.shows(plan.cwd):
        text = f"the program starts in {_shown(plan.cwd)}, which its sandbox does not show"
        raise SandboxUnavailable(f"{text}: add it to `write` or to `read`")
    return plan


def _hidden(config: SandboxConfig, home: str, shown: tuple[str, ...]) -> tuple[str, ...]:
    if config.hide is None:
        of_home = (entry for entries in SECRETS.values() for entry in entries.split())
        names = (name for name in of_home if not name.startswith("/") and "*" not in name)
        of_toolbus = os.fspath(home_of(os.environ))  # keys and records, by names with wildcards
        homes = {home, _real(os.fspath(user_folder()))}  # whoever starts it may choose its HOME
        wanted: Iterable[str] = (
            *(f"{folder}/{name}" for name in names for folder in homes),
            of_toolbus,
            *_SYSTEM_SECRETS,
        )
    else:
        wanted = config.hide
    found = []
    for path in {_real(path) for path in wanted}:
        if not is_below_any(path, shown):
            continue
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # its folder may be opened later
            raise SandboxUnavailable(f"{_shown(path)} cannot be hidden: {error}") from None
        found.append(path)
    return _outermost(found)


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    found: list[str] = []
    # So that what lies below a path comes right after it.
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not (found and is_same_or_below(path, found[-1])):
            found.append(path)
    return tuple(found)


def _real(path: str) -> str:
    try:
        return resolve(path, "/")
    except UnresolvedPath as error:
        raise SandboxUnavailable(f"{_shown(path)} cannot be resolved: {error}") from None


def _shown(path: str) -> str:
    return one_line(path, SHOWN_CHARS)
