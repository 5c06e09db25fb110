"""The hub: searches several sources, downloads from one, and hands what came to the installer.

One source that is dead, slow or wrong hurts no other. All methods block, also where an event loop
runs; in async code call them in a thread.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

from toolbus.atomic_file import write_atomically
from toolbus.concurrency.event_loop import run_on_any_thread
from toolbus.errors import RoomException
from toolbus.settings import home_of
from toolbus.untrusted_text import json_text
from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.bundles import InstallPlan, InstallResult, plan_install
from toolbus_toolkits.credentials import CredentialStore
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.registries.fetching import Fetcher, fetching
from toolbus_toolkits.registries.model import (
    Kind,
    Listing,
    NotInRegistry,
    RegistryEntry,
    RegistryRefused,
    RegistrySource,
    Release,
    SearchResult,
    SourceFailure,
    SourceUnavailable,
    describe,
    latest,
    name_key,
    short,
)
from toolbus_toolkits.registries.sources import (
    AgxRegistry,
    ClawhubRegistry,
    IndexRegistry,
    LocalRegistry,
)

__all__ = ["Offer", "RegistryHub", "config_path", "read_sources", "write_sources"]

_SOURCE: TypeAdapter[RegistrySource] = TypeAdapter(RegistrySource)
_DOWNLOAD_S = 600.0
_MAX_LEFT_OUT = 20
"""Of each source: one with thousands would hide the results of the others."""


_Registry: TypeAlias = IndexRegistry | AgxRegistry | ClawhubRegistry | LocalRegistry
_REMOTE: dict[str, Callable[[str, Fetcher], _Registry]] = {
    "index": IndexRegistry,
    "agx": AgxRegistry,
    "clawhub": ClawhubRegistry,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A bundle or skill that was downloaded and checked, and what installing it would do."""

    entry: RegistryEntry
    """The version that it is."""
    plan: InstallPlan
    """It holds what was downloaded: `plan.lines()` shows it, `plan.apply()` installs it."""
    notes: tuple[str, ...] = ()
    """What a user should read before."""


class RegistryHub:
    """Several registries as one.

    Args:
        sources: In the order of their priority; none is added. `ValueError` for equal names.
        resolver: Replaces references to credentials in their headers; without one they are
            refused.
        search_timeout_s: Seconds that a source has to answer a search.
        max_wait_s: Seconds that one download may wait where a registry asks for it.
    """

    def __init__(
        self,
        sources: Iterable[RegistrySource],
        *,
        resolver: CredentialResolver | None = None,
        search_timeout_s: float = 20.0,
        max_wait_s: float = 60.0,
    ) -> None:
        self.sources: tuple[RegistrySource, ...] = tuple(sources)
        counts = Counter(source.name for source in self.sources)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(f"two sources have the name {twice[0]!r}")
        self._resolver = resolver or CredentialResolver(None)
        self._search_timeout_s = search_timeout_s
        self._max_wait_s = max_wait_s

    @classmethod
    def from_config(cls, path: Path | None = None) -> RegistryHub:
        """Make a hub of the sources in a file, by default `registries.json` of `TOOLBUS_HOME`.

        References to credentials in headers are resolved. Raises `ValueError` for a file that is
        not valid; without a file there are no sources.
        """
        sources = read_sources(path or config_path())
        return cls(sources, resolver=CredentialResolver(CredentialStore.open()))

    def search(
        self, query: str = "", *, source: str | None = None, kind: Kind | None = None
    ) -> SearchResult:
        """Search all sources at once.

        Args:
            query: Words; an empty query asks for everything.
            source: Search this source alone.
            kind: Return bundles, or skills, alone.

        Of entries with equal kind and name, that of the first source is returned. Raises
        `NotInRegistry` for an unknown source, and `SourceUnavailable` if every source failed.
        """
        sources = self.sources if source is None else (self._source(source),)

        async def search_all() -> list[Listing | str]:
            return await asyncio.gather(*(self._listing(source, query) for source in sources))

        found = run_on_any_thread(search_all())
        listings: list[Listing] = []
        failures: list[SourceFailure] = []
        left_out: list[SourceFailure] = []
        for searched, one in zip(sources, found, strict=True):
            if isinstance(one, Listing):
                listings.append(one)
                texts = one.left_out[:_MAX_LEFT_OUT]
                left_out += (SourceFailure(searched.name, text) for text in texts)
            else:
                failures.append(SourceFailure(searched.name, one))
        if failures and len(failures) == len(sources):
            raise SourceUnavailable(
                "no source can be searched: "
                + "; ".join(f"{failure.source}: {failure.reason}" for failure in failures)
            )
        return SearchResult(_merged(listings, kind), tuple(failures), tuple(left_out))

    def find(
        self, name: str, version: str | None = None, *, kind: Kind | None = None
    ) -> RegistryEntry:
        """Return what the first source that has a name has; `source` is where.

        Raises `NotInRegistry` if none has, and `SourceUnavailable` if a source before it cannot be
        asked: a name is not taken from another source because the first one is down.
        """
        others = []
        for source in self.sources:
            try:
                return run_on_any_thread(self._picked(source, name, version, kind)).entry
            except NotInRegistry as error:
                others.append(str(error))
            except RoomException as error:
                raise SourceUnavailable(f"{error}: name the source to install from") from error
        hint = "; ".join(others) if version else "`toolbus registry search` lists what they have"
        raise NotInRegistry(f"no source has {_shown(name, version)}: {hint}")

    def download(
        self, source: str, name: str, version: str | None = None, *, kind: Kind | None = None
    ) -> Path:
        """Download a bundle or skill into a new temporary folder, which the caller removes.

        Args:
            source: The name of the source.
            name: The name of the bundle or skill there.
            version: By default the latest.
            kind: Needed where a bundle and a skill have the name.

        Returns the zip or the folder. Raises `NotInRegistry`, `SourceUnavailable`, and
        `RegistryRefused` if it is not what the source advertises.
        """
        folder = Path(tempfile.mkdtemp(prefix="toolbus-registry-"))
        try:
            work = self._download(self._source(source), name, version, kind, folder)
            return run_on_any_thread(work)[0]
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def offer(
        self,
        source: str,
        name: str,
        version: str | None = None,
        *,
        kind: Kind | None = None,
        replace: bool = False,
    ) -> Offer:
        """Download a bundle or skill, and return what installing it would do.

        Args:
            source: The name of the source.
            name: The name of the bundle or skill there.
            version: By default the latest.
            kind: Needed where a bundle and a skill have the name.
            replace: Whether an installed version may be replaced.

        Raises what `download` raises, `BundleRefused` if it cannot be installed, and
        `RegistryRefused` if it is something else than its entry says.
        """
        with tempfile.TemporaryDirectory(prefix="toolbus-registry-") as folder:
            work = self._download(self._source(source), name, version, kind, Path(folder))
            path, release = run_on_any_thread(work)
            plan = plan_install(path, origin=release.entry.origin, replace=replace)
        _check_identity(release, plan)
        return Offer(release.entry, plan, release.notes)

    def install(
        self,
        source: str,
        name: str,
        version: str | None = None,
        *,
        dry_run: bool = False,
        replace: bool = False,
    ) -> InstallPlan | InstallResult:
        """Install a bundle or skill, without a question; return the plan alone for `dry_run`.

        Arguments and errors are those of `offer`.
        """
        plan = self.offer(source, name, version, replace=replace).plan
        return plan if dry_run else plan.apply()

    async def _listing(self, source: RegistrySource, query: str) -> Listing | str:
        """Return what a source has, or why it failed."""
        limit_s = self._search_timeout_s
        try:
            async with self._opened(source, limit_s, limit_s) as registry:
                return await registry.search(query)
        except TimeoutError:
            return f"it did not answer within {limit_s:g} s"
        except (RoomException, OSError, ValueError) as error:
            return short(error)

    async def _download(
        self,
        source: RegistrySource,
        name: str,
        version: str | None,
        kind: Kind | None,
        folder: Path,
    ) -> tuple[Path, Release]:
        with _of_source(source):
            async with self._opened(source, _DOWNLOAD_S, self._max_wait_s) as registry:
                release = _pick(await registry.find(name, version), name, version, kind)
                return await release.save(folder), release

    async def _picked(
        self, source: RegistrySource, name: str, version: str | None, kind: Kind | None
    ) -> Release:
        limit_s = self._search_timeout_s
        with _of_source(source):
            async with self._opened(source, limit_s, limit_s) as registry:
                return _pick(await registry.find(name, version), name, version, kind)

    @asynccontextmanager
    async def _opened(
        self, source: RegistrySource, limit_s: float, max_wait_s: float
    ) -> AsyncIterator[_Registry]:
        """Yield what asks a source, with a limit for the whole block."""
        async with asyncio.timeout(limit_s):
            if source.path is not None:
                yield LocalRegistry(source.name, source.path)
                return
            async with fetching(source, self._resolver, max_wait_s) as fetcher:
                yield _REMOTE[source.type or "index"](source.name, fetcher)

    def _source(self, name: str) -> RegistrySource:
        found = next((source for source in self.sources if source.name == name), None)
        if found is None:
            names = ", ".join(source.name for source in self.sources) or "there are none"
            raise NotInRegistry(f"there is no source {short(name)!r}: {names}")
        return found


def config_path() -> Path:
    """Return the path of `registries.json` in `TOOLBUS_HOME`; it need not exist."""
    return home_of(os.environ) / "registries.json"


def read_sources(path: Path) -> list[RegistrySource]:
    """Return the sources of a file, by priority; none if there is no file. Raises `ValueError`."""
    found = read_json_file(path, missing={"sources": []})
    entries = found.get("sources") if isinstance(found, dict) else None
    if not isinstance(entries, list) or len(found) > 1:
        raise ValueError(f'{path}: must be {{"sources": [...]}}')
    sources = []
    for index, entry in enumerate(entries):
        try:
            sources.append(_SOURCE.validate_python(entry))
        except ValidationError as error:
            raise ValueError(f"{path}: /sources/{index}: {describe(error)}") from None
    return sources


def write_sources(path: Path, sources: Iterable[RegistrySource]) -> None:
    """Replace the file; only the user can read it. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = [_SOURCE.dump_python(one, mode="json", exclude_defaults=True) for one in sources]
    text = json_text({"sources": facts}, indent=2)
    write_atomically(path, text.encode() + b"\n", mode=0o600)


def _pick(
    releases: Sequence[Release], name: str, version: str | None, kind: Kind | None
) -> Release:
    """Return the release that is asked for."""
    of_kind = [release for release in releases if kind in (None, release.entry.kind)]
    fitting = [release for release in of_kind if version in (None, release.entry.version)]
    if len({release.entry.kind for release in fitting}) > 1:
        raise RegistryRefused(f"{_shown(name, None)} is a bundle and a skill: name the kind")
    found = latest(fitting)
    if found is not None:
        return found
    others = sorted({release.entry.version for release in of_kind})
    known = f"; it has {', '.join(map(short, others[:20]))}" if others else ""
    raise NotInRegistry(f"it does not have {_shown(name, version)}{known}")


def _check_identity(release: Release, plan: InstallPlan) -> None:
    """Refuse what is something else than its entry says. Skills may lack a version."""
    entry, bundle = release.entry, plan.bundle
    found_kind: Kind = "skill" if bundle.manifest.form == "skill" else "bundle"
    if found_kind != entry.kind:
        raise RegistryRefused(f"{entry.origin} is a {found_kind}, not a {entry.kind}")
    if not release.has_other_name and name_key(bundle.name) != name_key(entry.name):
        raise RegistryRefused(f"{entry.origin} calls itself {short(bundle.name)!r}")
    if found_kind == "bundle" and bundle.version != entry.version:
        raise RegistryRefused(f"{entry.origin} has the version {short(bundle.version)!r}")


def _merged(listings: Iterable[Listing], kind: Kind | None) -> tuple[RegistryEntry, ...]:
    """Return the latest version of each entry, of the first source that has it."""
    merged: dict[tuple[str, str], RegistryEntry] = {}
    for listing in listings:
        releases: dict[tuple[str, str], list[Release]] = {}
        for release in listing.releases:
            if kind in (None, release.entry.kind):
                releases.setdefault((release.entry.kind, release.entry.name), []).append(release)
        for key, group in releases.items():
            best = latest(group)
            assert best is not None
            if key in merged:
                also = (*merged[key].also_in, best.entry.source)
                merged[key] = replace(merged[key], also_in=also)
            else:
                merged[key] = best.entry
    return tuple(merged.values())


@contextmanager
def _of_source(source: RegistrySource) -> Iterator[None]:
    """Name the source in the errors of a block."""
    try:
        yield
    except TimeoutError:
        raise SourceUnavailable(f"{source.name}: it did not answer in time") from None
    except SourceUnavailable as error:
        raise SourceUnavailable(
            f"{source.name}: {error}", retry_after_s=error.retry_after_s
        ) from error
    except NotInRegistry as error:
        raise NotInRegistry(f"{source.name}: {error}") from error
    except (RegistryRefused, OSError, ValueError) as error:
        raise RegistryRefused(f"{source.name}: {short(error)}") from error


def _shown(name: str, version: str | None) -> str:
    return short(repr(name)) + (f" in the version {short(version)}" if version else "")
