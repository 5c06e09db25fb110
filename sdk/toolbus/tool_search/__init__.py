"""Finding tools where a room has more of them than a prompt holds.

    room        listing, digests, events
    ToolSearch  what the agent's token may call of it, in an index of names and words
    `tools`     the toolkit with which a model searches, describes and calls

`tools.call` only names a tool: the turn calls that one in its place
(`toolbus.turns.turn_tools`).
"""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.tool_search.tool_search import ToolSearch as ToolSearch

_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
