"""A participant: a room with a connection of its own, which hosts toolkits and receives events.

It reconnects by itself. After a reconnect its toolkits are registered again, its attributes and
builders are published again, and readers of events get a mark that some may be missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from toolbus.auth.grants import ApiScope
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import packed_json
from toolbus.client.call_options import is_time, text_of
from toolbus.client.caller import Caller, holds_unknown_error
from toolbus.client.local_errors import NotEnteredProxy, check_loop, room_closed_error
from toolbus.client.retry import DEFAULT_WAIT_FOR_HOST_S
from toolbus.errors import ConnectionLost, NotFound, PermissionDenied
from toolbus.room.events import DEFAULT_TOPICS, EventStream, RoomEvent
from toolbus.room.holds import (
    GrantedHold,
    HoldInfo,
    answer_chunk,
    packed_answer,
    packed_rules,
)
from toolbus.room.hosting import Hosting, find_hosting, packed_manifest
from toolbus.room.participants import BuilderInfo
from toolbus.room.registrations import Registration, checked_offer, checked_supersede
from toolbus.room.room import Room, connection_of
from toolbus.room.room_connection import RoomConnection
from toolbus.room.waiting_start import join
from toolbus.settings import RoomSettings, Token, check_url, checked_headers
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.tool_run import Participant
from toolbus.tools.toolkit import Toolkit
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus.wire import Admin, Holds, Settle

if TYPE_CHECKING:  # few programs watch calls, have a lock file or grant rules
    from toolbus.permissions.rule import Rule
    from toolbus.room.calls import CallReport
    from toolbus.room.lock_file import LockFile

__all__ = ["RoomClient", "client_of", "settings_of"]

_logger = bounded_logger(__name__)
_UNENTERED: Any = NotEnteredProxy()


class RoomClient(Room):
    """A participant in a room: `async with RoomClient(url, room="lab", token=token) as room:`.

    Arguments override `TOOLBUS_*` variables, these the context in use, and that the settings file.
    After a lost connection it reconnects, and its toolkits are registered again. The token is
    renewed before it expires.

    Entering raises `ValueError` for a missing or malformed setting, `TypeError` for a token
    function that is not async or does not return text, `PermissionDenied` if the server refuses the
    token or the room, `Unavailable` if no server can be reached, and `RuntimeError` if the room is
    already entered.

    Where no block fits, as in a notebook, `room = await RoomClient(...).connect()` and
    `await room.aclose()` do the same. It belongs to the event loop that it is connected in: used
    from another one it raises `Unavailable` before anything is sent. `toolbus.sync.RoomClient` is
    for programs without an event loop, and for many threads.

    Args:
        url: The server, as `ws://HOST:PORT`.
        room: The room's name; "main" unless set elsewhere.
        token: The token, its file, or an async function that returns one. A file is a `Path`, or
            as text the path of an existing file or `"@PATH"`. A file or a function is read again
            before the token expires. A token itself cannot be renewed; the connection closes when
            it expires.
        name: The participant's name, if this process mints its own tokens.
        instance: Distinguishes replicas of one identity: printable text of at most 128 characters;
            random unless given.
        context: The name of a context of `toolbus context`; its settings override variables.
        tracing: Records spans; unless given, as OpenTelemetry is set up in this process.
        locked: A `LockFile` or the path of one: toolkits that are not in it, or differ from it, are
            refused with `DefinitionChanged`. False is no lock file, whatever the settings say.
        wait_for_host_s: Seconds that a call waits in all, within its deadline, if its toolkit has
            no host now; 0 does not wait. The option of that name sets it for one call.
        wait: Whether entering waits for a server that cannot be reached yet, or accepts nothing
            now: True without a limit, or for at most so many seconds. The log says so once.
        headers: Further headers of the HTTP request that opens a connection, for proxies, such as
            `X-Forwarded-For`.
    """

    __slots__ = (
        "_choices",
        "_headers",
        "_is_entering",
        "_locked",
        "_open_connection",
        "_settings",
        "_tracing",
        "_wait",
        "_wait_for_host_s",
    )

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        url: str | None = None,
        *,
        room: str | None = None,
        token: Token | None = None,
        name: str | None = None,
        instance: str | None = None,
        context: str | None = None,
        tracing: Tracing | None = None,
        locked: LockFile | str | os.PathLike[str] | Literal[False] | None = None,
        wait_for_host_s: float = DEFAULT_WAIT_FOR_HOST_S,
        wait: bool | float = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._headers = headers
        self._choices = {"url": url, "room": room, "token": token, "name": name}
        self._choices |= {"instance": instance, "context": context}
        self._tracing = tracing
        self._locked = locked
        self._wait_for_host_s = wait_for_host_s
        self._wait = wait
        self._is_entering = False
        self._open_connection: RoomConnection | None = None  # while it is entered, or enters
        self._settings: RoomSettings | None = None
        self._connection = _UNENTERED
        self._caller = _UNENTERED
        self._parent = None
        self._principal = None
        self._call = None
        self._is_forwarding = False

    async def __aenter__(self) -> Self:
        if self._open_connection is not None or self._is_entering:
            raise RuntimeError(
                "this room is already entered: one client has one connection; make another client,"
                " or leave the room first (`await room.aclose()`, or the end of its block)"
            )
        if not isinstance(self._wait, bool) and not is_time(self._wait):
            raise ValueError("wait must be True, False or a number of seconds, 0 or more")
        self._is_entering = True
        try:
            await join(self._enter, lambda: self._settings, self._wait)
        finally:
            self._is_entering = False
        return self

    async def connect(self) -> Self:
        """Join the room as `async with` does, without a block; return this client.

            room = await RoomClient("ws://127.0.0.1:7717", token=token).connect()
            ...
            await room.aclose()

        Raises:
            RuntimeError: It is connected already.
            Exception: What entering raises, see the class.
        """
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Leave the room, as the end of the block does.

        Called again, or before `connect`, it does nothing.

        Raises:
            Unavailable: The client was connected in another event loop, which still runs.
        """
        await self.__aexit__()

    async def _enter(self) -> None:
        headers = checked_headers(self._headers)
        found = RoomSettings.resolve(**self._choices)  # type: ignore[arg-type]  # each by its own name
        self._settings = replace(found, headers=headers)
        connection = self._open_connection = RoomConnection(
            self,
            self._settings,
            Room,
            tracing=self._tracing or Tracing(),
            locked=self._locked,
            wait_for_host_s=self._wait_for_host_s,
        )
        try:
            await connection.link.start()
        except BaseException:
            self._open_connection = None
            raise
        self._connection = connection
        self._caller = connection.caller

    async def __aexit__(self, *_: object) -> None:
        connection = self._open_connection
        if connection is not None:
            if connection.loop.is_closed():  # and the connection with it
                connection.has_left = True
                self._open_connection = None
                return
            check_loop(connection.loop)
            self._open_connection = None
            await connection.stop()

    @property
    def _entered(self) -> RoomConnection:
        """The connection while the room is entered, for reading from any thread."""
        if self._open_connection is None:
            _ = self._connection.loop  # raises if the room was never entered
            raise room_closed_error()
        return self._open_connection

    @property
    def _joined(self) -> RoomConnection:
        """The connection while the room is entered, for work in its event loop."""
        connection = self._entered
        check_loop(connection.loop)
        return connection

    @property
    def room(self) -> str:
        """The room's name."""
        return self._entered.checked_welcome.room

    @property
    def me(self) -> Participant:
        """The participant as others see it; its id changes with each reconnect."""
        return self._entered.me

    @property
    def name(self) -> str:
        """The participant's name: the `sub` of its token."""
        return self.me.name

    @property
    def grants(self) -> ApiScope:
        """The grants of the token, as the server reported them; unknown ones are left out."""
        return ApiScope.known_of(self._entered.checked_welcome.facts["api"])

    @property
    def _state(self) -> str:
        connection = self._open_connection
        if connection is None or connection.welcome is None:
            if self._is_entering:
                return "connecting"
            return "not connected" if self._connection is _UNENTERED else "closed"
        if connection.link.error is not None:
            return "ended"
        return "connected" if connection.link.is_ready else "reconnecting"

    def __repr__(self) -> str:
        """Show server, room, name and state; never the token, and no address that is malformed."""
        chosen = dict(self._choices)
        if self._settings is not None:
            chosen |= {"url": self._settings.url, "room": self._settings.room}
        for connection in (self._connection, self._open_connection):
            if connection is not None and connection is not _UNENTERED and connection.full_name:
                chosen["name"] = connection.full_name
        try:
            check_url(str(chosen["url"]))
        except ValueError:  # what is before an @ may be a password
            chosen["url"] = None
        facts = [str(chosen["url"] or "")]
        for what in ("room", "name"):
            if chosen[what]:
                facts.append(f"{what} {str(chosen[what])[:SHOWN_CHARS]!r}")
        return f"<{type(self).__name__} {', '.join(filter(None, [*facts, self._state]))}>"

    async def closed(self) -> None:
        """Wait until this participant has left the room for good.

        Raises:
            RoomException: The reason, unless this side left.
        """
        link = self._joined.link
        await link.finished()
        if link.error is not None:
            raise link.error

    # Hosting

    @contextlib.asynccontextmanager
    async def host(
        self,
        toolkit: Toolkit,
        *,
        public: bool | None = None,
        shared_with: Sequence[str] | None = None,
        supersede: bool | None = None,
    ) -> AsyncIterator[Toolkit]:
        """Host a toolkit for as long as the block runs.

        At its end the toolkit is unregistered, running calls may finish, and its tools are stopped.
        If other hosts of this identity serve another definition under the name, this one takes over
        from a lower `version`; else it is in reserve, with a warning in the log. A tool that
        no room takes is left out, and named in the log and in the annotation `left_out`.

        Args:
            toolkit: The toolkit to host.
            public: Whether the whole room sees it; True unless the toolkit itself says otherwise.
            shared_with: Who else sees a private toolkit: `name:x` of your issuer,
                `name:alias/x` of another one, `role:x`, or `*`.
            supersede: True takes over from other definitions whatever their versions; False raises
                `DefinitionConflict` if there are any.

        Raises:
            ValueError: This connection already hosts a toolkit of this name, its definition has
                more than 1 MiB or no tool that a room takes, a public toolkit is shared, or
                `public`, `shared_with` or `supersede` is invalid.
            TypeError: `toolkit` is not a toolkit.
            RoomException: The server refuses the registration.
            Exception: What the `start` of a tool raises.
        """
        connection = self._joined
        is_public, shares = checked_offer(toolkit, public, shared_with)
        must_supersede = checked_supersede(toolkit, supersede)
        manifest = packed_manifest(toolkit)
        hosted = connection.runner.host(toolkit, public=is_public)
        hosting = Hosting(
            self,
            connection.runner,
            connection.registrations,
            Registration(hosted, manifest, shares, must_supersede),
            is_ready=lambda: connection.link.is_ready,
            is_closed=lambda: connection.link.error is not None,
        )
        async with hosting.run():
            connection.hostings[hosting.key] = hosting
            place = self.room, self.me.full_name, connection.link.url
            _logger.info("hosting toolkit %s in room %s as %s at %s", toolkit.name, *place)
            try:
                yield toolkit
            finally:
                del connection.hostings[hosting.key]

    async def replace(self, toolkit: Toolkit, *, supersede: bool | None = None) -> None:
        """Serve another definition of a toolkit that this participant hosts, in one step.

        The toolkit of the same name is registered again, with the same `public` and `shared_with`;
        its name is never without a host. Calls that the server has dispatched to the old definition
        end there, and later ones go to the new one. Tools that only the new one has are started
        before, and those that only the old one has are stopped after its last call.

        Alone under its name, this host needs no higher version. Beside other hosts of the old
        definition it is as any host: it takes over from a lower `version` or by `supersede`, else
        it is in reserve until all of them have replaced theirs.

        After an error the old definition is served.

        Args:
            toolkit: The new definition, for example `old.with_tools(...)`.
            supersede: As of `host`; unless given, that of the toolkit, else that of `host`.

        Raises:
            ValueError: This connection hosts no toolkit of this name, or `supersede` is invalid.
            TypeError: `toolkit` is not a toolkit.
            RoomException: The server refuses the registration.
            Exception: What the `start` of a new tool raises.
        """
        await find_hosting(self._joined.hostings, toolkit).replace(toolkit, supersede)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Accept no more calls, and wait until the running ones have ended.

        The participant stays in the room until the end of its block. New calls go to other hosts,
        or get `no_host`. The names of the hosted toolkits are kept for 30 s after this participant
        has left, so that its next process can take over. Nested calls of running calls go on. From
        then on this participant cannot host.

        Args:
            timeout_s: Seconds that running calls may take to finish; then they are cancelled. 10
                unless `TOOLBUS_DRAIN` is set.

        Raises:
            ValueError: `timeout_s` is not a number of seconds, 0 or more; nothing has changed.
        """
        if timeout_s is not None and not is_time(timeout_s):
            raise ValueError("timeout_s must be a number of seconds, 0 or more, or None")
        await self._joined.drain(timeout_s)

    # Tokens and administration

    async def refresh(self) -> None:
        """Read or mint a new token now; its grants and its expiry replace those of the old one.

        This happens by itself before the token expires, unless the token is a string.

        Readers of events get the events that are granted now; "missed" marks the change.

        Raises:
            PermissionDenied: It is invalid, or of another participant; the old token stays.
            TypeError: `token=` is not an async function that returns text.
        """
        await self._joined.renewal.refresh()

    async def admin(self, action: str, **options: Any) -> dict[str, Any]:
        """Administer rooms; needs the grant `admin`.

        Args:
            action: "rooms", "kick" or "revoke".
            options: "rooms" takes `limit` (at most 1,000) and `cursor`; "kick" takes `room` and
                `participant`; "revoke" takes `name`, also with `issuer`, or `jti`.

        Returns:
            For "rooms": `rooms`, and the `cursor` of the next page or None. Otherwise: `closed`,
            the number of closed connections.

        Raises:
            PermissionDenied: The grant is missing, or the token does not cover the room.
            InvalidArguments: There is no such action, or an option is missing.
        """
        return await self._joined.caller.request(Admin, action, options)

    # Approvals

    async def holds(self, *, settled: bool = False) -> list[HoldInfo]:
        """List the calls that wait for a person and that this participant may approve or answer.

        Args:
            settled: Whether those are listed too that were settled within the last 10 minutes.

        Raises:
            PermissionDenied: The grants `approve`, `approve_all` and `answer` are missing.
            Unavailable: The server is older.
        """
        return [HoldInfo.from_wire(hold) async for hold in self._listed({"settled": settled})]

    async def hold(self, id: str) -> HoldInfo:
        """Read one call that waits, with all that would run, or is asked: its `body`.

        A call whose tool has no code counts from then on as one that may have been carried out.

        Raises:
            NotFound: There is none with this id that this participant may approve or answer.
            InvalidResult: What its host asks is not what would run, or cannot be read.
        """
        body = await self._approver().request(Holds, {"hold": text_of("id", id)})
        return HoldInfo.from_wire(body["hold"])

    async def approve(
        self,
        id: str | HoldInfo,
        arguments: Mapping[str, Any] | None = None,
        rule: Rule | Sequence[Rule] | bool | None = None,
    ) -> None:
        """Let a call that waits run, with these very arguments.

        It is about what was shown: pass the `HoldInfo` that was read. With an id alone it is about
        whatever the call would do. The same answer may be given again, as after a lost connection.

        Args:
            id: The hold, or its id.
            arguments: Other arguments to run it with. They need the grant to call the tool. If they
                do not fit it, the call goes on waiting; its host validates and judges them too.
            rule: What further calls may run without being asked about: an allow rule of this tool,
                several of them, or True for exactly these arguments. It holds at this host for the
                principal of the call and this definition, until the host ends or it is taken back.
                It never replaces a denial, nor what the tool asks about an input by itself; a rule
                that asks it replaces for exactly these arguments.

        Raises:
            NotFound: There is none with this id that this participant may approve.
            AlreadyExists: It is settled; `details` has its `outcome`, and `by` whom.
            PermissionDenied: This participant may not approve it, or change its arguments.
            InvalidArguments: It is about something else by now, or an argument is invalid.
        """
        options: dict[str, Any] = {}
        if arguments is not None:
            options["arguments"] = packed_json("arguments", dict(arguments))
            id = id if isinstance(id, HoldInfo) else await self.hold(id)
            await self._check_changed(id, arguments)
        if rule is not None:
            options["rules"] = packed_rules(rule)
        await self._settle(id, "approve", options)

    async def deny(self, id: str | HoldInfo, reason: str = "") -> None:
        """Refuse a call that waits; raises as `approve`.

        Args:
            id: The hold, or its id.
            reason: Why, for the caller, which may be a model; at most 2,000 characters.
        """
        await self._settle(id, "deny", {"reason": text_of("reason", reason)} if reason else {})

    async def answer(self, id: str | HoldInfo, /, *chunks: Any) -> None:
        """Answer a question of a tool, or a call whose tool has no code.

        An answer that does not fit is refused here, and the question stays open. The same answer
        may be given again, as after a lost connection.

        Args:
            id: The hold, or its id.
            chunks: The answer: one value, such as a text, a JSON value, a file's bytes or a chunk;
                of a call several, as a tool returns them, and none for an empty result. Together
                they have at most 256 KiB.

        Raises:
            InvalidArguments: It does not fit; or the hold asks for an approval.
            TooLarge: It has more than 256 KiB.
            NotFound: There is none with this id that this participant may answer.
            AlreadyExists: It is settled; `details` has its `outcome`, and `by` whom.
            PermissionDenied: This participant may not answer it.
        """
        hold = id if isinstance(id, HoldInfo) else await self.hold(id)
        if hold.body is None and hold.is_open:  # as a list has it
            hold = await self.hold(hold.id)
        chunk = await answer_chunk(chunks)
        if hold.body is not None and hold.kind == "answer":
            hold.body.check(chunk)
        await self._settle(hold, "answer", {"chunk": packed_answer(chunk)})

    async def granted_rules(self) -> list[GrantedHold]:
        """List the rules granted at hosts that this participant may take back.

        Those for its own calls with the grant `approve` for the tool, those for others' calls with
        `approve_all`, and all of its own hosts. Raises as `holds`.
        """
        return [GrantedHold.from_wire(hold) async for hold in self._listed({"kind": "granted"})]

    async def take_back(self, granted: str | GrantedHold) -> None:
        """Take a granted rule back: its host asks again about what it covered, from now on.

        Args:
            granted: The rule, or its id.

        Raises:
            NotFound: There is none with this id that this participant may take back.
            AlreadyExists: Somebody else has taken it back.
        """
        await self._settle(granted, "take_back", {})

    async def _listed(self, options: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield what the server lists, page by page."""
        caller = self._approver()
        cursor: str | None = None
        while True:
            body = await caller.request(Holds, {"cursor": cursor, **options})
            for hold in body["holds"]:
                yield hold
            cursor = body["cursor"]
            if cursor is None:
                return

    def _approver(self) -> Caller:
        caller = self._joined.caller
        if not caller.can_hold:
            raise holds_unknown_error()
        return caller

    async def _check_changed(self, hold: HoldInfo, arguments: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` for what does not fit the tool: at its host the call would end.

        What this participant may not read, its host alone checks.
        """
        from toolbus.schemas.foreign import usable_schema  # few programs approve calls
        from toolbus.schemas.validation import JsonCheck, invalid_arguments

        try:
            info, manifest = await self._described(hold.toolkit, hold.owner)
        except (NotFound, PermissionDenied):
            return
        for tool in manifest.tools if info.digest == hold.definition else ():
            if f"{manifest.name}.{tool.name}" == hold.tool:
                schema = usable_schema(tool.input_schema).schema
                violation = JsonCheck(schema).violation(dict(arguments))
                if violation is not None:
                    raise invalid_arguments([violation])

    async def _settle(
        self, hold: str | HoldInfo | GrantedHold, decision: str, options: dict[str, Any]
    ) -> None:
        caller = self._approver()
        if not isinstance(hold, HoldInfo | GrantedHold):
            hold = await self.hold(hold)
        fields = hold.id, decision, hold.digest, options
        try:
            await caller.request(Settle, *fields)
        except ConnectionLost:  # the same answer again succeeds again
            await caller.request(Settle, *fields)

    # Attributes and builders

    async def set_attributes(self, /, **attributes: Any) -> None:
        """Change the attributes that others see: `set_attributes(status="busy")`; None removes one.

        Attributes are JSON values, at most 64 and 16 KiB in all. They are published again after a
        reconnect.

        Raises:
            InvalidArguments: They are invalid; nothing has changed.
        """
        await self._joined.attributes.set_attributes(attributes)

    async def offer_builders(self, builders: Iterable[BuilderInfo]) -> None:
        """Publish which toolkits this participant builds on request; replaces the previous list.

        Raises:
            InvalidArguments: One is not a `BuilderInfo`, a name or a JSON Schema is invalid, or
                there are too many.
        """
        await self._joined.attributes.offer_builders(builders)

    # Events

    def events(self, topics: Iterable[str] = DEFAULT_TOPICS) -> EventStream[RoomEvent]:
        """Return a stream of the events of the room from now on, as far as they are granted.

        `async with room.events() as events:` has subscribed once the block runs, and
        `async for event in events:` yields the events since then. Without the block it subscribes
        when the first event is asked for. The stream ends when this participant leaves the room. If
        its connection ends for good otherwise, reading raises the reason, as `closed` does.

        Events of toolkits need the grant `use_tools`, of participants `presence`, and messages
        `messaging`, holds `approve`, `approve_all` or `answer`.

        Args:
            topics: Only these: "toolkits", "participants" and "messages" by default, and "holds".
                A subscriber of messages is counted by `send` and `broadcast`.

        Entering or first reading the stream raises:
            PermissionDenied: None of the topics is granted.
            InvalidArguments: There is no such topic.
        """
        return EventStream(lambda: self._joined.subscriptions.events(topics))

    def watch_calls(self) -> EventStream[CallReport]:
        """Return a stream of reports about all calls in the room from now on.

        It is entered and read as `events()` is. The first report comes at once and has the number
        of calls in flight; at most ten follow per second. While there is a reader, each call costs
        the server a little more.

        Entering or first reading the stream raises:
            PermissionDenied: The grant `observe` is missing.
        """
        return EventStream(lambda: self._joined.subscriptions.calls())


def client_of(room: Room) -> RoomClient:
    """Return the participant that a view of a room belongs to."""
    client = connection_of(room).client
    assert isinstance(client, RoomClient), "as every participant makes its connection"
    return client


def settings_of(room: RoomClient) -> RoomSettings | None:
    """Return the settings of a participant; None before it enters its room for the first time."""
    return room._settings
