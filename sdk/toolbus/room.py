"""A view of a room: every way to call, list and inspect toolkits, and to talk to others.

It is what a program and a running tool share. What a tool gets as `context.room` is bound to its
call, so that whatever it calls becomes that call's child, with its principal and within its
deadline, without the tool's doing anything for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import getrandbits
from typing import Any

from toolbus.affinities import affinity_text
from toolbus.call_ends import hinted
from toolbus.call_options import (
    Named,
    ask_for_progress,
    call_seconds,
    converted,
    feed_of,
    idle_ms_of,
    named_options,
    text_of,
)
from toolbus.calls import DEFAULT_TIMEOUT_S, Caller
from toolbus.chunk_stream import ChunkStream
from toolbus.chunks import read_value
from toolbus.errors import InvalidArguments
from toolbus.explanation import Explanation
from toolbus.people import BuilderInfo, ParticipantInfo
from toolbus.plain_json import packed_json
from toolbus.retries import Plan, ToolkitKey
from toolbus.stream_calls import LiveCall
from toolbus.toolkit_proxy import ToolkitInfo, ToolkitProxy, call_by_invoke, no_tool
from toolbus.wire import (
    BadBody,
    Builders,
    Describe,
    Explain,
    ListToolkits,
    Participants,
    Send,
    ToolkitManifest,
    pack_body,
)

__all__ = ["Core", "Room"]


@dataclass(slots=True, eq=False)
class Core:
    """What all views of one connection share."""

    loop: asyncio.AbstractEventLoop
    caller: Caller
    call_prefix: str = field(default_factory=partial(secrets.token_hex, 8))
    """Half of the 128 random bits of a call's id; the other half is drawn for each.

    In hex, since a trace that begins with the call has the same id (`root_sampling`).
    """


class Room:
    """Every way to call, list and inspect toolkits, and to talk to others.

    Args:
        core: What all views of one connection share.
        parent: The call that a view is bound to, as its host knows it.
        deadline_at: When that call's time is up, by the loop's clock.
    """

    __slots__ = ("_core", "_deadline_at", "_parent")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.invoke is not Room.invoke and cls.call is Room.call:
            cls.call = call_by_invoke  # type: ignore[method-assign]

    def __init__(
        self, core: Core, parent: int | None = None, deadline_at: float | None = None
    ) -> None:
        self._core = core
        self._parent = parent
        self._deadline_at = deadline_at

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value.

        Raises:
            RoomException: Why there is no value; `executed` says whether the tool ran.
        """
        toolkit, dot, name = tool.partition(".")
        if not (dot and toolkit and name):
            raise no_tool(tool)
        core = self._core
        try:
            plan = self._plan(toolkit, name, arguments, core.loop.time() + DEFAULT_TIMEOUT_S)
            return await core.caller.call(plan, read_value)
        except InvalidArguments as error:
            raise hinted(error) from None

    async def invoke(  # noqa: PLR0913 - the promised signature
        self,
        toolkit: str,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        participant: str | None = None,
        timeout_s: float | None = None,
        on_behalf_of: str | None = None,
        caller_context: dict[str, Any] | None = None,
        attachment: Any = None,
        pin: str | None = None,
        retry: bool = True,
        returns: Any = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call a tool and return its chunk, or, with `returns`, its value as that type.

        Args:
            toolkit: The toolkit's name: my own private one, else the public one.
            tool: The tool's name.
            arguments: Values by parameter: JSON, or what pydantic writes as JSON, such as models,
                enums and dates. The host checks them.
            participant: The name of an owner: then only that owner's toolkits count.
            timeout_s: Seconds until the call has ended one way or another; 60 unless given.
            on_behalf_of: The participant for whom the call is made.
            caller_context: What the tool finds as `context.caller_context`.
            attachment: An upload, sent piece by piece: bytes, a path, a `FileChunk`, or an async
                iterable of bytes. What it raises is raised here, and gives the call up.
            pin: The digest of the definition that is meant; another one is refused.
            retry: Whether to try again where that can do no harm; never once the attachment has
                begun to go.
            returns: A type that the value is converted to; `bytes` reads a file whole.
            on_progress: A plain function, told the value of each progress of the tool. Some may be
                lost, only the latest counts.

        Returns:
            The chunk, or the value as `returns`. A file larger than a frame is here as soon as its
            first piece is; read it within `timeout_s`, or drop it, which gives the call up.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
            OSError: The attachment cannot be read.
        """
        seconds = DEFAULT_TIMEOUT_S if timeout_s is None else call_seconds(timeout_s)
        deadline_at = self._core.loop.time() + seconds
        named = (participant, on_behalf_of, caller_context, pin, retry)
        plan = self._plan(toolkit, tool, arguments, deadline_at, named)
        if attachment is None and on_progress is None:
            chunk = await self._core.caller.call(plan)
        else:
            feed = await feed_of(plan.options, None, attachment)
            ask_for_progress(plan.options, on_progress)
            live = LiveCall(self._core.caller, plan, on_progress=on_progress, feed=feed)
            chunk = await live.result()
        return chunk if returns is None else await converted(chunk, returns)

    def stream(  # noqa: PLR0913 - the promised signature
        self,
        toolkit: str,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        input: Any = None,
        attachment: Any = None,
        participant: str | None = None,
        timeout_s: float | None = None,
        on_behalf_of: str | None = None,
        caller_context: dict[str, Any] | None = None,
        pin: str | None = None,
        retry: bool = True,
        stall_timeout_s: float | None = 30.0,
        on_progress: Callable[[Any], None] | None = None,
    ) -> ChunkStream:
        """Call a tool and go through what it gives, as it comes.

        ::

            async with room.stream("logs", "tail", {"path": "a.log"}) as chunks:
                async for chunk in chunks:
                    print(chunk.value)

        Any tool can be called so; one that gives its result piece by piece only so. Leaving the
        block gives the call up where it has not ended. Arguments that `invoke` has too mean the
        same.

        Args:
            toolkit: The toolkit's name.
            tool: The tool's name.
            arguments: Values by parameter.
            input: What the tool takes in, as it asks for it: an iterable or an async iterable of
                whatever a tool may return. One that may block is gone through on a thread; what it
                raises is raised to the reader, and gives the call up.
            attachment: In place of `input`: a file, as in `invoke`.
            participant: The name of an owner.
            timeout_s: Seconds for all of it; no limit unless given, but a parent call's, and 60 s
                for a lost connection to come back.
            on_behalf_of: The participant for whom the call is made.
            caller_context: What the tool finds as `context.caller_context`.
            pin: The digest of the definition that is meant.
            retry: Whether to try again where that can do no harm: never once a chunk has come, or
                something of the input was taken.
            stall_timeout_s: How long nothing may come, go or progress while the tool could send;
                then the stream ends with `StreamStalled`. None is for ever.
            on_progress: A plain function, told the value of each progress.

        Raises:
            RoomException: Where it is entered or read; `executed` says whether the tool ran.
        """
        named = (participant, on_behalf_of, caller_context, pin, retry)

        async def prepared() -> LiveCall:
            deadline_at = inf
            if timeout_s is not None:
                deadline_at = self._core.loop.time() + call_seconds(timeout_s)
            plan = self._plan(toolkit, tool, arguments, deadline_at, named)
            plan.options["idle_ms"] = idle_ms_of(stall_timeout_s)
            feed = await feed_of(plan.options, input, attachment)
            ask_for_progress(plan.options, on_progress)
            caller = self._core.caller
            return LiveCall(caller, plan, on_progress=on_progress, feed=feed, is_stream=True)

        return ChunkStream(prepared)

    def _plan(
        self,
        toolkit: str,
        tool: str,
        arguments: dict[str, Any] | None,
        deadline_at: float,
        named: Named | None = None,
    ) -> Plan:
        """Settle what every attempt of a call sends."""
        if not type(toolkit) is type(tool) is str:
            toolkit, tool = text_of("toolkit", toolkit), text_of("tool", tool)
        if self._deadline_at is not None and self._deadline_at < deadline_at:
            deadline_at = self._deadline_at
        try:
            packed = pack_body({} if arguments is None else arguments)
        except BadBody:
            packed = packed_json("arguments", arguments)
        drawn = getrandbits(64)
        call_id = f"{self._core.call_prefix}{drawn.to_bytes(8).hex()}"
        if named is None:
            options: dict[str, Any] = {} if self._parent is None else {"parent": self._parent}
            key: ToolkitKey = toolkit, None
            return Plan(toolkit, tool, packed, options, call_id, drawn, deadline_at, True, key)
        options = named_options(named, self._parent)
        key = (toolkit, options.get("participant"))
        return Plan(toolkit, tool, packed, options, call_id, drawn, deadline_at, named[-1], key)

    async def explain(
        self,
        toolkit: str,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        participant: str | None = None,
        on_behalf_of: str | None = None,
        pin: str | None = None,
    ) -> Explanation:
        """Ask which host would run a call now, or what would stop it; nothing runs.

        Args:
            toolkit: The toolkit's name.
            tool: The tool's name.
            arguments: Those of the call; they count only where the tool's affinity goes by one of
                them, and are never sent.
            participant: The name of an owner, as in `invoke`.
            on_behalf_of: For whom the call would be made.
            pin: The digest of the definition that is meant.
        """
        named = {"participant": participant, "on_behalf_of": on_behalf_of, "pin": pin}
        options: dict[str, Any] = {
            name: text_of(name, value) for name, value in named.items() if value is not None
        }
        if self._parent is not None:
            options["parent"] = self._parent
        names = text_of("toolkit", toolkit), text_of("tool", tool)
        explained = await self._explained(names, options)
        argument = explained.details.get("argument")
        if explained.details.get("path") == "/affinity" and isinstance(argument, str):
            packed = packed_json("arguments", {} if arguments is None else arguments)
            options["affinity"] = affinity_text(packed, argument)
            explained = await self._explained(names, options)
        return explained

    async def _explained(self, names: tuple[str, str], options: dict[str, Any]) -> Explanation:
        body = await self._core.caller.request(Explain, *names, options)
        return Explanation.from_wire(body)

    async def toolkit(
        self, name: str, participant: str | None = None, pin: str | None = None
    ) -> ToolkitProxy:
        """Read a toolkit's description and return it with its tools as methods.

        Raises:
            NotFound: There is none that you may know of.
            DefinitionChanged: `pin` names another definition; raised by the first call.
        """
        name = text_of("toolkit", name)
        participant = None if participant is None else text_of("participant", participant)
        options = {} if participant is None else {"participant": participant}
        body = await self._core.caller.request(Describe, name, options)
        self._core.caller.retries.note((name, participant), body)
        chosen = {"participant": participant, "pin": pin}
        return ToolkitProxy(
            self,
            ToolkitInfo.from_wire(body["toolkit"]),
            ToolkitManifest.model_validate(body["manifest"]),
            {key: value for key, value in chosen.items() if value is not None},
        )

    async def toolkits(self, search: str | None = None) -> AsyncGenerator[ToolkitInfo, None]:
        """Go through the toolkits you can see, in the order of their names.

        Args:
            search: Only those that have this text in a name, title or description.
        """
        cursor: str | None = None
        while True:
            wanted = None if search is None else text_of("search", search)
            options = {"search": wanted, "cursor": cursor}
            body = await self._core.caller.request(ListToolkits, options)
            for summary in body["toolkits"]:
                yield ToolkitInfo.from_wire(summary)
            cursor = body["cursor"]
            if cursor is None:
                return

    # People

    async def participants(self) -> list[ParticipantInfo]:
        """List who is in the room, you among them, by name.

        Raises:
            PermissionDenied: You lack the grant `presence`.
        """
        found: list[ParticipantInfo] = []
        cursor: str | None = None
        while True:
            body = await self._core.caller.request(Participants, {"cursor": cursor})
            found += map(ParticipantInfo.from_wire, body["participants"])
            cursor = body["cursor"]
            if cursor is None:
                return found

    async def send(self, to: str, name: str, body: Any = None) -> int:
        """Send a message to the participants of a name; return how many connections took it.

        It is sent once, to those who listen to their events now: nothing is kept for later.

        Args:
            to: Their name.
            name: What kind of message it is: letters, digits, `_`, `-` and `.`, at most 64.
            body: What it says: JSON, or what pydantic writes as JSON; at most 256 KiB.

        Raises:
            NotFound: Nobody of that name is here.
            PermissionDenied: You lack the grant `messaging`.
            InvalidArguments: The name is none, or the body cannot be sent.
            TooLarge: The body is too large.
            QuotaExceeded: More than 1,000 messages in 10 s; `retry_after_s` says when to go on.
        """
        return await self._say(text_of("to", to), name, body)

    async def broadcast(self, name: str, body: Any = None) -> int:
        """Send a message to everybody else in the room, as `send` does, without its `NotFound`."""
        return await self._say(None, name, body)

    async def _say(self, to: str | None, name: str, body: Any) -> int:
        packed = packed_json("body", body)
        answer = await self._core.caller.request(Send, to, text_of("name", name), packed)
        return int(answer["delivered"])

    async def list_builders(self, participant: str) -> list[BuilderInfo]:
        """List the toolkits that a participant builds on request and that you may ask it for.

        Args:
            participant: Its name. The list is empty where nobody of that name is here, or your
                grant `agents.builders` covers nothing that it builds.
        """
        options = {"participant": text_of("participant", participant)}
        answer = await self._core.caller.request(Builders, options)
        return [BuilderInfo.from_wire(offer) for offer in answer["builders"]]
