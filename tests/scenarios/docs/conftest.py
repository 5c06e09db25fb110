"""Fixtures for tests that type what documents show."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.sandbox.reach import SYSTEM_PATH


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a person called "you", who has an empty home and has set nothing."""
    for name in list(os.environ):
        if name.startswith(("TOOLBUS_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "you")
    monkeypatch.setenv("COLUMNS", "200")
    # A sandbox shows the folders of the system, wherever those of PATH link to.
    folders = [str(Path(sys.executable).parent), os.environ["PATH"], SYSTEM_PATH]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    return dict(os.environ)
