"""Registries: where bundles and skills are searched, and downloaded to be installed.

`model` has the terms, `fetching` the requests, `sources` what each type of registry speaks; `hub`
puts them together, and has the file that lists them. Here is what users name.
"""

from __future__ import annotations

try:
    import httpx2 as _  # noqa: F401 - only to say what is missing
except ImportError as error:  # the extra is not installed
    raise ImportError("registries need more packages: pip install 'toolbus[bundles]'") from error

from toolbus_toolkits.registries.hub import Offer, RegistryHub
from toolbus_toolkits.registries.model import (
    NotInRegistry,
    RegistryEntry,
    RegistryRefused,
    RegistrySource,
    SearchResult,
    SourceFailure,
    SourceUnavailable,
)

__all__ = [
    "NotInRegistry",
    "Offer",
    "RegistryEntry",
    "RegistryHub",
    "RegistryRefused",
    "RegistrySource",
    "SearchResult",
    "SourceFailure",
    "SourceUnavailable",
]
