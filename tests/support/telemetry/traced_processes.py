"""Caller, server and host as three processes that send their spans to a collector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, Running
from toolbus.auth.grants import ApiScope
from toolbus.auth.keys import KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus.settings import DEV_KEYS_FILE


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How one process ended, and how long that took."""

    code: int
    took_s: float
    err: str


@dataclass(frozen=True, slots=True)
class TracedProcesses:
    """Three processes, and the folder that they live in."""

    folder: Path
    url: str
    caller: subprocess.Popen[str]
    server: Running
    host: Running
    hosting: Callable[[], AbstractContextManager[Running]]
    """Runs a replica of the host until its block ends."""

    def ask(self, tool: str, /, _order: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """Have the caller call a tool, and return how it went."""
        order = {"tool": tool, "arguments": arguments, **(_order or {})}
        assert self.caller.stdin is not None
        assert self.caller.stdout is not None
        self.caller.stdin.write(json.dumps(order) + "\n")
        self.caller.stdin.flush()
        line = self.caller.stdout.readline()
        assert line, self.caller.communicate(timeout=PATIENCE_S)[1]
        return json.loads(line)

    def token(self, name: str, api: ApiScope) -> str:
        """Mint a token with these grants."""
        key = KeyRing.load(self.folder / "home" / DEV_KEYS_FILE).signing_key
        assert key is not None
        return ParticipantToken(name=name, room=["main"], api=api).to_jwt(key)

    def end(self) -> dict[str, ProcessEnd]:
        """End the caller by the end of its input, host and server as a service manager does.

        Caller and host are stopped at the same time, and have no calls with each other then.
        """
        began_s = time.perf_counter()
        self.host.process.send_signal(signal.SIGTERM)
        _, err = self.caller.communicate(timeout=PATIENCE_S)
        ended = {"caller": ProcessEnd(self.caller.returncode, time.perf_counter() - began_s, err)}
        outcome = self.host.ended()
        ended["host"] = ProcessEnd(outcome.code, time.perf_counter() - began_s, outcome.err)
        began_s = time.perf_counter()
        outcome = self.server.end()
        ended["server"] = ProcessEnd(outcome.code, time.perf_counter() - began_s, outcome.err)
        return ended


NODES = ("first", "second")
"""The names of the servers if there are two."""


@contextmanager
def traced_processes(
    folder: Path, endpoint: str, redis: str = "", **variables: str
) -> Iterator[TracedProcesses]:
    """Run the three processes until the block ends.

    With a shared Redis there are two servers: the caller is connected to the first, the host to the
    second.
    """
    line = CommandLine(
        folder,
        {
            "PYTHONPATH": os.pathsep.join(sys.path),  # this clone's, wherever toolbus is installed
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            **variables,
        },
    )
    with ExitStack() as running:
        flags: list[tuple[str, ...]] = [()]
        if redis:
            flags = [("--dev", "--redis", redis, "--node", name) for name in NODES]
        servers = [running.enter_context(line.serving(*each)) for each in flags]
        (server, url), (_, hosts_url) = servers[0], servers[-1]
        environment = line.at(url).environment({"TOOLBUS_NAME": "alice"})
        hosting = partial(
            line.at(hosts_url).hosting, "support.telemetry.traced_host:weather", "--name", "station"
        )
        with _caller(folder, environment) as caller, hosting() as host:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "ready\n"
            yield TracedProcesses(folder, url, caller, server, host, hosting)


@contextmanager
def _caller(folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start the caller, which says that it is ready once it has joined."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.telemetry.traced_caller"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
