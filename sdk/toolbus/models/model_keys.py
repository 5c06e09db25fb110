"""Finds the key of a provider: given, in a variable, or in a store of credentials."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from pydantic import SecretStr

__all__ = ["STORES", "find_key"]

STORES = "toolbus.model_keys"
"""The entry point group of stores: `(provider, host) -> key or None`.

The host is a name with an optional port. A store gives a key only to a host that the key may go to;
a `RoomException` says why there is none.
"""


def find_key(
    given: SecretStr | None, provider: str, variables: Sequence[str], host: str
) -> SecretStr | None:
    """Return the key for a provider at a host; None if there is none at all.

    Raises `ValueError` for a key that cannot be sent, without the key.
    """
    # A key is never a text in a local variable: frames of tracebacks are shown with them.
    places = [("api_key", given)] if given is not None else []
    places += [(name, SecretStr(os.environ[name])) for name in variables if os.environ.get(name)]
    if not places:
        for entry in entry_points(group=STORES):
            stored: Callable[[str, str], str | None] = entry.load()
            if key := SecretStr(stored(provider, host) or ""):
                places.append((f"the stored key of {provider}", key))
    for place, key in places:
        if not _is_usable(key):
            raise ValueError(
                f"{place} is no key: it is empty, or has a space, a line end or a character "
                "beyond ASCII"
            )
        return key
    return None


def _is_usable(key: SecretStr) -> bool:
    """Whether HTTP takes it in a header; the error about another one would show it."""
    text = key.get_secret_value()
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
