"""Key files: readable and changed by their owner only, never overwritten, read again when changed.

If two processes create the development key at once, both get the first one. While a server runs,
the keys that are read replace all trusted ones. A file that is missing or not valid changes
nothing: the reason is logged once, and the trusted keys stay.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from toolbus.atomic_file import write_atomically
from toolbus.auth.keys import Key, KeyRing
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus_server.process.key_sets import KeySets

__all__ = [
    "KeyReloader",
    "add_key",
    "check_writers",
    "dev_keys",
    "joined",
    "private_to_owner",
    "read_key_files",
    "set_files",
]

_POLL_INTERVAL_S = 1.0
_KEY_THREADS = WorkerThreads("keys", 1)  # the files are read one poll after the other
_logger = bounded_logger(__name__)


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
        ValueError: The file is not a valid `keys.toml`, has a key with this id, or has only public
            halves.
        OSError: It can be neither read nor written.
    """
    path = Path(os.path.realpath(path))
    text = KeyRing([key]).to_toml()
    old = KeyRing.load(path) if path.exists() else KeyRing([])
    if len(old) and old.signing_key is None:
        raise ValueError(
            f"{path} has only public halves, and servers read it: create the key in the file with"
            " the private keys, then write its public halves with `toolbus key public`"
        )
    ring = KeyRing([*old, key], old.issuers.values())
    if len(old) or old.issuers:
        text = path.read_text(encoding="utf-8").removesuffix("\n") + "\n\n" + text
    KeyRing.from_toml(text)
    write_atomically(path, text.encode(), mode=0o600, sync=True)
    return ring


def private_to_owner(path: Path) -> bool:
    """Whether only its owner may read a file."""
    return not stat.S_IMODE(path.stat().st_mode) & 0o077


def check_writers(path: Path) -> None:
    """Check that only its owner, who is this user or root, can change a key file or a folder.

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
            text = f"{place} belongs to another user, who could change it"
            raise ValueError(f"{text}: chown {os.getuid()} {quoted}")
        others = stat.S_IWOTH
        if not _is_private_group(found):
            others |= stat.S_IWGRP
        if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
            raise ValueError(f"other users can change {place}: chmod go-w {quoted}")


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


def read_key_files(paths: Iterable[Path]) -> KeyRing:
    """Read the keys of several files, in this order.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not a valid `keys.toml`, or other users can change it, or two keys
            have the same id, or one of several issuers has no alias of its own.
    """
    paths = list(paths)
    for path in paths:
        check_writers(path)
    rings = [KeyRing.load(path) for path in paths]
    try:
        keys = joined(rings)
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, paths))}: {error}") from None
    for path in set_files(keys):
        check_writers(path)
    return keys


def joined(rings: Sequence[KeyRing]) -> KeyRing:
    """Return the keys and issuers of several rings as one.

    Raises:
        ValueError: Two keys have the same id, or one of several issuers has no alias of its own.
    """
    issuers = [issuer for ring in rings for issuer in ring.issuers.values()]
    keys = KeyRing([key for ring in rings for key in ring], issuers)
    keys.aliases()
    return keys


def set_files(keys: KeyRing) -> list[Path]:
    """Return the files that key sets are read from."""
    return [Path(issuer.jwks) for issuer in keys.issuers.values() if not issuer.is_remote]


class KeyReloader:
    """Passes on the keys of some files, and the key sets of their issuers, whenever they changed.

    Args:
        paths: The files.
        trusted: The keys that were read from them.
        trust: Called with all keys to trust from now on; in the loop.
        key_sets: Fetches the key sets at addresses.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        trusted: KeyRing,
        trust: Callable[[KeyRing], None],
        key_sets: KeySets | None = None,
    ) -> None:
        self._paths = tuple(paths)
        self._key_sets = key_sets or KeySets()
        self._in_files = trusted
        """What was read from the files: a key set at an address is not in it."""
        self._trusted = trusted
        self._has_changed = asyncio.Event()
        """Set when the files may name other addresses."""
        # The first poll reads the files: they may have changed since they were read.
        self._versions: list[tuple[int | None, ...]] | None = None
        self._trust = trust
        self._requested = asyncio.Event()

    def _poll(self, force: bool) -> KeyRing | None:
        """Read the files if they have changed, and return the keys if they differ from the last.

        With `force` both in any case. It blocks while it reads.
        """
        versions = list(map(_version_of, (*self._paths, *set_files(self._in_files))))
        if versions == self._versions and not force:
            return None
        self._versions = versions
        try:
            keys = read_key_files(self._paths)
        except (OSError, ValueError) as error:
            _logger.warning("the keys were not reloaded: %s", error)
            return None
        if _are_equal(keys, self._in_files) and not force:
            return None
        self._in_files = keys
        return keys

    def request(self) -> None:
        """Reload keys and key sets at once, and log them even if they are the same."""
        self._key_sets.request()
        self._requested.set()

    async def fetch_sets(self) -> None:
        """Fetch the key sets that are due, and pass them on; it takes 11 s at most."""
        if self._key_sets.next_due(self._in_files) > asyncio.get_running_loop().time():
            return
        await self._key_sets.fetch(self._in_files, self._pass_on)

    async def follow(self) -> None:
        """Follow files and key sets, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_files())
            tasks.create_task(self._follow_sets())

    async def _follow_sets(self) -> None:
        while True:
            await self.fetch_sets()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._key_sets.next_due(self._in_files)):
                    await self._has_changed.wait()
            self._has_changed.clear()

    async def _follow_files(self) -> None:
        """Poll once a second. Files are read on a thread, as disks may be slow."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL_S):
                    await self._requested.wait()
            is_requested = self._requested.is_set()
            self._requested.clear()
            try:
                keys = await _KEY_THREADS.run(partial(self._poll, is_requested))
            except OSError as error:  # the system allows no thread
                _logger.warning("the keys were not reloaded: %s", error)
                continue
            if keys is not None:
                self._pass_on(is_logged=True)
                self._has_changed.set()

    def _pass_on(self, *, is_logged: bool = False) -> None:
        former, self._trusted = self._trusted, self._key_sets.filled(self._in_files)
        self._trust(self._trusted)  # also the same keys: their age is another
        if is_logged or not _are_equal(former, self._trusted):
            # A warning, so that it is logged: an operator who changed a file waits for it.
            _logger.warning("trusted keys: %s", _listed(self._trusted))


def _are_equal(one: KeyRing, other: KeyRing) -> bool:
    return list(one) == list(other) and one.issuers == other.issuers


def _listed(keys: KeyRing) -> str:
    sets = (issuer.keys or {} for issuer in keys.issuers.values())
    return ", ".join(map(repr, (*(key.kid for key in keys), *chain.from_iterable(sets))))


def _version_of(path: Path) -> tuple[int | None, ...]:
    """Identify a version of a file: it differs for another file, and after each write."""
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
