"""The tools of one turn of an agent: its own, those of others, and those built for this turn.

A turn is made for one message and ends with it. It does not use a model: it lists tools with their
schemas and runs the calls that the agent chooses. It calls on behalf of the sender, so a message
can do no more than its sender may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Never, Self, TypeAlias, TypeVar

from toolbus.agents.builders import (
    AnyBuilder,
    ToolkitConfig,
    ToolkitRequest,
    build_toolkits,
    read_configs,
    run_concurrently,
)
from toolbus.agents.required_toolkit import RequiredToolkit
from toolbus.auth.grants import ToolRights
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.json_values import cut, shown
from toolbus.client.call_options import call_seconds
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArguments,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from toolbus.hosting.in_process import InProcessCall, InProcessToolkit
from toolbus.room.call_form import (
    argument_mapping,
    merged_arguments,
    refuse_misplaced,
    tool_parts,
)
from toolbus.room.participants import Message
from toolbus.room.room import Room
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import ToolkitProxy
from toolbus.tools.tool_run import Participant
from toolbus.tools.toolkit import Toolkit
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = [
    "Turn",
    "TurnTool",
]


@dataclass(frozen=True, slots=True)
class TurnTool:
    """A tool that a turn can call, with its description for a model."""

    name: str
    """`toolkit.tool`."""
    description: str
    input_schema: dict[str, Any]
    """A JSON Schema of the arguments. Not to be changed."""
    toolkit: str
    tool: str
    title: str = ""
    """A title for humans."""
    rules: tuple[str, ...] = ()
    """How a model should use the tool, written by its author."""
    toolkit_rules: tuple[str, ...] = ()
    """How a model should use the tools of its toolkit together: the same for each of them."""
    read_only: bool = False
    """Its author declares that it changes nothing."""

    @classmethod
    def of(cls, toolkit: ToolkitManifest, tool: ToolManifest) -> TurnTool:
        """Make one from a toolkit's manifest and that of one of its tools."""
        return cls(
            f"{toolkit.name}.{tool.name}",
            tool.description,
            tool.input_schema,
            toolkit.name,
            tool.name,
            title=tool.title,
            rules=tool.rules,
            toolkit_rules=toolkit.rules,
            read_only=tool.read_only,
        )


T = TypeVar("T")

_logger = bounded_logger(__name__)
_END_S = 5.0
_OPTIONS = ("timeout_s",)
"""The options of `Turn.invoke`."""


_Run: TypeAlias = Callable[[str, dict[str, Any], float], Coroutine[Any, Any, Chunk]]
"""Runs a tool of one toolkit, given its name, its arguments and a timeout in seconds."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tool of the turn, and the function that runs it with arguments and a timeout."""

    shown: TurnTool
    run: Callable[[dict[str, Any], float], Coroutine[Any, Any, Chunk]]


class Turn:
    """The tools of an agent while it answers one message: `async with Turn(room, ...) as turn:`.

    Entering checks the requested configs, waits for required toolkits, builds the requested ones
    concurrently, and starts the local tools. Leaving cancels running calls and stops the tools in
    reverse order, also when entering fails part-way. A toolkit that several turns use at a time is
    started by the first and stopped by the last of them. A turn is entered once.

    A message is passed as it was received: `Turn(room, message=message)`. Only toolkits that its
    sender's grant `builders` covers are built, and, unless the sender is the agent, all calls in
    the room are made on its behalf: by the turn, by a builder, and by a local tool through
    `context.room`. That needs the grant `act_for`, and the sender must be connected. A local tool
    gets the same context as a remote one: the agent is its `caller`, the sender its
    `on_behalf_of`. The grants of the room's own token limit the tools of required toolkits: those
    that it may not call are left out, and a line in the log names them, or the patterns that may
    hide some. They do not limit local tools.

    Without a message the agent acts for itself, with all its grants. Then JSON written by others
    is refused: `tools` are configs that this program made.

    Args:
        room: The agent's room, entered; not the `context.room` of a running tool.
        message: The message to answer; its body's `tools` are the requested configs, as JSON.
        always: Local toolkits that are in every turn. Their tools, like those of a toolkit that is
            its own builder, are started with the agent's room.
        required: Toolkits of others; of one that names tools, only those are listed.
        builders: The available builders.
        tools: Without a message, the agent's own requests: objects of its builders' types. With
            one, the requests of the message if they are not its body's `tools`; they too are
            limited by the sender's grant.
        model: Passed to the builders.

    Raises `ValueError` if two of `always` and `required` have one name, and `TypeError` for a room
    that is not a `RoomClient`, a message that is not a `Message`, JSON without a message, and
    anything but toolkits in `always` and `required`.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        room: RoomClient,
        *,
        message: Message | None = None,
        always: Iterable[Toolkit] = (),
        required: Iterable[RequiredToolkit] = (),
        builders: Iterable[AnyBuilder] = (),
        tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None = None,
        model: Any = None,
    ) -> None:
        if not isinstance(room, RoomClient):
            raise TypeError(f"a turn is made with an agent's RoomClient, not {type(room).__name__}")
        self._room = room
        self._always = _checked_toolkits("always", always, Toolkit)
        self._required = _checked_toolkits("required", required, RequiredToolkit)
        self._builders = tuple(builders)
        self._asked = _asked_for(message, tools)
        self._sender = None if message is None else message.sender
        self._granted = None if message is None else message.builders
        self._model = model
        self._taken = _names_taken((*self._always, *self._required))
        self._entries: dict[str, _Entry] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._stack: AsyncExitStack | None = None
        self._is_used = False

    async def __aenter__(self) -> Self:
        """Check configs, wait for required toolkits, build and start.

        Raises:
            RuntimeError: The turn was entered before.
            InvalidArguments: A config is invalid, or makes a toolkit whose name is taken; its path
                begins with `/tools`.
            NotFound: There is no builder for an entry, or a required toolkit is missing.
            PermissionDenied: The sender may not request it.
            Exception: The exception of a builder, or of the `start` of a tool.
        """
        if self._is_used:
            raise RuntimeError("a turn can be entered once: make a new one for the next message")
        self._is_used = True
        self._self = self._room.me
        self._principal = _principal(self._self, self._sender)
        wanted = read_configs(self._builders, self._asked, granted=self._granted)
        proxies = await run_concurrently([each.find(self._room) for each in self._required])
        built = await build_toolkits(self._view(), self._model, wanted)
        self._check_names(built, wanted)
        async with AsyncExitStack() as stack:
            here = await self._start(stack, built)
            stack.push_async_callback(self._end_calls)
            self._list(here, proxies)
            self._stack = stack.pop_all()
        return self

    async def _start(
        self, stack: AsyncExitStack, built: Sequence[Toolkit]
    ) -> list[InProcessToolkit]:
        """Start the local toolkits: those of `always`, then those that were built."""
        here: list[InProcessToolkit] = []
        own = (*self._always, *(each for each in self._builders if isinstance(each, Toolkit)))
        for toolkit in (*self._always, *built):
            is_own = any(toolkit is each for each in own)
            room = self._room if is_own else self._view()
            here.append(InProcessToolkit.of(toolkit))
            await stack.enter_async_context(here[-1].started(room))
        return here

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    @property
    def tools(self) -> tuple[TurnTool, ...]:
        """The callable tools: those of `always`, then `required`, then those built."""
        return tuple(entry.shown for entry in self._entries.values())

    async def call(
        self, tool: str, arguments: Any = None, /, *misplaced: Never, **named: Any
    ) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value; raises as `invoke`.

        Arguments are a mapping or keywords, never both. Options are for `invoke`.
        """
        if misplaced:
            refuse_misplaced("call", tool, (arguments, *misplaced), {}, ())
        chunk = await self.invoke(tool, merged_arguments(tool, arguments, named, _OPTIONS))
        return chunk.value

    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        timeout_s: float | None = None,
        **unknown: Never,
    ) -> Chunk:
        """Call a tool of this turn and return its chunk.

        A remote toolkit is pinned to the definition that this turn has read. Local and remote tools
        raise the same errors.

        Args:
            tool: `toolkit.tool`, one of `tools`.
            arguments: Values by parameter.
            misplaced: Takes nothing, as in `Room.invoke`.
            timeout_s: Seconds within which the call ends; 60 by default.
            unknown: Takes nothing, as in `Room.invoke`.

        Raises:
            NotFound: The tool is not in this turn.
            InvalidArguments: Its name is not text, or an argument or option is invalid.
            Unavailable: The turn is not entered, or has ended.
            DeadlineExceeded: There was no result in time.
            Cancelled: The turn ended before the call did.
            RoomException: Any other error; `executed` tells whether the tool ran.
        """
        if misplaced or unknown:
            refuse_misplaced("invoke", tool, (arguments, *misplaced), unknown, _OPTIONS)
        if self._stack is None:
            text = "the turn has ended" if self._is_used else "the turn is not entered"
            raise Unavailable(text, executed="no", retryable=False)
        if not isinstance(tool, str):
            tool_parts(tool)  # raises
        entry = self._entries.get(tool)
        if entry is None:
            raise _not_in_turn(tool, self._entries)
        values = argument_mapping("invoke", tool, arguments)
        seconds = call_seconds(timeout_s)
        if seconds <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        return await self._tracked(entry.run(dict(values), seconds))

    # Assembly

    def _view(self, deadline_at: float | None = None) -> Room:
        return Room(self._room._core, self._room._parent, deadline_at, self._principal)

    def _check_names(self, built: Sequence[Toolkit], wanted: Sequence[ToolkitRequest]) -> None:
        for toolkit, asked in zip(built, wanted, strict=True):
            if toolkit.name in self._taken:
                path = f"{asked.path}/name"
                text = f"{path}: this turn already has a toolkit {toolkit.name}"
                raise InvalidArguments(text, details={"path": path, "message": text})
            self._taken.add(toolkit.name)

    def _list(self, here: Sequence[InProcessToolkit], proxies: Sequence[ToolkitProxy]) -> None:
        always = len(self._always)
        for local in here[:always]:
            self._add(local.manifest, local.manifest.tools, partial(self._run_here, local))
        for needed, proxy in zip(self._required, proxies, strict=True):
            run = partial(self._run_elsewhere, needed, proxy.info.digest)
            self._add(proxy.manifest, self._callable(needed, proxy.manifest), run)
        for local in here[always:]:
            self._add(local.manifest, local.manifest.tools, partial(self._run_here, local))

    def _callable(self, needed: RequiredToolkit, manifest: ToolkitManifest) -> list[ToolManifest]:
        """Return the tools of a required toolkit that may be called; log which may not."""
        grant = self._room.grants.agents
        rights = ToolRights(grant)
        wanted = [each for each in manifest.tools if not needed.tools or each.name in needed.tools]
        found = [each for each in wanted if rights.may_call(manifest.name, each.name)]
        if len(found) < len(wanted):
            names = ", ".join(each.name for each in wanted if each not in found)
            _logger.warning(
                "the turn leaves out tools of %s that its token may list but not call: %s "
                "(agents.call)",
                *(manifest.name, names),
            )
        elif not needed.tools and rights.may_hide(manifest.name):
            _logger.info(
                "the token of the turn may hide tools of %s (agents.allow: %s; agents.deny: %s)",
                *(manifest.name, ", ".join(grant.allow), ", ".join(grant.deny) or "none"),
            )
        return found

    def _add(self, manifest: ToolkitManifest, tools: Iterable[ToolManifest], run: _Run) -> None:
        for tool in tools:
            shown = TurnTool.of(manifest, tool)
            self._entries[shown.name] = _Entry(shown, partial(run, tool.name))

    # Running

    async def _run_here(
        self, local: InProcessToolkit, tool: str, arguments: dict[str, Any], timeout_s: float
    ) -> Chunk:
        principal = None if self._principal is None else self._sender
        call = InProcessCall(tool, arguments, self._self, principal, timeout_s)
        return await local.run(call, self._view)

    async def _run_elsewhere(
        self,
        needed: RequiredToolkit,
        digest: str,
        tool: str,
        arguments: dict[str, Any],
        timeout_s: float,
    ) -> Chunk:
        chunk: Chunk = await self._view().invoke(
            f"{needed.name}.{tool}",
            arguments,
            participant=needed.participant,
            timeout_s=timeout_s,
            pin=digest,
        )
        return chunk

    async def _tracked(self, run: Coroutine[Any, Any, Chunk]) -> Chunk:
        """Run a call as a task of the turn, which cancels it at its end."""
        task = asyncio.create_task(run)
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._stack is None and current is not None and not current.cancelling():
                raise Cancelled("the turn has ended") from None
            raise
        finally:
            self._running.discard(task)

    async def _end_calls(self) -> None:
        left = set(self._running)
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=_END_S)
        if left:
            _logger.warning("%d calls of a turn did not end when cancelled", len(left))


def _checked_toolkits(option: str, values: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    """Return the toolkits of an option; TypeError unless it is a list, and all are of `kind`."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{option} must be a list of {kind.__name__}, not {type(values).__name__}")
    toolkits = tuple(values)
    for each in toolkits:
        if not isinstance(each, kind):
            text = f"{kind.__name__}({shown(each)})" if isinstance(each, str) else kind.__name__
            raise TypeError(f"{option} must contain {text}, not {type(each).__name__}")
    return toolkits


def _names_taken(toolkits: Iterable[Toolkit | RequiredToolkit]) -> set[str]:
    taken: set[str] = set()
    for toolkit in toolkits:
        if toolkit.name in taken:
            raise ValueError(f"two toolkits of this turn are named {toolkit.name!r}")
        taken.add(toolkit.name)
    return taken


def _principal(agent: Participant, sender: Participant | None) -> str | None:
    """Return the name on whose behalf the calls of a turn are made; None is the agent itself.

    Raises:
        PermissionDenied: The sender is of another issuer, of which the server gives no alias: its
            bare name would mean a participant of the agent's issuer.
    """
    if sender is None or (sender.name, sender.issuer or agent.issuer) == (agent.name, agent.issuer):
        return None
    if sender.issuer not in ("", agent.issuer) and not sender.alias:
        raise PermissionDenied(
            "the sender is of another issuer, for which the server gives no alias: no calls on its"
            " behalf"
        )
    return sender.full_name


def _asked_for(
    message: Message | None, tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None
) -> Sequence[Mapping[str, Any] | ToolkitConfig] | None:
    """Return the requested configs; those of a message are checked when the turn is entered."""
    if message is None:
        own = tuple(tools or ())
        if not all(isinstance(each, ToolkitConfig) for each in own):
            raise TypeError(
                "without message= tools must be ToolkitConfig objects: pass message= to build"
                " what a sender requests as JSON"
            )
        return own
    if not isinstance(message, Message):
        raise TypeError(f"message must be a Message, not {type(message).__name__}")
    if tools is not None:
        return tools
    return message.body.get("tools") if isinstance(message.body, Mapping) else None


def _not_in_turn(tool: object, present: Iterable[str]) -> NotFound:
    text = f"{shown(tool)} is not in this turn; its tools: {cut(', '.join(present) or 'none')}"
    return NotFound(text)
