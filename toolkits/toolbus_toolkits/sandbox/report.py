"""What `toolbus doctor --sandbox` shows: which backends work here, and what each one holds."""

from __future__ import annotations

import subprocess
from dataclasses import replace

from toolbus.diagnostics.checks import Finding
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.sandbox.bubblewrap import Bubblewrap
from toolbus_toolkits.sandbox.config import BACKENDS, SandboxConfig
from toolbus_toolkits.sandbox.docker import find_docker
from toolbus_toolkits.sandbox.holds import HOLDS
from toolbus_toolkits.sandbox.probe import probed

__all__ = ["examine_sandbox", "table"]


def examine_sandbox() -> tuple[list[Finding], list[list[str]]]:
    """Try each backend; return what was found, and the table of what each one holds."""
    found = [_bubblewrap(), _landlock()]
    if all(finding.status != "ok" for finding in found):
        code = ExitCode.UNAVAILABLE
        found = [replace(finding, status="fail", exit_code=code) for finding in found]
    return [*found, _docker()], table()


def table() -> list[list[str]]:
    """Return the table of what each backend holds, its header first."""
    rows = [[row.what, *map(row.of, BACKENDS)] for row in HOLDS.values()]
    return [["kept from a program", *BACKENDS], *rows]


def _bubblewrap() -> Finding:
    try:
        bubblewrap = Bubblewrap.find(())
        probed(bubblewrap, SandboxConfig())
    except OSError as error:
        return Finding("bubblewrap", "warn", str(error))
    version = ".".join(map(str, bubblewrap.version))
    text = f"version {version} confines, {bubblewrap.path}"
    if not bubblewrap.follows_no_symlink:
        text += "; `protect` holds while one program runs in a folder: from 0.12 on always"
    return Finding("bubblewrap", "ok", text)


def _landlock() -> Finding:
    try:
        probed("landlock", SandboxConfig())
    except OSError as error:
        return Finding("landlock", "warn", str(error))
    return Finding("landlock", "ok", "the kernel confines")


def _docker() -> Finding:
    try:  # without an image, which is the operator's choice
        words = [find_docker(()), "version", "--format", "{{.Server.Version}}"]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("docker", "skip", one_line(str(error), SHOWN_CHARS))
    if ended.returncode:
        return Finding("docker", "skip", one_line(ended.stderr.strip(), SHOWN_CHARS))
    return Finding("docker", "ok", f"an engine of version {ended.stdout.strip()} answers")
