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
    if given is not None:
        return _checked(given, "api_key")
    for variable in variables:
        if value := os.environ.get(variable):
            return _checked(SecretStr(value), variable)
    for entry in entry_points(group=STORES):
        stored: Callable[[str, str], str | None] = entry.load()
        if value := stored(provider, host):
            return _checked(SecretStr(value), f"the stored key of {provider}")
    return None


def _checked(key: SecretStr, place: str) -> SecretStr:
    text = key.get_secret_value()
    # What HTTP refuses in a header would be shown by its error.
    if text and text.isascii() and text.isprintable() and " " not in text:
        return key
    raise ValueError(
        f"{place} is no key: it is empty, or has a space, a line end or a character beyond ASCII"
    )
