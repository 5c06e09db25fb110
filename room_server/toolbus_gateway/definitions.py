"""The definitions of tools in the form of MCP, kept once by digest for all members."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.wire import ToolkitManifest
from toolbus_gateway.limits import MAX_DEFINITION_BYTES
from toolbus_gateway.listing import Listing, Target
from toolbus_gateway.tool_definitions import ToolDefinition

__all__ = ["Definitions"]

_logger = bounded_logger(__name__)
# A manifest may have 1 MiB of schemas, which take seconds: other members are served meanwhile.
_threads = WorkerThreads("gateway-definitions", 1)
_NAMED = 3
"""Tools of one toolkit that the log names of those that are left out."""


@dataclass(slots=True)
class _Known:
    tools: dict[str, ToolDefinition]
    bytes: int


class Definitions:
    """The definitions of toolkits by digest, the least recently used of which are dropped.

    A digest covers a definition as a whole, so that what one member has read is right for all. Who
    may list which of its tools is asked for each member.
    """

    def __init__(self, max_bytes: int = MAX_DEFINITION_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._bytes = 0
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._listings: WeakValueDictionary[tuple[Any, ...], Listing] = WeakValueDictionary()

    @property
    def bytes(self) -> int:
        """The memory of all definitions that are kept."""
        return self._bytes

    def listing(self, definitions: Iterable[ToolDefinition], target: Target) -> Listing:
        """Return the listing of some tools under a path: the same one for all members."""
        tools = tuple(definitions)
        key = (target, tools)
        found = self._listings.get(key)
        if found is None:
            found = self._listings[key] = Listing(tools, target)
        return found

    async def tools_of(
        self, info: ToolkitInfo, describe: Callable[[], Awaitable[ToolkitProxy | None]]
    ) -> list[ToolDefinition]:
        """Return the tools of a toolkit that a member may list.

        Args:
            info: The toolkit as it was listed for the member.
            describe: Reads its manifest; None if it has gone.
        """
        known = self._known.get(info.digest)
        if known is None or not known.tools.keys() >= {*info.tools}:
            proxy = await describe()
            if proxy is None:
                return []
            info = proxy.info
            known = await self._made(info.digest, proxy.manifest)
        if info.digest in self._known:
            self._known.move_to_end(info.digest)
        return [known.tools[name] for name in info.tools if name in known.tools]

    async def _made(self, digest: str, manifest: ToolkitManifest) -> _Known:
        """Make and keep the tools of a manifest, beside those that other members may read."""
        # All members read a toolkit that has changed at once: it is made for the first of them.
        lock = self._making.setdefault(digest, asyncio.Lock())
        async with lock:
            known = self._known.get(digest)
            if known is not None and known.tools.keys() >= {tool.name for tool in manifest.tools}:
                return known
            old = {} if known is None else known.tools
            tools, size = await _threads.run(_tools_of, manifest, old)
            self._keep(digest, made := _Known(tools, size))
        needing = [tool for name, tool in made.tools.items() if tool.needs and name not in old]
        if needing:
            names = ", ".join(f"{tool.tool} ({tool.needs})" for tool in needing[:_NAMED])
            _logger.info(
                "%d tools of %s are not listed for clients of MCP, as a call has to send more than"
                " arguments: %s%s",
                *(len(needing), manifest.name, names, ", ..." if needing[_NAMED:] else ""),
            )
        return made

    def _keep(self, digest: str, made: _Known) -> None:
        old = self._known.pop(digest, None)
        self._known[digest] = made
        self._bytes += made.bytes - (0 if old is None else old.bytes)
        while self._bytes > self._max_bytes and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.bytes


def _tools_of(
    manifest: ToolkitManifest, old: dict[str, ToolDefinition]
) -> tuple[dict[str, ToolDefinition], int]:
    """Return the tools of a manifest beside those that there are, and their memory; on a thread."""
    tools = {**old}
    for tool in manifest.tools:
        if tool.name not in tools:
            tools[tool.name] = ToolDefinition.of(manifest, tool)
    return tools, _memory_of([tool.body for tool in tools.values()])


def _memory_of(bodies: list[dict[str, Any]]) -> int:
    """Return the bytes in memory of JSON values: as much as 60 times those of their text."""
    seen: set[int] = set()
    size = 0
    waiting: list[Any] = [*bodies]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:  # such as the name of a keyword
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return size
