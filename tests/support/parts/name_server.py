"""A resolver for one name, in place of the system's, and addresses that never answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

__all__ = ["NAME", "NameServer", "full_listener", "name_server"]

NAME = "several.test"
_WAIT_S = 60
_real = socket.getaddrinfo


class NameServer:
    """Answers for one name: at once, with an error, or when it is released."""

    def __init__(self) -> None:
        self.name = NAME
        self.addresses = ["127.0.0.1"]
        self.error: OSError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.lookups = 0

    def getaddrinfo(self, host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        """Answer as `socket.getaddrinfo`."""
        if host != self.name:
            return _real(host, port, *rest, **options)
        self.lookups += 1
        self.may_answer.wait(_WAIT_S)
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in self.addresses]


@contextmanager
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Ask a new one in place of the system's resolver."""
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.may_answer.set()


@contextmanager
def full_listener(address: str, port: int) -> Iterator[None]:
    """Listen at an address with a full backlog: the packets of further connections are dropped."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((address, port))
        listening.listen(0)
        # Linux keeps one more than the backlog, and one that it has not accepted.
        for _ in range(3):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((address, port))
        yield
