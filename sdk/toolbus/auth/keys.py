"""The keys that sign tokens, and the file that holds them.

A key fixes issuer and algorithm: a token only names the key. Independent of claims, grants and
time. Nothing is fetched, and no message or `repr` shows key material.

`keys.toml` has one table per key; the first that can sign mints new tokens. To rotate keys, add the
new key below the old one on every server, then move it to the top where tokens are minted, and
remove the old one when its last token has expired.

    [[key]]
    kid = "2025-01"
    alg = "HS256"            # or EdDSA, ES256, RS256, PS256
    iss = "example"
    alias = "example"        # needed as soon as there are keys of a second issuer
    secret = "..."           # or public = '''PEM''', or private = '''PEM'''

Issuers that publish their keys have a table `[[issuer]]` instead, and tables `[[rule]]`: see
`key_sets` and `claim_rules`.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from toolbus.atomic_file import write_atomically
from toolbus.auth.claim_rules import read_rule
from toolbus.auth.key_sets import MAX_SET_BYTES, Issuer, read_issuer_table
from toolbus.auth.participant_names import ALIAS_RULE
from toolbus.auth.signing_keys import MATERIALS, Algorithm, Key

__all__ = ["Algorithm", "Key", "KeyRing"]

T = TypeVar("T")

_TABLE_FIELDS = ("kid", "alg", "iss", "alias", *MATERIALS)
_PEM_TEXT = re.compile(r"[A-Za-z0-9+/= \n-]+")


class KeyRing:
    """The keys of one server or issuer, looked up by id, in memory only.

    Two keys with one id are a ValueError, and anything but keys is a TypeError. A ring is
    immutable: to rotate keys, load another one.

    Args:
        keys: The keys. Iterating the ring yields them, and not those of key sets.
        issuers: Those with a key set; ValueError if there are two for one `iss`, or keys too.
    """

    __slots__ = ("_by_kid", "issuers")

    def __init__(self, keys: Iterable[Key], issuers: Iterable[Issuer] = ()) -> None:
        self._by_kid: dict[str, Key] = {}
        if not isinstance(keys, Iterable):
            raise TypeError(f"a KeyRing takes a list of keys, not {type(keys).__name__}")
        for key in keys:
            if not isinstance(key, Key):
                raise TypeError(f"a KeyRing contains keys, not {type(key).__name__}")
            if key.kid in self._by_kid:
                raise ValueError(f"two keys have the kid {key.kid!r}")
            self._by_kid[key.kid] = key
        found: dict[str, Issuer] = {}
        for issuer in issuers:
            if issuer.iss in found or any(key.iss == issuer.iss for key in self):
                # Its own keys would grant what the rules of the key set do not.
                raise ValueError(
                    f"issuer {issuer.iss!r} has an [[issuer]] table, and no second one or [[key]]"
                )
            found[issuer.iss] = issuer
        self.issuers: Mapping[str, Issuer] = MappingProxyType(found)
        """The issuers with a key set, by their `iss`."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read `keys.toml`, and the key sets in files that it names; its folder is their base.

        A key set at an address is not fetched: `Issuer.keys` is None.

        Raises:
            OSError: If a file cannot be read.
            ValueError: One is invalid; the message names the file and the entry.
        """
        try:
            ring = cls.from_toml(Path(path).read_bytes().decode())
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
        folder = Path(path).parent
        return cls(ring, [_with_file(issuer.in_folder(folder)) for issuer in ring.issuers.values()])

    @classmethod
    def from_toml(cls, text: str) -> KeyRing:
        """Read the text of `keys.toml`, as `to_toml` writes it.

        Raises:
            ValueError: It is invalid; the message names the entry.
        """
        try:
            document = tomllib.loads(text)
            for name in sorted(document.keys() - {"key", "issuer", "rule"}):
                raise ValueError(f"unknown field {name!r}")
            rules = tuple(_tables(document, "rule", read_rule))
            issuers = list(
                _tables(document, "issuer", lambda _, table: read_issuer_table(table, rules))
            )
            if not document.get("key") and not issuers:
                raise ValueError("it has no [[key]] table")
            names = {issuer.iss for issuer in issuers}
            for rule in rules:
                if rule.iss not in names:
                    raise ValueError(f"rule {rule.number}: no [[issuer]] has the iss {rule.iss!r}")
            return cls(_tables(document, "key", _read_key), issuers)
        except RecursionError as error:  # of the parser, or for a message about a nested value
            raise ValueError(str(error)) from None

    def get(self, kid: str) -> Key | None:
        """Return the key with this id, or None."""
        return self._by_kid.get(kid)

    def aliases(self) -> dict[str, str]:
        """Return the alias of each issuer; empty for a sole issuer that has none.

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
        given |= {issuer.iss: issuer.alias or "" for issuer in self.issuers.values()}
        owners: dict[str, str] = {}
        for issuer, alias in given.items() if len(given) > 1 else ():
            if not alias:
                kids = [key.kid for key in self if key.iss == issuer]
                place = f"[[key]] table, of kid {kids[0]!r}" if kids else "[[issuer]] table"
                raise ValueError(
                    f"issuer {issuer!r} has no alias, and there are keys of {len(given)} issuers:"
                    f' write alias = "..." ({ALIAS_RULE}) into its {place}'
                )
            if owners.setdefault(alias, issuer) != issuer:
                raise ValueError(
                    f"issuers {owners[alias]!r} and {issuer!r} have the same alias {alias!r}:"
                    f" write another one into the tables of {issuer!r}"
                )
        return given

    @property
    def signing_key(self) -> Key | None:
        """The first key that can sign; None if the ring only checks tokens."""
        return next((key for key in self if key.can_sign), None)

    def to_toml(self) -> str:
        """Return the text of `keys.toml`, with the key material in plain text.

        Raises:
            ValueError: It has issuers with key sets, whose tables people write.
        """
        if self.issuers:
            raise ValueError("tables [[issuer]] and [[rule]] are written by hand, not by toolbus")
        tables = []
        for key in self:
            values = ((name, getattr(key, name)) for name in _TABLE_FIELDS)
            lines = [
                f"{name} = {_toml_text(value)}\n" for name, value in values if value is not None
            ]
            tables.append("[[key]]\n" + "".join(lines))
        return "\n".join(tables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `keys.toml` atomically, readable by its owner only (mode 0600).

        Raises:
            ValueError: As `to_toml`.
        """
        write_atomically(path, self.to_toml().encode(), mode=0o600, sync=True)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_kid.values())

    def __len__(self) -> int:
        return len(self._by_kid)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join((*self._by_kid, *self.issuers))})"


def _with_file(issuer: Issuer) -> Issuer:
    if issuer.is_remote:
        return issuer
    with Path(issuer.jwks).open("rb") as file:
        data = file.read(MAX_SET_BYTES + 1)
    try:
        return issuer.with_set(data)
    except ValueError as error:
        raise ValueError(f"{issuer.jwks}: {error}") from None


def _tables(document: dict[str, Any], name: str, read: Callable[[int, Any], T]) -> Iterator[T]:
    """Yield the tables of one name, as `read` makes them of their number and fields."""
    tables = document.get(name, [])
    if not isinstance(tables, list):
        raise ValueError(f"it has no [[{name}]] table: {name} is something else")
    label = {"key": "kid", "issuer": "iss"}.get(name)
    for number, table in enumerate(tables, start=1):
        where = f"{name} {number}"
        if not isinstance(table, dict):
            raise ValueError(f"{where}: must be a [[{name}]] table")
        if label in table:
            where += f" ({table[label]!r})"
        try:
            yield read(number, table)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _read_key(_number: int, table: dict[str, Any]) -> Key:
    for name in sorted(table.keys() - set(_TABLE_FIELDS)):
        raise ValueError(f"unknown field {name!r}")
    for name in sorted({"kid", "alg", "iss"} - table.keys()):
        raise ValueError(f"{name} is missing")
    return Key(**table)


def _toml_text(value: str) -> str:
    if "\n" in value and _PEM_TEXT.fullmatch(value):
        return f"'''\n{value}'''"
    # A JSON string is a TOML string, except for one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
