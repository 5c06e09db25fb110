"""The limits of tokens that also concern programs which neither mint nor verify one."""

from __future__ import annotations

__all__ = ["LEEWAY_S", "MAX_JWT_BYTES"]

LEEWAY_S = 60.0
"""The most by which the clocks of issuer and server may differ, in seconds."""
MAX_JWT_BYTES = 7 * 1024
"""It has to fit a header of 8 KiB (PROTOCOL.md, CONN-5)."""
