"""Limits of an HTTP request in all; websockets limits each of its lines to 8 KiB.

Without them a client could make the server keep a mebibyte for each handshake that it begins.
"""

from __future__ import annotations

from websockets.datastructures import Headers

__all__ = ["MAX_HEADERS", "MAX_HEADERS_BYTES", "MAX_REQUEST_BYTES", "TOO_LARGE", "has_fitting"]

MAX_HEADERS = 64
"""Headers of a request."""
MAX_HEADERS_BYTES = 16 * 1024
"""Names and values of these headers together."""
MAX_REQUEST_BYTES = 26 * 1024
"""Bytes that are read before a request is complete: its first line (8 KiB), its headers, and what
separates those."""
TOO_LARGE = "The request has more than 64 headers, or they have over 16 KiB in all.\n"
"""The text of the response, which is 431."""


def has_fitting(headers: Headers) -> bool:
    """Whether the headers of a request are within the limits."""
    items = list(headers.raw_items())
    size = sum(len(name) + len(value) for name, value in items)
    return len(items) <= MAX_HEADERS and size <= MAX_HEADERS_BYTES
