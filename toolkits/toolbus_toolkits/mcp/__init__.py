"""MCP servers as toolkits: started programs and addresses, each with its own name in the room.

`McpServer` is one server, `McpHub` are those of a file, and the factory `mcp` is the toolkit that
`toolbus host mcp --config FILE` hosts beside them. One task owns each connection (`connection`);
`tools` and `content` turn definitions and results into ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationInfo, field_validator

import toolbus.telemetry.variables  # noqa: F401 - before the MCP SDK reads its variables
from toolbus import OperatorOnly, Toolkit

try:
    import mcp as _  # noqa: F401 - only to say what is missing
except ImportError as error:  # the extra is not installed
    raise ImportError("MCP servers need more packages: pip install 'toolbus[mcp]'") from error

from toolbus.settings import expanded
from toolbus_toolkits.credentials import CredentialStore
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.mcp.config import ServerEntry
from toolbus_toolkits.mcp.hub import McpBuilder, McpHub
from toolbus_toolkits.mcp.hub_tools import McpToolkit
from toolbus_toolkits.mcp.server import McpServer
from toolbus_toolkits.mcp.transports import ServerAccess
from toolbus_toolkits.network import AddressPolicy
from toolbus_toolkits.sandbox import SandboxOption, backend_for, read_sandbox

__all__ = [
    "McpBuilder",
    "McpConfig",
    "McpHub",
    "McpServer",
    "McpToolkit",
    "ServerAccess",
    "ServerEntry",
    "mcp",
]


class McpConfig(BaseModel, frozen=True, extra="forbid"):
    """Which MCP servers there are, and what they may do.

    Raises `ValidationError` if the file cannot be read.
    """

    config: Annotated[Path | None, OperatorOnly] = Field(
        None,
        description="A file with mcpServers; by default that of TOOLBUS_HOME and those of editors.",
    )
    allow_import: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="A caller that may add servers, whose commands then run here."
    )
    allow_remove: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="A server of the file that these callers may remove until the host stops."
    )
    allow_hosts: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="A host that servers with an address may have; by default every public one."
    )
    allow_private: Annotated[bool, OperatorOnly] = Field(
        False, description="Whether addresses of private networks and of this machine are allowed."
    )
    sandbox: Annotated[SandboxOption, OperatorOnly] = Field(
        None,
        description="What confines started servers whose entries do not say it: auto, bubblewrap,"
        " landlock, or a sandbox as JSON.",
    )
    network: Annotated[bool, OperatorOnly] = Field(
        False, description="Whether servers in this sandbox may use the network."
    )

    @field_validator("network")
    @classmethod
    def _must_have_a_sandbox(cls, network: bool, others: ValidationInfo) -> bool:
        if network and others.data.get("sandbox", "") is None:
            raise ValueError("without a sandbox they may use it")
        return network

    @field_validator("allow_remove")
    @classmethod
    def _must_have_callers(
        cls, servers: tuple[str, ...], others: ValidationInfo
    ) -> tuple[str, ...]:
        if servers and not others.data.get("allow_import"):
            raise ValueError("only callers that --allow-import names remove servers: name one")
        return servers

    @field_validator("config")
    @classmethod
    def _must_exist(cls, config: Path | None) -> Path | None:
        if config is None:
            return None
        path = expanded(config)
        if not path.is_file():
            raise ValueError(f"there is no such file: {str(path)!r}")
        return path


_DEFAULT = McpConfig()


def mcp(config: McpConfig = _DEFAULT) -> Toolkit:
    """MCP servers as toolkits: `toolbus host mcp --config FILE`.

    Each server is a toolkit of its own beside the toolkit `mcp`, which lists them and calls their
    tools. Raises `ValueError` for a file that is no configuration of servers.
    """
    policy = AddressPolicy(config.allow_hosts, config.allow_private)
    sandbox = None if config.sandbox is None else read_sandbox(config.sandbox)
    if sandbox is not None:
        if config.network:
            sandbox = sandbox.model_copy(update={"network": True})
        backend_for(sandbox)  # so that no host starts that could start no server
    access = ServerAccess(policy, CredentialResolver(CredentialStore.open()), sandbox)
    hub = McpHub.from_config(config.config, access=access)
    return McpToolkit(hub, config.allow_import, config.allow_remove)
