"""Judges a command line before it runs: what an `Assessment` of `shell.run` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolbus import Assessment
from toolbus_toolkits.shell.commands import effect_of
from toolbus_toolkits.shell.reading import read_line
from toolbus_toolkits.workspace import Roots, SensitivePaths

__all__ = ["assess_line"]


def assess_line(
    line: str,
    *,
    directory: str,
    environment: Mapping[str, str],
    roots: Roots,
    sensitive: SensitivePaths,
    patterns: Sequence[str] = (),
) -> Assessment:
    """Return what a command line would do, without running it.

    Args:
        line: What bash is given.
        directory: Where it starts.
        environment: The variables that it starts with.
        roots: The working directories.
        sensitive: The files that a person decides about.
        patterns: The patterns of rules that are asked about.
    """
    reading = read_line(line, environment)
    if reading.faults:
        return Assessment(
            "ask", immune=True, message="; ".join(reading.faults), matches=tuple(patterns)
        )
    effects = [effect_of(command) for command in reading.commands if command.words]
    if all(effect.read_only for effect in effects):
        return Assessment("pass", read_only=True)
    return Assessment("ask", message="; ".join(effect.why for effect in effects if effect.why))
