"""A key that signs or verifies tokens.

A key fixes issuer and algorithm: a token only names the key. Independent of claims, grants, files
and time. No message or `repr` shows key material.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from toolbus.auth.participant_names import ALIAS_RULE, is_alias

if TYPE_CHECKING:
    from toolbus.auth.jws import PrivateKey, PublicKey

__all__ = ["MATERIALS", "Algorithm", "Key", "check_label"]

Algorithm: TypeAlias = Literal["HS256", "EdDSA", "ES256", "RS256", "PS256"]
"""The signature algorithms that a key may have. EdDSA is Ed25519."""

_ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
MATERIALS = ("secret", "public", "private")
"""The fields of a key that hold its material; it has exactly one."""
_MIN_SECRET_BYTES = 32
"""Who has one token can try shorter secrets in private: RFC 7518, section 3.2."""
_MAX_LABEL_CHARS = 128
"""An issuer and its alias are in each dispatch and event, a `kid` in the header of each token."""
_PEM_OR_SSH_KEY = re.compile(r"----[- ]BEGIN |\A(ssh-|ecdsa-sha2-)")


@dataclass(frozen=True, kw_only=True, repr=False)
class Key:
    """A key that signs or verifies: its id, issuer, algorithm, and exactly one material.

    Raises ValueError for a secret of less than 32 bytes, for RSA under 2048 bits, and for material
    that does not suit the algorithm.
    """

    kid: str
    """The id by which tokens name this key."""
    alg: Algorithm
    """The only algorithm that this key is used with, whatever a token names."""
    iss: str
    """The issuer of every token signed by this key; a part of its participant's identity."""
    alias: str | None = None
    """The short name of the issuer before the names of its participants, as in `alias/name`.

    A server with keys of several issuers needs one for each; one key of an issuer may give it.
    """
    secret: str | None = None
    """HS256 only: the shared secret, of at least 32 bytes in UTF-8. Signs and verifies."""
    public: str | None = None
    """A public key in PEM. Verifies only."""
    private: str | None = None
    """A private key in PEM, without a password. Signs and verifies."""
    _signer: str | PrivateKey | None = field(init=False, compare=False)
    _verifier: str | PublicKey = field(init=False, compare=False)

    def __post_init__(self) -> None:
        check_label("kid", self.kid)
        check_label("iss", self.iss)
        if self.alias is not None and not is_alias(self.alias):
            shown = repr(self.alias)[:64]
            raise ValueError(f"the alias {shown} of issuer {self.iss!r} must be {ALIAS_RULE}")
        if self.alg not in _ALGORITHMS:
            raise ValueError(f"alg must be one of {', '.join(_ALGORITHMS)}")
        allowed = ("secret",) if self.alg == "HS256" else ("public", "private")
        given = [name for name in MATERIALS if getattr(self, name) is not None]
        if len(given) != 1 or given[0] not in allowed:
            raise ValueError(f"an {self.alg} key has {' or '.join(allowed)}, and nothing else")
        if not isinstance(getattr(self, given[0]), str):
            raise ValueError(f"{given[0]} must be text")
        signer, verifier = self._load()
        object.__setattr__(self, "_signer", signer)
        object.__setattr__(self, "_verifier", verifier)

    def _load(self) -> tuple[str | PrivateKey | None, str | PublicKey]:
        if self.secret is not None:
            _check_secret(self.secret)
            return self.secret, self.secret
        from toolbus.auth.jws import check_key_type, load_private, load_public

        if self.private is not None:
            private = load_private(self.private)
            return private, check_key_type(self.alg, private.public_key())
        return None, check_key_type(self.alg, load_public(self.public or ""))

    @classmethod
    def generate(
        cls, *, kid: str, iss: str, alg: Algorithm = "HS256", alias: str | None = None
    ) -> Key:
        """Generate a new key that can sign."""
        if alg not in _ALGORITHMS or alg == "HS256":
            secret = secrets.token_urlsafe(48)
            return cls(kid=kid, alg=alg, iss=iss, alias=alias, secret=secret)
        from toolbus.auth.jws import new_private, private_pem

        private = private_pem(new_private(alg))
        return cls(kid=kid, alg=alg, iss=iss, alias=alias, private=private)

    @property
    def can_sign(self) -> bool:
        """Whether this key can sign, and not only verify."""
        return self._signer is not None

    def public_half(self) -> Key:
        """Return the key that only verifies, for servers that mint no tokens.

        Raises:
            ValueError: An HS256 key has none.
        """
        from toolbus.auth.jws import public_pem

        public = public_pem(self._public())
        return Key(kid=self.kid, alg=self.alg, iss=self.iss, alias=self.alias, public=public)

    def public_jwk(self) -> dict[str, Any]:
        """Return the public half as a JSON Web Key (RFC 7517), for programs that check tokens.

        Raises:
            ValueError: An HS256 key has none.
        """
        from toolbus.auth.jws import public_jwk

        return {"kid": self.kid, "alg": self.alg, "use": "sig", **public_jwk(self._public())}

    def _public(self) -> PublicKey:
        if isinstance(self._verifier, str):
            raise ValueError(
                f"key {self.kid!r} has no public half, because it is an HS256 key; create one with"
                " `toolbus key create --alg EdDSA`"
            )
        return self._verifier

    def sign(self, payload: bytes) -> str:
        """Sign a payload; return the compact JWS. ValueError if this key cannot sign."""
        if self._signer is None:
            raise ValueError(f"key {self.kid!r} is a public key: it cannot sign")
        if isinstance(self._signer, str):
            return self._signed_by_secret(payload, self._signer)
        from toolbus.auth.jws import sign_jws

        return sign_jws(payload, self._signer, self.alg, self.kid)

    def _signed_by_secret(self, payload: bytes, secret: str) -> str:
        # By the standard library: a command with the development key would spend a quarter of its
        # processor time on importing `auth.jws`.
        header = json.dumps({"alg": self.alg, "kid": self.kid, "typ": "JWT"}, separators=(",", ":"))
        signed = b".".join(map(_base64url, (header.encode(), payload)))
        signature = hmac.digest(secret.encode(), signed, hashlib.sha256)
        return b".".join((signed, _base64url(signature))).decode()

    def check(self, jws: str) -> bytes:
        """Return the payload of a compact JWS; ValueError unless this key signed it."""
        from toolbus.auth.jws import check_jws

        return check_jws(jws, self._verifier, self.alg)

    def __repr__(self) -> str:
        material = next(name for name in MATERIALS if getattr(self, name) is not None)
        return f"Key(kid={self.kid!r}, alg={self.alg!r}, iss={self.iss!r}, {material}='***')"


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _check_secret(secret: str) -> None:
    try:
        size = len(secret.encode())
    except UnicodeEncodeError:  # a lone surrogate
        raise ValueError("secret must be plain text, in UTF-8") from None
    if size < _MIN_SECRET_BYTES:
        raise ValueError(f"secret must have at least {_MIN_SECRET_BYTES} bytes")
    # Everybody may have a public key, and could sign with it.
    if _PEM_OR_SSH_KEY.search(secret):
        raise ValueError("secret must be plain text, not a PEM or SSH key")


def check_label(name: str, value: object) -> None:
    """Raise ValueError, which has `name`, unless this can be an issuer or the id of a key."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_LABEL_CHARS:
        raise ValueError(f"{name} must be text of 1 to {_MAX_LABEL_CHARS} characters")
    if not value.isprintable():
        raise ValueError(f"{name} must be printable")
