"""What each backend holds: the one table that the docs, the doctor and the start line show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from toolbus_toolkits.sandbox.config import Backend

__all__ = ["HOLDS", "Holding", "summary"]

_ALL: Final = "yes"
_NONE: Final = "no"


class Holding(NamedTuple):
    """One row: what is kept from a program, and whether each backend keeps it from it."""

    key: str
    what: str
    bubblewrap: str
    """`yes`, `no`, or the condition."""
    landlock: str
    docker: str
    subprocess: str = _NONE

    def of(self, backend: Backend) -> str:
        """Return what one backend holds of it."""
        return str(getattr(self, backend))


HOLDS: Mapping[str, Holding] = {
    row.key: row
    for row in (
        Holding("write", "content of files outside its folders is changed", _ALL, _ALL, _ALL),
        Holding("read", "files outside its folders and the system are read", _ALL, _ALL, _ALL),
        Holding(
            "metadata",
            "mode, times, owner and attributes of files outside are changed",
            _ALL,
            "no: where its user may",
            _ALL,
        ),
        Holding(
            "names",
            "one learns which files there are outside, their sizes and times",
            _ALL,
            _NONE,
            _ALL,
        ),
        Holding("hide in write", "`hide` within folders that it changes", _ALL, _NONE, _ALL),
        Holding("hide in read", "`hide` within folders that it only reads", _ALL, _ALL, _ALL),
        Holding(
            "protect",
            "secrets and settings in its folders, as they are at its start (`protect`)",
            "yes; below 0.12 while no other confined program of the host runs in the folder",
            _NONE,
            _NONE,
        ),
        Holding(
            "new settings",
            "settings are made that do not exist at its start",
            "no: but for hooks of git",
            _NONE,
            _NONE,
        ),
        Holding("network", "the network, without `network`", _ALL, _ALL, _ALL),
        Holding(
            "unix sockets",
            "sockets of programs outside, without `unix_sockets`",
            _ALL,
            _ALL,
            "yes; but for those in its folders",
        ),
        Holding("processes", "signals to programs outside, and their memory", _ALL, _ALL, _ALL),
        Holding(
            "process list", "the list of programs outside, and their arguments", _ALL, _NONE, _ALL
        ),
        Holding(
            "max_processes",
            "more processes than `max_processes`",
            "yes; as root by a control group, else it is refused",
            "yes, beside the others of its user at its start; as root by a control group, else"
            " it is refused",
            _ALL,
        ),
        Holding(
            "home",
            "one program finds what another one left in the user's folder and `/tmp`",
            _ALL,
            _ALL,
            _ALL,
        ),
    )
}
"""The rows, by their keys."""


def summary(backend: Backend) -> str:
    """Return in one line what a backend does not hold, for the line that a host prints."""
    if backend == "subprocess":
        return "not confined: limits only"
    gaps = [row.what for row in HOLDS.values() if row.of(backend).startswith(_NONE)]
    parts = [f"confined by {backend}"]
    if (protect := HOLDS["protect"].of(backend)) != _NONE:
        parts.append(f"`protect`: {protect}")
    if gaps:
        parts.append(f"not held: {'; '.join(gaps)}")
    return "; ".join(parts)
