"""Prints each Python of this machine that toolbus supports, as version and program, oldest first.

Searches the path, then the versions of pyenv; of one minor version the first that is found counts,
if possible one that every user may run: some tests start programs for another user. Leaves out
previews, builds without the GIL, and those that cannot make a virtual environment.
"""

import os
import pathlib
import re
import stat
import subprocess
import sys
from collections.abc import Iterator

PROBE = """
import ensurepip, sys, sysconfig, venv
kind = sys.implementation.name, sys.version_info.releaselevel
known = kind == ("cpython", "final") and not sysconfig.get_config_var("Py_GIL_DISABLED")
if known and sys.version_info >= (3, 11):
    print(sys.version_info.minor, sys.executable)
"""


def candidates() -> Iterator[pathlib.Path]:
    """Find the programs that may be a Python."""
    for folder in map(pathlib.Path, os.get_exec_path()):
        yield from (
            path
            for path in sorted(folder.glob("python3*"))
            if re.fullmatch(r"python3(\.\d+)?", path.name)
        )
    root = os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv"
    yield from sorted(pathlib.Path(root).glob("versions/*/bin/python3"))


def is_for_all(program: str) -> bool:
    """Whether every user may reach a program."""
    folders = pathlib.Path(program).resolve().parents
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def pythons() -> dict[int, str]:
    """Map the minor version of each Python to its program."""
    found: dict[int, str] = {}
    for path in candidates():
        try:
            probe = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if probe.returncode == 0 and probe.stdout:
            minor, program = probe.stdout.split(maxsplit=1)
            known = found.setdefault(int(minor), program.strip())
            if is_for_all(program.strip()) and not is_for_all(known):
                found[int(minor)] = program.strip()
    return dict(sorted(found.items()))


if __name__ == "__main__":
    for minor, program in pythons().items():
        sys.stdout.write(f"3.{minor} {program}\n")
