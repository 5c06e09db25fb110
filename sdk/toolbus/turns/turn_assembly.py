"""Which tools a turn has: local toolkits, required ones, those built for it, and all public ones.

Every toolkit has one name in the turn, its own or its alias.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from toolbus.auth.grants import ToolRights
from toolbus.auth.participant_names import addressed_name
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import InvalidArguments
from toolbus.hosting.in_process import InProcessToolkit
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import KnownManifests, ToolkitInfo, ToolkitProxy
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.builders import (
    ToolkitRequest,
    build_toolkits,
    read_configs,
    run_concurrently,
)
from toolbus.turns.model_tools import Trust
from toolbus.turns.tool_groups import ActiveGroups
from toolbus.turns.turn_calls import (
    Dispatch,
    LocalDispatch,
    RemoteDispatch,
    TurnEntry,
    TurnFacts,
)
from toolbus.turns.turn_options import TurnOptions, TurnScope
from toolbus.turns.turn_toolkits import LocalToolkit, RequiredToolkit, available_toolkits
from toolbus.turns.turn_tools import CallsByName, NamingTool
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["ToolkitNames", "TurnAssembly", "tool_infos"]

_logger = bounded_logger("toolbus.turns.turn")
_THIS_PROCESS = "this process"
_ANOTHER = "another participant"


class TurnAssembly:
    """The toolkits of one turn: finds, builds and starts them, and lists their tools.

    Raises `ValueError` if two toolkits have one name.
    """

    def __init__(self, options: TurnOptions, groups: ActiveGroups) -> None:
        self._options = options
        self._groups = groups
        self._always = (*options.always, *groups.toolkits)
        self._required = (*options.required, *groups.required)
        self._builders = (*options.builders, *groups.builders)
        self._names = ToolkitNames(self._always, self._required)
        self._entries: dict[str, TurnEntry] = {}

    async def assemble(
        self, stack: AsyncExitStack, scope: TurnScope, facts: TurnFacts
    ) -> dict[str, TurnEntry]:
        """Find, build and start the toolkits, and return their tools by name, as they are listed.

        Raises what entering a `Turn` raises.
        """
        options = self._options
        client = scope.client
        wanted = read_configs(
            self._builders,
            options.tools,
            granted=scope.builders,
            # What a tool itself asks for is not the request of those for whom it runs.
            limits_objects=options.context is None,
        )
        proxies = [] if client is None else await self._find_required(client)
        built = await build_toolkits(scope.view(), options.model, wanted)
        self._names.add_built(built, wanted)
        self._groups.add_built(built, wanted)
        present = {proxy.info.name for proxy in proxies if proxy.info.public}
        facts.shown_definitions.toolkits.update(self._names.all, present)
        # A newer token may have come meanwhile.
        rights = None if client is None else ToolRights(client.grants.agents)
        found: list[ToolkitProxy] = []
        if options.available and client is not None and rights is not None:
            found = await available_toolkits(client, rights, proxies)
        for local in self._always:
            await self._add_local(stack, scope, facts, local)
        for needed, proxy in zip(self._required, proxies, strict=True):
            await self._add_remote(scope, rights, proxy, needed)
        for toolkit in built:
            await self._add_local(stack, scope, facts, toolkit)
        for proxy in self._names.add_available(found):
            await self._add_remote(scope, rights, proxy)
        return self._entries

    async def _find_required(self, client: RoomClient) -> list[ToolkitProxy]:
        """Wait for the required toolkits, and learn their owners."""
        rights = ToolRights(client.grants.agents)
        proxies = await run_concurrently([needed.find(client, rights) for needed in self._required])
        for needed, proxy in zip(self._required, proxies, strict=True):
            self._names.learn(needed.alias or needed.name, proxy.info.full_owner)
        return proxies

    async def _add_local(
        self,
        stack: AsyncExitStack,
        scope: TurnScope,
        facts: TurnFacts,
        local: Toolkit | LocalToolkit,
    ) -> None:
        """Start a local toolkit and list its tools."""
        toolkit = local.toolkit if isinstance(local, LocalToolkit) else local
        own = (
            *self._always,
            *(builder for builder in self._builders if isinstance(builder, Toolkit)),
        )
        is_own = any(local is other for other in own)
        here = InProcessToolkit.of(toolkit)
        await stack.enter_async_context(here.started(scope.client if is_own else scope.view()))
        state = partial(self._options.state.of, local.name)
        naming = {
            tool.name: CallsByName(tool, scope.view(), facts.shown_definitions)
            for tool in toolkit.tools
            if isinstance(tool, NamingTool)
        }
        workdirs = toolkit.workdirs
        if not workdirs and self._options.permissions is not None:
            workdirs = tuple(map(os.path.realpath, self._options.permissions.workdirs))
        for info in tool_infos(here.manifest, here.manifest.tools, local.name):
            dispatch = LocalDispatch(here, info.tool, facts, state)
            self._add(replace(info, workdirs=workdirs), dispatch, naming.get(info.tool))

    async def _add_remote(
        self,
        scope: TurnScope,
        rights: ToolRights | None,
        proxy: ToolkitProxy,
        needed: RequiredToolkit | None = None,
    ) -> None:
        """List the tools of a toolkit elsewhere."""
        client = scope.client
        room = scope.view()
        assert client is not None, "as the toolkit was found"
        assert room is not None
        assert rights is not None
        manifest = proxy.manifest
        wanted = None if needed is None else needed.tools
        name = (needed and needed.alias) or manifest.name
        # The participant that is judged and shown as the owner is the one that is called: another
        # one could host the same definition under the same name meanwhile.
        participant = addressed_name(proxy.info.owner, proxy.info.alias)
        tools = await _usable_tools(
            connection_of(client).manifests,
            proxy.info.digest,
            _callable_tools(rights, manifest, wanted),
        )
        for info in tool_infos(manifest, tools, name, proxy.info):
            target = f"{manifest.name}.{info.tool}"
            dispatch = RemoteDispatch(room, target, participant, proxy.info.digest)
            self._add(info, dispatch)

    def trust(self, scope: TurnScope) -> Trust:
        """Return whose words are instructions in the turn."""
        pinned = {needed.pin for needed in self._required if needed.pin is not None}
        if scope.client is not None:
            pinned |= connection_of(scope.client).caller.pinned
        return Trust(scope.agent, self._options.permissions, pinned)

    def _add(self, info: ToolInfo, dispatch: Dispatch, naming: CallsByName | None = None) -> None:
        group = self._groups.of_toolkit(info.toolkit)
        self._entries[info.name] = TurnEntry(info, dispatch, group, naming)


class ToolkitNames:
    """The toolkit names of one turn, each with the owner of its toolkit.

    Args:
        local: Toolkits of this process.
        required: Toolkits of others, whose owners may not be known yet.

    Raises `ValueError` for two toolkits of one name.
    """

    def __init__(
        self, local: Iterable[Toolkit | LocalToolkit], required: Iterable[RequiredToolkit]
    ) -> None:
        self._owners: dict[str, str] = {}
        owned = [(toolkit.name, _THIS_PROCESS) for toolkit in local]
        owned += [
            (toolkit.alias or toolkit.name, toolkit.participant or _ANOTHER) for toolkit in required
        ]
        for name, owner in owned:
            if (first := self._owners.get(name)) is not None:
                raise ValueError(
                    f"two toolkits of this turn are named {name!r}, one of {first} and one of"
                    f" {owner}: give one another name, RequiredToolkit(..., alias=) or"
                    " LocalToolkit(toolkit, alias)"
                )
            self._owners[name] = owner

    @property
    def all(self) -> set[str]:
        """The names so far, as a set of its own."""
        return {*self._owners}

    def learn(self, name: str, owner: str) -> None:
        """Record the owner of a required toolkit, now that it was found."""
        self._owners[name] = owner

    def add_built(self, built: Sequence[Toolkit], wanted: Sequence[ToolkitRequest]) -> None:
        """Add toolkits that were built. Raises `InvalidArguments` with the path of the request."""
        for toolkit, asked in zip(built, wanted, strict=True):
            if (owner := self._owners.get(toolkit.name)) is not None:
                path = f"{asked.path}/name"
                text = f"{path}: this turn already has a toolkit {toolkit.name}, of {owner}"
                text += f"; the builder {asked.builder.name} of {_THIS_PROCESS} makes another one"
                raise InvalidArguments(text, details={"path": path, "message": text})
            self._owners[toolkit.name] = _THIS_PROCESS

    def add_available(self, found: Iterable[ToolkitProxy]) -> Iterator[ToolkitProxy]:
        """Add toolkits of the room, and yield those that were added.

        One whose name is taken is left out, with a warning: else any participant could
        keep an agent from starting by the name of a toolkit.
        """
        for proxy in found:
            name, owner = proxy.info.name, proxy.info.full_owner
            if (first := self._owners.setdefault(name, owner)) == owner:
                yield proxy
            else:
                _logger.warning(
                    "the turn leaves out the toolkit %s of %s: it has one of %s; add it with"
                    " RequiredToolkit(%r, participant=..., alias=...)",
                    *(name, owner, first, name),
                )


def _callable_tools(
    rights: ToolRights, manifest: ToolkitManifest, wanted: Sequence[str] | None
) -> list[ToolManifest]:
    """Return the wanted tools of a toolkit elsewhere, or all, that may be called; log others."""
    asked = [tool for tool in manifest.tools if not wanted or tool.name in wanted]
    found = [tool for tool in asked if rights.may_call(manifest.name, tool.name)]
    if len(found) < len(asked):
        names = ", ".join(tool.name for tool in asked if tool not in found)
        _logger.warning(
            "the turn leaves out tools of %s that its token may list but not call: %s "
            "(agents.call)",
            *(manifest.name, names),
        )
    elif not wanted and rights.may_hide(manifest.name):
        _logger.info(
            "the token of the turn may hide tools of %s (agents.allow: %s; agents.deny: %s)",
            *(manifest.name, ", ".join(rights.grant.allow)),
            ", ".join(rights.grant.deny) or "none",
        )
    return found


async def _usable_tools(
    known: KnownManifests, digest: str, tools: Iterable[ToolManifest]
) -> list[ToolManifest]:
    """Return tools of a toolkit elsewhere with schemas that compile here, as models need them.

    The room does not check schemas. The loop serves others after each tool that is new here.
    """
    found: list[ToolManifest] = []
    for tool in tools:
        usable = known.usable(digest, tool.name)
        if usable is None:
            usable = known.keep_usable(digest, tool)
            await asyncio.sleep(0)
        found.append(usable)
    return found


def tool_infos(
    manifest: ToolkitManifest,
    tools: Iterable[ToolManifest],
    name: str,
    info: ToolkitInfo | None = None,
) -> Iterator[ToolInfo]:
    """Describe tools as the turn shows them."""
    of = {"own_toolkit": manifest.name}
    if name != manifest.name:
        manifest = manifest.model_copy(update={"name": name})
    if info is not None:
        of |= {"owner": info.owner, "issuer": info.issuer, "alias": info.alias}
        of["digest"] = info.digest
    for tool in tools:
        yield ToolInfo.of(manifest, tool, **of)
