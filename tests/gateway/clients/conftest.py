"""Clients of others, which are installed when the first test needs them."""

from __future__ import annotations

import pytest

from gateway.clients.installed_clients import NpmClients, fastmcp_python, npm_clients


@pytest.fixture(scope="session")
def npm() -> NpmClients:
    """The clients from npm."""
    return npm_clients()


@pytest.fixture(scope="session")
def fastmcp() -> str:
    """The Python of an environment with FastMCP."""
    return fastmcp_python()
