"""Installing and removing a bundle: a plan that shows everything, then all of it or nothing.

A plan holds the bytes that it shows. It is made again, under the lock, before it is applied; if
`TOOLBUS_HOME` has changed meanwhile so that the plan would differ, nothing is done. What was
changed since a bundle was installed stays when it is removed, and is the user's.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from toolbus.untrusted_text import one_line
from toolbus_toolkits.bundles.bundle import Bundle
from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.bundles.home_state import (
    HomeState,
    Installed,
    InstalledBundle,
    digest,
    entry_digest,
)
from toolbus_toolkits.bundles.transaction import locked
from toolbus_toolkits.skills.skill import INSTALLED_FOLDER

__all__ = [
    "InstallPlan",
    "InstallResult",
    "NotInstalled",
    "UninstallPlan",
    "UninstallResult",
    "make_plan",
    "make_removal",
]

_MAX_SERVER_CHARS = 10_000
"""Of the line of an MCP server, which is shown whole: a cut line could hide what is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResult:
    """What `InstallPlan.apply` has installed, by kind."""

    name: str
    version: str
    skills_installed: tuple[str, ...]
    mcp_servers_installed: tuple[str, ...]
    avatars_installed: tuple[str, ...]
    memory_templates_installed: tuple[str, ...]
    files: tuple[str, ...]
    """Paths below `TOOLBUS_HOME`."""
    warnings: tuple[str, ...]
    changed: bool
    """False if exactly this was installed already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """What installing a bundle would do. Nothing is written until `apply`."""

    bundle: Bundle
    home: Path
    origin: str
    replace: bool
    replaced: InstalledBundle | None
    """The installed bundle of this name."""
    removed_files: tuple[str, ...] = ()
    """Files of the replaced bundle that this one does not have."""
    removed_servers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    """Every file, with its SHA-256."""
    servers: dict[str, str] = field(default_factory=dict)
    """Every MCP server, with the SHA-256 of its entry."""
    is_whole: bool = False
    """Whether everything that the installed bundle of this name brought is still there."""

    @property
    def is_installed(self) -> bool:
        """Whether exactly this is installed already, and nothing of it was taken away."""
        return self.is_same and self.is_whole

    @property
    def is_same(self) -> bool:
        """Whether exactly this was installed."""
        old = self.replaced
        return old is not None and (old.version, old.files, old.servers) == (
            self.bundle.version,
            self.files,
            self.servers,
        )

    def lines(self) -> list[str]:
        """Return what would be done, a line each: every file, command and address. For people."""
        old = self.replaced
        title = f"bundle   {self.bundle.name} {self.bundle.version}".rstrip()
        if old is not None:
            title += f", in the place of {old.version or 'the same'}"
        lines = [title]
        for path, content in self.bundle.files.items():
            sha = self.files[path][:12]
            lines.append(f"write    {self.home / path}  {len(content):,} bytes  sha256 {sha}")
        lines += (f"remove   {self.home / path}" for path in self.removed_files)
        lines += (_server_line(self.bundle, name) for name in self.bundle.servers)
        lines += (f"remove   MCP server {name}" for name in self.removed_servers)
        lines += (f"warning  {warning}" for warning in self.warnings)
        return [one_line(line) for line in lines]

    def apply(self) -> InstallResult:
        """Install the bundle.

        Raises `BundleRefused` if the home has changed since the plan, or a file cannot be written;
        nothing was changed.
        """
        made = self.bundle
        with locked(self.home):
            state = HomeState(self.home)
            now = make_plan(made, state, origin=self.origin, replace=self.replace)
            if now.lines() != self.lines():
                raise BundleRefused(f"{self.home} has changed since the plan was made: try again")
            if not self.is_installed:
                state.change(
                    state.installed.with_bundle(self._receipt()),
                    {**made.files, **dict.fromkeys(self.removed_files)},
                    added=made.servers,
                    removed=self.removed_servers,
                )
        return InstallResult(
            name=made.name,
            version=made.version,
            skills_installed=tuple(made.skills),
            mcp_servers_installed=tuple(made.servers),
            avatars_installed=tuple(made.avatars),
            memory_templates_installed=tuple(made.memory_templates),
            files=tuple(made.files),
            warnings=self.warnings,
            changed=not self.is_installed,
        )

    def _receipt(self) -> InstalledBundle:
        made = self.bundle
        return InstalledBundle(
            name=made.name,
            version=made.version,
            description=made.manifest.description,
            form=made.manifest.form,
            origin=self.origin,
            installed_at=datetime.now(UTC).isoformat(timespec="seconds"),
            files=self.files,
            servers=self.servers,
            skills=tuple(made.skills),
            avatars=tuple(made.avatars),
            memory_templates=tuple(made.memory_templates),
            requires=made.manifest.requires,
        )


def make_plan(bundle: Bundle, state: HomeState, *, origin: str, replace: bool) -> InstallPlan:
    """Return the plan for a bundle.

    Raises `BundleRefused` for a requirement that is not met, for what belongs to another bundle or
    the user, and for what the user has changed.
    """
    replaced = state.installed.find(bundle.name)
    files = {path: digest(content) for path, content in bundle.files.items()}
    servers = {name: entry_digest(entry) for name, entry in bundle.servers.items()}
    _check_requirements(bundle, state.installed)
    _check_shown(bundle)
    old = replaced or InstalledBundle(name=bundle.name)
    _check_files(state, old, files)
    _check_servers(state, old, servers)
    removed_files, removed_servers, warnings = _left_over(state, old, files, servers)
    state.mcp.changed(bundle.servers, removed_servers)  # raises if it would be too large
    missing = [
        f"MCP server {name}: the program {command} is not on this machine's PATH"
        for name in bundle.servers
        if (command := bundle.entry(name).command) is not None and shutil.which(command) is None
    ]
    plan = InstallPlan(
        bundle=bundle,
        home=state.home,
        origin=origin,
        replace=replace,
        replaced=replaced,
        removed_files=removed_files,
        removed_servers=removed_servers,
        warnings=(*warnings, *missing),
        files=files,
        servers=servers,
        is_whole=replaced is not None and state.is_whole(replaced),
    )
    if replaced is not None and not replace and not plan.is_same:
        raise BundleRefused(
            f"bundle {bundle.name} {replaced.version} is installed, with other content: replace it"
            " with --replace"
        )
    return plan


def _check_files(state: HomeState, old: InstalledBundle, files: Mapping[str, str]) -> None:
    """Refuse the first file that is not this bundle's; `old` is what is installed of it."""
    for path, sha in files.items():
        if path in old.files:
            if state.digest_of(path) not in (None, old.files[path], sha):
                raise BundleRefused(f"{state.home / path} was changed: move it away first")
            continue
        _refuse_owned(path, state.installed.owner_of_file(path))
        # A file, or the folder of a skill, may be there and of no bundle.
        place = "/".join(path.split("/")[:2]) if path.startswith(f"{INSTALLED_FOLDER}/") else path
        is_mine = any(file.startswith(f"{place}/") for file in old.files)
        if state.has_files(path if is_mine else place):
            raise BundleRefused(
                f"{state.home / place} exists and no bundle has installed it: move it away"
            )


def _check_servers(state: HomeState, old: InstalledBundle, servers: Mapping[str, str]) -> None:
    """Refuse the first MCP server that is not this bundle's."""
    for name, sha in servers.items():
        found = state.digest_of_server(name)
        if name in old.servers:
            if found not in (None, old.servers[name], sha):
                raise BundleRefused(f"MCP server {name} was changed in mcp.json: rename it first")
            continue
        _refuse_owned(f"MCP server {name}", state.installed.owner_of_server(name))
        if found is not None:
            raise BundleRefused(
                f"mcp.json has an MCP server {name} that no bundle has installed: rename it"
            )


def _refuse_owned(what: str, owner: str | None) -> None:
    if owner is not None:
        raise BundleRefused(f"{what} belongs to the installed bundle {owner}")


def _left_over(
    state: HomeState,
    old: InstalledBundle,
    files: Mapping[str, str],
    servers: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Return what of a replaced bundle goes: files, servers; and warnings about what stays."""
    own_files, own_servers = state.as_installed(old)
    old_files = old.files.keys() - files
    old_servers = old.servers.keys() - servers
    warnings = [
        f"{state.home / path} was changed: it is kept, and is yours"
        for path in sorted(old_files - own_files)
        if state.exists(path)
    ]
    warnings += (
        f"MCP server {name} was changed: it is kept, and is yours"
        for name in sorted(old_servers - own_servers)
        if name in state.mcp.entries
    )
    return tuple(sorted(old_files & own_files)), tuple(sorted(old_servers & own_servers)), warnings


def _check_requirements(bundle: Bundle, installed: Installed) -> None:
    requires = bundle.manifest.requires
    ours = metadata.version("toolbus")
    if not _meets(ours, requires.toolbus):
        raise BundleRefused(f"it needs toolbus {requires.toolbus}; this is {ours}")
    for name, versions in requires.bundles.items():
        found = installed.find(name)
        if found is None or not _meets(found.version, versions):
            has = "it is not installed" if found is None else f"{found.version} is installed"
            raise BundleRefused(f"it needs the bundle {name} {versions}".rstrip() + f"; {has}")
    for other in installed.bundles.values():
        wanted = {key.lower(): required for key, required in other.requires.bundles.items()}
        versions = wanted.get(bundle.name.lower(), "")
        if other.name.lower() != bundle.name.lower() and not _meets(bundle.version, versions):
            raise BundleRefused(f"the bundle {other.name} needs {bundle.name} {versions}")


def _meets(version: str, wanted: str) -> bool:
    try:
        return not wanted or SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _check_shown(bundle: Bundle) -> None:
    for name in bundle.servers:
        if len(one_line(_server_line(bundle, name))) > _MAX_SERVER_CHARS:
            raise BundleRefused(
                f"MCP server {name}: its command or address, with arguments, env and headers, has"
                f" more than {_MAX_SERVER_CHARS:,} characters: put the rest into a file"
            )


def _server_line(bundle: Bundle, name: str) -> str:
    entry = bundle.entry(name)
    if entry.url is not None:
        return f"address  MCP server {name}: {entry.url}{_pairs('headers', entry.headers)}"
    assert entry.command is not None
    place = "" if entry.cwd is None else f"  in {shlex.quote(str(entry.cwd))}"
    command = shlex.join([entry.command, *entry.args])
    return f"command  MCP server {name}: {command}{place}{_pairs('env', entry.env)}"


def _pairs(what: str, values: Mapping[str, Any]) -> str:
    shown = " ".join(f"{shlex.quote(key)}={shlex.quote(value)}" for key, value in values.items())
    return f"  {what} {shown}" if shown else ""


class NotInstalled(BundleRefused):
    """There is no bundle of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no bundle {one_line(name, 64)!r}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallResult:
    """What `UninstallPlan.apply` has removed, and what stays."""

    name: str
    files_removed: tuple[str, ...]
    """Paths below `TOOLBUS_HOME`."""
    mcp_servers_removed: tuple[str, ...]
    retained: tuple[str, ...]
    """Files and MCP servers that were changed since: they stay, and are the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallPlan:
    """What removing a bundle would do. Nothing is removed until `apply`."""

    bundle: InstalledBundle
    home: Path
    files: tuple[str, ...]
    servers: tuple[str, ...]
    retained: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return what would be done, a line each. For people."""
        lines = [f"bundle   {self.bundle.name} {self.bundle.version}".rstrip()]
        lines += (f"remove   {self.home / path}" for path in self.files)
        lines += (f"remove   MCP server {name}" for name in self.servers)
        lines += (f"keep     {part}, which was changed" for part in self.retained)
        return [one_line(line, 1_000) for line in lines]

    def apply(self) -> UninstallResult:
        """Remove the bundle.

        Raises `BundleRefused` if the home has changed since the plan, or a file cannot be removed;
        nothing was changed.
        """
        with locked(self.home):
            state = HomeState(self.home)
            if make_removal(self.bundle.name, state) != self:
                raise BundleRefused(f"{self.home} has changed since the plan was made: try again")
            rest = state.installed.without(self.bundle.name)
            state.change(rest, dict.fromkeys(self.files), added={}, removed=self.servers)
        return UninstallResult(
            name=self.bundle.name,
            files_removed=self.files,
            mcp_servers_removed=self.servers,
            retained=self.retained,
        )


def make_removal(name: str, state: HomeState) -> UninstallPlan:
    """Return the plan to remove a bundle.

    Raises `NotInstalled`, or `BundleRefused` if another bundle needs it.
    """
    found = state.installed.find(name)
    if found is None:
        raise NotInstalled(name)
    for other in state.installed.bundles.values():
        if any(required.lower() == found.name.lower() for required in other.requires.bundles):
            raise BundleRefused(f"the bundle {other.name} needs it: remove that one first")
    files, servers = state.as_installed(found)
    changed = [path for path in found.files if path not in files and state.exists(path)]
    changed += (
        f"MCP server {server}"
        for server in found.servers
        if server not in servers and server in state.mcp.entries
    )
    return UninstallPlan(
        bundle=found,
        home=state.home,
        files=tuple(path for path in found.files if path in files),
        servers=tuple(server for server in found.servers if server in servers),
        retained=tuple(changed),
    )
