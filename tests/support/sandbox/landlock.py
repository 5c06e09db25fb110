"""Programs that `confine.py` confines, also as a kernel with an older Landlock would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.pytest_plugins.missing_parts import not_verified
from toolbus_toolkits.sandbox import confine
from toolbus_toolkits.sandbox.plan import system_folders

__all__ = [
    "PROGRAM",
    "READ",
    "confined",
    "landlock_abi",
    "needs_landlock",
    "python",
    "script_of",
]

PROGRAM = Path(confine.__file__)
READ = tuple(sorted({str(Path(path).resolve()) for path in ("/proc", *system_folders())}))
"""What programs need to run at all."""
_WITH_ABI = """
import sys
sys.path.insert(0, {folder!r})
import confine
confine._landlock_abi = lambda: {abi}
confine.main()
"""


def landlock_abi() -> int:
    """Return the version of Landlock of this kernel; 0 if there is none."""
    return confine._landlock_abi()


def needs_landlock(what: str) -> None:
    """Skip the test as NOT VERIFIED where the kernel has no Landlock."""
    if landlock_abi() < 1:
        not_verified(what, "landlock: the kernel has none, or it is switched off", ci_has_it=False)


def script_of(abi: int) -> str:
    """Return a script that does what `confine.py` does where the kernel has that Landlock."""
    return _WITH_ABI.format(folder=str(PROGRAM.parent), abi=abi)


def confined(
    *argv: str,
    options: Mapping[str, Any] | None = None,
    abi: int | None = None,
    env: Mapping[str, str] = os.environ,
    **popen: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; with `abi`, as if the kernel had that version of Landlock."""
    script = [str(PROGRAM)] if abi is None else ["-c", script_of(abi)]
    everything = {
        "read": READ,
        "write": (),
        "network": False,
        "unix_sockets": False,
        "max_processes": None,
        "environment": dict(env),
        **(options or {}),
    }
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(everything).encode())
        file.seek(0)
        words = [sys.executable, "-I", "-S", *script, str(file.fileno()), *argv]
        popen |= {"pass_fds": [file.fileno()], "capture_output": True, "text": True}
        return subprocess.run(words, check=False, **popen)


def python(code: str) -> Sequence[str]:
    """Return the words that run a piece of Python."""
    return [sys.executable, "-I", "-S", "-c", code]
