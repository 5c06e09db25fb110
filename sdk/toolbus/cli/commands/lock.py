"""`toolbus lock`: writes the lock file, or checks the toolkits of a room against it.

Definitions are untrusted text: control characters are escaped, and each difference is one line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from toolbus.auth.participant_names import means
from toolbus.cli.columns import counted
from toolbus.cli.completion import complete_owner, complete_toolkit
from toolbus.cli.error_report import reporting, writing
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.cli.suggestions import find_toolkit
from toolbus.diagnostics.exit_codes import CallTarget, UsageError
from toolbus.errors import NotFound, PermissionDenied
from toolbus.room.lock_file import (
    InvalidLockFile,
    LockedToolkit,
    LockFile,
    LockRefused,
    has_same_slot,
)
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.untrusted_text import json_text, one_line

__all__ = ["lock"]

_DEFAULT = Path("toolbus.lock")


@dataclass(slots=True)
class _Changes:
    """How the toolkits of a room differ from a lock file; the texts name them."""

    added: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    """The lines of the difference, by toolkit."""
    removed: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def compare(self, entry: LockedToolkit | None, current: LockedToolkit) -> None:
        """Add what differs between an entry and a toolkit of the room."""
        if entry is None:
            self.added.append(current.label)
        elif lines := entry.differences(current):
            self.changed[entry.label] = lines

    def facts(self) -> dict[str, Any]:
        """Return them for `--json`."""
        return {"added": self.added, "changed": self.changed, "removed": self.removed}

    def show(self) -> None:
        """Print one line for each toolkit and for each difference."""
        for label in self.added:
            _echo(f"+ {label}")
        for label, lines in self.changed.items():
            _echo(f"~ {label}")
            for line in lines:
                _echo(f"    {line}")
        for label in self.removed:
            _echo(f"- {label}")


def _echo(line: str) -> None:
    typer.echo(one_line(line))


@joins_a_room
def lock(
    options: RoomOptions,
    toolkits: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these toolkits. Default: all that you can see.",
            autocompletion=complete_toolkit,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="The lock file. Default: toolbus.lock. [TOOLBUS_LOCK]")
    ] = None,
    participant: Annotated[
        str | None,
        typer.Option(help="Only toolkits of this owner.", autocompletion=complete_owner),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Write nothing; end with exit code 3 if a toolkit of the file differs."
        ),
    ] = False,
) -> None:
    """Write toolkits to a lock file, and print what changed.

    Of each toolkit the file has the owner and the definition.
    """
    path = file or options.resolve().lock or _DEFAULT
    old = _load(path, must_exist=check)
    chosen = _Chosen(tuple(dict.fromkeys(toolkits or ())), participant)
    if check:
        changes = in_room(options, lambda room: _check(room, old, chosen), locked=False)
        count = sum(chosen.covers(entry) for entry in old.toolkits)
        summary = f"{path}: {counted(count, 'toolkit')} in the file, {len(changes)} different"
    else:
        new, changes = in_room(options, lambda room: _updated(room, old, chosen), locked=False)
        with writing(new.path):
            new.save()
        summary = (
            f"{path}: {counted(len(new.toolkits), 'toolkit')}; {len(changes.added)} added, "
            f"{len(changes.changed)} changed, {len(changes.removed)} removed"
        )
    if options.as_json:
        typer.echo(json_text({"file": str(path), **changes.facts()}))
    else:
        changes.show()
        _echo(summary)
    if check and len(changes):
        with reporting(as_json=options.as_json, local=True):
            raise LockRefused(f"the room differs from {path}", details=changes.facts())


@dataclass(slots=True)
class _Chosen:
    """The toolkits that the command is about."""

    names: tuple[str, ...]
    owner: str | None
    own_alias: str = ""
    """The alias of the issuer of this participant, once it has joined."""

    def covers(self, toolkit: LockedToolkit | ToolkitInfo) -> bool:
        """Whether an entry or a toolkit is one of them."""
        if self.names and toolkit.name not in self.names:
            return False
        owner = self.owner
        return owner is None or means(owner, toolkit.owner, toolkit.alias, self.own_alias)


def _load(path: Path, *, must_exist: bool) -> LockFile:
    try:
        return LockFile.load(path)
    except InvalidLockFile as error:
        if isinstance(error.__cause__, FileNotFoundError) and not must_exist:
            return LockFile(path=path)
        raise UsageError(str(error)) from error


async def _updated(room: CommandRoom, old: LockFile, chosen: _Chosen) -> tuple[LockFile, _Changes]:
    """Return the file with the chosen toolkits as they are now."""
    chosen.own_alias = room.me.alias
    changes, removed = _Changes(), []
    if chosen.names:
        found = [await _named(room, name, chosen.owner) for name in chosen.names]
    else:
        infos = [info async for info in room.toolkits() if chosen.covers(info)]
        found = [entry for info in infos if (entry := await _current(room, info)) is not None]
        present = LockFile().updated(found)
        removed = [
            entry
            for entry in old.toolkits
            if chosen.covers(entry) and present.entry_for(entry) is None
        ]
    for current in found:
        changes.compare(old.entry_for(current), current)
    changes.removed = [entry.label for entry in removed]
    return old.updated(found, without=removed), changes


async def _check(room: CommandRoom, old: LockFile, chosen: _Chosen) -> _Changes:
    """Return how the chosen entries of the file differ from the room."""
    chosen.own_alias = room.me.alias
    changes = _Changes()
    entries = [entry for entry in old.toolkits if chosen.covers(entry)]
    for entry in entries:
        current = await _current(room, entry)
        if current is None:
            changes.removed.append(entry.label)
        else:
            changes.compare(entry, current)
    locked = {entry.name for entry in entries}
    for name in chosen.names:
        if name not in locked:
            changes.compare(None, await _named(room, name, chosen.owner))
    return changes


async def _named(room: CommandRoom, name: str, owner: str | None) -> LockedToolkit:
    proxy = await find_toolkit(room, CallTarget(name, participant=owner))
    return LockedToolkit.of(proxy.info, proxy.manifest)


async def _current(room: CommandRoom, wanted: LockedToolkit | ToolkitInfo) -> LockedToolkit | None:
    """Return the toolkit that a call of an entry would reach; None if there is none.

    A public toolkit is the one of its name, of any owner. A bare name means an own private toolkit
    if there is one; then the public one is requested by its owner.
    """
    owners: list[str | None] = [wanted.full_owner]
    if wanted.public:
        owners.insert(0, None)
    for owner in owners:
        try:
            proxy = await room.toolkit(wanted.name, owner)
        except (NotFound, PermissionDenied):
            continue
        current = LockedToolkit.of(proxy.info, proxy.manifest)
        if has_same_slot(wanted, current):
            return current
    return None
