"""Each backend that can run here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, backend_for


@pytest.fixture(params=["bubblewrap", "landlock"])
def confining(request: pytest.FixtureRequest) -> Callable[..., SandboxConfig]:
    """Make a config for a backend that can run here."""

    def make(*write: Path, **options: Any) -> SandboxConfig:
        config = SandboxConfig(backend=request.param, **options).with_roots(write)
        try:
            backend_for(config)
        except SandboxUnavailable as error:
            pytest.skip(f"NOT VERIFIED: {error}")
        return config

    return make
