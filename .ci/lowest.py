"""Checks that this environment has the lowest versions that pyproject.toml permits.

The version of each dependency of toolbus with a lower bound has to be the highest of the bounds
that toolbus and the other installed packages set for it. Prints a line for each that differs, and
last how many were examined. Exits with 1 if one differs.

Usage: lowest.py, with the Python of an environment that has toolbus[dev]
"""

import sys
from importlib.metadata import Distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def lower_bounds(package: Distribution, extras: list[str]) -> dict[str, Version]:
    """Map the names of what a package with these extras requires here to its lower bounds."""
    bounds = {}
    for requirement in map(Requirement, package.requires or ()):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        for bound in requirement.specifier:
            if bound.operator in (">=", "~=", "=="):
                lowest = Version(bound.version.removesuffix(".*"))
                bounds[canonicalize_name(requirement.name)] = lowest
    return bounds


def main() -> int:
    """Compare the installed versions with the bounds."""
    installed = {
        canonicalize_name(package.metadata["Name"]): package for package in distributions()
    }
    toolbus = installed.pop("toolbus")
    extras = toolbus.metadata.get_all("Provides-Extra") or []
    ours = lower_bounds(toolbus, [extra for extra in extras if extra != "docs"])
    of_others = [lower_bounds(package, []) for package in installed.values()]
    differing = 0
    for name in sorted(ours):
        lowest = max(bounds[name] for bounds in (ours, *of_others) if name in bounds)
        found = Version(installed[name].version)
        if found != lowest:
            differing += 1
            sys.stdout.write(f"{name} is {found}, and the lowest is {lowest}\n")
    sys.stdout.write(f"lowest versions: {len(ours)} packages examined, {differing} differ\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
