"""The flags of commands that record calls: whether, where, for how long, and what of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from toolbus.cli.arguments import warn_if_readable
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.records.records import Records
from toolbus.records.sqlite_file import RecordsUnavailable
from toolbus.settings import records_file as default_records_file

__all__ = ["RecordChoices"]

_DAYS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChoices:
    """What the flags say about records."""

    records: Annotated[
        bool | None,
        typer.Option(
            "--records/--no-records",
            help="Record each call in records.db of TOOLBUS_HOME, or no call at all. "
            "Default: as the toolkit itself does. `toolbus calls` lists them.",
            show_default=False,
        ),
    ] = None
    records_file: Annotated[Path | None, typer.Option(help="Record each call in this file.")] = None
    records_days: Annotated[
        float | None,
        typer.Option(help="Days that recorded calls are kept. Default: 30.", min=0.01, max=36_500),
    ] = None
    records_arguments: Annotated[
        bool, typer.Option("--records-arguments", help="Record the arguments of calls too.")
    ] = False

    @property
    def are_given(self) -> bool:
        """Whether the flags say if calls are recorded."""
        return self.records is not None or self.records_file is not None

    def check(self) -> None:
        """Raise UsageError for flags about records where nothing is recorded."""
        further = {
            "--records-days": self.records_days is not None,
            "--records-arguments": self.records_arguments,
        }
        given = [name for name, is_given in further.items() if is_given]
        if self.records is False and (self.records_file or given):
            raise UsageError("--no-records records nothing: leave it out, or the other options")
        if given and not (self.records or self.records_file):
            raise UsageError(f"{given[0]} is for recorded calls: add --records")

    def open(self) -> Records | None:
        """Open the file of records, by default the one of this user; None for no records.

        Raises `UsageError`.
        """
        if self.records is False or not self.are_given:
            return None
        path = self.records_file
        try:
            if path is None:
                path = default_records_file(os.environ)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            days = self.records_days or _DAYS
            store = Records.sqlite(path, days, arguments=self.records_arguments)
        except (RecordsUnavailable, OSError) as error:
            raise UsageError(f"{error}; name another file with --records-file") from error
        warn_if_readable("--records-file", path)
        return store
