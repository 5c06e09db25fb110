"""A part that a machine lacks is named at the end of the run, and missed in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PLUGIN = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("conftest_of_all", {str(TESTS / "conftest.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
globals().update({{name: value for name, value in vars(module).items() if name[:2] != "__"}})
"""
LACKING = """
import os

from support.missing_parts import not_verified

def test_engine():
    not_verified("the engine", "nobody has one", ci_has_it={ci_has_it})

def test_engine_again():
    not_verified("the engine", "nobody has one", ci_has_it={ci_has_it})

def test_variables():
    assert not [name for name in os.environ if name.startswith(("TOOLBUS_", "OTEL_"))]
"""


def run(folder: Path, *, ci: str, ci_has_it: bool) -> tuple[int, str]:
    (folder / "conftest.py").write_text(PLUGIN, encoding="utf-8")
    (folder / "test_lacking.py").write_text(LACKING.format(ci_has_it=ci_has_it), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    outcome = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "CI": ci,
            "TOOLBUS_URL": "ws://elsewhere",
            "OTEL_SDK_DISABLED": "true",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return outcome.returncode, outcome.stdout


@pytest.mark.parametrize(("ci", "ci_has_it"), [("", True), ("false", True), ("true", False)])
def test_part_that_is_missing_is_named_once_at_the_end(
    tmp_path: Path, ci: str, ci_has_it: bool
) -> None:
    code, said = run(tmp_path, ci=ci, ci_has_it=ci_has_it)
    assert code == 0, said
    assert "1 passed, 2 skipped" in said
    lines = [line for line in said.splitlines() if line.startswith("NOT VERIFIED: ")]
    assert lines == ["NOT VERIFIED: the engine (nobody has one)"]


def test_part_that_ci_must_have_fails_there(tmp_path: Path) -> None:
    code, said = run(tmp_path, ci="true", ci_has_it=True)
    assert code == 1
    assert "2 failed, 1 passed" in said
    assert "CI must have it" in said
