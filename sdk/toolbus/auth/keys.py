"""The keys that sign tokens, and the file that holds them.

A key fixes issuer and algorithm: a token only names the key. Independent of claims, grants and
time. Nothing is fetched, and no message or `repr` shows key material.

`keys.toml` has one table per key; the first that can sign mints new tokens. To rotate keys, add the
new key below the old one on every server, then move it to the top where tokens are minted, and
remove the old one when its last token has expired.

    [[key]]
    kid = "2025-01"
    alg = "HS256"            # or EdDSA, ES256, RS256
    iss = "example"
    alias = "example"        # needed as soon as there are keys of a second issuer
    secret = "..."           # or public = '''PEM''', or private = '''PEM'''
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from toolbus.atomic_file import write_atomically
from toolbus.auth.participant_names import ALIAS_RULE, is_alias

if TYPE_CHECKING:
    from toolbus.auth.jws import PrivateKey, PublicKey

__all__ = ["Algorithm", "Key", "KeyRing"]

Algorithm: TypeAlias = Literal["HS256", "EdDSA", "ES256", "RS256"]
"""The signature algorithms that a key may have. EdDSA is Ed25519."""

_ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
_MATERIALS = ("secret", "public", "private")
_TABLE_FIELDS = ("kid", "alg", "iss", "alias", *_MATERIALS)
_MIN_SECRET_BYTES = 32
"""Who has one token can try shorter secrets in private: RFC 7518, section 3.2."""
_MAX_LABEL_CHARS = 128
"""An issuer and its alias are in each dispatch and event, a `kid` in the header of each token."""
_PEM_TEXT = re.compile(r"[A-Za-z0-9+/= \n-]+")
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
        _check_label("kid", self.kid)
        _check_label("iss", self.iss)
        if self.alias is not None and not is_alias(self.alias):
            shown = repr(self.alias)[:64]
            raise ValueError(f"the alias {shown} of issuer {self.iss!r} must be {ALIAS_RULE}")
        if self.alg not in _ALGORITHMS:
            raise ValueError(f"alg must be one of {', '.join(_ALGORITHMS)}")
        allowed = ("secret",) if self.alg == "HS256" else ("public", "private")
        given = [name for name in _MATERIALS if getattr(self, name) is not None]
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
        material = next(name for name in _MATERIALS if getattr(self, name) is not None)
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


def _check_label(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_LABEL_CHARS:
        raise ValueError(f"{name} must be text of 1 to {_MAX_LABEL_CHARS} characters")
    if not value.isprintable():
        raise ValueError(f"{name} must be printable")


class KeyRing:
    """The keys of one server or issuer, looked up by id, in memory only.

    Two keys with one id are a ValueError, and anything but keys is a TypeError. A ring is
    immutable: to rotate keys, load another one.
    """

    __slots__ = ("_by_kid",)

    def __init__(self, keys: Iterable[Key]) -> None:
        self._by_kid: dict[str, Key] = {}
        if not isinstance(keys, Iterable):
            raise TypeError(f"a KeyRing takes a list of keys, not {type(keys).__name__}")
        for key in keys:
            if not isinstance(key, Key):
                raise TypeError(f"a KeyRing contains keys, not {type(key).__name__}")
            if key.kid in self._by_kid:
                raise ValueError(f"two keys have the kid {key.kid!r}")
            self._by_kid[key.kid] = key

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read `keys.toml`; ValueError names the file and the invalid entry.

        Raises:
            OSError: If the file cannot be read.
        """
        try:
            return cls.from_toml(Path(path).read_bytes().decode())
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_toml(cls, text: str) -> KeyRing:
        """Read the text of `keys.toml`, as `to_toml` writes it.

        Raises:
            ValueError: It is invalid; the message names the entry.
        """
        try:
            document = tomllib.loads(text)
            for name in sorted(document.keys() - {"key"}):
                raise ValueError(f"unknown field {name!r}")
            tables = document.get("key")
            if not isinstance(tables, list) or not tables:
                raise ValueError("it has no [[key]] table")
            return cls(_read_key(position, table) for position, table in enumerate(tables, start=1))
        except RecursionError as error:  # of the parser, or for a message about a nested value
            raise ValueError(str(error)) from None

    def get(self, kid: str) -> Key | None:
        """Return the key with this id, or None."""
        return self._by_kid.get(kid)

    def aliases(self) -> dict[str, str]:
        """Return the alias of each issuer; empty for an issuer alone that has none.

        Raises:
            ValueError: There are several issuers, and one has no alias, or that of another; or an
                issuer has two. The message names it and says what to write.
        """
        given: dict[str, str] = {}
        for key in self:
            known = given.setdefault(key.iss, key.alias or "")
            if key.alias and known not in ("", key.alias):
                raise ValueError(
                    f"issuer {key.iss!r} has the aliases {known!r} and {key.alias!r}: write one"
                    f" alias for all its keys"
                )
            given[key.iss] = known or key.alias or ""
        owners: dict[str, str] = {}
        for issuer, alias in given.items() if len(given) > 1 else ():
            if not alias:
                raise ValueError(
                    f"issuer {issuer!r} has no alias, and there are keys of {len(given)} issuers:"
                    f' write alias = "..." ({ALIAS_RULE}) into its [[key]] table, of kid'
                    f" {next(key.kid for key in self if key.iss == issuer)!r}"
                )
            if owners.setdefault(alias, issuer) != issuer:
                raise ValueError(
                    f"issuers {owners[alias]!r} and {issuer!r} have the same alias {alias!r}:"
                    f" write another one into the [[key]] tables of {issuer!r}"
                )
        return given

    @property
    def signing_key(self) -> Key | None:
        """The first key that can sign; None if the ring only checks tokens."""
        return next((key for key in self if key.can_sign), None)

    def to_toml(self) -> str:
        """Return the text of `keys.toml`, with the key material in plain text."""
        tables = []
        for key in self:
            values = ((name, getattr(key, name)) for name in _TABLE_FIELDS)
            lines = [
                f"{name} = {_toml_text(value)}\n" for name, value in values if value is not None
            ]
            tables.append("[[key]]\n" + "".join(lines))
        return "\n".join(tables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `keys.toml` atomically, readable by its owner only (mode 0600)."""
        write_atomically(path, self.to_toml().encode(), mode=0o600, sync=True)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_kid.values())

    def __len__(self) -> int:
        return len(self._by_kid)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._by_kid)})"


def _read_key(position: int, table: Any) -> Key:
    if not isinstance(table, dict):
        raise ValueError(f"key {position}: must be a [[key]] table")
    where = f"key {position}"
    if "kid" in table:
        where += f" ({table['kid']!r})"
    for name in sorted(table.keys() - set(_TABLE_FIELDS)):
        raise ValueError(f"{where}: unknown field {name!r}")
    for name in sorted({"kid", "alg", "iss"} - table.keys()):
        raise ValueError(f"{where}: {name} is missing")
    try:
        return Key(**table)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _toml_text(value: str) -> str:
    if "\n" in value and _PEM_TEXT.fullmatch(value):
        return f"'''\n{value}'''"
    # A JSON string is a TOML string, except for one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
