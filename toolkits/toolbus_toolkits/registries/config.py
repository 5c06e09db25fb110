"""`registries.json` of `TOOLBUS_HOME`: the sources of this user, in the order of their priority."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolbus.atomic_file import write_atomically
from toolbus.settings import home_of
from toolbus.untrusted_text import json_text
from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.registries.model import RegistrySource, describe

__all__ = ["CONFIG_FILE", "config_path", "read_sources", "write_sources"]

CONFIG_FILE = "registries.json"
_MAX_BYTES = 1024 * 1024
_MAX_SOURCES = 64
_SOURCE: TypeAdapter[RegistrySource] = TypeAdapter(RegistrySource)


def config_path() -> Path:
    """Return the path of the file in `TOOLBUS_HOME`; it need not exist."""
    return home_of(os.environ) / CONFIG_FILE


def read_sources(path: Path) -> list[RegistrySource]:
    """Return the sources of a file; none if there is no file. Raises `ValueError`."""
    found = read_json_file(path, _MAX_BYTES, missing={"sources": []})
    entries = found.get("sources") if isinstance(found, dict) else None
    if not isinstance(entries, list) or len(found) > 1 or len(entries) > _MAX_SOURCES:
        raise ValueError(f'{path}: must be {{"sources": [...]}} with at most {_MAX_SOURCES}')
    return [_source(entry, f"{path}: /sources/{index}") for index, entry in enumerate(entries)]


def write_sources(path: Path, sources: Iterable[RegistrySource]) -> None:
    """Replace the file; only the user can read it.

    Raises `OSError`, and `ValueError` for more sources than are read.
    """
    sources = list(sources)
    if len(sources) > _MAX_SOURCES:
        raise ValueError(f"{path}: may have at most {_MAX_SOURCES} sources: remove others first")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json_text({"sources": [_facts(source) for source in sources]}, indent=2)
    write_atomically(path, text.encode() + b"\n", mode=0o600)


def _source(value: Any, place: str) -> RegistrySource:
    try:
        return _SOURCE.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{place}: {describe(error)}") from None


def _facts(source: RegistrySource) -> dict[str, Any]:
    facts: dict[str, Any] = _SOURCE.dump_python(source, mode="json", exclude_defaults=True)
    return facts
