"""What the tests of several folders of the SDK share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.parts.isolated_host import HostStage


@pytest.fixture
async def host_stage() -> AsyncIterator[HostStage]:
    """A host without a server; at the end none of its calls runs."""
    host_stage = HostStage()
    yield host_stage
    await host_stage.close()
