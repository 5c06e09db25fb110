"""Issuers that publish their keys as a JSON Web Key Set (RFC 7517).

The set has no secret, and may change at any time. What is here is a snapshot: `Issuer.with_set`
returns another issuer, and nothing is fetched. The table of the key file names where the set is:

    [[issuer]]
    iss = "https://token.actions.githubusercontent.com"
    alias = "github"
    jwks = "https://token.actions.githubusercontent.com/.well-known/jwks"
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, cast
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from toolbus.auth.claim_rules import ClaimRule, table_fault
from toolbus.auth.participant_names import ALIAS_RULE, is_alias
from toolbus.auth.signing_keys import Algorithm, Key, check_label

__all__ = ["MAX_SET_BYTES", "Issuer", "read_issuer_table"]

MAX_SET_BYTES = 64 * 1024
"""Every server reads a set into its memory, from a machine that its operator does not control."""
_MAX_KEYS = 64
"""Each is parsed at each change of the set; the largest issuers publish about ten."""
_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
"""Not HS256: a set is public, and a published secret signs for everybody."""


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """An issuer with a key set, and the rules by which its tokens join.

    Raises ValueError for a field that is not valid.
    """

    iss: str
    """The claim `iss` of its tokens; a part of the identity of their participants."""
    jwks: str
    """Where its key set is: the path of a file, or an https address."""
    alias: str | None = None
    """The short name of the issuer before the names of its participants, as in `alias/name`."""
    ca: str | None = None
    """A file with the certificates to trust at the address; None for those of the system."""
    token_file: str | None = None
    """A file with a bearer token for the address; it is read at each request."""
    algorithms: tuple[Algorithm, ...] = _ALGORITHMS
    """The algorithms of its keys. A key of the set that names none gets the first that suits."""
    audience: str = "toolbus"
    """What the claim `aud` of its tokens is, or contains."""
    rules: tuple[ClaimRule, ...] = ()
    """Who may join; the first rule that matches decides."""
    keys: Mapping[str, Key] | None = None
    """The keys of the set by their ids; None if it was not read yet."""
    loaded_at: float | None = field(default=None, compare=False)
    """When the set was fetched, in seconds since the epoch; None for a file."""

    def __post_init__(self) -> None:
        check_label("iss", self.iss)
        check_label("audience", self.audience)
        if self.alias is not None and not is_alias(self.alias):
            raise ValueError(f"the alias {self.alias[:64]!r} must be {ALIAS_RULE}")
        if not self.algorithms or not set(self.algorithms) <= set(_ALGORITHMS):
            raise ValueError(f"algorithms has to be some of {', '.join(_ALGORITHMS)}")
        if self.is_remote:
            _check_address(self.jwks)
        elif self.ca is not None or self.token_file is not None:
            raise ValueError("ca and token_file are for an address, and jwks is a file")

    @property
    def is_remote(self) -> bool:
        """Whether the key set is at an address, and not in a file."""
        return "://" in self.jwks

    def in_folder(self, folder: Path) -> Issuer:
        """Return it with paths that begin at a folder, where they are relative."""
        paths = {"ca": self.ca, "token_file": self.token_file}
        if not self.is_remote:
            paths["jwks"] = self.jwks
        found = {name: str(folder / path) for name, path in paths.items() if path is not None}
        return replace(self, **cast(dict[str, Any], found))

    def with_set(self, data: bytes, loaded_at: float | None = None) -> Issuer:
        """Return it with the keys of a set.

        Keys for other purposes and algorithms are left out.

        Raises:
            ValueError: It is not a JSON Web Key Set, is too large, or no key of it can be used.
        """
        found: dict[str, Key] = {}
        for jwk in _jwks(data):
            key = self._key_of(jwk)
            if key is not None:
                found.setdefault(key.kid, key)
        if not found:
            algorithms = ", ".join(self.algorithms)
            raise ValueError(f"the key set has no key with a kid for {algorithms}")
        return replace(self, keys=found, loaded_at=loaded_at)

    def _key_of(self, jwk: dict[str, Any]) -> Key | None:
        from toolbus.auth.jws import load_jwk, public_pem

        with suppress(ValueError, TypeError):
            is_to_verify = "verify" in jwk.get("key_ops", ["verify"])
            if jwk.get("use", "sig") != "sig" or not is_to_verify or "kid" not in jwk:
                return None
            public = public_pem(load_jwk(jwk))
            for alg in self.algorithms:
                if jwk.get("alg", alg) == alg:
                    with suppress(ValueError):  # not a key for this one
                        return Key(kid=jwk["kid"], alg=alg, iss=self.iss, public=public)
        return None

    def rule_of(self, claims: Mapping[str, Any]) -> ClaimRule | None:
        """Return the first rule that matches verified claims; None if there is none."""
        return next((rule for rule in self.rules if rule.matches(claims)), None)


def _jwks(data: bytes) -> Iterator[dict[str, Any]]:
    if len(data) > MAX_SET_BYTES:
        raise ValueError(f"the key set has over {MAX_SET_BYTES // 1024} KiB")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("the key set is not JSON") from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if keys is None and isinstance(document, dict) and "jwks_uri" in document:
        raise ValueError("this is a discovery document: its jwks_uri is the address of the key set")
    if not isinstance(keys, list):
        raise ValueError('the key set is not a JSON Web Key Set: it has no list "keys"')
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"the key set has {len(keys)} keys, more than {_MAX_KEYS}")
    return (key for key in keys if isinstance(key, dict))


def _check_address(address: str) -> None:
    parts = urlsplit(address)  # raises ValueError
    if parts.scheme != "https":
        # Who can change the answer on its way could add a key, and join every room.
        raise ValueError("jwks has to be an https address or the path of a file")
    if not parts.hostname or "@" in parts.netloc or not address.isprintable() or " " in address:
        raise ValueError("jwks has to be an https address such as https://HOST/PATH")
    _ = parts.port  # raises ValueError


class _IssuerTable(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, defer_build=True)  # type: ignore[misc]

    iss: str
    jwks: str
    alias: NotRequired[str]
    ca: NotRequired[str]
    token_file: NotRequired[str]
    algorithms: NotRequired[list[str]]
    audience: NotRequired[str]


_ISSUER_TABLES: TypeAdapter[_IssuerTable] = TypeAdapter(_IssuerTable)


def read_issuer_table(table: object, rules: tuple[ClaimRule, ...]) -> Issuer:
    """Read one `[[issuer]]` of a key file, with all rules of the file.

    Raises:
        ValueError: It is not valid, or no rule is for it; the message says what to write.
    """
    try:
        given: dict[str, Any] = {**_ISSUER_TABLES.validate_python(table)}
    except ValidationError as error:
        raise ValueError(table_fault(error)) from None
    own = tuple(rule for rule in rules if rule.iss == given["iss"])
    if not own:
        raise ValueError("no [[rule]] has its iss, so that none of its tokens could join")
    if "algorithms" in given:
        given["algorithms"] = tuple(given["algorithms"])
    return Issuer(**given, rules=own)
