"""The files that keys lie in: readable by their owner alone, and never overwritten.

Two processes may want the development key at once: both get the one that was first.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from toolbus.keys import Key, KeyRing

__all__ = ["add_key", "dev_keys", "private_to_owner"]


def dev_keys(path: Path) -> KeyRing:
    """Return the development keys of this machine; make them if there are none.

    Raises:
        ValueError: The file is no `keys.toml`.
        OSError: It can be neither read nor made.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Key.generate(kid=f"dev-{secrets.token_hex(4)}", iss="toolbus-dev")
        draft = _draft(path, KeyRing([made]).to_toml())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was faster: its key is the one
        finally:
            draft.unlink()
    return KeyRing.load(path)


def add_key(path: Path, key: Key) -> KeyRing:
    """Write a key below those that the file has, if it is there, and return all of them.

    What was in the file stays as it was, comments too, and the first key goes on signing.

    Raises:
        ValueError: The file is no `keys.toml`, or has a key of this id.
        OSError: It can be neither read nor written.
    """
    path = Path(os.path.realpath(path))
    text = KeyRing([key]).to_toml()
    old = list(KeyRing.load(path)) if path.exists() else []
    ring = KeyRing([*old, key])
    if old:
        before = path.read_text(encoding="utf-8")
        text = f"{before}{'' if before.endswith(chr(10)) else chr(10)}\n{text}"
    draft = _draft(path, text)
    try:
        KeyRing.load(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink()
        raise
    return ring


def private_to_owner(path: Path) -> bool:
    """Whether nobody but its owner may read a file."""
    return not stat.S_IMODE(path.stat().st_mode) & 0o077


def _draft(path: Path, text: str) -> Path:
    """Write a new file beside `path`, for the owner's eyes only."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return draft
