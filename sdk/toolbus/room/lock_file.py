"""A lock file: the owner and the definition of every toolkit that a program uses.

Values and one file; it knows nothing of connections. The file is JSON, because it contains JSON
Schemas, which may hold null. Keys are sorted and each value has its own line, so that version
control shows a change as the lines that changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from toolbus.atomic_file import write_atomically
from toolbus.auth.participant_names import full_name
from toolbus.errors import DefinitionChanged
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.untrusted_text import SHOWN_CHARS, json_text
from toolbus.wire import ToolkitManifest

__all__ = ["InvalidLockFile", "LockFile", "LockRefused", "LockedToolkit", "has_same_slot"]

_LISTED = 20
_MAX_DETAILS = 200
"""Programs log the details: the manifest of somebody else may differ in thousands of places."""


class InvalidLockFile(ValueError):
    """A lock file is missing or malformed."""


class LockRefused(DefinitionChanged):
    """A toolkit differs from the lock file, or is not in it; no tool ran.

    `details` has `toolkit`, and, if the toolkit is in the file, `digest` and `difference`. Those of
    `toolbus lock --check` have the toolkits that were `added`, `changed` and `removed`.
    """

    next_step = "review the difference; `toolbus lock` then writes the new definition to the file"


class LockedToolkit(BaseModel, frozen=True, extra="forbid"):
    """One toolkit of a lock file: whose it is, and its definition as the token could see it."""

    name: str
    public: bool
    """Whether the whole room sees it. A room has one public toolkit of a name."""
    owner: str
    """The name of the identity that registered it."""
    issuer: str
    """The issuer of that identity's token."""
    alias: str = ""
    """The alias of that issuer, where the server has several. It decides nothing."""
    digest: str
    """The digest of the definition, with all its tools, also those that the token cannot see."""
    version: str = ""
    definition: dict[str, Any] = Field(default_factory=dict)
    """The toolkit's manifest without name, version and tools; no defaults."""
    tools: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The manifests of the tools by name; no defaults."""

    @classmethod
    def of(cls, info: ToolkitInfo, manifest: ToolkitManifest) -> LockedToolkit:
        """Make an entry from what a proxy has: `of(proxy.info, proxy.manifest)`."""
        fields = manifest.model_dump(mode="json", exclude_defaults=True)
        tools = {tool.pop("name"): tool for tool in fields.pop("tools", ())}
        return cls(
            name=fields.pop("name"),
            public=info.public,
            owner=info.owner,
            issuer=info.issuer,
            alias=info.alias,
            digest=info.digest,
            version=fields.pop("version", ""),
            definition=fields,
            tools=tools,
        )

    @property
    def label(self) -> str:
        """The toolkit for messages: `words of ann`."""
        return f"{self.name} of {self.full_owner}"

    @property
    def full_owner(self) -> str:
        """The owner as people see it, and for `participant=`: `alias/name`, or the name."""
        return full_name(self.owner, self.alias)

    def with_alias(self, alias: str) -> LockedToolkit:
        """Return this entry with the alias that the issuer has now."""
        return self.model_copy(update={"alias": alias})

    def matches(self, current: LockedToolkit | ToolkitInfo) -> bool:
        """Whether a toolkit has the locked owner and definition."""
        there = (current.owner, current.issuer, current.digest)
        return there == (self.owner, self.issuer, self.digest)

    def differences(self, current: LockedToolkit) -> list[str]:
        """Return how a toolkit differs from this entry, as lines of text; empty if it does not.

        Owner and digest decide. With an equal digest, other tools in the list are a matter of the
        reader's grants.
        """
        lines: list[str] = []
        if (self.owner, self.issuer) != (current.owner, current.issuer):
            lines.append(
                f"owner: {self.full_owner} (issuer {self.issuer}) -> "
                f"{current.full_owner} (issuer {current.issuer})"
            )
        if self.digest == current.digest:
            return lines
        lines.append(f"digest: {self.digest[:12]} -> {current.digest[:12]}")
        if self.version != current.version:
            lines.append(f"version: {_text(self.version)} -> {_text(current.version)}")
        lines += _changes("", self.definition, current.definition)
        for tool in sorted({*self.tools, *current.tools}):
            if tool not in current.tools:
                lines.append(f"- tool {tool}")
            elif tool not in self.tools:
                lines.append(f"+ tool {tool}")
            else:
                changes = _changes("", self.tools[tool], current.tools[tool])
                lines += (f"~ tool {tool}: {line}" for line in changes)
        return lines


class _Content(BaseModel, extra="forbid"):
    lock: Literal[1]
    toolkits: tuple[LockedToolkit, ...]


@dataclass(frozen=True, slots=True)
class LockFile:
    """The toolkits that a program may use: `RoomClient(locked="toolbus.lock")`.

    `toolbus lock` writes the file.
    """

    toolkits: tuple[LockedToolkit, ...] = ()
    """In the order of their names, public ones first, then by owner."""
    path: Path = Path("toolbus.lock")
    """The file, for messages and `save`."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LockFile:
        """Read a lock file.

        Raises:
            ValueError: It cannot be read or is not a lock file; the message says what to do.
        """
        try:
            toolkits = _read_content(Path(path))
        except FileNotFoundError as error:
            text = f"the lock file {path} does not exist: `toolbus lock` writes it"
            raise InvalidLockFile(text) from error
        except OSError as error:
            text = f"cannot read the lock file {path}: {error.strerror}"
            raise InvalidLockFile(text) from error
        except (ValueError, RecursionError) as error:
            text = f"{path} is not a lock file: {error}; remove it, and `toolbus lock` writes it"
            raise InvalidLockFile(text) from error
        return cls(path=Path(path)).updated(toolkits)

    def save(self) -> None:
        """Write the file in one step; equal content is the same bytes. Raises OSError."""
        write_atomically(self.path, self.to_text().encode())

    def to_text(self) -> str:
        """Return the content of the file: JSON; invisible characters are escaped."""
        toolkits = [toolkit.model_dump() for toolkit in self.toolkits]
        for fields in toolkits:
            if not fields["alias"]:
                del fields["alias"]
        content = {"lock": 1, "toolkits": toolkits}
        return json_text(content, indent=2, sort_keys=True) + "\n"

    def updated(
        self, toolkits: Iterable[LockedToolkit], *, without: Iterable[LockedToolkit] = ()
    ) -> LockFile:
        """Return a lock file with some toolkits added or replaced, and others left out."""
        left_out = {_slot(entry) for entry in without}
        by_slot = {_slot(entry): entry for entry in self.toolkits if _slot(entry) not in left_out}
        by_slot |= {_slot(entry): entry for entry in toolkits}
        ordered = sorted(
            by_slot.values(),
            key=lambda entry: (entry.name, not entry.public, entry.owner, entry.issuer),
        )
        return LockFile(tuple(ordered), self.path)

    def entry_for(self, current: LockedToolkit | ToolkitInfo) -> LockedToolkit | None:
        """Return the entry that a toolkit is compared with; None if there is none.

        The entry of a public toolkit is the public one of its name, of any owner.
        """
        return next((entry for entry in self.toolkits if _slot(entry) == _slot(current)), None)

    def check(self, info: ToolkitInfo, manifest: ToolkitManifest) -> LockedToolkit:
        """Return the entry of a toolkit that has the locked owner and definition.

        Raises:
            DefinitionChanged: It is not in the file, or differs from it; the message shows how.
        """
        current = LockedToolkit.of(info, manifest)
        entry = self.entry_for(current)
        if entry is None:
            kind = "public" if current.public else "private"
            raise LockRefused(
                f"{kind} toolkit {current.label} (issuer {current.issuer}) is not in {self.path}",
                details={"toolkit": current.name},
            )
        lines = entry.differences(current)
        if not lines:
            return entry
        listed = [f"toolkit {current.name} differs from {self.path}:", *lines[:_LISTED]]
        if len(lines) > _LISTED:
            listed.append(f"... {len(lines) - _LISTED} more: `toolbus lock --check` shows all")
        details = {"digest": current.digest, "difference": lines[:_MAX_DETAILS]}
        raise LockRefused("\n".join(listed), details={"toolkit": current.name, **details})


def _slot(toolkit: LockedToolkit | ToolkitInfo) -> tuple[str, ...]:
    """Return what identifies an entry of a lock file: there is one toolkit for it at a time."""
    if toolkit.public:
        return (toolkit.name,)
    return (toolkit.name, toolkit.owner, toolkit.issuer)


def has_same_slot(one: LockedToolkit | ToolkitInfo, other: LockedToolkit | ToolkitInfo) -> bool:
    """Whether two toolkits have the same entry: public ones of one name, or one private one."""
    return _slot(one) == _slot(other)


def _read_content(path: Path) -> tuple[LockedToolkit, ...]:
    """Read the toolkits of a lock file. Raises OSError, ValueError or RecursionError."""
    content = json.loads(path.read_text(encoding="utf-8"))
    version = content.get("lock") if isinstance(content, dict) else None
    if isinstance(version, int) and version > 1:
        raise ValueError("it was written by a newer release")
    try:
        return _Content.model_validate(content).toolkits
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"/{'/'.join(map(str, first['loc']))}: {first['msg']}") from None


def _changes(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield a line for each value that differs, with its path: `a/b: 1 -> 2`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            inner = f"{path}/{key}" if path else key
            if key not in new:
                yield f"{inner}: removed, was {_cut(_text(old[key]))}"
            elif key not in old:
                yield f"{inner}: added, {_cut(_text(new[key]))}"
            else:
                yield from _changes(inner, old[key], new[key])
        return
    before, after = _text(old), _text(new)
    if before != after:
        pairs = enumerate(zip_longest(before, after))
        start = max(0, next(at for at, (one, other) in pairs if one != other) - 30)
        yield f"{path}: {_cut(before, start)} -> {_cut(after, start)}"


def _cut(text: str, start: int = 0) -> str:
    shown = text[start : start + SHOWN_CHARS]
    if start + len(shown) < len(text):
        shown += "..."
    if start:
        shown = f"...{shown}"
    return shown


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
