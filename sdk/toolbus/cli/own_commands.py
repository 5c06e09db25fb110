"""The commands of this distribution: their help texts, where they are, and the extras they need.

Help and completion list them from here, because importing all of them takes a second. Commands of
other packages are entry points, and are imported to be listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["MOVED_COMMANDS", "OWN_COMMANDS", "OwnCommand"]

_MODULES_OF_EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bundles": ("packaging", "mcp", "httpcore2", "httpx2"),
        "credentials": ("keyring",),
        "otel": ("uvicorn",),
        "server": ("packaging", "rfc8785", "redis", "hiredis"),
    }
)
"""The modules of an extra without which a command that needs the extra cannot run."""


class OwnCommand(NamedTuple):
    """A command that is listed without an import of its module."""

    place: str
    """The module and its attribute, as in an entry point."""
    help: str
    """The first paragraph of the command's docstring."""
    extras: tuple[str, ...] = ()
    """Extras of this distribution; without them the command cannot run."""

    def missing_extras(self) -> list[str]:
        """Return the extras that it needs and that are not installed; nothing is imported."""
        return [
            extra
            for extra in self.extras
            if any(find_spec(module) is None for module in _MODULES_OF_EXTRAS[extra])
        ]


OWN_COMMANDS: Mapping[str, OwnCommand] = MappingProxyType(
    {
        "serve": OwnCommand(
            "toolbus_server.process.commands:serve",
            "Run a room server until SIGTERM or Ctrl-C; calls in flight may finish.",
            ("server",),
        ),
        "host": OwnCommand(
            "toolbus.cli.commands.host:host",
            "Host toolkits until SIGTERM or Ctrl-C; running calls may finish. A second signal "
            "aborts.",
        ),
        "agent": OwnCommand(
            "toolbus.cli.commands.agent:agent",
            "Host an agent until SIGTERM or Ctrl-C; running answers may finish. A second signal "
            "aborts.",
        ),
        "tools": OwnCommand(
            "toolbus.cli.commands.tools:tools",
            "List the toolkits that you can see, or describe the tools of one toolkit.",
        ),
        "builders": OwnCommand(
            "toolbus.cli.commands.tools:builders",
            "List the toolkits that a participant builds on request, with their configuration "
            "fields.",
        ),
        "call": OwnCommand(
            "toolbus.cli.commands.call:call",
            "Call a tool and print its result, or the values of a stream as they arrive.",
        ),
        "chat": OwnCommand(
            "toolbus.cli.commands.chat:chat",
            "Chat with an agent: its answer as it comes, with each call of a tool.",
        ),
        "lock": OwnCommand(
            "toolbus.cli.commands.lock:lock",
            "Write owner and definition of toolkits to a lock file, and print what changed.",
        ),
        "stubs": OwnCommand(
            "toolbus.cli.commands.stubs:stubs",
            "Write a type stub with one typed method for each tool of a toolkit.",
        ),
        "room": OwnCommand(
            "toolbus.cli.commands.room:room",
            "List the participants of a room, and send and receive messages.",
        ),
        "watch": OwnCommand(
            "toolbus.cli.commands.watch:watch",
            "Show the participants, toolkits and calls of a room until Ctrl-C.",
        ),
        "records": OwnCommand(
            "toolbus.cli.commands.records:records",
            "List recorded calls, the newest first, refused ones too.",
        ),
        "permissions": OwnCommand(
            "toolbus.cli.commands.permissions:permissions",
            "Check rule files, and show what they would decide about calls.",
        ),
        "trace": OwnCommand(
            "toolbus.cli.commands.trace:trace",
            "Receive spans over OTLP/HTTP and print each call as a tree.",
            ("otel",),
        ),
        "context": OwnCommand(
            "toolbus.cli.commands.context:context",
            "Name sets of settings (server, room, token file), and choose one of them.",
        ),
        "credential": OwnCommand(
            "toolbus_toolkits.credentials.commands:credential",
            "Store credentials for toolkits, and name the hosts and commands that may get them.",
            ("credentials",),
        ),
        "token": OwnCommand(
            "toolbus.cli.commands.token:token", "Create tokens, and show their content."
        ),
        "key": OwnCommand(
            "toolbus_server.process.commands:key",
            "Create the keys of a server, and show their public halves.",
            ("server",),
        ),
        "admin": OwnCommand("toolbus.cli.commands.admin:admin", "Administer rooms."),
        "doctor": OwnCommand(
            "toolbus.cli.commands.doctor:doctor",
            "Check settings, key, token, port, server, clock, room and grants, and suggest "
            "repairs.",
        ),
        "demo": OwnCommand(
            "toolbus_toolkits.demo:demo",
            "Run a demonstration of calls between a server and three hosts, in under a minute.",
            ("server", "otel"),
        ),
        "bundle": OwnCommand(
            "toolbus_toolkits.bundles.commands:bundle",
            "Install bundles of skills, MCP servers, avatars and memory templates into "
            "TOOLBUS_HOME.",
            ("bundles",),
        ),
        "registry": OwnCommand(
            "toolbus_toolkits.registries.commands:registry",
            "Search registries of bundles and skills, and install from them.",
            ("bundles",),
        ),
    }
)
"""Every command of this distribution by its name, in the order of first use."""

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
