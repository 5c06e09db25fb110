"""The services of a compose file as processes of this machine: our commands, with our variables.

Only what a machine without containers must change differs: names of services become loopback, ports
free ones, mounted folders temporary ones. Only a container engine can test an image itself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import yaml

from support.deploy.guide import BY_HAND
from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, Outcome

__all__ = ["DEPLOY", "ComposeFile", "Composition", "composed", "from_dockerfile", "interpolated"]

DEPLOY = Path(__file__).parents[3] / "deploy"
_DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
_PORT = "7717"


_VARIABLE = re.compile(r"\$\{(\w+):-([^}]+)\}")


def interpolated(text: str) -> str:
    """Replace each variable by its default, as Compose does where it is not set."""
    return _VARIABLE.sub(r"\2", text)


class ComposeFile:
    """The content of a compose file of `deploy/`, with the defaults of its variables."""

    def __init__(self, name: str) -> None:
        self.name = name
        written = (DEPLOY / name).read_text(encoding="utf-8")
        self.variables: dict[str, str] = dict(_VARIABLE.findall(written))
        self.text = interpolated(written).replace("$$", "$")
        self.content: dict[str, Any] = yaml.safe_load(self.text)
        self.services: dict[str, dict[str, Any]] = self.content["services"]
        self.ours = {
            name: service
            for name, service in self.services.items()
            if service["image"] == "toolbus"
        }

    def needs(self, name: str) -> dict[str, str]:
        """Return which services one waits for, and for which condition."""
        needed = self.services[name].get("depends_on", {})
        return {other: each["condition"] for other, each in needed.items()}

    def in_order(self) -> list[str]:
        """The services that Compose starts, each after those that it needs."""
        left = [name for name, service in self.services.items() if "profiles" not in service]
        found: list[str] = []
        while left:
            ready = [name for name in left if not self.needs(name).keys() & set(left)]
            assert ready, f"services wait for each other: {left}"
            found += ready
            left = [name for name in left if name not in ready]
        return found


def from_dockerfile(instruction: str) -> list[str]:
    """Return the JSON list of an instruction of the Dockerfile; the last one counts."""
    lines = _DOCKERFILE.replace("\\\n", " ").splitlines()
    (*_, last) = (line for line in lines if line.startswith(instruction))
    found: list[str] = json.loads(last[last.index("[") :])
    return found


@dataclass(slots=True)
class Composition:
    """The services, as processes of this machine."""

    file: ComposeFile
    folder: Path
    places: dict[str, str]
    """This machine's address for each address in the file."""
    stack: ExitStack = field(default_factory=ExitStack)

    def here(self, service: dict[str, Any], text: str) -> str:
        """Replace the file's addresses and folders by this machine's."""
        for there, place in self.places.items():
            text = text.replace(there, place)
        for volume in service.get("volumes", ()):
            name, target, *_ = volume.split(":")
            text = re.sub(rf"(?<![\w/]){target}(?![\w-])", str(self.folder / name), text)
        return text

    def command_line(self, name: str, further: Mapping[str, str]) -> CommandLine:
        """`toolbus` with the variables of a service; some of them may be replaced."""
        service = self.file.ours[name]
        variables = {
            key: self.here(service, value) for key, value in service.get("environment", {}).items()
        }
        return CommandLine(self.folder, {**variables, **further})

    def start(self, name: str) -> None:
        """Start a service when what it needs is ready; wait until it reports that it runs."""
        for needed, condition in self.file.needs(name).items():
            if condition == "service_healthy" and needed in self.file.ours:
                self.check_health(needed)
        service = self.file.ours[name]
        command = [self.here(service, each) for each in service["command"]]
        if "entrypoint" in service:
            self.run_to_end([*service["entrypoint"], *command], name)
            return
        # A server takes a free port and prints it.
        is_server = command[0] == "serve"
        further = {"TOOLBUS_LISTEN_PORT": "0"} if is_server else {}
        running = self.stack.enter_context(self.command_line(name, further).start(*command))
        line = running.line()
        assert line, running.ended().err
        if is_server:
            listening = re.match(r"listening on ws://(127\.0\.0\.1:\d+)", line)
            assert listening, line
            self.places[f"{name}:{_PORT}"] = listening[1]

    def check_health(self, name: str) -> None:
        """Run the health check of the image, unless the service has its own."""
        assert "healthcheck" not in self.file.ours[name]
        here = self.places[f"{name}:{_PORT}"]
        check = from_dockerfile("HEALTHCHECK")
        self.run_to_end([each.replace(f"127.0.0.1:{_PORT}", here) for each in check], name)

    def run_to_end(self, command: Sequence[str], name: str) -> None:
        """Run a program of the image with the variables of a service; it must exit with 0."""
        variables = self.command_line(name, {}).environment({})
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr

    def type(self, typed: str) -> Outcome:
        """Run the command that a person types after `docker compose run`."""
        assert typed.startswith(BY_HAND)
        arguments = shlex.split(typed.removeprefix(BY_HAND))
        service = self.file.ours["toolbus"]
        here = (self.here(service, each) for each in arguments)
        return self.command_line("toolbus", {}).run(*here)


_Starters: TypeAlias = Mapping[str, Callable[[Composition], None]]


@contextmanager
def composed(
    file: ComposeFile,
    folder: Path,
    places: Mapping[str, str],
    others: _Starters = MappingProxyType({}),
) -> Iterator[Composition]:
    """Start all our services.

    Args:
        file: What to start.
        folder: The parent of the volumes.
        places: This machine's address for each address in the file.
        others: How to start services that are not ours; services without an entry are left out.
    """
    for volume in file.content["volumes"]:
        (folder / volume).mkdir()
    composition = Composition(file, folder, {"0.0.0.0": "127.0.0.1", **places})
    with composition.stack:
        for name in file.in_order():
            if name in file.ours:
                composition.start(name)
            elif name in others:
                others[name](composition)
        yield composition
