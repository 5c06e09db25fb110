"""Packages of npm that tests run, installed once into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.pytest_plugins.missing_parts import not_verified

__all__ = ["npm_packages"]

_INSTALL_S = 110


def npm_packages(what: str, *packages: str) -> Path:
    """Return the folder `node_modules` with these packages; skip the test if they are missing.

    Args:
        what: What is not verified without them.
        packages: Names with their exact versions.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        not_verified(what, "npm is missing", ci_has_it=False)
    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus"
    folder = cache / f"npm-{digest}"
    if not folder.exists():
        _install(npm, folder, packages, what)
    return folder / "node_modules"


def _install(npm: str, folder: Path, packages: tuple[str, ...], what: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = tempfile.mkdtemp(dir=folder.parent)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    try:
        subprocess.run(command, cwd=work, check=True, capture_output=True, timeout=_INSTALL_S)
        Path(work).rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(work, ignore_errors=True)
        if not folder.exists():  # else another process has installed them meanwhile
            not_verified(what, f"npm cannot install: {type(error).__name__}", ci_has_it=False)
