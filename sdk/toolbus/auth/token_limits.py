"""The limits of tokens that other modules than `tokens` need too."""

from __future__ import annotations

__all__ = ["LATEST_TIME", "LEEWAY_S", "MAX_JWT_BYTES", "MAX_ROOM_PATTERNS"]

LEEWAY_S = 60.0
"""The most by which the clocks of issuer and server may differ, in seconds."""
LATEST_TIME = 253_402_300_799
"""The last second of the year 9999, which is also the last one that Python can show."""
MAX_JWT_BYTES = 7 * 1024
"""It has to fit a header of 8 KiB (PROTOCOL.md, CONN-5)."""
MAX_ROOM_PATTERNS = 64
"""Each connection compares the name of its room with all of them (PROTOCOL.md, TOKEN-4)."""
