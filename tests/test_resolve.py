"""`.ci/resolve.py`: toolbus beside the newest release of what people install with it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "resolve.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("resolve", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "BESIDE", {"gradio": module.ALL, "crewai": module.SERVER})
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "uv", "3.11"])
    return module


@pytest.mark.parametrize(
    ("unresolved", "line"),
    [
        (None, "beside gradio==6.1: base 2 packages, all extras 2 packages\n"),
        ({"gradio"}, "gradio alone: NOT RESOLVED\nno way\n"),
        ({"gradio==6.1"}, "beside gradio==6.1, base: NOT RESOLVED\nno way\n"),
        ({"gradio==6.1", "--all-extras"}, "beside gradio==6.1, all extras: NOT RESOLVED\nno way\n"),
        (
            {"gradio", "--no-deps"},
            "beside gradio==6.1: a newer one cannot be installed even alone, base 2 packages, "
            "all extras 2 packages\n",
        ),
    ],
)
def test_resolution_that_fails_is_named_and_fails_the_run(
    unresolved: set[str] | None,
    line: str,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The newest release that resolves alone is required exactly; no old one replaces it."""

    def run(command: list[str], *, input: str, **_: Any) -> Any:
        words = {input, *command}
        if unresolved and unresolved <= words:
            return subprocess.CompletedProcess(command, 1, "", "no way\n")
        name = input.partition("==")[0]
        return subprocess.CompletedProcess(command, 0, f"{name}==6.1\nwebsockets==17.4\n", "")

    monkeypatch.setattr(script.subprocess, "run", run)

    assert script.main() == (0 if unresolved in (None, {"gradio", "--no-deps"}) else 1)
    shown = capsys.readouterr().out
    assert shown == f"{line}beside crewai==6.1: base 2 packages, [server] 2 packages\n"
