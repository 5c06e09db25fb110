r"""Bundles: skills, MCP servers, avatars and memory templates that are installed together.

The data goes one way. `contents` reads a folder or a zip into bytes, `manifest` what it says of
itself, `bundle` checks every part; `installing` makes a plan against `home_state`, which has what
belongs to whom, shows it, and applies it under a lock by `transaction`.

    plan = plan_install(Path("pdf-tools"))
    print(*plan.lines(), sep="\n")  # every file and command
    result = plan.apply()
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from toolbus.settings import expanded, home_of

# Of the extra: without the first, the part for MCP servers would name an extra that is not enough.
if not all(find_spec(package) for package in ("mcp", "packaging", "yaml")):
    raise ImportError("bundles need more packages: pip install 'toolbus[bundles]'")

from toolbus_toolkits.bundles.bundle import Bundle, read_bundle
from toolbus_toolkits.bundles.contents import BundleRefused, read_contents
from toolbus_toolkits.bundles.home_state import HomeState, InstalledBundle
from toolbus_toolkits.bundles.installing import (
    InstallPlan,
    InstallResult,
    NotInstalled,
    UninstallPlan,
    UninstallResult,
    make_plan,
    make_removal,
)
from toolbus_toolkits.bundles.transaction import recover

__all__ = [
    "Bundle",
    "BundleRefused",
    "InstallPlan",
    "InstallResult",
    "InstalledBundle",
    "NotInstalled",
    "UninstallPlan",
    "UninstallResult",
    "install",
    "list_installed",
    "plan_install",
    "plan_uninstall",
    "uninstall",
]


def plan_install(
    path: str | os.PathLike[str],
    *,
    home: Path | None = None,
    origin: str = "",
    replace: bool = False,
) -> InstallPlan:
    """Return what installing a bundle would do.

    Args:
        path: A folder or a zip, with `toolbus-bundle.yaml`, `agx-bundle.yaml`, or a `SKILL.md`.
        home: Where it is installed; by default `TOOLBUS_HOME`.
        origin: Where it came from, for the list; by default the path.
        replace: Whether another version of the bundle may be replaced.

    Raises `BundleRefused` if it cannot be installed, with all reasons that are known.
    """
    place = expanded(path)
    bundle = read_bundle(read_contents(place))
    state = _state(home)
    return make_plan(bundle, state, origin=origin or str(place.absolute()), replace=replace)


def install(
    path: str | os.PathLike[str],
    *,
    home: Path | None = None,
    origin: str = "",
    replace: bool = False,
) -> InstallResult:
    """Install a bundle, all of it or nothing; arguments and errors are those of `plan_install`.

    Commands of MCP servers are written into `mcp.json` without a question: show the plan to the
    user first where the bundle is not yours.
    """
    return plan_install(path, home=home, origin=origin, replace=replace).apply()


def plan_uninstall(name: str, *, home: Path | None = None) -> UninstallPlan:
    """Return what removing a bundle would do. Raises `NotInstalled` or `BundleRefused`."""
    return make_removal(name, _state(home))


def uninstall(name: str, *, home: Path | None = None) -> UninstallResult:
    """Remove a bundle; what was changed since it was installed stays.

    Raises `NotInstalled`, or `BundleRefused` if another bundle needs it.
    """
    return plan_uninstall(name, home=home).apply()


def list_installed(*, home: Path | None = None) -> list[InstalledBundle]:
    """Return the installed bundles, by their names."""
    found = _state(home).installed.bundles.values()
    return sorted(found, key=lambda bundle: bundle.name.lower())


def _state(home: Path | None) -> HomeState:
    place = home or home_of(os.environ)
    recover(place)
    return HomeState(place)
