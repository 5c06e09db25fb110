"""Lists of tools on their way to the MCP SDK, which refuses a whole list for one invalid tool.

Here that tool is left out of the list before the SDK reads it, and so is one that the entry of its
server does not show. Nothing else is changed: what is wrong otherwise is for the SDK to refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from toolbus import Omission
from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.credentials.redaction import Redact

__all__ = ["MAX_NAMES", "MAX_TOOLS", "TOO_MANY", "SeenTools", "ToolLists"]

MAX_TOOLS = 1_000
"""Tools of one toolkit."""
MAX_NAMES = 2_000
"""Names of a list that are remembered."""
_METHOD = "tools/list"
_SLICE = 50
"""Tools that are checked in one piece: some milliseconds."""
_MAX_PROBLEMS = 1_000
"""Of one slice: one with more is left as it is."""
_MAX_LOGGED = 20
_MAX_NAME_CHARS = 1_000
_MAX_LEFT_OUT = 2_000
TOO_MANY = f"a toolkit has at most {MAX_TOOLS:,} tools: choose with enabledTools or disabledTools"
"""Why a tool beyond those is left out."""

_logger = bounded_logger(__name__)


@dataclass(slots=True)
class SeenTools:
    """What a list of a server, over all its pages, has beside the tools that come of it."""

    is_shown: Callable[[str], bool]
    """Whether an entry shows a tool, by its name."""
    names: set[str] = field(default_factory=set)
    """The names that were listed, up to `MAX_NAMES`."""
    left_out: list[Omission] = field(default_factory=list)
    """Tools that are shown, and cannot be used."""

    def clear(self) -> None:
        """Forget it, before another list."""
        self.names.clear()
        self.left_out.clear()

    def takes(self, tool: object) -> bool:
        """Note a tool; return whether it is shown, as far as that is known."""
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str):
            return True
        if len(name) > _MAX_NAME_CHARS:  # MCP itself has 128
            self.left_out.append(Omission(name, "its name is too long"))
            return False
        if len(self.names) < MAX_NAMES:
            self.names.add(name)
        return self.is_shown(name)


class ToolLists:
    """Makes the lists of one server readable.

    Args:
        server: Its name, for the log.
        version: Returns the version of MCP that is spoken; called with the first list.
        redact: Removes credentials from what is logged.
        seen: Takes what is left out, and says which tools are shown.
    """

    def __init__(
        self, server: str, version: Callable[[], str], redact: Redact, seen: SeenTools
    ) -> None:
        self._server = server
        self.version = version
        self._redact = redact
        self._seen = seen
        self._logged = set[str]()

    async def leave_out_invalid(self, result: dict[str, Any]) -> None:
        """Remove what is not shown, what is invalid, and what is beyond the tools of a toolkit."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return
        valid: list[Any] = []
        for start in range(0, len(tools), _SLICE):
            found = [tool for tool in tools[start : start + _SLICE] if self._seen.takes(tool)]
            if len(valid) > MAX_TOOLS:
                self._seen.left_out += (self._left_out(tool, TOO_MANY) for tool in found)
            else:
                valid += self._valid({**result, "tools": found})
            await asyncio.sleep(0)
            if len(self._seen.left_out) > _MAX_LEFT_OUT:
                self._log(f"a list of {len(tools):,} tools is not read to its end")
                unread = len(tools) - start - _SLICE
                if unread > 0:
                    name = f"the last {unread:,} of the list"
                    self._seen.left_out.append(Omission(name, "the list is not read to its end"))
                break
        result["tools"] = valid

    def _valid(self, part: dict[str, Any]) -> list[Any]:
        """Return the valid tools of a part of a list."""
        while problems := self._problems(part):  # what one check has passed another may refuse
            tools = part["tools"]
            self._seen.left_out += (
                self._left_out(tools[place], why) for place, why in problems.items()
            )
            part["tools"] = [tool for i, tool in enumerate(tools) if i not in problems]
        return list(part["tools"])

    def _log(self, words: str) -> None:
        # Once, and not for each list; and a server that changes its words is heard so often only.
        if words not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(words)
            _logger.warning("MCP server %s: %s", self._server, words)

    def _problems(self, result: dict[str, Any]) -> dict[int, str]:
        """Return why tools of a result are invalid, by their places in it."""
        try:
            parse_server_result(_METHOD, self.version(), result)
        except ValidationError as error:
            if error.error_count() > _MAX_PROBLEMS:
                return {}
            found: dict[int, str] = {}
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            for problem in problems:
                match problem["loc"]:
                    case ("tools", int(place), *path):
                        where = f"{'.'.join(map(str, path))}: " if path else ""
                        found.setdefault(place, where + problem["msg"])
            return found
        except (KeyError, ValueError):  # of a version that has no such list
            pass
        return {}

    def _left_out(self, tool: object, reason: str) -> Omission:
        name = tool.get("name") if isinstance(tool, dict) else None
        shown = self._redact(name) if isinstance(name, str) else "one without a name"
        return Omission(shown, self._redact(reason))
