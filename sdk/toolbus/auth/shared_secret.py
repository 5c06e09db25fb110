"""Signs with a shared secret (HS256), by the standard library alone.

The libraries of `jws` take 40 ms to import, and with the development key each command signs.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode

__all__ = ["check_is_no_pem", "sign_hs256"]

_PEM_MARKS = ("----BEGIN ", "---- BEGIN ")
_SSH_STARTS = ("ssh-", "ecdsa-sha2-")


def check_is_no_pem(secret: str) -> None:
    """Raise ValueError for a secret that is a PEM or SSH key: everybody may know a public key.

    Also for one that has no bytes in UTF-8.
    """
    try:
        secret.encode()
    except UnicodeEncodeError:
        raise ValueError("secret must be plain text in UTF-8") from None
    if secret.startswith(_SSH_STARTS) or any(mark in secret for mark in _PEM_MARKS):
        raise ValueError("secret must be plain text, not a PEM or SSH key")


def sign_hs256(payload: bytes, secret: str, kid: str) -> str:
    """Sign a payload; return the compact JWS (RFC 7515, 7.1)."""
    header = json.dumps({"alg": "HS256", "kid": kid, "typ": "JWT"}, separators=(",", ":"))
    signed = b".".join(_base64url(part) for part in (header.encode(), payload))
    return b".".join((signed, _base64url(hmac.digest(secret.encode(), signed, "sha256")))).decode()


def _base64url(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
