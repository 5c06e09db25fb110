"""How `toolbus call --explain` says what would become of a call."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from toolbus.errors import ERRORS, RoomException
from toolbus.exit_codes import printable
from toolbus.explanation import Explanation

__all__ = ["show_explanation"]


def show_explanation(explained: Explanation, *, as_json: bool) -> None:
    """Print who would run the call.

    Raises:
        RoomException: The error that the call would end with, which ran nothing.
    """
    if as_json:
        typer.echo(json.dumps(asdict(explained), ensure_ascii=False))
    if not explained.would_run:
        error = ERRORS.get(explained.code, RoomException)
        raise error(explained.message, executed="no", details=explained.details)
    host = explained.host
    if as_json or host is None:
        return
    kept = ", and calls that belong together stay with it" if explained.affinity else ""
    others = f"one of {explained.hosts} hosts" if explained.hosts > 1 else "the only host"
    node = f" of node {printable(explained.node)}" if explained.node else ""
    typer.echo(f"would run at {printable(host.name)} ({host.id}){node}, {others}{kept}")
    typer.echo(f"  generation {explained.generation}, digest {explained.digest}")
