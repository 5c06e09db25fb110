"""The server that the scenarios of one process share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from toolbus_server.testing import TestServer, running_server


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    """A server that must hold nothing of any call at the end."""
    async with running_server() as server:
        yield server
        assert server.server.hub.router.in_flight == 0
