"""haproxy with the configuration of `deploy/`, in front of nodes on this machine.

Only this is replaced: names of nodes become their addresses, and it listens on a free port, whose
socket it inherits.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.deploy.compose import DEPLOY
from support.documents.terminals import Service
from support.patience import PATIENCE_S
from support.pytest_plugins.missing_parts import not_verified

__all__ = ["CONFIGURATION", "Haproxy", "haproxy_program", "running_haproxy"]

CONFIGURATION = DEPLOY / "haproxy.cfg"


@dataclass(frozen=True, slots=True)
class Haproxy:
    """A running haproxy."""

    address: str
    """Its address, as `127.0.0.1:4711`."""
    service: Service
    """Its process and output."""

    @property
    def url(self) -> str:
        """Where participants connect to."""
        return f"ws://{self.address}"

    async def wait_for_state(self, node: str, state: str) -> None:
        """Wait until it has reported that a node is UP, stopping or DOWN."""
        pattern = re.compile(rf"Server nodes/{re.escape(node)} is {state}\b.*")
        await asyncio.to_thread(self.service.wait_for, pattern)
        assert self.service.process.poll() is None


def haproxy_program() -> str:
    """Find the program; without it the test is not verified."""
    found = shutil.which("haproxy")
    if found is None:
        why = "no haproxy is on the path; Debian installs it in /usr/sbin"
        not_verified("nodes behind the balancer of deploy/", why)
    return found


@contextmanager
def running_haproxy(folder: Path, nodes: Mapping[str, str]) -> Iterator[Haproxy]:
    """Run it until the block ends.

    Args:
        folder: Where its configuration is written.
        nodes: The address of each node that the configuration names, as `127.0.0.1:4711`.
    """
    program = haproxy_program()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path = folder / "haproxy.cfg"
        path.write_text(_here(listener.fileno(), nodes), encoding="utf-8")
        command = [program, "-db", "-f", str(path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            text=True,
        )
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    service = Service(process, shlex.join(command), ())
    with process:
        try:
            yield Haproxy(address, service)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                service.reader.join(PATIENCE_S)


def _here(listening: int, nodes: Mapping[str, str]) -> str:
    """Replace each address in the configuration by this machine's; each must occur once."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    changes = {
        f"server {name} {name}:7717\n": f"server {name} {at}\n" for name, at in nodes.items()
    }
    for there, here in {"\n    bind :7717\n": f"\n    bind fd@{listening}\n", **changes}.items():
        assert text.count(there) == 1, there
        text = text.replace(there, here)
    assert not re.search(r"^ *server .*:7717$", text, re.MULTILINE), "a node has no place here"
    return text
