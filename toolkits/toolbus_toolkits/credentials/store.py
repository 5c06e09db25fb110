"""The store of credentials: the keyring of the user's desktop, else an encrypted file. Blocking.

A keyring cannot list its entries, so their names, without values, are in a file of `TOOLBUS_HOME`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from toolbus.settings import home_of
from toolbus_toolkits.credentials.model import (
    Credential,
    CredentialInfo,
    CredentialName,
    CredentialNotFound,
    StoreUnavailable,
)
from toolbus_toolkits.credentials.private_files import locked, read_private, write_private

if TYPE_CHECKING:
    from toolbus_toolkits.credentials.encrypted_file import EncryptedFile

__all__ = [
    "KEY_FILE_VARIABLE",
    "CredentialStore",
    "KeyringBackend",
    "KeyringEntries",
    "usable_keyring",
]

_SERVICE = "toolbus"
_UNUSABLE = ("keyring.backends.fail", "keyring.backends.null", "keyrings.alt")


class KeyringBackend(Protocol):
    """What is used of a backend of the package `keyring`."""

    def get_password(self, service: str, username: str) -> str | None:
        """Return an entry; None if there is none."""

    def set_password(self, service: str, username: str, password: str) -> None:
        """Store an entry, or replace it."""

    def delete_password(self, service: str, username: str) -> None:
        """Remove an entry. A missing one raises the backend's own error."""


def usable_keyring() -> KeyringBackend | None:
    """Return the keyring of this user; None if there is none that protects its entries."""
    try:
        import keyring  # only here: most programs have no credentials
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            f"credentials need {error.name}: pip install 'toolbus[credentials]'"
        ) from None
    try:
        backend = keyring.get_keyring()
    except RuntimeError:  # it looks for its settings in the folder of a user who has none
        return None
    members = getattr(backend, "backends", [backend])  # of a chain of backends
    if not members or any(
        type(member).__module__.startswith(_UNUSABLE)
        or "plaintext" in type(member).__name__.lower()
        for member in members
    ):
        return None
    return backend


@dataclass(frozen=True, slots=True)
class KeyringEntries:
    """The credentials in a keyring, and the file with their names."""

    home: Path
    backend: KeyringBackend

    def get(self, name: CredentialName) -> Credential | None:
        """Return a credential; None if there is none."""
        try:
            text = self.backend.get_password(_SERVICE, str(name))
        except Exception as error:  # each backend has its own errors
            raise _failed("read", error) from error
        if text is None:
            return None
        try:
            return Credential.from_json(name, json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StoreUnavailable(
                f"the keyring's entry {name} of {_SERVICE!r} is damaged: set the credential again"
            ) from None

    def put(self, credential: Credential) -> None:
        """Store a credential, or replace it."""
        name = credential.info.name
        with locked(self.home):
            # The name first: an entry without a name could not be found again.
            self._write_names({*self._names(), name})
            try:
                self.backend.set_password(_SERVICE, str(name), json.dumps(credential.to_json()))
            except Exception as error:
                raise _failed("write", error) from None  # its text may have the value

    def delete(self, name: CredentialName) -> bool:
        """Remove a credential; return whether it was there."""
        with locked(self.home):
            try:
                was_there = self.backend.get_password(_SERVICE, str(name)) is not None
                if was_there:
                    self.backend.delete_password(_SERVICE, str(name))
            except Exception as error:
                raise _failed("change", error) from error
            self._write_names(self._names() - {name})
            return was_there

    def list(self) -> list[Credential]:
        """Return all credentials whose names are known here."""
        found = (self.get(name) for name in self._names())
        return [credential for credential in found if credential is not None]

    @property
    def _path(self) -> Path:
        return self.home / "credential-names.json"

    def _names(self) -> set[CredentialName]:
        data = read_private(self._path, "the names of credentials")
        try:
            return {CredentialName.parse(text) for text in json.loads(data or b"[]")}
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise StoreUnavailable(
                f"{self._path} is damaged: move it away and set the credentials again"
            ) from None

    def _write_names(self, names: set[CredentialName]) -> None:
        write_private(self._path, json.dumps(sorted(map(str, names))).encode())


def _failed(verb: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot {verb} the keyring ({type(error).__name__}): unlock it, or use an encrypted file "
        "with PYTHON_KEYRING_BACKEND=keyring.backends.fail.Keyring and TOOLBUS_CREDENTIALS_KEY_FILE"
    )


KEY_FILE_VARIABLE = "TOOLBUS_CREDENTIALS_KEY_FILE"
"""The variable that names the file with the key of the encrypted file."""


class CredentialStore:
    """The credentials of one user. Blocking; usable from several processes at once."""

    def __init__(
        self, environ: Mapping[str, str], place: KeyringEntries | EncryptedFile | None = None
    ) -> None:
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

    def _open(self) -> KeyringEntries | EncryptedFile:
        if self._place is None:
            home = home_of(self._environ)
            backend = usable_keyring()
            key_file = self._environ.get(KEY_FILE_VARIABLE)
            if backend is not None:
                self._place = KeyringEntries(home, backend)
            elif key_file:
                from toolbus_toolkits.credentials.encrypted_file import EncryptedFile

                self._place = EncryptedFile(home, Path(key_file))
            else:
                raise StoreUnavailable(
                    "credentials need a keyring, and this user has none, or a file with a key: "
                    f"`toolbus credential key PATH` creates one, and {KEY_FILE_VARIABLE}=PATH "
                    "names it"
                )
        return self._place

    def _not_found(self, name: CredentialName) -> CredentialNotFound:
        step = f"`toolbus credential set {name}` stores it"
        if near := get_close_matches(str(name), [str(info.name) for info in self.list()], n=1):
            step = f"did you mean {near[0]}?"
        return CredentialNotFound(f"there is no credential {name}: {step}")
