"""Cuts or restores the way to one address, in the network of the container that runs it.

`python cut_route.py cut|restore ADDRESS`, on Linux with the capability NET_ADMIN, adds or removes a
route that rejects packets. Containers of `toolbus` have Python and no other program for that.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

# From <linux/sockios.h> and <linux/route.h>: add and remove a route; up, to one host, rejecting.
_REQUESTS = {"cut": 0x890B, "restore": 0x890C}
_FLAGS = 0x0001 | 0x0004 | 0x0200


def _address(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


def main(action: str, address: str) -> None:
    """Add or remove the route, a C `struct rtentry`."""
    addresses = (_address(address), _address("0.0.0.0"), _address("255.255.255.255"))
    entry = struct.pack("@L16s16s16sHhLPhPLLH", 0, *addresses, _FLAGS, *[0] * 8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _REQUESTS[action], entry)


if __name__ == "__main__":
    main(*sys.argv[1:])
