"""A view of a room: every way to call, list and inspect toolkits, and to send messages.

Programs and running tools share it. A tool's `context.room` is bound to its call: what the tool
calls is a nested call, with the same principal and within the same deadline.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from math import inf
from random import getrandbits
from types import UnionType
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack, cast, overload

from typing_extensions import TypeVar as DefaultTypeVar

from toolbus.chunks.chunk_types import read_value
from toolbus.chunks.json_values import packed_json
from toolbus.client.call_options import (
    NO_OPTIONS,
    CallOptions,
    call_seconds,
    converted,
    result_type,
    text_of,
)
from toolbus.client.caller import AssessUnavailable, Caller
from toolbus.client.input_sender import invalid_option
from toolbus.client.retry import CallPlan, ToolkitKey, affinity_text
from toolbus.client.streaming_call import ChunkStream, StreamingCall
from toolbus.errors import InvalidArguments, NotFound, RoomException, Unavailable
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.permissions.plain import MAX_ASSESS_S
from toolbus.room.call_form import (
    INVOKE_OPTIONS,
    argument_mapping,
    merged_arguments,
    refuse_misplaced,
    tool_parts,
    with_option_hint,
)
from toolbus.room.participants import BuilderInfo, ParticipantInfo
from toolbus.room.room_connection import RoomConnection
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy, TypedToolkitProxy
from toolbus.tools.approvers import DEFAULT_APPROVAL_S
from toolbus.tools.call_room import InvokeOptions, StreamOptions
from toolbus.wire import (
    FORWARD_VERSION,
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

if TYPE_CHECKING:
    from typing import _SpecialForm  # what type checkers take `Literal[...]` for

    from toolbus.client.held_calls import HeldCall
    from toolbus.concurrency.pausable_clock import CallTime
    from toolbus.room.calls import CallExplanation

__all__ = ["Room", "ask_before_call", "bound_room", "connection_of", "room_of_call"]

T = TypeVar("T")
Proxy = DefaultTypeVar("Proxy", bound=TypedToolkitProxy, default=ToolkitProxy)
"""The class that type checkers take a proxy for."""

STREAM_OPTIONS = StreamOptions.__optional_keys__
EXPLAIN_OPTIONS = frozenset({"participant", "on_behalf_of", "pin"})
ASSESS_OPTIONS = EXPLAIN_OPTIONS | {"patterns", "timeout_s"}


class Room:
    """Every way to call, list and inspect toolkits, and to send messages."""

    __slots__ = (
        "_call",
        "_call_id",
        "_caller",
        "_connection",
        "_is_forwarding",
        "_parent",
        "_principal",
    )

    def __init__(
        self,
        connection: RoomConnection,
        caller: Caller,
        parent: int | None = None,
        call: CallTime | None = None,
        principal: str | None = None,
    ) -> None:
        """Made by the library.

        Args:
            connection: What all views of one connection share.
            caller: Makes the calls; that of a running tool uses the connection of its call.
            parent: The dispatch id of the call that the view is bound to.
            call: The time of that call.
            principal: On whose behalf all calls are made unless a call names another one.
        """
        self._connection = connection
        self._caller = caller
        self._parent = parent
        self._call = call
        self._principal = principal
        self._is_forwarding = False
        self._call_id: str | None = None

    def forwarding(self) -> Room:
        """Return this room as the caller of the running tool sees it.

        For the `context.room` of a tool that calls what its caller names. A call through it is
        refused where that caller's own call would be, in the same words, and where this host's
        would be; `explain` says whether it would be; and `toolkit` shows what that caller may
        read. `ToolContext.forward` makes such a call and passes on how it ended. `toolkits` cannot
        be forwarded, and raises `RuntimeError`; all other requests are this host's own.

        Raises:
            Unavailable: The protocol of the server has a version below 4.
            RuntimeError: This is not the room of a running tool.
        """
        if self._parent is None:
            raise RuntimeError("only a running tool forwards: use context.room.forwarding()")
        if not self._caller.can_forward:
            text = f"this server cannot forward calls: it needs version {FORWARD_VERSION} of the"
            raise Unavailable(f"{text} protocol", executed="no", retryable=False)
        room = Room(self._connection, self._caller, self._parent, self._call, self._principal)
        room._is_forwarding = True
        return room

    @property
    def _parent_options(self) -> dict[str, Any]:
        """The options of every request that belongs to the call that the room is bound to."""
        if self._parent is None:
            return {}
        if self._is_forwarding:
            return {"parent": self._parent, "forward": True}
        return {"parent": self._parent}

    @overload
    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, /) -> Any: ...
    @overload
    async def call(self, tool: str, /, **arguments: Any) -> Any: ...
    async def call(self, tool: str, arguments: Any = None, /, *misplaced: Any, **named: Any) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value.

        Arguments are a mapping or keywords, never both: `call("words.count", text="a b")` or
        `call("words.count", {"text": "a b"})`. Options are for `invoke`.

        The value of several chunks is a list of their values. Which places of it are text because
        JSON cannot carry them, only the chunk of `invoke` tells: `as_text`.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            TypeError: The call has another form; the message shows the right one.
        """
        if misplaced:
            refuse_misplaced("call", tool, (arguments, *misplaced), {}, ())
        try:
            values = merged_arguments(tool, arguments, named)
            plan = self._plan(tool, values, NO_OPTIONS)
            return await self._caller.call(plan, read_value)
        except InvalidArguments as error:
            raise with_option_hint(error) from None

    @overload
    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        **options: Unpack[InvokeOptions],
    ) -> T: ...
    @overload
    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: UnionType | _SpecialForm | None = None,
        **options: Unpack[InvokeOptions],
    ) -> Any: ...
    async def invoke(  # noqa: PLR0913 - the promised signature
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        participant: str | None = None,
        timeout_s: float | None = None,
        on_behalf_of: str | None = None,
        caller_context: dict[str, Any] | None = None,
        attachment: Any = None,
        pin: str | None = None,
        retry: bool = True,
        wait_for_host_s: float | None = None,
        returns: Any = None,
        on_progress: Callable[[Any], None] | None = None,
        on_held: Callable[[HeldCall], None] | None = None,
        purpose: str | None = None,
        approval_timeout_s: float | None = DEFAULT_APPROVAL_S,
        **unknown: Never,
    ) -> Any:
        """Call a tool and return its chunk, or, with `returns`, its value as that type.

        Args:
            tool: The tool, written `toolkit.tool`. The toolkit is your own private one of that
                name, else the public one.
            arguments: Values by parameter: JSON, or what pydantic writes as JSON, such as models,
                enums and dates. The host checks them.
            misplaced: Takes nothing: more positional parameters raise TypeError.
            participant: The name of an owner, or `alias/name` of another issuer: then only that
                owner's toolkits count.
            timeout_s: Seconds within which the call ends, with a result or an error; 60 by default.
            on_behalf_of: The participant for whom the call is made.
            caller_context: What the tool finds as `context.caller_context`.
            attachment: An upload, sent piece by piece: bytes, a path, a `FileChunk`, or an async
                iterable of bytes. What it raises is raised here, and cancels the call.
            pin: The digest of the expected definition; a call to another definition is refused.
            retry: Whether to try again where that can do no harm; never once the first piece of the
                attachment was sent.
            wait_for_host_s: Seconds that the call waits in all, within its deadline, if its toolkit
                has no host now; 10 unless the `RoomClient` has another value. 0 does not wait.
            returns: A type that the value is converted to; `bytes` reads a file whole.
            on_progress: A plain function that gets the value of each progress of the tool. Some may
                be lost; only the latest counts.
            on_held: A plain function that gets a `HeldCall` when the call begins to wait for a
                person, and another one when it goes on. Meanwhile `timeout_s` stands still.
            purpose: What the call is for, in your words, for those who approve it; at most 500
                characters.
            approval_timeout_s: Seconds that the call waits for a person, if its host wants one to
                approve it; 0 never waits, None waits without limit. The smaller one of this and
                the host's counts.
            unknown: Takes nothing: arguments are a mapping, not keywords.

        Returns:
            The chunk, or the value as `returns`. A file larger than a frame is returned with its
            first piece; read it within `timeout_s`, or drop it, which cancels the call.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            OSError: The attachment cannot be read.
            TypeError: The call has another form; the message shows the right one.
        """
        if misplaced or unknown:
            refuse_misplaced("invoke", tool, (arguments, *misplaced), unknown, INVOKE_OPTIONS)
        wanted = None if returns is None else result_type(returns)
        options = CallOptions(
            timeout_s=call_seconds(timeout_s),
            participant=participant,
            on_behalf_of=on_behalf_of,
            pin=pin,
            caller_context=caller_context,
            attachment=attachment,
            retry=retry,
            wait_for_host_s=wait_for_host_s,
            on_progress=on_progress,
            on_held=on_held,
            purpose=purpose,
            approval_timeout_s=approval_timeout_s,
        )
        plan = self._plan(tool, argument_mapping("invoke", tool, arguments), options)
        if attachment is None and on_progress is None:
            chunk = await self._caller.call(plan)
        else:
            live = StreamingCall(
                self._caller,
                plan,
                on_progress=on_progress,
                input_sender=await options.input_sender(),
            )
            chunk = await live.result()
        return chunk if wanted is None else await converted(chunk, wanted)

    def stream(  # noqa: PLR0913 - the promised signature
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        input: Any = None,
        attachment: Any = None,
        participant: str | None = None,
        timeout_s: float | None = None,
        on_behalf_of: str | None = None,
        caller_context: dict[str, Any] | None = None,
        pin: str | None = None,
        retry: bool = True,
        wait_for_host_s: float | None = None,
        stall_timeout_s: float | None = 30.0,
        on_progress: Callable[[Any], None] | None = None,
        on_held: Callable[[HeldCall], None] | None = None,
        purpose: str | None = None,
        approval_timeout_s: float | None = DEFAULT_APPROVAL_S,
        **unknown: Never,
    ) -> ChunkStream:
        """Call a tool and read its chunks as they arrive.

            async with room.stream("logs.tail", {"path": "a.log"}) as chunks:
                async for chunk in chunks:
                    print(chunk.value)

        Any tool can be called this way; a streaming tool only this way. Leaving the block cancels
        the call if it has not ended. Options that `invoke` has too mean the same.

        Args:
            tool: The tool, written `toolkit.tool`.
            arguments: Values by parameter.
            misplaced: Takes nothing, as in `invoke`.
            input: The values for a tool that takes an input stream, sent as the tool asks for them:
                an iterable or an async iterable of whatever a tool may return. An iterable that may
                block is read on a thread. What it raises is raised to the reader, and cancels the
                call.
            attachment: A file, as in `invoke`, instead of `input`.
            participant: The name of an owner.
            timeout_s: Seconds for the whole call. Unless given the only limits are the parent
                call's deadline and 60 s for a reconnect.
            on_behalf_of: The participant for whom the call is made.
            caller_context: What the tool finds as `context.caller_context`.
            pin: The digest of the expected definition.
            retry: Whether to try again where that can do no harm; never after the first chunk, or
                once input was taken.
            wait_for_host_s: Seconds to wait for a host, as in `invoke`.
            stall_timeout_s: Seconds without a chunk, input or progress although the tool could
                send; then the stream ends with `StreamStalled`. None means unlimited. An input may
                pause for that time too, at most 300 s. A stream that is not read ends after 30 s,
                whatever this is.
            on_progress: A plain function that gets the value of each progress.
            on_held: As in `invoke`; the times of the stream stand still meanwhile.
            purpose: As in `invoke`.
            approval_timeout_s: As in `invoke`.
            unknown: Takes nothing, as in `invoke`.

        Raises:
            RoomException: Where it is entered or read; `executed` says whether the tool ran.
            TypeError: The call has another form; the message shows the right one.
        """
        if misplaced or unknown:
            refuse_misplaced("stream", tool, (arguments, *misplaced), unknown, STREAM_OPTIONS)

        async def prepared() -> StreamingCall:
            options = CallOptions(
                timeout_s=call_seconds(timeout_s, inf),
                participant=participant,
                on_behalf_of=on_behalf_of,
                pin=pin,
                caller_context=caller_context,
                attachment=attachment,
                input=input,
                retry=retry,
                wait_for_host_s=wait_for_host_s,
                stall_timeout_s=stall_timeout_s,
                on_progress=on_progress,
                on_held=on_held,
                purpose=purpose,
                approval_timeout_s=approval_timeout_s,
            )
            plan = self._plan(tool, argument_mapping("stream", tool, arguments), options)
            stall_s = options.stall_timeout_s
            plan.options["idle_ms"] = 0 if stall_s is None else max(1, round(stall_s * 1000))
            return StreamingCall(
                self._caller,
                plan,
                on_progress=on_progress,
                input_sender=await options.input_sender(),
                is_stream=True,
            )

        return ChunkStream(prepared)

    def _plan(self, tool: str, arguments: dict[str, Any], options: CallOptions) -> CallPlan:
        """Prepare what every attempt of a call sends."""
        deadline_at = self._connection.loop.time() + options.timeout_s
        toolkit, name = tool_parts(tool)
        try:
            packed = pack_body(arguments)
        except BadBody:
            packed = packed_json("arguments", arguments)
        if self._call is not None:
            ends_at = self._call.ends_at
            if ends_at is not None and ends_at < deadline_at:
                deadline_at = ends_at
        call_id = self._call_id
        if call_id is None:
            call_id = f"{self._connection.call_prefix}{getrandbits(64).to_bytes(8).hex()}"
        sent = {} if self._parent is None else self._parent_options
        if self._principal is not None:
            sent["on_behalf_of"] = self._principal
        if options is not NO_OPTIONS:
            sent |= options.to_wire()
        key: ToolkitKey = toolkit, options.participant
        wait_s = options.wait_for_host_s
        if wait_s is None:
            wait_s = self._connection.wait_for_host_s
        return CallPlan(
            toolkit,
            name,
            packed,
            sent,
            call_id,
            deadline_at,
            options.retry,
            key,
            wait_s,
            within=self._call,
            on_held=options.on_held,
        )

    async def assess(  # noqa: PLR0913 - the promised signature
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        patterns: Sequence[str] = (),
        participant: str | None = None,
        on_behalf_of: str | None = None,
        pin: str | None = None,
        timeout_s: float = MAX_ASSESS_S,
        **unknown: Never,
    ) -> Assessment:
        """Ask what a tool says about one input, where it runs; nothing else of it runs.

        The question goes to the host that the call would go to, and needs the same grants. If that
        host does not answer such questions, or the server is older, the published flags of the tool
        are the answer, and its `source` is "manifest". What is not the tool of a trusted owner may
        say anything: `Permissions` knows what of it counts.

        Args:
            tool: The tool, written `toolkit.tool`.
            arguments: Those of the call.
            misplaced: Takes nothing, as in `invoke`.
            patterns: Those of rules, in the tool's own language: at most 64, with 16 KiB in all.
                The answer has in `matches` those that match the arguments.
            participant: The name of an owner, as in `invoke`.
            on_behalf_of: For whom the call would be made.
            pin: The digest of the expected definition.
            timeout_s: Seconds within which the answer has to come; more than 5 count as 5.
            unknown: Takes nothing, as in `invoke`.

        Raises:
            RoomException: The call would be refused, or there is no answer; executed "no".
            InvalidResult: The answer is not an assessment.
            TypeError: The call has another form; the message shows the right one.
        """
        if misplaced or unknown:
            refuse_misplaced("assess", tool, (arguments, *misplaced), unknown, ASSESS_OPTIONS)
        if isinstance(patterns, str):  # each of its characters would be a pattern
            text = "patterns must be a list of texts, not one text"
            raise invalid_option("patterns", text)
        values = argument_mapping("assess", tool, arguments)
        options = CallOptions(
            timeout_s=min(call_seconds(timeout_s), MAX_ASSESS_S),
            participant=participant,
            on_behalf_of=on_behalf_of,
            pin=pin,
        )
        plan = self._plan(tool, values, options)
        plan.patterns = [text_of("patterns", pattern) for pattern in patterns]
        try:
            return await self._caller.assess(plan)
        except AssessUnavailable:
            pass
        return await self._assessed_by_flags(plan, values)

    async def _assessed_by_flags(self, plan: CallPlan, arguments: dict[str, Any]) -> Assessment:
        """Answer for an older server, which could only ignore the question."""
        named = {key: value for key, value in plan.options.items() if key in EXPLAIN_OPTIONS}
        explained = await self._explained_call(plan.name, arguments, named)
        if not explained.would_run:
            raise explained.error()
        _, manifest = await self._described(plan.toolkit, named.get("participant"))
        for tool in manifest.tools:
            if tool.name == plan.tool:
                return assessment_of_flags(tool, source="manifest")
        raise NotFound(f"tool {plan.name} not found")

    async def explain(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        participant: str | None = None,
        on_behalf_of: str | None = None,
        pin: str | None = None,
        **unknown: Never,
    ) -> CallExplanation:
        """Return which host would run a call now, or which error would end it; nothing runs.

        With arguments the tool is asked too, as by `assess`, if its host answers such questions:
        `assessment` is what it says, and a call that the policy of its host refuses would not run.
        It is None if the tool was not asked, or did not answer.

        Args:
            tool: The tool, written `toolkit.tool`.
            arguments: Those of the call; with None the tool is not asked.
            misplaced: Takes nothing, as in `invoke`.
            participant: The name of an owner, as in `invoke`.
            on_behalf_of: For whom the call would be made.
            pin: The digest of the expected definition.
            unknown: Takes nothing, as in `invoke`.

        Raises:
            InvalidArguments: An option has a wrong type.
            TypeError: The call has another form; the message shows the right one.
        """
        if misplaced or unknown:
            refuse_misplaced("explain", tool, (arguments, *misplaced), unknown, EXPLAIN_OPTIONS)
        behalf = self._principal if on_behalf_of is None else on_behalf_of
        options = CallOptions(participant=participant, on_behalf_of=behalf, pin=pin).to_wire()
        values = argument_mapping("explain", tool, arguments)
        explained = await self._explained_call(tool, values, options)
        if arguments is None or not explained.assesses:
            return explained
        try:
            assessment = await self.assess(
                tool, arguments, participant=participant, on_behalf_of=on_behalf_of, pin=pin
            )
        except RoomException:  # what the call would meet is known without it
            return explained
        return explained.assessed(assessment, tool)

    async def _explained_call(
        self, tool: str, arguments: dict[str, Any], options: dict[str, Any]
    ) -> CallExplanation:
        options = options | self._parent_options
        names = tool_parts(tool)
        explained = await self._explained(names, options)
        argument = explained.details.get("argument")
        if explained.details.get("path") == "/affinity" and isinstance(argument, str):
            packed = packed_json("arguments", arguments)
            options["affinity"] = affinity_text(packed, argument)
            explained = await self._explained(names, options)
        return explained

    async def _explained(self, names: tuple[str, str], options: dict[str, Any]) -> CallExplanation:
        from toolbus.room.calls import CallExplanation  # few programs explain calls

        body = await self._caller.request(Explain, *names, options)
        return CallExplanation.from_wire(body)

    async def toolkit(
        self, name: str, participant: str | None = None, pin: str | None = None
    ) -> Proxy:
        """Describe a toolkit and return a proxy with its tools as methods.

        For type checkers the proxy has the class of the variable that it is assigned to, which
        `toolbus stubs` writes: `words: Words = await room.toolkit("words")`. Else it is a
        `ToolkitProxy`, which it always is at run time.

        Raises:
            NotFound: There is none that this participant may see.
            DefinitionChanged: `pin` names another definition; raised by the first call. Or the room
                has a lock file that does not have this definition of this owner.
        """
        name = text_of("toolkit", name)
        participant = None if participant is None else text_of("participant", participant)
        info, manifest = await self._described(name, participant)
        chosen = {"participant": participant, "pin": pin}
        proxy = ToolkitProxy(
            self,
            info,
            manifest,
            {key: value for key, value in chosen.items() if value is not None},
        )
        return cast(Proxy, proxy)

    async def _described(
        self, name: str, participant: str | None
    ) -> tuple[ToolkitInfo, ToolkitManifest]:
        """Request a description; the manifest is not sent again if it has not changed."""
        key = (name, participant)
        manifests = self._connection.manifests
        known = manifests.get(key)
        body = await self._description(name, participant, None if known is None else known.digest)
        if known is not None and "manifest" not in body:
            info = ToolkitInfo.from_wire(body["toolkit"])
            if self._is_forwarding:
                manifest = known.reduced_to(info)
            else:
                manifest = known.manifest if known.is_of(info) else None
            if manifest is not None:
                return info, manifest
            body = await self._description(name, participant)  # other tools of it may be read now
        info = ToolkitInfo.from_wire(body["toolkit"])
        return info, manifests.read(key, info, body["manifest"])

    async def _description(
        self, name: str, participant: str | None, known: str | None = None
    ) -> dict[str, Any]:
        """Request a description, of a forwarding room as the caller of the running tool gets it.

        That one is not recorded: this host's own calls may mean another toolkit by the name.
        """
        if not self._is_forwarding:
            return await self._caller.describe(name, participant, known)
        named = {"participant": participant, "digest": known}
        options = {option: value for option, value in named.items() if value is not None}
        return await self._caller.request(Describe, name, self._parent_options | options)

    async def toolkits(self, search: str | None = None) -> AsyncGenerator[ToolkitInfo, None]:
        """List the toolkits that this participant can see, in the order of their names.

        Args:
            search: Only toolkits with this text in a name, title or description.
        """
        if self._is_forwarding:
            raise RuntimeError("a list cannot be forwarded: ask for each toolkit by its name")
        cursor: str | None = None
        while True:
            wanted = None if search is None else text_of("search", search)
            options = {"search": wanted, "cursor": cursor}
            body = await self._caller.request(ListToolkits, options)
            for summary in body["toolkits"]:
                yield ToolkitInfo.from_wire(summary)
            cursor = body["cursor"]
            if cursor is None:
                return

    # Participants and messages

    async def participants(self) -> list[ParticipantInfo]:
        """List the participants of the room, including this one, by name.

        Raises:
            PermissionDenied: The grant `presence` is missing.
        """
        found: list[ParticipantInfo] = []
        cursor: str | None = None
        while True:
            body = await self._caller.request(Participants, {"cursor": cursor})
            found += map(ParticipantInfo.from_wire, body["participants"])
            cursor = body["cursor"]
            if cursor is None:
                return found

    async def send(self, to: str, name: str, body: Any = None) -> int:
        """Send a message to all participants of a name; return how many connections received it.

        It is sent once, to connections that subscribe to messages now. Nothing is stored.

        Args:
            to: The name of the receivers; of another issuer than yours, `alias/name`. A sender's
                `full_name` is right for an answer.
            name: The kind of message: letters, digits, `_`, `-` and `.`, at most 64.
            body: JSON, or what pydantic writes as JSON; at most 256 KiB.

        Raises:
            NotFound: There is no participant of that name.
            PermissionDenied: The grant `messaging` is missing.
            InvalidArguments: The name is invalid, or the body cannot be sent.
            TooLarge: The body is too large.
            QuotaExceeded: More than 1,000 messages in 10 s; `retry_after_s` says how long to wait.
        """
        return await self._send(text_of("to", to), name, body)

    async def broadcast(self, name: str, body: Any = None) -> int:
        """Send a message to all other participants, as `send` does, but without `NotFound`."""
        return await self._send(None, name, body)

    async def _send(self, to: str | None, name: str, body: Any) -> int:
        packed = packed_json("body", body)
        answer = await self._caller.request(Send, to, text_of("name", name), packed)
        return int(answer["delivered"])

    async def list_builders(self, participant: str) -> list[BuilderInfo]:
        """List the toolkits that a participant builds on request, as far as they are granted.

        Args:
            participant: Its name, or `alias/name`. The list is empty if there is no such
                participant, or if the grant `agents.builders` covers none of its builders.
        """
        options = {"participant": text_of("participant", participant)}
        answer = await self._caller.request(Builders, options)
        return [BuilderInfo.from_wire(offer) for offer in answer["builders"]]


def bound_room(room: Room, call: CallTime | None, principal: str | None = None) -> Room:
    """Return a view of a room for one call more, within that of the room if there is one.

    Args:
        room: That of a participant, or of a call.
        call: The time of the call, which knows that of the call around it; None adds no limit.
        principal: On whose behalf its calls are made; by default as those of `room`.
    """
    principal = principal or room._principal
    return Room(room._connection, room._caller, room._parent, call or room._call, principal)


def room_of_call(room: Room, call_id: str) -> Room:
    """Return a view of a room for one call of this id, 32 digits of hex: it may be made again."""
    view = Room(room._connection, room._caller, room._parent, room._call, room._principal)
    view._call_id = call_id
    return view


async def ask_before_call(room: Room, *question: Any) -> dict[str, Any]:
    """Ask who may approve a call that is about to be made within that of the room.

    `question` has the fields of a `Hold` from `kind` on. Returns the decision as the server sends
    it; raises as `Caller.ask_person`.
    """
    return await room._caller.ask_person(room._parent, *question)


def connection_of(room: Room) -> RoomConnection:
    """Return the connection that all views of a room share.

    Of a `RoomClient` that was never entered it is one whose attributes raise `Unavailable`.
    """
    return room._connection
