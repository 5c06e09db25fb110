"""Clients of others, which are installed when the first test needs them."""

from __future__ import annotations

import pytest

from gateway.clients.npm_clients import NpmClients, npm_clients


@pytest.fixture(scope="session")
def npm() -> NpmClients:
    """The clients from npm."""
    return npm_clients()
