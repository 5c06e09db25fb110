"""A reader who types the console blocks of a document, in order, on free ports."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from functools import partial

from support.documents.pages import examples
from support.documents.snippets import Block, Step, steps_of
from support.documents.terminals import PROMPT, Service, Terminals
from support.rooms.events import next_toolkit_event
from toolbus import RoomClient

_SERVICES = (
    "toolbus serve",
    "toolbus gateway",
    "toolbus host",
    "toolbus agent",
    "toolbus trace",
    "toolbus room listen",
)
_RUNS = re.compile(r"^    [\w.]+\.run\(\)$", re.MULTILINE)
"""Hosts until SIGTERM, which it handles."""
_STAYS = re.compile(r"^ +await room\.closed\(\)$", re.MULTILINE)
"""Stays in the room until SIGTERM, which ends it."""
_SERVES = re.compile(r"^ +server\.serve_forever\(\)$", re.MULTILINE)
"""Serves HTTP until SIGTERM, which ends it."""
_TRACE_PORT = "4318"


def is_service(command: str) -> bool:
    """Return whether a command runs until it is terminated."""
    bare = re.sub(r"^(?:\w+=\S+ )+", "", command)
    program = _program(bare)
    return bare.startswith(_SERVICES) or any(
        form.search(program) for form in (_RUNS, _STAYS, _SERVES)
    )


def _program(command: str) -> str:
    """Return the text of the example that a command runs; nothing if it runs none."""
    found = re.match(r"python (\S+)", command)
    return examples().get(found[1], "") if found else ""


def is_trace(block: Block) -> bool:
    """Return whether a block receives spans."""
    return steps_of(block)[0].command == "toolbus trace"


class Reader:
    """A reader who types blocks into terminals.

    Args:
        terminals: Where commands run.
    """

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals
        self._ports: dict[str, str] = {}

    def trace_first(self, block: Block) -> None:
        """Receive the spans of every process that is started afterwards."""
        (step,) = steps_of(block)
        service = self._terminals.start(f"{step.command} --port 0", step.prints)
        found = service.wait_for(re.compile(r"OTEL_EXPORTER_OTLP_ENDPOINT=(\S+:(\d+))"))
        self._terminals.variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = found[1]
        self._ports[_TRACE_PORT] = found[2]

    def type(self, block: Block) -> None:
        """Type one block; a service at its end keeps running."""
        steps = [Step(self._on_free_ports(s.command), s.prints) for s in steps_of(block)]
        services = [step for step in steps if is_service(step.command)]
        assert services in ([], steps[-1:]), f"line {block.line_number}: a service ends its block"
        if services:
            steps.pop()
        if any(line.startswith(PROMPT) for step in steps for line in step.prints):
            for step in steps:
                self._terminals.converse(step)
        elif steps:
            self._terminals.type(steps)
        for step in services:
            self.start(step)

    def restart(self, service: Service) -> None:
        """Kill a service and start it again; what listens has the same port as before."""
        listens = re.search(r" --port 0$", service.command)
        port = service.wait_for(re.compile(r"listening.*:(\d+)"))[1] if listens else ""
        command = re.sub(r" --port 0$", f" --port {port}", service.command)
        again = self._terminals.restart(service, command)
        if " --port " in command:
            again.wait_for(re.compile("listening"))

    def start(self, step: Step) -> None:
        """Start a service, and wait until it has printed the expected lines."""
        if "toolbus serve" in step.command:
            self._listen(step, "7717")
        elif "toolbus gateway" in step.command:
            self._listen(step, "7718")
        elif step.prints:
            code = -signal.SIGTERM if _SERVES.search(_program(step.command)) else 0
            started = self._terminals.start(step.command, step.prints, exit_code=code)
            started.shows(step.prints)
        else:
            url = self._terminals.variables["TOOLBUS_URL"]
            code = -signal.SIGTERM if _STAYS.search(_program(step.command)) else 0
            start = partial(self._terminals.start, step.command, (), exit_code=code)
            asyncio.run(_until_hosted(url, start))

    def _listen(self, step: Step, default_port: str) -> None:
        port = re.search(r"--port (\d+)", step.command)
        shown = port[1] if port else default_port
        command = step.command.replace(port[0], "") if port else step.command
        service = self._terminals.start(f"{command} --port 0", step.prints)
        found = service.wait_for(re.compile(r"listening on ((?:ws|http)://[\d.]+:(\d+))"))
        self._ports[shown] = found[2]
        if port is None and found[1].startswith("ws"):
            self._terminals.variables["TOOLBUS_URL"] = found[1]

    def _on_free_ports(self, command: str) -> str:
        for shown, real in self._ports.items():
            command = command.replace(f":{shown}", f":{real}")
        return command


async def _until_hosted(url: str, start: Callable[[], Service]) -> None:
    """Start a service that prints nothing, and wait until the room lists its toolkit."""
    async with RoomClient(url) as client, client.events(["toolkits"]) as events:
        start()
        async with asyncio.timeout(60):
            assert (await next_toolkit_event(events)).name in {"toolkit_added", "toolkit_changed"}
