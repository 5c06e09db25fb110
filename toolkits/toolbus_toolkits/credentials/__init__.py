"""Credentials of other services: where they are stored, and where each of them may go.

`references` replaces `${cred:org/tool/key}` in files of the operator; `commands` is the command
line. A value never stands in a `repr` or in an error.
"""

from __future__ import annotations

from toolbus_toolkits.credentials.model import (
    Credential,
    CredentialInfo,
    CredentialName,
    CredentialNotFound,
    CredentialRefused,
    StoreUnavailable,
)
from toolbus_toolkits.credentials.store import CredentialStore

__all__ = [
    "Credential",
    "CredentialInfo",
    "CredentialName",
    "CredentialNotFound",
    "CredentialRefused",
    "CredentialStore",
    "StoreUnavailable",
]
