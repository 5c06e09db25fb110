"""The commands of this distribution: their help texts, where they are, and the extras they need.

Help and completion list them from here, because importing all of them takes a second. Commands of
other packages are entry points, and are imported to be listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from toolbus.untrusted_text import one_line

__all__ = [
    "LACKING",
    "MOVED_COMMANDS",
    "OWN_COMMANDS",
    "PANELS",
    "OwnCommand",
    "install_line",
    "with_install_line",
]

_INSTALL = re.compile(r"pip install 'toolbus\[([\w,-]+)\]'")
_DISTRIBUTIONS_OF_EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bundles": ("packaging", "mcp", "httpcore2", "httpx2"),
        "credentials": ("keyring",),
        "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "uvicorn"),
        "gateway": ("httptools", "mcp", "prometheus-client", "starlette", "uvicorn"),
        "server": ("packaging", "rfc8785", "redis", "hiredis"),
        "shell": ("tree-sitter-bash",),
    }
)
"""The distributions of an extra without which a command that needs the extra cannot run."""


class OwnCommand(NamedTuple):
    """A command that is listed without an import of its module."""

    panel: str
    """The panel of `toolbus --help` that lists it."""
    place: str
    """The module and its attribute, as in an entry point."""
    help: str
    """The first paragraph of the command's docstring: one line of a page of 80 columns."""
    extras: tuple[str, ...] = ()
    """Extras of this distribution; without them the command cannot run."""

    def missing_extras(self) -> list[str]:
        """Return the extras that it needs and that are not installed; nothing is imported."""
        return [
            extra
            for extra in self.extras
            if not all(map(_is_installed, _DISTRIBUTIONS_OF_EXTRAS[extra]))
        ]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)  # not `find_spec`, which imports the packages around a module
    except PackageNotFoundError:
        return False
    return True


def install_line(extras: Sequence[str]) -> str:
    """Return the command that installs extras: from the clone, if it is installed from one."""
    import json  # most commands need no extra
    import shlex
    from urllib.parse import unquote, urlsplit

    source = "toolbus"
    try:
        found = json.loads(distribution("toolbus").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        found = {}
    folder = unquote(urlsplit(found.get("url", "")).path)
    if "dir_info" in found and Path(folder).is_dir():
        source = folder
    what = f"{source}[{','.join(extras)}]"
    return one_line(f"pip install {shlex.quote(what)}")


def with_install_line(text: str) -> str:
    """Return a message of this distribution, with the line that installs its extra here."""
    return _INSTALL.sub(lambda found: install_line([found[1]]), text)


PANELS = ("Run", "Use", "See", "Rights", "More")
"""The panels of `toolbus --help`, in their order."""
LACKING = "Not installed"
"""The panel after them: commands that lack an extra, each with the line that installs it."""

OWN_COMMANDS: Mapping[str, OwnCommand] = MappingProxyType(
    {
        "serve": OwnCommand(
            "Run",
            "toolbus_server.process.commands:serve",
            "Run a room server until SIGTERM or Ctrl-C.",
            ("server",),
        ),
        "host": OwnCommand(
            "Run",
            "toolbus.cli.commands.host:host",
            "Host toolkits until SIGTERM or Ctrl-C.",
        ),
        "agent": OwnCommand(
            "Run",
            "toolbus.cli.commands.agent:agent",
            "Host an agent until SIGTERM or Ctrl-C.",
        ),
        "gateway": OwnCommand(
            "Run",
            "toolbus_gateway.commands:gateway",
            "Let clients of MCP use rooms, over HTTP.",
            ("gateway",),
        ),
        "call": OwnCommand(
            "Use",
            "toolbus.cli.commands.call:call",
            "Call a tool and print its result as it arrives.",
        ),
        "tools": OwnCommand(
            "Use",
            "toolbus.cli.commands.tools:tools",
            "List toolkits, or describe the tools of one.",
        ),
        "chat": OwnCommand(
            "Use",
            "toolbus.cli.commands.chat:chat",
            "Chat with an agent, and see its calls of tools.",
        ),
        "approvals": OwnCommand(
            "Use",
            "toolbus.cli.commands.approvals:approvals",
            "Show the calls that wait for a person, and answer them.",
        ),
        "lock": OwnCommand(
            "Use",
            "toolbus.cli.commands.lock:lock",
            "Write toolkits to a lock file, and print what changed.",
        ),
        "stubs": OwnCommand(
            "Use",
            "toolbus.cli.commands.stubs:stubs",
            "Write a type stub with a method for each tool of a toolkit.",
        ),
        "watch": OwnCommand(
            "See",
            "toolbus.cli.commands.watch:watch",
            "Show participants, toolkits and calls of a room as they change.",
        ),
        "room": OwnCommand(
            "See",
            "toolbus.cli.commands.room:room",
            "List the participants of a room; send and receive messages.",
        ),
        "records": OwnCommand(
            "See",
            "toolbus.cli.commands.records:records",
            "List recorded calls, the newest first, refused ones too.",
        ),
        "trace": OwnCommand(
            "See",
            "toolbus.cli.commands.trace:trace",
            "Receive spans over OTLP/HTTP and print each call as a tree.",
            ("otel",),
        ),
        "token": OwnCommand(
            "Rights",
            "toolbus.cli.commands.token:token",
            "Create tokens, and show their content.",
        ),
        "key": OwnCommand(
            "Rights",
            "toolbus_server.process.commands:key",
            "Create the keys of a server, and show their public halves.",
            ("server",),
        ),
        "permissions": OwnCommand(
            "Rights",
            "toolbus.cli.commands.permissions:permissions",
            "Check rule files, and show what they would decide about calls.",
        ),
        "credential": OwnCommand(
            "Rights",
            "toolbus_toolkits.credentials.commands:credential",
            "Store credentials for toolkits, and say what may get them.",
            ("credentials",),
        ),
        "admin": OwnCommand(
            "Rights",
            "toolbus.cli.commands.admin:admin",
            "Administer rooms.",
        ),
        "init": OwnCommand(
            "More",
            "toolbus.cli.commands.new:init",
            "Write a project to begin with: a toolkit, its test, settings.",
        ),
        "new": OwnCommand(
            "More",
            "toolbus.cli.commands.new:new",
            "Write a toolkit, tool, agent, skill or workflow to begin with.",
        ),
        "context": OwnCommand(
            "More",
            "toolbus.cli.commands.context:context",
            "Name sets of settings, such as server and room; choose one.",
        ),
        "mcp": OwnCommand(
            "More",
            "toolbus_gateway.mcp_commands:mcp",
            "For editors; to host MCP servers: `toolbus host mcp`.",
            ("gateway",),
        ),
        "doctor": OwnCommand(
            "More",
            "toolbus.cli.commands.doctor:doctor",
            "Check settings, connection and grants, and suggest repairs.",
        ),
        "demo": OwnCommand(
            "More",
            "toolbus_toolkits.demo:demo",
            "Run a demonstration with a server and three hosts.",
            ("server", "otel", "shell"),
        ),
        "bundle": OwnCommand(
            "More",
            "toolbus_toolkits.bundles.commands:bundle",
            "Install bundles of skills, MCP servers, avatars and memory.",
            ("bundles",),
        ),
        "registry": OwnCommand(
            "More",
            "toolbus_toolkits.registries.commands:registry",
            "Search registries of bundles and skills; install from them.",
            ("bundles",),
        ),
        "builders": OwnCommand(
            "More",
            "toolbus.cli.commands.tools:builders",
            "List the toolkits that a participant builds on request.",
        ),
    }
)
"""Every command of this distribution by its name, in the order of the panels."""

MOVED_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "calls": "`toolbus records`",
        "list": "`toolbus tools`",
        "listen": "`toolbus room listen`",
        "participants": "`toolbus room participants`",
        "run": "`toolbus host` to host a toolkit, or `toolbus serve` to run a server",
        "send": "`toolbus room send`",
        "version": "`toolbus --version`",
    }
)
"""What to write instead of a former name, or of a name that people expect."""
