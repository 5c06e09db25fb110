"""The sandboxes that the launcher's own tests run with."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pytest_plugins.missing_parts import not_verified
from support.sandbox.reach import system_path
from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, backend_for

__all__ = ["system_path"]


@pytest.fixture(params=["none", "bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxConfig | None:
    """None, and each backend that can run here."""
    if request.param == "none":
        return None
    config = SandboxConfig(backend=request.param, write=(str(tmp_path),))
    try:
        backend_for(config)
    except SandboxUnavailable as error:
        not_verified(f"the launcher in {request.param}", str(error)[-200:], ci_has_it=False)
    return config
