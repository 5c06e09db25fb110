"""What registries and their users speak of: sources, entries, results, errors, order of versions.

Pure: nothing is read or requested here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from toolbus import NotFound, ToolFailed, Unavailable
from toolbus.untrusted_text import one_line
from toolbus_toolkits.credentials.references import has_reference

__all__ = [
    "EntryName",
    "EntryVersion",
    "Kind",
    "Listing",
    "NotInRegistry",
    "RegistryEntry",
    "RegistryRefused",
    "RegistrySource",
    "Release",
    "SearchResult",
    "SourceFailure",
    "SourceType",
    "SourceUnavailable",
    "describe",
    "latest",
    "matches",
    "name_key",
    "short",
]

SourceType: TypeAlias = Literal["local", "index", "agx", "clawhub"]
Kind: TypeAlias = Literal["bundle", "skill"]

_DESCRIPTION_CHARS = 1_024
"""A source chooses it, and lists have hundreds of them."""
_SOURCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NAME = re.compile(r"(?:@[A-Za-z0-9_-]{1,64}/)?[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")


def _fully(pattern: re.Pattern[str], words: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"must be {words}")
        return text

    return AfterValidator(check)


EntryName: TypeAlias = Annotated[
    str, _fully(_NAME, "1 to 64 letters, digits, '.', '_', '-' and inner spaces")
]
"""The name of a bundle or skill; `@owner/` before it where a registry has several of one name."""
EntryVersion: TypeAlias = Annotated[
    str, _fully(_VERSION, "1 to 64 letters, digits, '.', '+', '_' and '-'")
]


class NotInRegistry(NotFound):
    """There is no such source, or it has no such bundle, skill or version."""

    next_step = ""


class SourceUnavailable(Unavailable):
    """A source was not reached, did not answer in time, or asks to come back later."""

    next_step = ""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, executed="no", retry_after_s=retry_after_s)


class RegistryRefused(ToolFailed):
    """A source, or what it sent, is not accepted: a wrong hash, a refused address or name."""

    next_step = ""

    def __init__(self, message: str) -> None:
        super().__init__(message, executed="no", retryable=False)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class RegistrySource:
    """A registry: a folder, or an address with what it speaks. `ValidationError` for bad values."""

    name: Annotated[str, _fully(_SOURCE_NAME, "1 to 64 letters, digits, '_' and '-'")]
    """1 to 64 letters, digits, `_` and `-`."""
    url: Annotated[str, StringConstraints(max_length=2_048)] = ""
    """Of the index file, or of the server."""
    path: Path | None = None
    """The folder of a `local` source."""
    type: SourceType | None = None
    """By default `local` for a path, and `index` for a URL that ends with `.json`."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Sent to the host of `url` alone; values may have references to credentials."""
    allow_private: bool = False
    """Whether it, and where it sends downloads, may have private or loopback addresses."""

    @model_validator(mode="after")
    def _must_fit(self) -> RegistrySource:
        if bool(self.url) == (self.path is not None):
            raise ValueError("a source has a `url` or a `path`, not both")
        if self.path is not None and (self.type or "local") != "local":
            raise ValueError(f"a source of the type {self.type} has a `url`")
        if self.url:
            self._check_url()
        object.__setattr__(self, "type", self.type or ("local" if self.path else "index"))
        return self

    def _check_url(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("`url` must begin with http:// or https://")
        if parts.username is not None or parts.password is not None or has_reference(self.url):
            raise ValueError("`url` must not hold a credential: refer to it in `headers`")
        if self.type is None and not parts.path.endswith(".json"):
            raise ValueError("give the `type` of the server: index, agx or clawhub")
        if self.type == "local":
            raise ValueError("a source of the type local has a `path`")

    @property
    def place(self) -> str:
        """Its address or folder, for people."""
        return self.url or str(self.path)


@plain_dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A bundle or skill of a source, in its latest version."""

    source: str
    name: str
    kind: Kind
    version: str
    """Empty where the source names none."""
    description: str
    also_in: tuple[str, ...] = ()
    """Further sources that have a bundle or skill of this name."""

    @classmethod
    def of(
        cls, source: str, name: str, kind: Kind, version: str, description: str
    ) -> RegistryEntry:
        """Make an entry of what a source sent; a long description is cut."""
        return cls(source, name, kind, version, description[:_DESCRIPTION_CHARS])

    @property
    def origin(self) -> str:
        """What an installed bundle keeps: `SOURCE:NAME@VERSION`."""
        return f"{self.source}:{self.name}@{self.version}"


@plain_dataclass(frozen=True, slots=True)
class Release:
    """One version of an entry, and how it is saved."""

    entry: RegistryEntry
    save: Callable[[Path], Awaitable[Path]]
    """Save it in a folder, checked; return the zip or the folder of the bundle."""
    notes: tuple[str, ...] = ()
    """What a user should read before it is installed."""
    has_other_name: bool = False
    """Whether a skill may have another name than its entry, whose name is given by the registry."""


@plain_dataclass(frozen=True, slots=True)
class Listing:
    """What one source has."""

    releases: list[Release]
    left_out: list[str]
    """Why each of its malformed entries is left out."""

    @classmethod
    def of_items(cls, items: list[Any], path: str, make: Callable[[Any], Release]) -> Listing:
        """Make a release of each item; one for which `make` raises `ValidationError` is left out.

        Args:
            items: What a source sent.
            path: The JSON pointer of the list, for the reasons.
            make: Validates an item, and makes its release.
        """
        found = cls([], [])
        for index, item in enumerate(items):
            try:
                found.releases.append(make(item))
            except ValidationError as error:
                found.left_out.append(f"{path}/{index}: {describe(error)}")
        return found

    def matching(self, query: str) -> Listing:
        """Return the releases that match a query, in all versions."""
        found = [
            release
            for release in self.releases
            if matches(query, release.entry.name, release.entry.description)
        ]
        return Listing(found, self.left_out)

    def named(self, name: str) -> list[Release]:
        """Return the releases of a name."""
        return [release for release in self.releases if release.entry.name == name]


@plain_dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that failed, or an entry of it that is left out."""

    source: str
    reason: str


@plain_dataclass(frozen=True, slots=True)
class SearchResult:
    """What the sources have, in their order."""

    entries: tuple[RegistryEntry, ...]
    failures: tuple[SourceFailure, ...] = ()
    """Sources that did not answer; the entries are those of the others."""
    left_out: tuple[SourceFailure, ...] = ()
    """Malformed entries of sources that did."""


def matches(query: str, name: str, description: str) -> bool:
    """Whether every word of a query is in the name or the description, in any case."""
    text = f"{name} {description}".casefold()
    return all(word in text for word in query.casefold().split())


def latest(releases: Iterable[Release]) -> Release | None:
    """Return the release of the highest version; pre-releases only if there is no other."""
    return max(releases, key=lambda release: _order(release.entry.version), default=None)


def name_key(name: str) -> str:
    """Return what names have in common that are hard to tell apart, without the owner."""
    return re.sub(r"[ ._-]+", "-", name.rpartition("/")[2].lower())


def describe(error: ValidationError) -> str:
    """Return what is wrong with a source, without its values."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    texts = (
        f"{'/'.join(map(str, detail['loc']))}: {detail['msg'].removeprefix('Value error, ')}"
        for detail in errors
    )
    return "; ".join(one_line(text.removeprefix(": "), 200) for text in texts)


def short(text: object) -> str:
    """Return untrusted text for a message, as one line."""
    return one_line(str(text), 200)


def _order(version: str) -> tuple[int, Version | str]:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return 0, version
    return (1 if parsed.is_prerelease else 2), parsed
