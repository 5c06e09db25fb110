"""The skills of one turn: its own, and those of its active groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toolbus.agents.skill_listing import SkillListing, has_skill, viewer_of
from toolbus.tools.toolkit import Toolkit

__all__ = ["TurnSkills"]


class TurnSkills:
    """The listings of a turn, each in a group.

    Args:
        listings: Each listing with its group.
        is_active: Whether a group is active now.
        refuse: Gets a skill and its group, which is inactive. Raises `ToolInactive`.
    """

    def __init__(
        self,
        listings: Iterable[tuple[SkillListing, str]],
        is_active: Callable[[str], bool],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._listings = tuple(listings)
        self._is_active = is_active
        self._refuse = refuse

    def toolkits(self) -> list[Toolkit]:
        """Return the viewer of the active skills; nothing for a turn without skills."""
        return [viewer_of(self._active, self._check)] if self._listings else []

    def prompt(self) -> str:
        """Return the listing of the active skills; empty without any."""
        return "\n\n".join(filter(None, (each.prompt() for each in self._active())))

    def _active(self) -> list[SkillListing]:
        return [listing for listing, group in self._listings if self._is_active(group)]

    def _check(self, name: str) -> None:
        """Raise `ToolInactive` for a skill that only inactive groups have."""
        inactive = [each for each in self._listings if not self._is_active(each[1])]
        if not inactive or any(has_skill(each, name) for each in self._active()):
            return
        for listing, group in inactive:
            if has_skill(listing, name):
                self._refuse(f"the skill {name}", group)
