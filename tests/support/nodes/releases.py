"""Servers of several releases: an earlier one from the history of this clone, and one to come."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path

from support.pytest_plugins.missing_parts import not_verified

__all__ = ["BEFORE_VERSIONS", "earlier_release", "program"]

BEFORE_VERSIONS = "380f5a37"
"""A commit whose nodes publish no exchange version."""
_CLONE = Path(__file__).parents[3]
_PACKAGES = ("sdk", "room_server", "toolkits")


def earlier_release(commit: str, folder: Path) -> tuple[Path, ...]:
    """Write the packages of a commit into a folder, and return where Python finds them."""
    command = ["git", "-C", str(_CLONE), "archive", "--format=zip", commit, *_PACKAGES]
    try:
        archive = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # a shallow clone, or none
        why = f"here is no commit {commit}: git fetch --unshallow"
        not_verified("releases side by side", why, ci_has_it=False)
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder)
    return tuple(folder / package for package in _PACKAGES)


def program(*paths: Path, exchange_version: int | None = None) -> tuple[str, str]:
    """Return the program of a release, with short leases: of this one, without `paths`."""
    lines = (
        "import sys",
        f"sys.path[:0] = {list(map(str, paths))}",
        "from toolbus_server.cluster import lease",
        f"lease.EXCHANGE_VERSION = {exchange_version} or getattr(lease, 'EXCHANGE_VERSION', 0)",
        "from toolbus_server.cluster import node",
        "node.LEASE_S, node.HEARTBEAT_S = 3.0, 0.5",
        "from toolbus.__main__ import main",
        "main()",
    )
    return "-c", "\n".join(lines)
