"""The rivals' own virtual environment: made on demand, made anew when its requirements change."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements-rivals.txt"
ENVIRONMENT = HERE.parents[1] / ".venv-bench"


class RivalsMissing(Exception):
    """The environment could not be made; the message says why."""


def rivals_python() -> str:
    """The rivals' interpreter, after making their environment if need be.

    Raises:
        RivalsMissing: pip could not install what they need.
    """
    python = ENVIRONMENT / "bin" / "python"
    installed = ENVIRONMENT / "requirements.txt"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return str(python)
    sys.stderr.write("making the rivals' environment\n")
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "-r", str(REQUIREMENTS)], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RivalsMissing(f"pip: {done.stderr.strip().splitlines()[-1:]}")
    installed.write_text(wanted, encoding="utf-8")
    return str(python)
