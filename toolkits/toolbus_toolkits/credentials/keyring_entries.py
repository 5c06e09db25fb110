"""Credentials in the keyring of the user's desktop. Blocking.

A keyring cannot list its entries, so their names, without values, are in a file of `TOOLBUS_HOME`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from toolbus.atomic_file import write_atomically
from toolbus_toolkits.credentials.model import Credential, CredentialName, StoreUnavailable
from toolbus_toolkits.credentials.private_files import locked, read_private

__all__ = ["KeyringBackend", "KeyringEntries", "usable_keyring"]

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
        data = json.dumps(sorted(map(str, names))).encode()
        try:
            write_atomically(self._path, data, mode=0o600, sync=True)
        except OSError as error:
            raise StoreUnavailable(f"cannot write {self._path}: {error.strerror}") from error


def _failed(verb: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot {verb} the keyring ({type(error).__name__}): unlock it, or use an encrypted file "
        "with PYTHON_KEYRING_BACKEND=keyring.backends.fail.Keyring and TOOLBUS_CREDENTIALS_KEY_FILE"
    )
