"""`toolbus stubs`: writes the tools of a toolkit as a typed class, for type checkers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolbus.atomic_file import write_atomically
from toolbus.cli.completion import Owner, complete_toolkit
from toolbus.cli.error_report import reporting, writing
from toolbus.cli.room_options import Locked, RoomOptions, in_room, joins_a_room
from toolbus.cli.stub_text import stub_module
from toolbus.cli.suggestions import find_toolkit
from toolbus.diagnostics.exit_codes import CallTarget, UsageError
from toolbus.untrusted_text import json_text

__all__ = ["stubs"]


@joins_a_room
def stubs(
    options: RoomOptions,
    toolkit: Annotated[str, typer.Argument(help="The toolkit.", autocompletion=complete_toolkit)],
    out: Annotated[
        Path | None, typer.Option(help="Write to this .pyi file instead of stdout.")
    ] = None,
    participant: Owner = None,
    locked: Locked = None,
) -> None:
    """Write a type stub with a method for each tool of a toolkit."""
    if out is not None and out.suffix != ".pyi":
        raise UsageError(f"{out} is not a stub file: its name must end with .pyi")
    target = CallTarget(toolkit, participant=participant)
    with reporting(as_json=options.as_json, target=target):
        proxy = in_room(options, lambda room: find_toolkit(room, target), locked=locked)
    text = stub_module(proxy.info, proxy.manifest)
    if out is not None:
        with writing(out):
            write_atomically(out, text.encode())
    elif options.as_json:
        info = proxy.info
        facts = {"toolkit": info.name, "owner": info.owner, "digest": info.digest, "stub": text}
        typer.echo(json_text(facts))
    else:
        typer.echo(text, nl=False)
