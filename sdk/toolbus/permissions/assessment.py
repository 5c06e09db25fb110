"""What a tool says about one input before it runs: an `Assessment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from toolbus.permissions.rule import Rule

__all__ = ["AssessedBehavior", "Assessment", "Flags", "assessment_of_flags"]

AssessedBehavior: TypeAlias = Literal["allow", "ask", "deny", "pass"]
"""What a tool wants for an input; "pass" leaves the decision to rules and the mode."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """Facts about one input of a tool, found where the tool runs, without running it."""

    behavior: AssessedBehavior
    """What the tool itself wants. An "ask" that is not `immune` counts as "pass"."""
    read_only: bool = False
    """Whether the call changes nothing with this input."""
    within_workdir: bool = False
    """Whether all that it changes is in a working directory."""
    immune: bool = False
    """Whether no allow rule replaces the tool's "ask"."""
    message: str = ""
    """What the call would do, in one or a few sentences for a person."""
    preview: str = ""
    """What would change, such as a unified diff."""
    suggestions: tuple[Rule, ...] = ()
    """Up to five rules that would cover calls of the same kind."""
    matches: tuple[str, ...] = ()
    """Those of the asked patterns that match this input, or any part of it."""
    parts: tuple[tuple[str, ...], ...] = ()
    """For an input of several parts, such as the commands of one line: for each part that rules
    have to allow, those of the asked patterns that match it. Patterns allow the call only if each
    part has one that does; `((),)` says that none can. If empty, `matches` alone decides. Beyond
    256 different parts no pattern allows the call."""
    uncertain: tuple[str, ...] = ()
    """Those of `matches` that only may match, as the tool cannot tell; `message` says why. They
    deny and ask as the others do, in words that say so, and allow nothing."""
    hint: str = ""
    """How to change the call so that fewer rules cover it, such as "`path` narrows it"; a denial by
    a pattern repeats it."""
    source: Literal["tool", "manifest"] = "tool"
    """Who says it: the tool, or its published flags where its host cannot be asked. Of the
    latter no pattern is known to match, so that every deny and ask pattern counts as a match."""
    reaches: str = ""
    """The tool that the call would reach, `toolkit.tool`, if it only forwards; else empty."""
    refusal: str = ""
    """Why the host's policy would refuse the call; empty if it would not."""
    asks: str = ""
    """Why its host would ask a person before the call; empty if it would not."""


class Flags(Protocol):
    """The published flags of a tool: a `ToolManifest` or a `ToolInfo`."""

    @property
    def read_only(self) -> bool:
        """It changes nothing."""

    @property
    def destructive(self) -> bool:
        """It may delete or overwrite what cannot be restored."""

    @property
    def open_world(self) -> bool:
        """It acts on systems that its author does not control."""

    @property
    def approval(self) -> bool:
        """A person should approve each call."""


def assessment_of_flags(
    flags: Flags, *, source: Literal["tool", "manifest"] = "tool"
) -> Assessment:
    """Return what the flags of a tool say about every input.

    `approval` is an immune ask, `destructive` and `open_world` an ordinary one with a message.
    """
    words = []
    if flags.approval:
        words.append("its author wants a person to approve each call")
    if flags.destructive:
        words.append("it may delete or overwrite what cannot be restored")
    if flags.open_world:
        words.append("it acts on systems that its author does not control")
    return Assessment(
        "ask" if words else "pass",
        read_only=flags.read_only,
        immune=flags.approval,
        message="; ".join(words),
        source=source,
    )
