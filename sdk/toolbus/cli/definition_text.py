"""Text for people about definitions of a toolkit: what serves, and what is in reserve.

Versions are untrusted text: control characters and line ends are escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from toolbus.room.toolkit_proxy import DefinitionInfo, ToolkitInfo
from toolbus.untrusted_text import one_line

__all__ = ["age_text", "definition_text", "reserve_lines"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def definition_text(definition: DefinitionInfo | ToolkitInfo) -> str:
    """Return version and digest, shortened."""
    name = f"version {one_line(definition.version)}" if definition.version else "no version"
    return f"{name} (digest {one_line(definition.digest[:12])})"


def reserve_lines(info: ToolkitInfo) -> Iterator[str]:
    """Return a line for each definition in reserve: what it is, its hosts, and its last call."""
    for definition in info.reserve:
        hosts = f"{definition.hosts} {'host' if definition.hosts == 1 else 'hosts'}"
        last_call = _last_call_text(definition.last_call_ms)
        yield f"in reserve: {definition_text(definition)}, {hosts}, {last_call}"


def _last_call_text(last_call_ms: int | None) -> str:
    if last_call_ms is None:
        return "no known call"
    return f"last call {age_text(last_call_ms / 1000)}"


def age_text(at: float) -> str:
    """Return how long ago a time was, given in seconds since the epoch: "5 min ago"."""
    age_s = max(0, int(time.time() - at))
    seconds, unit = next((entry for entry in _UNITS if age_s >= entry[0]), _UNITS[-1])
    return f"{age_s // seconds} {unit} ago"
