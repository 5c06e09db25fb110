"""The store of credentials: the keyring of the user, else an encrypted file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from toolbus.settings import home_of
from toolbus_toolkits.credentials.keyring_entries import KeyringEntries, usable_keyring
from toolbus_toolkits.credentials.model import (
    Credential,
    CredentialInfo,
    CredentialName,
    CredentialNotFound,
    StoreUnavailable,
)

__all__ = ["KEY_FILE_VARIABLE", "CredentialStore", "StoredCredentials"]

KEY_FILE_VARIABLE = "TOOLBUS_CREDENTIALS_KEY_FILE"
"""The variable that names the file with the key of the encrypted file."""


class StoredCredentials(Protocol):
    """A keyring or an encrypted file. Its methods raise `StoreUnavailable`."""

    def get(self, name: CredentialName) -> Credential | None:
        """Return a credential; None if there is none."""

    def put(self, credential: Credential) -> None:
        """Store a credential, or replace it."""

    def delete(self, name: CredentialName) -> bool:
        """Remove a credential; return whether it was there."""

    def list(self) -> list[Credential]:
        """Return all credentials, in any order."""


class CredentialStore:
    """The credentials of one user. Blocking; usable from several processes at once."""

    def __init__(self, environ: Mapping[str, str], place: StoredCredentials | None = None) -> None:
        self._environ = environ
        self._place = place

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ) -> CredentialStore:
        """Return the store of this user.

        Keyring and files are looked up at the first use. Each method raises `StoreUnavailable` if
        there is neither, so that a program without credentials needs none of them.
        """
        return cls(environ)

    def get(self, name: CredentialName) -> Credential:
        """Return a credential. Raises `CredentialNotFound` and `StoreUnavailable`."""
        found = self._open().get(name)
        if found is None:
            raise self._not_found(name)
        return found

    def set(
        self,
        name: CredentialName,
        value: str,
        *,
        hosts: Sequence[str] = (),
        commands: Sequence[str] = (),
    ) -> None:
        """Store a credential, or replace it with its places.

        Args:
            name: Its name.
            value: Text of 4 characters to 64 KiB.
            hosts: Where it may go: `api.example.org`, `*.example.org`, `host:port`.
            commands: The programs that it may be given to, as a config names them.

        Raises:
            ValueError: The value or a place is not valid; the message does not have the value.
            StoreUnavailable: It cannot be stored.
        """
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        lower = tuple(host.lower() for host in hosts)
        info = CredentialInfo(name, lower, tuple(commands), moment)
        self._open().put(Credential(info, value))

    def delete(self, name: CredentialName) -> None:
        """Remove a credential. Raises `CredentialNotFound` and `StoreUnavailable`."""
        if not self._open().delete(name):
            raise self._not_found(name)

    def list(self) -> list[CredentialInfo]:
        """Return what may be shown of each credential, by name. Raises `StoreUnavailable`."""
        infos = (credential.info for credential in self._open().list())
        return sorted(infos, key=lambda info: info.name)

    def _open(self) -> StoredCredentials:
        if self._place is None:
            self._place = _place(self._environ)
        return self._place

    def _not_found(self, name: CredentialName) -> CredentialNotFound:
        near = get_close_matches(str(name), [str(info.name) for info in self.list()], n=1)
        step = f"did you mean {near[0]}?" if near else f"`toolbus credential set {name}` stores it"
        return CredentialNotFound(f"there is no credential {name}: {step}")


def _place(environ: Mapping[str, str]) -> StoredCredentials:
    home = home_of(environ)
    backend = usable_keyring()
    if backend is not None:
        return KeyringEntries(home, backend)
    key_file = environ.get(KEY_FILE_VARIABLE)
    if not key_file:
        raise StoreUnavailable(
            "credentials need a keyring, and this user has none, or a file with a key: `toolbus "
            f"credential key PATH` creates one, and {KEY_FILE_VARIABLE}=PATH names it"
        )
    from toolbus_toolkits.credentials.encrypted_file import EncryptedFile

    return EncryptedFile(home, Path(key_file))
