"""Fixtures for tests that type what documents show."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a person called "you", who has an empty home and has set nothing."""
    for name in list(os.environ):
        if name.startswith(("TOOLBUS_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "you")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return dict(os.environ)
