"""Which text may name a participant or a role: names that look the same are the same.

The rule is that of PRECIS (RFC 8265, UsernameCasePreserved) with single inner spaces, and one
script for each name, as for identifiers of the restriction level "highly restrictive" of Unicode
(UTS 39). A name that is wholly in another script may still look like one in Latin letters.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Protocol, TypeGuard

from toolbus.untrusted_text import BLANK

__all__ = [
    "ALIAS_RULE",
    "MAX_NAME_CHARS",
    "MAX_RULED_NAME_CHARS",
    "Named",
    "addressed_name",
    "full_name",
    "is_alias",
    "is_named",
    "is_participant_name",
    "means",
    "name_fault",
    "reference_fault",
]

ALIAS_RULE = "1 to 32 of a-z, 0-9 and '-'"
"""What the alias of an issuer is."""
_ALIAS = re.compile(r"[a-z0-9-]{1,32}")
_NO_ALIAS = "?"  # shown before the names of an issuer that no request can name (NAME-4)

MAX_NAME_CHARS = 128
"""Of a name or a role: each dispatch and event has them (PROTOCOL.md, TOKEN-7)."""
MAX_RULED_NAME_CHARS = 512
"""Of a name of an issuer with rules, whose `sub` has a form that the operator cannot choose."""
_LETTERS_AND_DIGITS = frozenset({"Lu", "Ll", "Lo", "Lm", "Mn", "Mc", "Nd"})
_MARKS = frozenset({"Mn", "Mc"})
# The first word of a character's name is its script, apart from these.
_SCRIPTS = {
    "IDEOGRAPHIC": "CJK",
    "KATAKANA-HIRAGANA": "KATAKANA",
    "ARABIC-INDIC": "ARABIC",
    "EXTENDED": "ARABIC",
    "COMBINING": "",
}
_MIXABLE = tuple(
    frozenset({"LATIN", "CJK", *more})
    for more in (("HIRAGANA", "KATAKANA"), ("HANGUL",), ("BOPOMOFO",))
)


class Named(Protocol):
    """A participant as the server identifies it to others."""

    @property
    def name(self) -> str:
        """The token's `sub`."""

    @property
    def issuer(self) -> str:
        """The token's `iss`."""

    @property
    def alias(self) -> str:
        """The alias of that issuer where the server has several, `?` if it has none; else empty."""


def is_participant_name(value: object, max_chars: int = MAX_NAME_CHARS) -> TypeGuard[str]:
    """Whether this can name a participant or a role."""
    return name_fault(value, max_chars) is None


def is_alias(value: object) -> TypeGuard[str]:
    """Whether this can be the alias of an issuer."""
    return isinstance(value, str) and _ALIAS.fullmatch(value) is not None


def full_name(name: str, alias: str) -> str:
    """Return a participant's name as people see it: `alias/name`, or the name without an alias."""
    return f"{alias}/{name}" if alias else name


def addressed_name(name: str, alias: str) -> str | None:
    """Return the text that names a participant in a request; None if none can (NAME-4)."""
    return None if alias == _NO_ALIAS else full_name(name, alias)


def means(text: str, name: str, alias: str, own_alias: str) -> bool:
    """Whether a text of a request means a participant, as the server decides it (NAME-1).

    Args:
        text: A name, or `alias/name`.
        name: The participant's.
        alias: That of the participant's issuer; empty where the server has one issuer.
        own_alias: That of the issuer of the participant that makes the request.
    """
    if alias and "/" in text:
        return text == full_name(name, alias)
    return text == name and alias in ("", own_alias)


def is_named(text: str, participant: Named, sender: Named) -> bool:
    """Whether a text that a participant writes, the sender, means another one (NAME-1).

    Issuers without an alias of their own are told apart, which `means` cannot. A server that has a
    single issuer, with an alias, also reads that alias before a name; here it is not known.
    """
    is_own = participant.issuer == sender.issuer
    if participant.alias == _NO_ALIAS:
        return is_own and "/" not in text and text == participant.name
    is_meant = means(text, participant.name, participant.alias, sender.alias)
    return is_meant and (is_own or "/" in text)


def reference_fault(value: object) -> str | None:
    """Return why a request cannot name a participant so: by a name, or by `alias/name`."""
    if isinstance(value, str):
        alias, slash, name = value.partition("/")
        if slash and is_alias(alias) and name_fault(name, MAX_RULED_NAME_CHARS) is None:
            return None
    return name_fault(value, MAX_RULED_NAME_CHARS)


def name_fault(value: object, max_chars: int = MAX_NAME_CHARS) -> str | None:
    """Return why this cannot name a participant or a role, as the rest of a sentence about it."""
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:
        return f"must be text of 1 to {max_chars} characters"
    if not value.isprintable():
        return "must be printable text: no control characters, no invisible ones"
    if value != value.strip(" ") or "  " in value:
        return "must not begin or end with a space, nor have two in a row"
    return None if value.isascii() else _unicode_fault(value)


def _unicode_fault(name: str) -> str | None:
    if not unicodedata.is_normalized("NFKC", name):
        return "must be in the normal form NFKC: with the ordinary form of each character"
    others = [character for character in name if not character.isascii()]
    if not all(unicodedata.category(character) in _LETTERS_AND_DIGITS for character in others):
        return "must consist of letters, digits, spaces, and ASCII punctuation"
    if not BLANK.isdisjoint(others):
        return "must not have characters that are invisible"
    if any(unicodedata.category(part[0]) in _MARKS for part in name.split(" ")):
        return "must not have a combining mark without a letter before it"
    scripts = {script for character in name if (script := _script_of(character))}
    if len(scripts) > 1 and not any(scripts <= mixable for mixable in _MIXABLE):
        listed = ", ".join(sorted(script.title() for script in scripts))
        return f"must not mix letters of several scripts, which may look alike: {listed}"
    return None


def _script_of(character: str) -> str:
    """Return the script of a letter, mark or digit; empty if it belongs to several."""
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    word = unicodedata.name(character, "UNNAMED").partition(" ")[0]
    return _SCRIPTS.get(word, word)
