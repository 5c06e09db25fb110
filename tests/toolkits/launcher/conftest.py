"""The sandboxes that the launcher's own tests run with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, backend_for


@pytest.fixture(params=["none", "bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxConfig | None:
    """None, and each backend that can run here."""
    if request.param == "none":
        return None
    config = SandboxConfig(backend=request.param, write=(str(tmp_path),), read=(sys.prefix,))
    try:
        backend_for(config)
    except SandboxUnavailable as error:
        pytest.skip(f"NOT VERIFIED: {error}")
    return config
