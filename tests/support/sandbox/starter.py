"""Starts a command as a config confines it: `starter.py CONFIG PROGRAM ARG...`, for any user.

What cannot be confined is not started, and it says why.
"""

import os
import subprocess
import sys

from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, confined_command

if __name__ == "__main__":
    config = SandboxConfig.model_validate_json(sys.argv[1])
    environment = {name: os.environ[name] for name in ("PATH", "HOME")}
    try:
        start = confined_command(config, sys.argv[2:], environment, os.getcwd())
    except SandboxUnavailable as error:
        sys.exit(str(error))
    try:
        status = subprocess.run(
            start.argv, env=start.environment, cwd=start.cwd, pass_fds=start.descriptors
        ).returncode
    finally:
        start.end()
    sys.exit(status)
