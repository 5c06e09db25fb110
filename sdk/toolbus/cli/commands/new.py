"""`toolbus new` and `toolbus init`: write files to begin with, never over others."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from toolbus.cli.error_report import reporting, writing
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.scaffolds import ScaffoldKind, scaffold
from toolbus.untrusted_text import json_text, one_line

__all__ = ["init", "new"]

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def new(
    kind: Annotated[
        ScaffoldKind,
        typer.Argument(
            metavar="KIND", help="toolkit, tool, agent, skill or workflow.", show_default=False
        ),
    ],
    name: Annotated[str, typer.Argument(help="Its name: a-z, 0-9, _ and -.", show_default=False)],
    path: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder, which is made if it is missing.")
    ] = Path(),
    json: _Json = False,
) -> None:
    """Write a toolkit, tool, agent, skill or workflow to begin with.

    All of them but a skill come with a test. No file is replaced: if one of them is there, none is
    written.
    """
    with reporting(as_json=json, local=True):
        written = _write(path, _texts(kind, name))
        if kind == "skill":
            command = ["toolbus", "host", "skills", "--paths", str(path)]
        else:
            command = ["python", "-m", "pytest", str(written[1])]
        _show(written, shlex.join(command), as_json=json)


def init(
    folder: Annotated[
        Path, typer.Argument(help="The folder, which is made if it is missing.")
    ] = Path(),
    name: Annotated[
        str | None,
        typer.Option(help="Name of the project and its toolkit. Default: that of the folder."),
    ] = None,
    json: _Json = False,
) -> None:
    """Write a project to begin with: a toolkit, its test, settings.

    No file is replaced: if one of them is there, none is written.
    """
    with reporting(as_json=json, local=True):
        own_name = Path(os.path.abspath(folder)).name
        try:
            texts = _texts("project", own_name if name is None else name)
        except UsageError as error:
            if name is None:
                raise UsageError(f"{error.message}; --name NAME names another one") from error
            raise
        written = _write(folder, texts)
        command = "python -m pytest"
        if folder != Path():
            command = f"cd {shlex.quote(str(folder))} && {command}"
        _show(written, command, as_json=json)


def _texts(kind: ScaffoldKind | Literal["project"], name: str) -> dict[str, str]:
    try:
        return scaffold(kind, name)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files that are not there: all of them, or none. Raises UsageError."""
    paths = [folder / name for name in texts]
    for path in paths:
        if os.path.lexists(path):
            raise UsageError(f"{path} is there already: nothing was written")
    written: list[Path] = []
    made: list[Path] = []
    try:
        for path, text in zip(paths, texts.values(), strict=True):
            with writing(path):
                made += (parent for parent in path.parents if not parent.exists())
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "x", encoding="utf-8") as file:
                    written.append(path)
                    file.write(text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        for path in made:  # the innermost first
            with suppress(OSError):  # others have put something there
                path.rmdir()
        raise
    return written


def _show(written: list[Path], next_command: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text({"written": [*map(str, written)], "next": next_command}))
        return
    for path in written:
        typer.echo(f"wrote {one_line(str(path))}")
    typer.echo(f"next: {one_line(next_command)}")
