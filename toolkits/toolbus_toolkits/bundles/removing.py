"""Removing a bundle: what it installed goes, what was changed since stays and is the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolbus.untrusted_text import one_line
from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.bundles.home_state import HomeState
from toolbus_toolkits.bundles.installed import InstalledBundle
from toolbus_toolkits.bundles.transaction import locked

__all__ = ["NotInstalled", "UninstallPlan", "UninstallResult", "make_removal"]


class NotInstalled(BundleRefused):
    """There is no bundle of this name.

    Args:
        name: The name.
    """

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
