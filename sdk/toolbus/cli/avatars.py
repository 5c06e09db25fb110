"""`--avatar NAME`: what an installed avatar gives to an agent.

The package that keeps avatars joins through the entry point group `toolbus.avatars`: a function
from a name to an `InstalledAvatar`, which raises `ValueError` with what to do. One of another
distribution is used in place of our own, `bundles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from toolbus.cli.toolkit_references import find_factory, find_toolkit
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.rule import Rule
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.skill_listing import SkillListing
from toolbus.untrusted_text import one_line

__all__ = ["AvatarPieces", "InstalledAvatar", "read_avatar"]

_GROUP = "toolbus.avatars"
_OWN = "bundles"


class InstalledAvatar(Protocol):
    """An avatar, as a package keeps it. What it names is installed."""

    @property
    def path(self) -> Path:
        """The file that defines it."""

    @property
    def instructions(self) -> str:
        """What a model reads before a conversation; may be empty."""

    @property
    def skills(self) -> Sequence[SkillListing]:
        """Skills that are always active."""

    @property
    def toolkits(self) -> Sequence[str]:
        """Names of installed toolkits."""

    @property
    def require(self) -> Sequence[str]:
        """Names of toolkits that others host."""

    @property
    def offer(self) -> Sequence[str]:
        """Names of installed toolkits that a question may ask to be built."""

    @property
    def denied_tools(self) -> Sequence[str]:
        """Patterns of tools that the agent must not call."""

    @property
    def available(self) -> bool:
        """Whether the agent may have toolkits of its room that nobody names."""

    @property
    def model(self) -> str:
        """The model that its author suggests; may be empty."""

    @property
    def notes(self) -> Sequence[str]:
        """What the operator should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvatarPieces:
    """What an avatar gives to an agent, and takes from it; without arguments, of no avatar."""

    instructions: str = ""
    always: tuple[Toolkit, ...] = ()
    require: tuple[str, ...] = ()
    offer: tuple[str, ...] = ()
    skills: tuple[SkillListing, ...] = ()
    denials: tuple[Rule, ...] = ()
    available: bool = True
    model: str = ""
    notes: tuple[str, ...] = ()

    def restricted(self, permissions: Permissions) -> Permissions:
        """Return permissions that deny what the avatar denies too."""
        return replace(permissions, rules=(*permissions.rules, *self.denials))


def read_avatar(name: str) -> AvatarPieces:
    """Read an installed avatar, and make its toolkits.

    Raises `UsageError` if there is none of that name, it is not valid, or no package keeps avatars.
    """
    every = tuple(entry_points(group=_GROUP))
    packages = [entry for entry in every if entry.name != _OWN] or every
    if not packages:
        raise UsageError("--avatar: no package here keeps avatars: pip install 'toolbus[bundles]'")
    if len(packages) > 1:
        names = ", ".join(sorted(entry.value for entry in packages))
        raise UsageError(f"--avatar: several packages here keep avatars, leave one: {names}")
    always: list[Toolkit] = []
    require: list[str] = []
    try:
        read: Callable[[str], InstalledAvatar] = packages[0].load()
        found = read(name)
        notes = list(found.notes)
        for toolkit in found.toolkits:
            if _is_hosted_by_an_operator(toolkit):
                require.append(toolkit)
                notes.append(
                    f"toolkit {toolkit} has settings: host it with `toolbus host {toolkit}`"
                )
            else:
                always.append(find_toolkit(toolkit))
    except (ImportError, ValueError) as error:
        raise UsageError(f"--avatar: {error}") from None
    return AvatarPieces(
        instructions=found.instructions,
        always=tuple(always),
        require=tuple(dict.fromkeys((*require, *found.require))),
        offer=tuple(found.offer),
        skills=tuple(found.skills),
        denials=tuple(
            Rule(behavior="deny", tool=tool, origin=str(found.path)) for tool in found.denied_tools
        ),
        available=found.available,
        model=found.model,
        notes=tuple(one_line(note) for note in notes),
    )


def _is_hosted_by_an_operator(toolkit: str) -> bool:
    """Whether only an operator can say what an installed toolkit may reach."""
    # An avatar comes from others. So it starts here what a message could have built, no more.
    factory = find_factory(toolkit)
    return factory is not None and any(
        field.is_operator_only or field.is_partly_operator_only or field.info.is_required()
        for field in factory.fields
    )
