"""Credentials in one encrypted file, and the file with its key. Blocking.

A wrong key and a damaged file are errors: the file is written only after it was read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolbus.atomic_file import write_atomically
from toolbus_toolkits.credentials.model import Credential, CredentialName, StoreUnavailable
from toolbus_toolkits.credentials.private_files import (
    MAX_FILE_BYTES,
    locked,
    read_private,
    write_private,
)

try:
    from cryptography.fernet import Fernet, InvalidToken
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"credentials need {error.name}: pip install 'toolbus[credentials]'", name=error.name
    ) from None

__all__ = ["EncryptedFile", "create_key_file"]


def create_key_file(path: Path) -> None:
    """Write a new key, which only the user can read. Raises OSError; an old file is kept."""
    write_atomically(path, Fernet.generate_key() + b"\n", mode=0o600, sync=True, replace=False)


@dataclass(frozen=True, slots=True)
class EncryptedFile:
    """The credentials of `TOOLBUS_HOME`, encrypted with the key of another file."""

    home: Path
    key_file: Path

    @property
    def path(self) -> Path:
        """The encrypted file; it is missing until a credential is stored."""
        return self.home / "credentials.enc"

    def get(self, name: CredentialName) -> Credential | None:
        """Return a credential; None if there is none."""
        return self._read().get(name)

    def put(self, credential: Credential) -> None:
        """Store a credential, or replace it."""
        with locked(self.home):
            self._write({**self._read(), credential.info.name: credential})

    def delete(self, name: CredentialName) -> bool:
        """Remove a credential; return whether it was there."""
        with locked(self.home):
            stored = self._read()
            if stored.pop(name, None) is None:
                return False
            self._write(stored)
            return True

    def list(self) -> list[Credential]:
        """Return all credentials, in any order."""
        return list(self._read().values())

    def _read(self) -> dict[CredentialName, Credential]:
        data = read_private(self.path, "the credentials")
        fernet = self._fernet()
        if data is None:
            return {}
        try:
            stored: dict[str, Any] = json.loads(fernet.decrypt(data))
            by_name = {CredentialName.parse(text): facts for text, facts in stored.items()}
            return {name: Credential.from_json(name, facts) for name, facts in by_name.items()}
        except InvalidToken:
            text = f"the key of {self.key_file} is not that of {self.path}, or the file is damaged"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text = f"{self.path} does not have the form of this version"
        raise StoreUnavailable(
            f"{text}; it was left as it is: name its key with TOOLBUS_CREDENTIALS_KEY_FILE, "
            "restore the file, or move it away and set the credentials again"
        )

    def _write(self, stored: dict[CredentialName, Credential]) -> None:
        plain = {str(name): credential.to_json() for name, credential in stored.items()}
        data = self._fernet().encrypt(json.dumps(plain).encode())
        if len(data) > MAX_FILE_BYTES:
            raise StoreUnavailable(
                f"the credentials would need more than {MAX_FILE_BYTES} bytes: remove some"
            )
        write_private(self.path, data)

    def _fernet(self) -> Fernet:
        key = read_private(self.key_file, "the key of credentials")
        if key is None:
            raise StoreUnavailable(
                f"TOOLBUS_CREDENTIALS_KEY_FILE: there is no {self.key_file}; `toolbus credential "
                "key PATH` creates a key"
            )
        try:
            return Fernet(key.strip())
        except ValueError:
            raise StoreUnavailable(
                f"TOOLBUS_CREDENTIALS_KEY_FILE: {self.key_file} is not a key of credentials"
            ) from None
