"""Virtual environments for rivals, one each: made on demand, made anew when requirements change.

A rival's requirements are `requirements-NAME.txt` beside this file. Pip asks the index that the
machine is set up with.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".venv-bench"


class RivalMissing(Exception):
    """A rival cannot be measured here; the message says why."""


def rival_python(name: str) -> str:
    """A rival's interpreter, after making its environment if need be.

    Raises:
        RivalMissing: pip could not install what it needs; what pip said is on stderr.
    """
    environment = ENVIRONMENTS / name
    python = environment / "bin" / "python"
    installed = environment / "requirements.txt"
    requirements = HERE / f"requirements-{name}.txt"
    wanted = requirements.read_text(encoding="utf-8")
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return str(python)
    sys.stderr.write(f"making the environment of {name}\n")
    venv.create(environment, clear=True)  # our own pip serves it: one of its own takes seconds
    command = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    command += ["--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "-r", str(requirements)], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise RivalMissing(f"pip: {pip_error(done.stderr)}")
    installed.write_text(wanted, encoding="utf-8")
    return str(python)


def pip_error(said: str) -> str:
    """Choose the line that says what went wrong: pip's last error, else its last word."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")
