"""Bounds on the headers of responses, before anything reads them. Pure.

A server may send some 100 KB of headers. The parser of mail headers, which the standard library has
for `Content-Type` and `Content-Disposition`, takes 14 s for 90,000 semicolons.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MAX_ADDRESS_CHARS", "bounded_headers"]

MAX_ADDRESS_CHARS = 16 * 1024
"""The most characters of a `Location` or a `Link`. A longer one is refused where it is read: a part
of an address would be another address, and no address would be the end of the pages."""
# A name of a file has at most 255 characters, each up to 9 bytes where it is escaped.
_MAX_BYTES = 4 * 1024
_MAX_PARAMETERS = 32
_WITH_PARAMETERS = frozenset({b"content-disposition", b"content-type"})
_COOKIES = frozenset({b"set-cookie", b"set-cookie2"})
"""No client keeps any, but each would parse them: 40 ms for 90 KB."""


def bounded_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response without cookies, and those with parameters once and cut."""
    bounded: list[tuple[bytes, bytes]] = []
    seen: set[bytes] = set()
    for name, value in headers:
        lower = name.lower()
        if lower in _COOKIES or lower in seen:
            continue  # a second one would be joined to the first
        if lower in _WITH_PARAMETERS:
            seen.add(lower)
            parts = value[:_MAX_BYTES].split(b";", _MAX_PARAMETERS + 1)
            value = b";".join(parts[: _MAX_PARAMETERS + 1])
        bounded.append((name, value))
    return bounded
