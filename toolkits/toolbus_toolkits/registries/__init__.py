"""Registries: where bundles and skills are searched, and downloaded to be installed.

`model` has the terms, `config` the file with the sources, `fetching` the requests, `index` and its
neighbours what each type of registry speaks, `hub` puts them together. Here is what users name.
"""

from __future__ import annotations

from toolbus_toolkits.registries.hub import Download, RegistryHub
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
    "Download",
    "NotInRegistry",
    "RegistryEntry",
    "RegistryHub",
    "RegistryRefused",
    "RegistrySource",
    "SearchResult",
    "SourceFailure",
    "SourceUnavailable",
]
