"""Starts a command as a config confines it: `starter.py CONFIG SCRIPT PROGRAM ARG...`.

SCRIPT is run in place of `confine.py`, unless it is empty.
What cannot be confined is not started, and it says why.
"""

import os
import subprocess
import sys

from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, confine, confined_command

if __name__ == "__main__":
    config = SandboxConfig.model_validate_json(sys.argv[1])
    environment = {name: os.environ[name] for name in ("PATH", "HOME")}
    try:
        start = confined_command(config, sys.argv[3:], environment, os.getcwd())
    except SandboxUnavailable as error:
        sys.exit(str(error))
    if script := sys.argv[2]:
        at = start.argv.index(confine.__file__)
        start.argv[at : at + 1] = ["-c", script]
    try:
        status = subprocess.run(
            start.argv, env=start.environment, cwd=start.cwd, pass_fds=start.descriptors
        ).returncode
    finally:
        start.end()
    sys.exit(status)
