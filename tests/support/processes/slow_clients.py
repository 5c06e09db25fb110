"""A process with clients that send to a server as slowly as possible, until it is ended.

`python slow_clients.py KIND HOST PORT TOKEN` prints "ready" once they are connected. It uses plain
sockets and neither asyncio nor toolbus, so that it is as fast as it can be.

handshakes: 200 connections that send requests byte by byte, and reconnect when they are dropped.
slicer: a participant that sends valid frames, each byte in a packet of its own.
fragments: a participant that sends valid frames in a thousand fragments each, nearly all empty.
"""

from __future__ import annotations

import base64
import itertools
import os
import socket
import sys
import time

HANDSHAKES = 200
PAUSE_S = 0.005
"""The pause before the next byte is sent on a tenth of the connections."""
# A `cancel` of an unknown call; all masks are zeros.
_CANCEL = b"\x93\x12\x01\xa0"
_WHOLE = b"\x82\x84\x00\x00\x00\x00" + _CANCEL
_IN_PIECES = (
    b"\x02\x80\x00\x00\x00\x00"
    + b"\x00\x80\x00\x00\x00\x00" * 1_000
    + (b"\x80\x84\x00\x00\x00\x00" + _CANCEL)
)


class SlowClients:
    """Opens connections to one server."""

    def __init__(self, host: str, port: str, token: str) -> None:
        self._address = (host, int(port))
        lines = [
            "GET /rooms/lab HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: toolbus.v1",
            f"Authorization: Bearer {token}",
        ]
        self.request = ("\r\n".join(lines) + "\r\n\r\n").encode()

    def connect(self) -> socket.socket:
        """Open a connection that sends each byte at once."""
        connection = socket.create_connection(self._address, timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def join(self) -> socket.socket:
        """Connect a participant."""
        connection = self.connect()
        connection.sendall(self.request)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 101")
        return connection

    def handshakes(self) -> None:
        """Send endless requests byte by byte; the server may drop each after a while."""
        waiting = [(self.connect(), itertools.cycle(b"GET /rooms/lab?x=")) for _ in range(200)]
        report_ready()
        for step in itertools.count():
            for index in range(step % 10, HANDSHAKES, 10):
                connection, text = waiting[index]
                try:
                    connection.sendall(bytes([next(text)]))
                except OSError:
                    connection.close()
                    waiting[index] = (self.connect(), itertools.cycle(b"GET /rooms/lab?x="))
            time.sleep(PAUSE_S)

    def slicer(self) -> None:
        """Send valid frames byte by byte, as fast as the system takes them."""
        connection = self.join()
        report_ready()
        while True:
            for byte in _WHOLE:
                connection.send(bytes([byte]))

    def fragments(self) -> None:
        """Send valid frames in empty fragments, a hundred thousand at a time."""
        connection = self.join()
        report_ready()
        while True:
            connection.sendall(_IN_PIECES * 100)


def report_ready() -> None:
    """Report that the clients are connected."""
    print("ready", flush=True)  # noqa: T201 - a script, and the test waits for the line


if __name__ == "__main__":
    # Its load of the server counts, not its load of the machine: so it runs only when no other
    # process wants to.
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
    getattr(SlowClients(*sys.argv[2:5]), sys.argv[1])()
