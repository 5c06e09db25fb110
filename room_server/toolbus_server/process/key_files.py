"""Key files: readable and changed by their owner only, and never overwritten.

If two processes create the development key at once, both get the first one.
"""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from toolbus.atomic_file import write_atomically
from toolbus.auth.keys import Key, KeyRing

__all__ = ["add_key", "check_writers", "dev_keys", "private_to_owner"]


def dev_keys(path: Path) -> KeyRing:
    """Return the development keys of this machine; create them if there are none.

    Raises:
        ValueError: The file is not a valid `keys.toml`.
        OSError: It can be neither read nor created.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kid = f"dev-{secrets.token_hex(4)}"
        created = Key.generate(kid=kid, iss="toolbus-dev", alias="dev")
        with suppress(FileExistsError):  # another process was faster: its key counts
            data = KeyRing([created]).to_toml().encode()
            write_atomically(path, data, mode=0o600, sync=True, replace=False)
    return KeyRing.load(path)


def add_key(path: Path, key: Key) -> KeyRing:
    """Append a key to a file, which is created if it does not exist, and return all its keys.

    The rest of the file stays unchanged, comments too, and the first key still signs.

    Raises:
        ValueError: The file is not a valid `keys.toml`, or has a key with this id.
        OSError: It can be neither read nor written.
    """
    path = Path(os.path.realpath(path))
    text = KeyRing([key]).to_toml()
    old = list(KeyRing.load(path)) if path.exists() else []
    ring = KeyRing([*old, key])
    if old:
        before = path.read_text(encoding="utf-8")
        text = f"{before}{'' if before.endswith(chr(10)) else chr(10)}\n{text}"
    KeyRing.from_toml(text)
    write_atomically(path, text.encode(), mode=0o600, sync=True)
    return ring


def private_to_owner(path: Path) -> bool:
    """Whether only its owner may read a file."""
    return not stat.S_IMODE(path.stat().st_mode) & 0o077


def check_writers(path: Path) -> None:
    """Check that only its owner, who is this user or root, can change a key file.

    A user who can change it, or replace it in its folder, could add a key and join every room.
    Links are followed. A folder with the sticky bit may be writable, as other users cannot replace
    a file in it. A pipe is not checked: it has no place where another one could be put.

    Raises:
        ValueError: Others can change it; the message has the command that ends this.
        OSError: It does not exist, or its folder cannot be read.
    """
    if stat.S_ISFIFO(path.stat().st_mode):
        return
    real = Path(os.path.realpath(path))
    for place in (real, real.parent):
        found = place.stat()
        quoted = shlex.quote(str(place))
        if found.st_uid not in (0, os.getuid()):
            raise ValueError(
                f"{place} belongs to another user, who could add keys: chown {os.getuid()} {quoted}"
            )
        if found.st_mode & _writable_bits(found) and not found.st_mode & stat.S_ISVTX:
            raise ValueError(f"other users can change {place}: chmod go-w {quoted}")


def _writable_bits(found: os.stat_result) -> int:
    """Return the mode bits by which others could write: not those of the owner's private group."""
    return stat.S_IWOTH if _is_private_group(found) else stat.S_IWGRP | stat.S_IWOTH


def _is_private_group(found: os.stat_result) -> bool:
    """Whether a file's group is its owner's own, which many systems make for each user."""
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return (
        owner.pw_gid == group.gr_gid
        and group.gr_name == owner.pw_name
        and set(group.gr_mem) <= {owner.pw_name}
    )
