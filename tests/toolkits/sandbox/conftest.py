"""Each backend that can run here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.pytest_plugins.missing_parts import not_verified
from support.sandbox.reach import system_path
from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, backend_for

__all__ = ["system_path"]


@pytest.fixture(params=["bubblewrap", "landlock"])
def confining(request: pytest.FixtureRequest) -> Callable[..., SandboxConfig]:
    """Make a config for a backend that can run here."""

    def make(*write: Path, **options: Any) -> SandboxConfig:
        config = SandboxConfig(backend=request.param, **options).with_roots(write)
        try:
            backend_for(config)
        except SandboxUnavailable as error:
            not_verified(f"a sandbox by {request.param}", str(error)[-200:], ci_has_it=False)
        return config

    return make
