"""What a toolkit of somebody else's tools cannot host, and what of their schemas it cannot check.

Both stand in the manifest's annotations, so that every reader of the toolkit can see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolbus.chunks.json_values import plain_json
from toolbus.errors import InvalidResult
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus.wire import BadBody, pack_body
from toolbus.wire.manifest import tool_refusal

if TYPE_CHECKING:
    from toolbus.tools.tool import Tool

__all__ = ["Omission", "entries_in", "entries_of", "fit_tools"]

_MAX_REASON_CHARS = 500
"""It begins with a path in a schema; one of any length would take the room of all others."""
_MAX_ENTRIES = 100
"""Of each list: a manifest has a bound of values too, and each entry takes three."""
# Of each of the two lists: both together take a thirtieth of a manifest. In JSON a quote and a
# backslash are two characters, so both lists stay below what a server allows of these.
_MAX_ENTRIES_CHARS = 16 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Omission:
    """A tool that is not hosted, or a part of its schema that is not checked, and why.

    Control characters in both texts are escaped, and long ones are cut.
    """

    name: str
    """The tool or operation, as its origin names it: one line of at most 200 characters."""
    reason: str
    """One line of at most 500 characters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name, SHOWN_CHARS))
        object.__setattr__(self, "reason", one_line(self.reason, _MAX_REASON_CHARS))


def fit_tools(tools: Iterable[Tool]) -> tuple[list[Tool], list[Omission]]:
    """Split tools into those that a room takes, and those that it would refuse by themselves.

    It takes as long as packing them. A tool whose definition is invalid is left out too.
    """
    fitting: list[Tool] = []
    left_out: list[Omission] = []
    for tool in tools:
        reason = _refusal(tool)
        if reason:
            left_out.append(Omission(str(tool.name), reason))
        else:
            fitting.append(tool)
    return fitting, left_out


def _refusal(tool: Tool) -> str:
    """Return why a room refuses a tool; empty if it does not."""
    try:
        fields = tool.manifest().model_dump(mode="json", exclude_defaults=True)
        packed = pack_body(plain_json(fields))
    except InvalidResult as error:
        return str(error)
    except (ValueError, TypeError, RecursionError) as error:  # BadBody is a ValueError
        return str(error) or "its definition is invalid"
    refused: BadBody | None = tool_refusal(packed)
    if refused is None:
        return ""
    return f"{refused.path}: {refused.reason}" if refused.path else refused.reason


def entries_of(key: str, left_out: Iterable[Omission]) -> dict[str, Any]:
    """Return the annotations that publish a list under a key; none for an empty list.

    They are the same for the same entries in any order, so that replicas have one digest. A list
    that is too long is cut, and `{key}_count` says how many there are.
    """
    ordered = sorted(set(left_out))
    if not ordered:
        return {}
    listed: list[dict[str, Any]] = []
    chars = 0
    for entry in ordered[:_MAX_ENTRIES]:
        fields = asdict(entry)
        chars += len(json.dumps(fields))
        if chars > _MAX_ENTRIES_CHARS:
            break
        listed.append(fields)
    if len(listed) == len(ordered):
        return {key: listed}
    return {key: listed, f"{key}_count": len(ordered)}


def entries_in(annotations: Mapping[str, Any], key: str) -> tuple[tuple[Omission, ...], int]:
    """Read what another participant published under a key, and how many entries there are.

    Any JSON may stand there: what is not as `entries_of` writes it is skipped.
    """
    published = annotations.get(key)
    listed = tuple(
        Omission(entry["name"], entry["reason"])
        for entry in (published if isinstance(published, list) else ())
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("reason"), str)
    )
    count = annotations.get(f"{key}_count")
    return listed, max(len(listed), count) if type(count) is int else len(listed)
