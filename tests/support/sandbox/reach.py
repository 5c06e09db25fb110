"""What confined programs of the tests need: programs that a sandbox shows, and a user's Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.pytest_plugins.missing_parts import not_verified
from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, backend_for

__all__ = ["SYSTEM_PATH", "require_python_of", "system_path", "working"]

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture(scope="module", autouse=True)
def system_path() -> Iterator[None]:
    """Find programs in the folders of the system alone: a sandbox shows no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", SYSTEM_PATH)
        yield


def working(backend: Any, what: str) -> str:
    """Return the name of a backend; skip the test as NOT VERIFIED where it cannot run."""
    try:
        backend_for(SandboxConfig(backend=backend))
    except SandboxUnavailable as error:
        not_verified(what, str(error), ci_has_it=False)
    return str(backend)


def require_python_of(user: int, what: str) -> None:
    """Skip the test as NOT VERIFIED where another user cannot run the interpreter of the tests."""
    try:
        command = [sys.executable, "-I", "-S", "-c", ""]
        as_user = {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}
        subprocess.run(command, check=True, **as_user)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError) as error:
        not_verified(what, f"its user cannot run this Python: {error}"[-200:], ci_has_it=False)
