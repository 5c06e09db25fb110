"""Spans of time as text. It imports nothing: commands that connect to no room show spans too."""

from __future__ import annotations

__all__ = ["span_text"]


def span_text(span_s: float, units: int = 1) -> str:
    """Return a span of time in its largest whole units: "5 min", or of two units "1 h 5 min"."""
    left, parts = int(span_s), []
    for seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {unit}")
        units -= bool(parts)
        if not units:
            break
    return " ".join(parts) or "0 s"
