"""A process that a server's process forks, and that outlives the server."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from toolbus_server.testing import running_server


@contextmanager
def forked_child() -> Iterator[None]:
    """Fork a child that lives until the block ends."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where threads run
        pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(pid, 0)


async def test_a_child_holds_neither_the_port_nor_a_connection_of_its_server() -> None:
    async with running_server() as server, server.room("alice") as alice:
        port = server.server.port
        with forked_child():
            assert (await alice.participants())[0].name == "alice"
            peer = socket.create_connection(("127.0.0.1", port))
            await server.server.stop()
            with peer, pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
