"""Confined commands and what came of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

from support.patience import PATIENCE_S
from toolbus_toolkits.launcher import run_command
from toolbus_toolkits.sandbox import Backend, SandboxConfig


class Ended(NamedTuple):
    """What is known of a command that has ended."""

    status: int
    output: str
    errors: str
    backend: Backend | None
    is_protected: bool


async def run(line: str, config: SandboxConfig, cwd: Path | str, **env: str) -> Ended:
    """Run a line of a shell as a config confines it."""
    pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    variables = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), **env}

    def on_output(name: str, data: bytes) -> None:
        pieces[name].append(data)

    async with (
        asyncio.timeout(PATIENCE_S),
        run_command(
            ["bash", "-c", line], env=variables, cwd=cwd, on_output=on_output, sandbox=config
        ) as command,
    ):
        status = await command.wait()
        output, errors = (b"".join(pieces[name]).decode() for name in ("stdout", "stderr"))
        return Ended(status, output, errors, command.confined_by, command.is_protected)
