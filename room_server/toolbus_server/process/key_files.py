"""Key files: readable by their owner only, and never overwritten.

If two processes create the development key at once, both get the first one.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from toolbus.atomic_file import write_atomically
from toolbus.auth.keys import Key, KeyRing

__all__ = ["add_key", "dev_keys", "private_to_owner"]


def dev_keys(path: Path) -> KeyRing:
    """Return the development keys of this machine; create them if there are none.

    Raises:
        ValueError: The file is not a valid `keys.toml`.
        OSError: It can be neither read nor created.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        created = Key.generate(kid=f"dev-{secrets.token_hex(4)}", iss="toolbus-dev")
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
