"""Gateways: other ways into the rooms of a server, which run in its process.

Another package brings them, as entry points of a group. This one imports none of it.
"""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from importlib.metadata import entry_points
from typing import Protocol, cast

from toolbus.cli.own_commands import install_line
from toolbus.diagnostics.exit_codes import UsageError

__all__ = ["GATEWAYS", "Gateway", "load_gateway"]

GATEWAYS = "toolbus.gateways"
"""The group of entry points; each loads a `Gateway`."""
_NAME = "mcp"


class Gateway(Protocol):
    """Opens a gateway. Its address is what the block gets; the end of the block drains it.

    Raises `OSError` where the address is not available, `UsageError` for settings.
    """

    def __call__(  # noqa: D102, PLR0913 - what an operator decides, one by one
        self,
        url: str,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        drain_s: float,
        trusted_hosts: tuple[str, ...],
        trusted_origins: tuple[str, ...],
        trusted_proxies: tuple[str, ...],
        has_metrics: bool,
    ) -> AbstractAsyncContextManager[str]: ...


def load_gateway() -> Gateway:
    """Load the gateway for clients of MCP. Raises UsageError if it is not installed."""
    lacking = f"--gateway needs a package that is not installed: {install_line(['gateway'])}"
    for entry in entry_points(group=GATEWAYS, name=_NAME):
        try:
            return cast("Gateway", entry.load())
        except ModuleNotFoundError as error:
            raise UsageError(lacking) from error
    raise UsageError(lacking)
