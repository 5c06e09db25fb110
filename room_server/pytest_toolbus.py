"""The plugin of toolbus for pytest: the fixture `toolbus_room`.

pytest imports it in every run where toolbus is installed, so it imports toolbus when a test uses
the fixture. It stands beside the packages, since a module of a package imports that package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from toolbus_server.testing import ThreadedServer

__all__ = ["toolbus_room"]


@pytest.fixture
def toolbus_room() -> Iterator[ThreadedServer]:
    """Run a room server for this test: a `toolbus_server.testing.ThreadedServer`."""
    from toolbus_server.testing import server_on_thread

    with server_on_thread() as server:
        yield server
