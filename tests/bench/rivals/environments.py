"""Virtual environments of rivals: `.venv-bench/NAME`, from `requirements-NAME.txt` beside this.

Made on demand, and again when the requirements or the interpreter change, so that a rival runs on
the same Python as the bus. pip uses the index that the machine is configured for.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[2] / ".venv-bench"


class RivalMissing(Exception):
    """A rival's requirements could not be installed."""


def rival_python(name: str) -> str:
    """Return a rival's interpreter, after making its environment if necessary.

    Raises:
        RivalMissing: pip failed; its output is on stderr.
    """
    environment = ENVIRONMENTS / name
    python = environment / "bin" / "python"
    installed = environment / "requirements.txt"
    requirements = HERE / f"requirements-{name}.txt"
    wanted = f"# {sys.base_prefix}, {sys.version}\n{requirements.read_text(encoding='utf-8')}"
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return str(python)
    sys.stderr.write(f"making the environment of {name}\n")
    venv.create(environment, clear=True)  # without pip, which takes seconds: ours serves it
    command = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    command += ["--quiet", "--disable-pip-version-check", "-r", str(requirements)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise RivalMissing(f"pip failed with exit code {done.returncode}")
    installed.write_text(wanted, encoding="utf-8")
    return str(python)
