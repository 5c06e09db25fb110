"""What a chat asks: an agent in the room, or one that runs in this process.

Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry import trace

from toolbus.agents.agent_events import held_event
from toolbus.chunks.chunk_types import Chunk, FileChunk
from toolbus.cli.chat.interrupts import Interrupted
from toolbus.cli.room_options import CommandRoom
from toolbus.cli.suggestions import listed
from toolbus.client.held_calls import HeldCall
from toolbus.diagnostics.exit_codes import CallTarget, UsageError, with_step
from toolbus.errors import (
    ConnectionLost,
    Executed,
    Internal,
    InvalidResult,
    NoHost,
    NotFound,
    RoomException,
    ToolFailed,
    Unavailable,
)
from toolbus.models.model_error import ModelError
from toolbus.permissions.modes import MODES
from toolbus.permissions.permissions import Permissions
from toolbus.room.events import EventStream, RoomEvent
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.telemetry.tracing import Tracing
from toolbus.telemetry.turn_spans import TurnSpan
from toolbus.untrusted_text import one_line

if TYPE_CHECKING:
    from toolbus.agents.agent import Agent
    from toolbus.turns.tool_use import ToolResult

__all__ = ["ChatAgent", "ChatEvent", "LocalAgent", "Notice", "RemoteAgent", "TraceId", "find_agent"]

_ASK = "ask"
_AWAY = (NoHost, NotFound, Unavailable, ConnectionLost)
"""Errors of an agent that is away, if nothing of the call has run; others would come again."""


class Notice(str):
    """Words of this program between the events."""

    __slots__ = ()


class TraceId(str):
    """The trace of a question, recorded by this process."""

    __slots__ = ()


ChatEvent: TypeAlias = dict[str, Any] | FileChunk | Notice | TraceId
"""What happens while a question is answered."""


class RemoteAgent:
    """An agent in the room.

    Args:
        tools: Configs of toolkits for each question.
        waits: Whether a question waits without a limit for an agent that is away.
    """

    def __init__(
        self,
        room: CommandRoom,
        found: ToolkitInfo,
        *,
        tools: Sequence[Any],
        conversation: str,
        waits: bool,
    ) -> None:
        self.name: str = found.name
        self.room: CommandRoom = room
        """Where calls of it that wait may be approved."""
        self._owner: str | None = None
        if not found.public:
            self._owner = found.full_owner
        self._about: dict[str, Any] = {"tools": list(tools), "conversation": conversation}
        self._conversation = conversation
        self._waits = waits
        self.target: CallTarget | None = CallTarget(found.name, _ASK, self._owner)
        """What its errors name; None in this process."""

    async def ask(self, text: str) -> AsyncGenerator[ChatEvent, None]:
        """Ask a question; wait for the agent first if it is away."""
        span = TurnSpan.begin(Tracing(), self.name, self.room.room, None)
        failure: BaseException | None = None
        if span is not None:
            yield TraceId(f"{trace.get_current_span().get_span_context().trace_id:032x}")
        try:
            async with aclosing(self._events_when_there(text)) as events:
                async for event in events:
                    yield event
        except BaseException as error:
            failure = error
            raise
        finally:
            if span is not None:
                span.end(failure)

    async def _events_when_there(self, text: str) -> AsyncGenerator[ChatEvent, None]:
        was_there = False
        while True:
            # A lost connection would be waited for in silence, and for a minute at most.
            is_away = self._waits and not self.room.is_connected
            if not is_away:
                try:
                    async with aclosing(self._events(text)) as events:
                        async for event in events:
                            yield event
                    return
                except _AWAY as error:
                    # A toolkit that was there is not misspelled: its host has left.
                    can_return = isinstance(error, NotFound) or error.retryable
                    if not self._waits or error.executed != "no" or not can_return:
                        raise
                    # A request would wait for a lost connection in silence.
                    is_there = self.room.is_connected and await self._is_there()
                    # It may be back by now. If the error is the same again, waiting changes
                    # nothing: its toolkit has no tool `ask`, for example.
                    if is_there and was_there:
                        raise
                    was_there = is_there
                    is_away = not is_there
            if is_away:
                yield Notice(f"({self.name} is not there: waiting for it; Ctrl-C gives up)")
                await self._returned()
                yield Notice(f"({self.name} is back)")

    async def _events(self, text: str) -> AsyncGenerator[ChatEvent, None]:
        options: dict[str, Any] = {}
        if self._waits:
            # Without the waits of a call: they end after seconds, and tell nothing meanwhile.
            options = {"retry": False, "wait_for_host_s": 0}
        held: asyncio.Queue[HeldCall] = asyncio.Queue()
        async with self.room.stream(
            f"{self.name}.{_ASK}",
            {"text": text, **self._about},
            participant=self._owner,
            on_held=held.put_nowait,
            **options,
        ) as chunks:
            has_ended = False
            async with aclosing(_merged(chunks, held)) as items:
                async for item in items:
                    if isinstance(item, HeldCall):
                        yield held_event(item)
                    elif isinstance(item, FileChunk):
                        yield item
                    elif isinstance(item.value, dict):
                        kind = item.value.get("type")
                        has_ended = kind == "end"
                        # The server says it itself, of the agent's own questions too, and what it
                        # says holds for this participant.
                        if kind not in ("held", "resumed"):
                            yield item.value
        if not has_ended:  # it is not an agent: a script must not take this for an answer
            raise InvalidResult(f"the answer of {self.name} has no end")

    async def _returned(self) -> None:
        """Wait until the agent has a host. Its events tell when to look again.

        Raises RoomException if the room has ended for good.
        """
        while True:
            try:
                async with self.room.events(["toolkits"]) as events:
                    await self._seen(events)
                return
            except _AWAY as error:  # the connection is lost, and was not back in time
                if not error.retryable:
                    raise

    async def _seen(self, events: EventStream[RoomEvent]) -> None:
        if await self._is_there():
            return
        async for event in events:
            # After a reconnect or a gap it may be there already.
            is_own = event.toolkit is None or event.toolkit.name == self.name
            if is_own and await self._is_there():
                return
        await self.room.closed()
        raise Unavailable("the room has ended", executed="no", retryable=False)

    async def _is_there(self) -> bool:
        try:
            proxy = await self.room.toolkit(self.name, self._owner)
        except NotFound:
            return False
        return proxy.info.hosts > 0

    async def about(self) -> dict[str, Any]:
        """Return what the agent says of itself and of its tools."""
        chunk = await self.room.invoke(f"{self.name}.about", self._about, participant=self._owner)
        return chunk.value if isinstance(chunk.value, dict) else {}

    async def forget(self) -> None:
        """Begin the conversation anew."""
        arguments = {"conversation": self._conversation}
        await self.room.invoke(f"{self.name}.forget", arguments, participant=self._owner)

    def set_mode(self, mode: str) -> None:
        """Refuse: the process that runs the agent decides its permissions."""
        raise UsageError(f"the permissions of {self.name} are decided by whoever runs it")


class LocalAgent:
    """An agent of this process; it is started."""

    def __init__(
        self, room: CommandRoom, agent: Agent, *, tools: Sequence[Any], conversation: str
    ) -> None:
        self.room: CommandRoom = room
        self.name: str = agent.name
        self.target: CallTarget | None = None
        self._agent = agent
        self._results: Sequence[ToolResult] | None = None
        agent.on_results = self._keep
        self._about: dict[str, Any] = {"tools": list(tools), "conversation": conversation}
        self._conversation = conversation

    async def ask(self, text: str) -> AsyncGenerator[ChatEvent, None]:
        """Ask a question; yield what happens. Raises `Interrupted` where it is cancelled."""
        self._results = None
        try:
            async with aclosing(self._agent.run_stream_events(text, **self._about)) as events:
                async for event in events:
                    yield event
        except asyncio.CancelledError:
            raise Interrupted("interrupted", executed=self._executed()) from None
        except ModelError as error:
            executed = self._executed()
            if executed == "no":
                failed = Unavailable(str(error), executed="no", retryable=error.retryable)
                raise with_step(failed, "") from error
            raise with_step(ToolFailed(str(error), executed=executed), "") from error
        except RoomException:
            raise
        except Exception as error:
            # What this process runs may have any mistake, such as one of a middleware; the chat
            # goes on after it, as it does after a mistake of an agent elsewhere.
            raise Internal(f"{type(error).__name__}: {error}") from error

    def _keep(self, results: Sequence[ToolResult]) -> None:
        self._results = tuple(results)

    def _executed(self) -> Executed:
        """Return whether any tool ran: a call that waits for a person has not begun."""
        if self._results is None:  # a second cancellation did not wait for the end of the calls
            return "maybe"
        found = {result.executed for result in self._results}
        if "yes" in found:
            return "yes"
        return "maybe" if "maybe" in found else "no"

    async def about(self) -> dict[str, Any]:
        """Return what the agent says of itself and of its tools."""
        return await self._agent.about(**self._about)

    async def forget(self) -> None:
        """Begin the conversation anew."""
        await self._agent.forget(conversation=self._conversation)

    def set_mode(self, mode: str) -> None:
        """Change the mode of permissions. Raises UsageError for an unknown one."""
        if mode not in MODES:
            raise UsageError(f"there is no mode {one_line(mode, 40)}: {', '.join(MODES)}")
        self._agent.permissions = replace(self._agent.permissions or Permissions(), mode=mode)


ChatAgent: TypeAlias = RemoteAgent | LocalAgent
"""An agent of a chat, with one conversation."""


async def _merged(
    chunks: AsyncIterator[Chunk], held: asyncio.Queue[HeldCall]
) -> AsyncGenerator[Chunk | HeldCall, None]:
    """Yield chunks, and between them that the call waits for a person, or goes on.

    A chunk is read once the one before it was used: that skips the rest of a file.
    """
    waiting = asyncio.ensure_future(held.get())
    reading: asyncio.Future[Chunk | None] | None = None
    try:
        while True:
            if reading is None:
                reading = asyncio.ensure_future(anext(chunks, None))
            left: list[asyncio.Future[Any]] = [reading, waiting]
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield waiting.result()
                waiting = asyncio.ensure_future(held.get())
                continue
            chunk, reading = reading.result(), None
            if chunk is None:
                return
            yield chunk
    finally:
        waiting.cancel()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def find_agent(room: CommandRoom, name: str, participant: str | None) -> ToolkitInfo:
    """Find the toolkit of an agent: one's own, else the only one of this name that one sees.

    A call by the bare name would not reach another's private toolkit, which is what an agent is.

    Raises:
        UsageError: Several owners have one.
        NotFound: There is none; the message names agents that are there.
        RoomException: The list is refused.
    """
    if participant is not None:
        proxy = await room.toolkit(name, participant)
        return proxy.info
    found = [toolkit async for toolkit in room.toolkits(name) if toolkit.name == name]
    # What has no `ask` here may have one that the token does not show: the call says so.
    agents = [toolkit for toolkit in found if _ASK in toolkit.tools] or found
    me = room.me
    own = [agent for agent in agents if (agent.owner, agent.issuer) == (me.name, me.issuer)]
    chosen = own or agents
    if len(chosen) == 1:
        return chosen[0]
    shown = one_line(name, 64)
    if not chosen:
        there = [kit.name async for kit in room.toolkits(_ASK) if _ASK in kit.tools]
        text = f"your token shows no agent in room {room.room}"
        if there:
            text = f"your token shows these in room {room.room}: {listed(there)}"
        raise NotFound(f"there is no agent {shown} that you can see; {text}")
    owners = listed([agent.full_owner for agent in chosen])
    raise UsageError(f"several have an agent {shown}: choose one with --participant: {owners}")
