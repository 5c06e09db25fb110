"""A process of its own that talks to a server in the most tiresome way, until it is ended.

`python slow_talker.py KIND HOST PORT TOKEN` says "talking" on stdout once it is at it. It uses
plain sockets and neither asyncio nor anything of ours, so that it is as fast as it can be.

handshakes: 200 connections that send their request a byte at a time, and begin again when dropped.
slicer: a participant that sends good frames, each byte in a packet of its own.
fragments: a participant that sends good frames in a thousand fragments each, nearly all empty.
"""

from __future__ import annotations

import base64
import itertools
import os
import socket
import sys
import time

HANDSHAKES = 200
DRIBBLE_S = 0.005
"""How long it is until a byte more is sent on each of a tenth of the connections."""
# A `cancel` of a call that is not there; all masks are zeros.
_CANCEL = b"\x93\x12\x01\xa0"
_WHOLE = b"\x82\x84\x00\x00\x00\x00" + _CANCEL
_IN_PIECES = (
    b"\x02\x80\x00\x00\x00\x00"
    + b"\x00\x80\x00\x00\x00\x00" * 1_000
    + (b"\x80\x84\x00\x00\x00\x00" + _CANCEL)
)


class Talker:
    """Opens connections to one server."""

    def __init__(self, host: str, port: str, token: str) -> None:
        self._place = (host, int(port))
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
        """Open a connection that sends each byte when it is told to."""
        connection = socket.create_connection(self._place, timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def join(self) -> socket.socket:
        """Become a participant."""
        connection = self.connect()
        connection.sendall(self.request)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 101")
        return connection

    def handshakes(self) -> None:
        """Dribble requests that never end; the server may drop each after a while."""
        waiting = [(self.connect(), itertools.cycle(b"GET /rooms/lab?x=")) for _ in range(200)]
        begun()
        for turn in itertools.count():
            for place in range(turn % 10, HANDSHAKES, 10):
                connection, text = waiting[place]
                try:
                    connection.sendall(bytes([next(text)]))
                except OSError:
                    connection.close()
                    waiting[place] = (self.connect(), itertools.cycle(b"GET /rooms/lab?x="))
            time.sleep(DRIBBLE_S)

    def slicer(self) -> None:
        """Send good frames byte by byte, as fast as the system takes them."""
        connection = self.join()
        begun()
        while True:
            for byte in _WHOLE:
                connection.send(bytes([byte]))

    def fragments(self) -> None:
        """Send good frames in fragments of nothing, a hundred thousand at a time."""
        connection = self.join()
        begun()
        while True:
            connection.sendall(_IN_PIECES * 100)


def begun() -> None:
    """Tell who started this that it is on."""
    print("talking", flush=True)  # noqa: T201 - a script, and the test waits for the line


if __name__ == "__main__":
    # What it takes of the machine is its own, what it takes of the server counts: it runs where
    # nobody else wants to, and whoever wants to need not wait for it to use its slice up.
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
    getattr(Talker(*sys.argv[2:5]), sys.argv[1])()
