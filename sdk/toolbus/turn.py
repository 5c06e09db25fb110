"""What one turn of an agent can use: toolkits of its own, elsewhere, and made for this turn.

A turn is made for one message and ends with it. It talks to no model: it lists tools with their
schemas and runs the calls that somebody decides on. What it does for a sender it does in the
sender's name, so that a message reaches no further than whoever sent it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias

from toolbus.builders import (
    AnyBuilder,
    ToolkitConfig,
    Wanted,
    build,
    read_configs,
    side_by_side,
)
from toolbus.call_options import call_seconds
from toolbus.chunks import Chunk
from toolbus.context import Participant
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArguments,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from toolbus.grants import ToolRights
from toolbus.local_toolkit import LocalCall, LocalToolkit
from toolbus.people import Message
from toolbus.plain_json import cut
from toolbus.required_toolkit import RequiredToolkit
from toolbus.room import Room
from toolbus.room_client import RoomClient
from toolbus.toolkit import Toolkit
from toolbus.toolkit_proxy import ToolkitProxy
from toolbus.turn_tool import TurnTool
from toolbus.wire import ToolkitManifest

__all__ = ["Turn"]

_logger = logging.getLogger(__name__)
_END_S = 5.0


_Run: TypeAlias = Callable[[str, dict[str, Any], float], Coroutine[Any, Any, Chunk]]
"""Runs a tool of one toolkit: its name, its arguments, its seconds."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tool of the turn, and how it is run: with arguments, within seconds."""

    shown: TurnTool
    run: Callable[[dict[str, Any], float], Coroutine[Any, Any, Chunk]]


class _SenderRoom(Room):
    """A room whose calls are made on behalf of one participant, whoever makes them."""

    __slots__ = ("_principal",)

    def __init__(self, room: Room, principal: str | None, deadline_at: float | None = None) -> None:
        super().__init__(room._core, room._parent, deadline_at)
        self._principal = principal

    async def invoke(self, *named: Any, **options: Any) -> Any:
        if options.get("on_behalf_of") is None:
            options["on_behalf_of"] = self._principal
        return await super().invoke(*named, **options)

    def stream(self, *named: Any, **options: Any) -> Any:
        if options.get("on_behalf_of") is None:
            options["on_behalf_of"] = self._principal
        return super().stream(*named, **options)

    async def explain(self, *named: Any, **options: Any) -> Any:
        if options.get("on_behalf_of") is None:
            options["on_behalf_of"] = self._principal
        return await super().explain(*named, **options)


class Turn:
    """What an agent can use while it answers one message: `async with Turn(room, ...) as turn:`.

    Entering checks what is asked for, waits for what is required, builds side by side what is asked
    for, and starts the tools that run here; leaving ends the calls that are under way and stops the
    tools in reverse order, also when entering fails half-way. A toolkit that several turns use at a
    time is started by the first and stopped by the last of them. A turn is entered once.

    A message is passed as it came: `Turn(room, message=message)`. Only what its sender's grant
    `builders` covers is built, and, unless the sender is the agent, whatever is called in the room
    is called on its behalf: by the turn, by a builder, and by a local tool through `context.room`.
    That needs the grant `act_for`, and the sender's being there. A tool that runs here is told the
    same as one elsewhere: the agent is its `caller`, the sender its `on_behalf_of`. Tools that the
    grants of the room's own token do not let it call are hidden, those that run here too.

    Without a message the agent acts for itself, with all that it may. So what somebody else wrote
    is refused there: `tools` are then configs that this program made, and never JSON.

    Args:
        room: The agent's room, entered; the `context.room` of a running tool is none.
        message: What is answered; its body's `tools` are the configs it asks for, as JSON.
        always: Toolkits that run here and are in every turn. Their tools, like those of a toolkit
            that is its own builder, are started with the agent's room.
        required: Toolkits elsewhere; of one that names tools, those alone are listed.
        builders: Who can be asked for toolkits.
        tools: Without a message, what the agent itself wants: objects of its builders' types. With
            one, what the message asks for, where that is not its body's `tools`; it is held to the
            sender's grant all the same.
        model: Handed to the builders.

    Raises `ValueError` where two of `always` and `required` have one name, and `TypeError` for a
    room that is no `RoomClient`, a message that is none, and JSON without a message.
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
        self._always = tuple(always)
        self._required = tuple(map(_checked_requirement, required))
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
        """Put everything together.

        Raises:
            RuntimeError: The turn was entered before.
            InvalidArguments: A config is wrong, or makes a toolkit whose name is taken; its path
                begins with `/tools`.
            NotFound: Nobody builds what an entry asks for, or a required toolkit is missing.
            PermissionDenied: The sender may not ask for it.
            Exception: What a builder, or the `start` of a tool, raises.
        """
        if self._is_used:
            raise RuntimeError("a turn is entered once: make another one for the next message")
        self._is_used = True
        self._self = self._room.me
        self._principal = _principal(self._self, self._sender)
        wanted = read_configs(self._builders, self._asked, granted=self._granted)
        proxies = await side_by_side([each.find(self._room) for each in self._required])
        built = await build(self._view(), self._model, wanted)
        self._check_names(built, wanted)
        async with AsyncExitStack() as stack:
            here = await self._start(stack, built)
            stack.push_async_callback(self._end_calls)
            self._list(here, proxies)
            self._stack = stack.pop_all()
        return self

    async def _start(self, stack: AsyncExitStack, built: Sequence[Toolkit]) -> list[LocalToolkit]:
        """Start what runs here: those of `always`, then those that were built."""
        here: list[LocalToolkit] = []
        own = (*self._always, *(each for each in self._builders if isinstance(each, Toolkit)))
        for toolkit in (*self._always, *built):
            is_own = any(toolkit is each for each in own)
            room = self._room if is_own else self._view()
            here.append(LocalToolkit.of(toolkit))
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
        """The tools that can be called: always-on ones, then required ones, then those built."""
        return tuple(entry.shown for entry in self._entries.values())

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value; raises as `invoke`."""
        return (await self.invoke(tool, arguments, timeout_s=timeout_s)).value

    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Chunk:
        """Call a tool of this turn and return its chunk.

        A toolkit elsewhere is pinned to the definition that this turn has read. What its tools
        raise is told alike, whether they run here or there.

        Args:
            tool: `toolkit.tool`, one of `tools`.
            arguments: Values by parameter.
            timeout_s: Seconds until the call has ended one way or another; 60 unless given.

        Raises:
            NotFound: The tool is not in this turn.
            Unavailable: The turn is not entered, or has ended.
            DeadlineExceeded: There was no result in time.
            Cancelled: The turn ended before the call did.
            RoomException: Why else there is no result; `executed` says whether the tool ran.
        """
        if self._stack is None:
            words = "the turn has ended" if self._is_used else "the turn is not entered"
            raise Unavailable(words, executed="no", retryable=False)
        entry = self._entries.get(tool)
        if entry is None:
            raise _not_in_turn(tool, self._entries)
        if not isinstance(arguments, Mapping | None):
            words = f"arguments are one object, not {type(arguments).__name__}"
            raise InvalidArguments(words, details={"path": "", "message": words})
        seconds = call_seconds(timeout_s)
        if seconds <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        return await self._tracked(entry.run(dict(arguments or {}), seconds))

    # Putting together

    def _view(self, deadline_at: float | None = None) -> Room:
        return _SenderRoom(self._room, self._principal, deadline_at)

    def _check_names(self, built: Sequence[Toolkit], wanted: Sequence[Wanted]) -> None:
        for toolkit, asked in zip(built, wanted, strict=True):
            if toolkit.name in self._taken:
                path = f"{asked.path}/name"
                words = f"{path}: there is a toolkit {toolkit.name} in this turn already"
                raise InvalidArguments(words, details={"path": path, "message": words})
            self._taken.add(toolkit.name)

    def _list(self, here: Sequence[LocalToolkit], proxies: Sequence[ToolkitProxy]) -> None:
        rights = ToolRights(self._room.grants.agents)
        always = len(self._always)
        for local in here[:always]:
            self._add(rights, local.manifest, partial(self._run_here, local))
        for needed, proxy in zip(self._required, proxies, strict=True):
            run = partial(self._run_elsewhere, needed, proxy.info.digest)
            self._add(rights, proxy.manifest, run, only=needed.tools)
        for local in here[always:]:
            self._add(rights, local.manifest, partial(self._run_here, local))

    def _add(
        self,
        rights: ToolRights,
        manifest: ToolkitManifest,
        run: _Run,
        *,
        only: Sequence[str] | None = None,
    ) -> None:
        for tool in manifest.tools:
            if rights.may_call(manifest.name, tool.name) and (not only or tool.name in only):
                shown = TurnTool.of(manifest, tool)
                self._entries[shown.name] = _Entry(shown, partial(run, tool.name))

    # Running

    async def _run_here(
        self, local: LocalToolkit, tool: str, arguments: dict[str, Any], timeout_s: float
    ) -> Chunk:
        principal = None if self._principal is None else self._sender
        call = LocalCall(tool, arguments, self._self, principal, timeout_s)
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
            needed.name,
            tool,
            arguments,
            participant=needed.participant,
            timeout_s=timeout_s,
            pin=digest,
        )
        return chunk

    async def _tracked(self, run: Coroutine[Any, Any, Chunk]) -> Chunk:
        """Run a call as a task of the turn's, which ends it if it has not ended itself."""
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
            _logger.warning("%d calls of a turn do not end, and are left behind", len(left))


def _checked_requirement(required: object) -> RequiredToolkit:
    if not isinstance(required, RequiredToolkit):
        words = f"RequiredToolkit({required!r})" if isinstance(required, str) else "RequiredToolkit"
        raise TypeError(f"what is required is a {words}, not a {type(required).__name__}")
    return required


def _names_taken(toolkits: Iterable[Toolkit | RequiredToolkit]) -> set[str]:
    taken: set[str] = set()
    for toolkit in toolkits:
        if toolkit.name in taken:
            raise ValueError(f"two toolkits of this turn are named {toolkit.name!r}")
        taken.add(toolkit.name)
    return taken


def _principal(agent: Participant, sender: Participant | None) -> str | None:
    """Decide for whom the calls of a turn are made; None is the agent itself.

    Raises:
        PermissionDenied: A sender of another issuer has the agent's own name: a call for it would
            be taken for the agent's.
    """
    if sender is None or (sender.name, sender.issuer or agent.issuer) == (agent.name, agent.issuer):
        return None
    if sender.name == agent.name:
        raise PermissionDenied("the sender has the agent's name and is another: no calls for it")
    return sender.name


def _asked_for(
    message: Message | None, tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None
) -> Sequence[Mapping[str, Any] | ToolkitConfig] | None:
    """Find the configs; those of a message are checked where the turn is entered."""
    if message is None:
        own = tuple(tools or ())
        if not all(isinstance(each, ToolkitConfig) for each in own):
            raise TypeError(
                "without message= the configs in tools are objects of this program's own: what"
                " somebody asks for in JSON is built for that one, from its message"
            )
        return own
    if not isinstance(message, Message):
        raise TypeError(f"message is a Message, not {type(message).__name__}")
    if tools is not None:
        return tools
    return message.body.get("tools") if isinstance(message.body, Mapping) else None


def _not_in_turn(tool: object, there: Iterable[str]) -> NotFound:
    words = f"{cut(repr(tool))} is not in this turn; what is: {cut(', '.join(there) or 'nothing')}"
    return NotFound(words)
