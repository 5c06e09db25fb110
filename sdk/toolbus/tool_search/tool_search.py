"""`ToolSearch`: the tools of a room for an agent that finds them by searching.

`ToolBudget` decides for each turn whether the tools of the room are in it, or the search is.
It is filled from the room's list when it starts. Then each event about a toolkit makes it read the
definition of that toolkit again, and after a reconnect it compares the list with what it knows, by
digests. Nothing is asked for at intervals.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import count, islice
from typing import Any

from toolbus.auth.grants import AgentsGrant, ToolRights
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import NotFound, PermissionDenied, RoomException, Unavailable
from toolbus.models.token_usage import BYTES_PER_TOKEN
from toolbus.room.events import EventStream, RoomEvent
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.tool_search.search_toolkit import FoundTools, search_toolkit
from toolbus.tool_search.tool_index import IndexedTool, ToolIndex, as_name, full_names
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.model_tools import Trust, quoted
from toolbus.turns.turn_assembly import tool_infos
from toolbus.turns.turn_toolkits import (
    DESCRIBED_AT_A_TIME,
    LocalToolkit,
    RequiredToolkit,
    described,
    usable_toolkits,
)
from toolbus.turns.turn_tools import ProviderNames
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["ToolBudget", "ToolSearch", "definition_bytes"]


_logger = bounded_logger(__name__)
_threads = WorkerThreads("tool-search", 2)
_MAX_BYTES = 64 * 1024 * 1024
"""Of all manifests in memory."""
_MAX_COMPARED = 1_000
"""Names that an unknown one is compared with, 10 us for each."""
_NEAR = 3
"""How many near names a model reads in place of a wrong one."""


def definition_bytes(tool: ToolInfo, trust: Trust) -> int:
    """Return about how many bytes the definition of a tool has in a request to a model."""
    description = tool.description if trust.of_tool(tool) else quoted(tool.description, tool)
    shown = {
        "name": ProviderNames([tool.name]).name_of(tool.name),
        "description": description,
        "input_schema": tool.input_schema,
    }
    return len(
        json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    )


@dataclass(frozen=True, slots=True)
class _KnownToolkit:
    """A toolkit whose tools can be found."""

    proxy: ToolkitProxy
    tools: dict[str, ToolManifest]
    """Those that may be called."""
    sizes: dict[str, int]
    """The bytes of the definition of each."""
    manifest_bytes: int
    """The bytes of the manifest."""

    @property
    def bytes(self) -> int:
        """The bytes of all definitions."""
        return sum(self.sizes.values())

    def is_of(self, info: ToolkitInfo) -> bool:
        """Whether it is still what was listed now."""
        own = self.proxy.info
        now = (info.digest, info.tools, info.owner, info.issuer, info.alias)
        return (own.digest, own.tools, own.owner, own.issuer, own.alias) == now


class ToolSearch:
    """The tools of the public toolkits of a room that an agent may call, to be searched.

        tools = ToolSearch()
        await tools.start(room)
        async with Turn(room, always=[tools.toolkit]) as turn:
            ...
        await tools.stop()

    These are the tools that `Turn(room, available=True)` has, for any principal; whether a
    call may be made is decided for its principal when it is made.

    Args:
        max_tools: The most tools that are known. Toolkits beyond them are left out, which the log
            and the results of `tools.search` say.
    """

    def __init__(self, *, max_tools: int = 20_000) -> None:
        self._max_tools = max_tools
        self._room: RoomClient | None = None
        self._index: ToolIndex | None = None
        self._known: dict[str, _KnownToolkit] = {}
        self._names: dict[str, tuple[str, str]] = {}
        """Toolkit and tool by the full names of a tool, as they are and in lower case."""
        self._count = 0
        self._bytes = 0
        """Of all definitions, as a model would be shown them."""
        self._manifest_bytes = 0
        """Bytes of all manifests."""
        self._left_out: dict[str, None] = {}
        self._grants: AgentsGrant | None = None
        self._rights = ToolRights(AgentsGrant())
        self._changing = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._comparing: asyncio.Task[None] | None = None
        self._has_new_rights = False
        self.toolkit: Toolkit = search_toolkit(self)
        """The toolkit `tools`, with `search`, `describe` and `call`, for `Turn(always=)`."""

    async def start(self, room: RoomClient) -> None:
        """Read the definitions of the room's toolkits, and follow their changes from now on.

        An agent whose token may not use tools finds none.

        Args:
            room: The agent's room, entered.

        Raises `RuntimeError` if it was started before, and `RoomException` if the room cannot be
        listed.
        """
        if self._room is not None:
            raise RuntimeError("this ToolSearch was started before")
        self._room = room
        self._index = await _threads.run(ToolIndex)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._clear)
            try:
                events = await stack.enter_async_context(room.events(["toolkits"]))
            except PermissionDenied as error:
                _logger.info("no tools can be searched: %s", error.message)
            else:
                await self._compare()
                following = asyncio.create_task(self._follow(events), name="toolbus-tool-search")
                stack.push_async_callback(_ended, following)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stop following changes, and free the memory."""
        await self._stack.aclose()

    async def _clear(self) -> None:
        if self._comparing is not None:
            await _ended(self._comparing)
        index, self._index = self._index, None
        self._room = None
        self._grants = None
        self._known.clear()
        self._names.clear()
        self._left_out.clear()
        self._count = self._bytes = self._manifest_bytes = 0
        if index is not None:
            await _threads.run(index.close)

    # What there is

    @property
    def tokens(self) -> int:
        """About how many tokens the definitions of all tools would take in a prompt."""
        return self.tokens_beside(())

    def tokens_beside(self, toolkits: Collection[str]) -> int:
        """Return the tokens of all tools but those of some toolkits, which a prompt has anyway."""
        self._check_rights()
        others = self._bytes - sum(
            self._known[name].bytes for name in {*toolkits} & self._known.keys()
        )
        return others // BYTES_PER_TOKEN

    async def search(self, query: str, limit: int, hidden: Collection[str] = ()) -> FoundTools:
        """Find tools by names and words; see `ToolIndex.search`.

        Args:
            query: Any text; an empty one lists the tools by name.
            limit: The most tools that are returned.
            hidden: Toolkits whose tools are left out.

        Raises `Unavailable` if it is not started, and where only names can be found (no FTS5).
        """
        self._check_rights()
        found = await _threads.run(self._started().search, query, limit, hidden)
        tools = [self._info(*names) for names in found.tools]
        # What has gone meanwhile is not there any more.
        return FoundTools([tool for tool in tools if tool], found.more, len(self._left_out))

    def find(self, name: str) -> ToolInfo:
        """Return a tool by its name, `toolkit.tool` or that for providers.

        Raises:
            NotFound: There is none; near names are in the message.
            Unavailable: It is not started.
        """
        self._check_rights()
        index = self._started()
        names = self._names.get(name) or self._names.get(as_name(name[:SHOWN_CHARS]))
        if names is not None and (found := self._info(*names, is_usable=True)) is not None:
            return found
        near = self._near(index, name)
        hint = f"near names: {', '.join(near)}" if near else "search for it"
        asked = one_line(name, SHOWN_CHARS)
        raise NotFound(f"there is no tool {asked}; {hint}", details={"near": near})

    def tools_of(self, toolkit: str) -> list[str]:
        """Return the names of the tools of a toolkit; none if it is not known."""
        if toolkit not in self._known:
            return []
        return [f"{toolkit}.{tool}" for tool in self._known[toolkit].tools]

    def _near(self, index: ToolIndex, name: str) -> list[str]:
        """Return names that a wrong one may mean: written nearly so, or with the same words."""
        asked = name[:SHOWN_CHARS].replace("__", ".", 1)
        toolkit = asked.partition(".")[0]
        names: Iterable[str] = self.tools_of(toolkit) or (
            f"{kit}.{tool}" for kit, known in self._known.items() for tool in known.tools
        )
        names = list(islice(names, _MAX_COMPARED))
        found = get_close_matches(asked, names, n=_NEAR, cutoff=0.75)
        found += (f"{toolkit}.{tool}" for toolkit, tool in index.near(name, _NEAR))
        return list(dict.fromkeys(found))[:_NEAR]

    def _info(self, toolkit: str, tool: str, *, is_usable: bool = False) -> ToolInfo | None:
        """Describe a tool; None if it has gone, or may not be called any more.

        With `is_usable` its schemas have to compile here, which takes 200 ms at most.
        """
        known = self._known.get(toolkit)
        if known is None or tool not in known.tools or not self._rights.may_call(toolkit, tool):
            return None
        manifest = known.tools[tool]
        info = known.proxy.info
        if is_usable and self._room is not None:
            manifests = connection_of(self._room).manifests
            usable = manifests.usable(info.digest, tool)
            manifest = usable or manifests.keep_usable(info.digest, manifest)
        return next(tool_infos(known.proxy.manifest, [manifest], toolkit, info))

    def _started(self) -> ToolIndex:
        if self._index is None:
            text = "the tools of the room are not known here: start the ToolSearch before"
            raise Unavailable(text, executed="no", retryable=False)
        return self._index

    def _check_rights(self) -> None:
        """Take the grants of a newer token, and list the room again if they differ."""
        if self._room is None:
            return
        grants = self._room.grants.agents
        if grants == self._grants:
            return
        is_first = self._grants is None
        self._grants = grants
        self._rights = ToolRights(grants)
        if is_first:
            return
        self._has_new_rights = True  # also while the room is listed because of others
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._compare_anew())

    # What changes

    async def _follow(self, events: EventStream[RoomEvent]) -> None:
        """Keep up with the room until it is left."""
        async for event in events:
            try:
                if event.toolkit is None:  # "reconnected", or "missed"
                    await self._compare()
                else:
                    await self._read(event.toolkit.name)
            except RoomException as error:
                # A lost connection: what follows is "reconnected".
                _logger.info("the tools of the room are not known for now: %s", error.message)
            except Exception:
                _logger.exception("the tools of the room cannot be followed")

    async def _compare_anew(self) -> None:
        try:
            while self._has_new_rights:
                await self._compare()
        except RoomException as error:
            # A lost connection: what follows is "reconnected".
            _logger.info("the tools of the room are not known for now: %s", error.message)

    async def _compare(self) -> None:
        """Read the toolkits of the room that are new or have changed, and forget those that went.

        With new rights it reads all, since other tools of them may be called now.

        Raises `RoomException` if the room cannot be listed.
        """
        room = self._room
        assert room is not None, "it is started"
        async with self._changing:
            self._check_rights()
            is_anew = self._has_new_rights
            self._has_new_rights = False
            try:
                listed = [info async for info in room.toolkits()]
            except BaseException:
                self._has_new_rights = is_anew
                raise
            usable = usable_toolkits(room, self._rights, listed, ())
            self._left_out.clear()
            for name in self._known.keys() - {info.name for info in usable}:
                await self._remove(name)
            changed = iter([info.name for info in usable if is_anew or not self._is_known(info)])
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DESCRIBED_AT_A_TIME, len(usable))):
                    group.create_task(self._read_all(changed))

    def _is_known(self, info: ToolkitInfo) -> bool:
        """Whether a toolkit as it is listed now is what is known of it."""
        known = self._known.get(info.name)
        return known is not None and known.is_of(info)

    async def _read_all(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                await self._read_now(name)
            except RoomException as error:
                _logger.info("the toolkit %s is not known for now: %s", name, error.message)
            except Exception:  # one toolkit must not cost all others
                _logger.exception("the toolkit %s cannot be searched", name)

    async def _read(self, name: str) -> None:
        """Read one toolkit about which there was an event."""
        async with self._changing:
            was_known = name in self._known
            await self._read_now(name)
            while was_known and self._left_out and self._has_place():
                left_out = next(iter(self._left_out))
                del self._left_out[left_out]
                await self._read_now(left_out)
                was_known = left_out in self._known

    async def _read_now(self, name: str) -> None:
        assert self._room is not None, "it is started"
        self._check_rights()
        proxy = await described(self._room, name)
        if proxy is None or self._room is None:
            await self._remove(name)
            return
        tools = {
            tool.name: tool
            for tool in proxy.manifest.tools
            if self._rights.may_call(proxy.info.name, tool.name)
        }
        if not tools:
            await self._remove(name)
            return
        known = self._known.get(name)
        if known is not None and known.is_of(proxy.info) and known.tools.keys() == tools.keys():
            return
        await self._put(proxy, tools)

    async def _put(self, proxy: ToolkitProxy, tools: dict[str, ToolManifest]) -> None:
        name = proxy.info.name
        assert self._room is not None
        assert self._index is not None
        trust = Trust(self._room.me)
        infos = list(tool_infos(proxy.manifest, tools.values(), name, proxy.info))
        sizes, manifest_bytes = await _threads.run(_sizes, proxy.manifest, infos, trust)
        self._forget(name)
        if not self._has_place(len(tools), manifest_bytes):
            if not self._left_out:
                _logger.warning(
                    "the room has more tools than can be searched (%d tools of %d bytes are known):"
                    " %s and others are left out",
                    *(self._count, self._manifest_bytes, name),
                )
            self._left_out[name] = None
            await _threads.run(self._index.remove, name)
            return
        self._known[name] = _KnownToolkit(proxy, tools, sizes, manifest_bytes)
        self._count += len(tools)
        self._bytes += sum(sizes.values())
        self._manifest_bytes += manifest_bytes
        for full_name, names in _full_names(name, tools):
            self._names.setdefault(full_name, names)
        manifest = proxy.manifest
        indexed = [
            IndexedTool(info.tool, info.title, info.description, _tags(info)) for info in infos
        ]
        put = partial(self._index.put, name, manifest.title, manifest.description, indexed)
        await _threads.run(put)

    async def _remove(self, name: str) -> None:
        self._left_out.pop(name, None)
        if name in self._known and self._index is not None:
            self._forget(name)
            await _threads.run(self._index.remove, name)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._count -= len(known.tools)
            self._bytes -= known.bytes
            self._manifest_bytes -= known.manifest_bytes
            for full_name, names in _full_names(name, known.tools):
                if self._names.get(full_name) == names:
                    del self._names[full_name]

    def _has_place(self, tools: int = 1, manifest_bytes: int = 1) -> bool:
        return (
            self._count + tools <= self._max_tools
            and self._manifest_bytes + manifest_bytes <= _MAX_BYTES
        )


def _sizes(
    manifest: ToolkitManifest, infos: Iterable[ToolInfo], trust: Trust
) -> tuple[dict[str, int], int]:
    """Return the bytes of the definition of each tool, and those of its manifest."""
    sizes = {info.tool: definition_bytes(info, trust) for info in infos}
    return sizes, len(manifest.model_dump_json(exclude_defaults=True))


def _full_names(toolkit: str, tools: Iterable[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for tool in tools:
        for name in full_names(toolkit, tool):
            yield name, (toolkit, tool)
            yield name.lower(), (toolkit, tool)


def _tags(info: ToolInfo) -> tuple[str, ...]:
    """Return the tags of a tool and of its toolkit: any JSON may be in `annotations["tags"]`."""
    tags: list[str] = []
    for values in (info.own_annotations.get("tags"), info.toolkit_annotations.get("tags")):
        if isinstance(values, list | tuple):
            tags += [tag for tag in values if isinstance(tag, str)]
    return tuple(tags)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class ToolBudget:
    """Decides for each turn of an agent how it has the public toolkits of its room.

    Only these count, and of them only those that are not required: what an agent has anyway is no
    reason to hide the rest, and is not hidden itself.

    Args:
        tokens: What the definitions of the room's toolkits may take, in tokens.
        local: The agent's own toolkits.
        required: The toolkits of others that it has in each turn.
    """

    def __init__(
        self,
        tokens: int,
        local: Iterable[Toolkit | LocalToolkit],
        required: Iterable[RequiredToolkit],
    ) -> None:
        self._tokens = tokens
        self._tools = ToolSearch()
        needed = tuple(required)
        self._required = {toolkit.name for toolkit in needed}
        taken = {toolkit.name for toolkit in local}
        taken |= {toolkit.alias or toolkit.name for toolkit in needed}
        toolkit = self._tools.toolkit
        name = toolkit.name
        if name in taken:
            others = (f"room_{toolkit.name}{number or ''}" for number in count())
            name = next(other for other in others if other not in taken)
            _logger.warning(
                "the agent has another toolkit %s: the one that searches the room is %s",
                *(toolkit.name, name),
            )
        self._toolkit = LocalToolkit(toolkit, name)

    @asynccontextmanager
    async def following(self, room: RoomClient) -> AsyncIterator[None]:
        """Follow the room while the block runs. Raises as `ToolSearch.start`."""
        await self._tools.start(room)
        try:
            yield
        finally:
            await self._tools.stop()

    def choices(self, always: Iterable[Toolkit | LocalToolkit]) -> dict[str, Any]:
        """Return `available` and `always` for a turn that begins now and always has these."""
        if self._tools.tokens_beside(self._required) <= self._tokens:
            return {"available": True, "always": [*always]}
        return {"available": False, "always": [*always, self._toolkit]}
