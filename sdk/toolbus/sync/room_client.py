"""A participant for programs without an event loop, and for many threads; and its toolkits."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from toolbus.auth.grants import ApiScope
from toolbus.client.local_errors import room_closed_error
from toolbus.client.retry import DEFAULT_WAIT_FOR_HOST_S
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.loop_thread import LoopEnded, LoopThread
from toolbus.errors import ConnectionLost, Unavailable
from toolbus.permissions.plain import MAX_ASSESS_S
from toolbus.room.events import DEFAULT_TOPICS, RoomEvent
from toolbus.room.holds import GrantedHold, HoldInfo
from toolbus.room.participants import BuilderInfo, ParticipantInfo
from toolbus.room.room_client import RoomClient as AsyncRoomClient
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.room.toolkit_proxy import ToolkitProxy as AsyncToolkitProxy
from toolbus.settings import Token
from toolbus.sync.results import Chunk, Run, Stream, waited_for, with_blocking_files
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.call_room import InvokeOptions, StreamOptions
from toolbus.tools.tool_run import Participant
from toolbus.wire import ToolkitManifest, ToolManifest

if TYPE_CHECKING:
    from typing import _SpecialForm  # what type checkers take `Literal[...]` for

    from toolbus.permissions.assessment import Assessment
    from toolbus.permissions.rule import Rule
    from toolbus.room.calls import CallExplanation, CallReport
    from toolbus.room.lock_file import LockFile

__all__ = ["RoomClient", "ToolkitProxy"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_IN_LOOP = (
    "this thread runs an event loop, which waiting would block: use toolbus.RoomClient and await,"
    " or call from another thread (await asyncio.to_thread(...))"
)
_FORKED = "this client was connected before the process was forked: make another one here"
# Leaving takes a round trip; a server that does not answer is given up after 2 s.
_STOP_S = 10.0


class RoomClient:
    """A participant whose methods wait: `with RoomClient(url, room="lab", token=token) as room:`.

    Each method is that of `toolbus.RoomClient`: it has the same arguments, result and errors. Any
    number of threads may use one client, which has one connection, and an event loop on a thread of
    its own. Ctrl-C in a thread that waits for a call cancels the call. Functions that a program
    passes, such as `on_progress`, and async ones such as `token`, run on the thread of the client
    and must not block it or use the client.

    It hosts nothing: `toolbus.RemoteToolkit.run` does.

    Args:
        url: The server, and the further arguments, are those of `toolbus.RoomClient`.
        room: The room's name.
        token: The token, the path of a file that holds it, or an async function that returns one.
        name: The participant's name, if this process mints its own tokens.
        instance: Distinguishes replicas of one identity.
        context: The name of a context of `toolbus context`.
        tracing: Records spans; unless given, as OpenTelemetry is set up in this process.
        locked: A `LockFile` or the path of one; False is none.
        wait_for_host_s: Seconds that a call waits if its toolkit has no host now.
        wait: Whether, or for how many seconds, connecting waits for the server.
        headers: Further headers of the HTTP request that opens a connection.
    """

    # One loop and thread for each client, not one for the process: what blocks the loop of one
    # client (a progress function, say) holds up no other, and `close` ends all of it.

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
        self._client = AsyncRoomClient(
            url,
            room=room,
            token=token,
            name=name,
            instance=instance,
            context=context,
            tracing=tracing,
            locked=locked,
            wait_for_host_s=wait_for_host_s,
            wait=wait,
            headers=headers,
        )
        self._changing = threading.Lock()
        self._thread: LoopThread | None = None
        self._was_closed = False

    # Connecting

    def connect(self) -> Self:
        """Join the room, and return this client.

        Raises:
            RuntimeError: It is connected already, or this thread runs an event loop.
            Exception: What `toolbus.RoomClient` raises.
        """
        self._check_thread()
        with self._changing:
            if self._thread is not None:
                raise RuntimeError(
                    "this client is already connected: make another one, or close it"
                )
            thread = self._thread = LoopThread("toolbus-client", self._client.aclose)
        self._abandoned = weakref.finalize(self, thread.request_stop)  # a client that is not closed
        self._abandoned.atexit = False
        try:
            self._run(self._client.connect)
        except BaseException:
            with self._changing:
                if self._thread is thread:
                    self._thread = None
            self._abandoned.detach()
            thread.stop(_STOP_S)
            raise
        return self

    def close(self) -> None:
        """Leave the room. Calls of other threads end with `ConnectionLost`. Again, it does nothing.

        Raises:
            RuntimeError: This thread runs an event loop.
        """
        if self._is_forked:
            return  # the connection is that of the parent process
        self._check_thread()
        with self._changing:
            if self._thread is not None:
                self._was_closed = True
                self._abandoned.detach()
                self._thread.stop(_STOP_S)
                self._thread = None

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<sync.", 1)

    def _check_thread(self) -> None:
        """Raise RuntimeError where waiting would block a loop, or nothing would ever answer."""
        if running_loop() is not None:
            raise RuntimeError(_IN_LOOP)
        if self._is_forked:
            raise RuntimeError(_FORKED)

    @property
    def _is_forked(self) -> bool:
        thread = self._thread  # another thread may close this client meanwhile
        return thread is not None and thread.is_forked

    def _run(self, method: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a method of the client on its thread, and wait for the result."""
        self._check_thread()
        thread = self._thread
        if thread is None:
            if self._was_closed:
                raise room_closed_error()
            message = "this client is not connected: with RoomClient(...) as room, or connect()"
            raise Unavailable(message, executed="no", retryable=False)
        try:
            return thread.run(partial(method, *args, **kwargs))
        except LoopEnded:
            raise room_closed_error() from None
        except concurrent.futures.CancelledError:
            message = "the client was closed, or its thread ended, before there was a result"
            raise ConnectionLost(message, executed="maybe") from None

    # What the participant is

    @property
    def room(self) -> str:
        """The room's name."""
        return self._client.room

    @property
    def me(self) -> Participant:
        """The participant as others see it; its id changes with each reconnect."""
        return self._client.me

    @property
    def name(self) -> str:
        """The participant's name: the `sub` of its token."""
        return self._client.name

    @property
    def grants(self) -> ApiScope:
        """The grants of the token, as the server reported them; unknown ones are left out."""
        return self._client.grants

    # Calls

    @overload
    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, /) -> Any: ...
    @overload
    def call(self, tool: str, /, **arguments: Any) -> Any: ...
    def call(self, tool: str, arguments: Any = None, /, *misplaced: Any, **named: Any) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value.

        Arguments are a mapping or keywords, never both. Options are for `invoke`.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            TypeError: The call has another form; the message shows the right one.
        """
        call: Callable[..., Awaitable[Any]] = self._client.call
        return self._result(self._run(call, tool, arguments, *misplaced, **named))

    @overload
    def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        **options: Unpack[InvokeOptions],
    ) -> T: ...
    @overload
    def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: UnionType | _SpecialForm | None = None,
        **options: Unpack[InvokeOptions],
    ) -> Any: ...
    def invoke(self, tool: str, arguments: Any = None, /, *misplaced: Any, **options: Any) -> Any:
        """Call a tool and return its chunk, or, with `returns`, its value as that type.

        The options are those of `toolbus.Room.invoke`.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            OSError: The attachment cannot be read.
            TypeError: The call has another form; the message shows the right one.
        """
        invoke: Callable[..., Awaitable[Any]] = self._client.invoke
        return self._result(self._run(invoke, tool, arguments, *misplaced, **options))

    def stream(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Any,
        **options: Unpack[StreamOptions],
    ) -> Stream[Chunk]:
        """Call a tool and read its chunks as they arrive: `with room.stream(...) as chunks:`.

        The options are those of `toolbus.Room.stream`. Leaving the block cancels the call if it has
        not ended.

        Raises:
            RoomException: Where it is entered or read; `executed` says whether the tool ran.
            TypeError: The call has another form; the message shows the right one.
        """
        source = self._client.stream(tool, arguments, *misplaced, **options)
        return Stream(self._run, source, self._result)

    def _result(self, result: Any) -> Any:
        return with_blocking_files(self._run, result)

    def explain(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Any,
        participant: str | None = None,
        on_behalf_of: str | None = None,
        pin: str | None = None,
    ) -> CallExplanation:
        """Return which host would run a call now, or which error would end it; nothing runs."""
        return self._run(
            self._client.explain,
            tool,
            arguments,
            *misplaced,
            participant=participant,
            on_behalf_of=on_behalf_of,
            pin=pin,
        )

    def assess(  # noqa: PLR0913 - the promised signature
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Any,
        patterns: Sequence[str] = (),
        participant: str | None = None,
        on_behalf_of: str | None = None,
        pin: str | None = None,
        timeout_s: float = MAX_ASSESS_S,
    ) -> Assessment:
        """Ask what a tool says about one input, where it runs; nothing else of it runs."""
        return self._run(
            self._client.assess,
            tool,
            arguments,
            *misplaced,
            patterns=patterns,
            participant=participant,
            on_behalf_of=on_behalf_of,
            pin=pin,
            timeout_s=timeout_s,
        )

    # Toolkits

    def toolkit(
        self, name: str, participant: str | None = None, pin: str | None = None
    ) -> ToolkitProxy:
        """Describe a toolkit and return a proxy with its tools as methods that wait.

        Raises:
            NotFound: There is none that this participant may see.
            DefinitionChanged: `pin` names another definition; raised by the first call. Or the room
                has a lock file that does not have this definition of this owner.
        """

        async def toolkit() -> AsyncToolkitProxy:
            return await self._client.toolkit(name, participant, pin)

        return ToolkitProxy(self._run, self._run(toolkit))

    def toolkits(self, search: str | None = None) -> Iterator[ToolkitInfo]:
        """List the toolkits that this participant can see, in the order of their names.

        Args:
            search: Only toolkits with this text in a name, title or description.
        """
        return waited_for(self._run, self._client.toolkits(search))

    def list_builders(self, participant: str) -> list[BuilderInfo]:
        """List the toolkits that a participant builds on request, as far as they are granted."""
        return self._run(self._client.list_builders, participant)

    # Participants, messages, events

    def participants(self) -> list[ParticipantInfo]:
        """List the participants of the room, including this one, by name.

        Raises:
            PermissionDenied: The grant `presence` is missing.
        """
        return self._run(self._client.participants)

    def send(self, to: str, name: str, body: Any = None) -> int:
        """Send a message to all participants of a name; return how many connections received it.

        Raises:
            RoomException: What `toolbus.Room.send` raises.
        """
        return self._run(self._client.send, to, name, body)

    def broadcast(self, name: str, body: Any = None) -> int:
        """Send a message to all other participants, as `send` does, but without `NotFound`."""
        return self._run(self._client.broadcast, name, body)

    def set_attributes(self, /, **attributes: Any) -> None:
        """Change the attributes that others see; None removes one.

        Raises:
            InvalidArguments: They are invalid; nothing has changed.
        """
        self._run(self._client.set_attributes, **attributes)

    def events(self, topics: Iterable[str] = DEFAULT_TOPICS) -> Stream[RoomEvent]:
        """Return the events of the room from now on: `with room.events() as events:`.

        Entering it raises:
            PermissionDenied: None of the topics is granted.
            InvalidArguments: There is no such topic.
        """
        return Stream(self._run, self._client.events(topics), lambda event: event)

    def watch_calls(self) -> Stream[CallReport]:
        """Return reports about all calls in the room: `with room.watch_calls() as reports:`.

        Entering it raises:
            PermissionDenied: The grant `observe` is missing.
        """
        return Stream(self._run, self._client.watch_calls(), lambda report: report)

    # Approvals

    def holds(self, *, settled: bool = False) -> list[HoldInfo]:
        """List the calls that wait for a person and that this participant may approve or answer.

        Raises:
            RoomException: What `toolbus.RoomClient.holds` raises.
        """
        return self._run(self._client.holds, settled=settled)

    def hold(self, id: str) -> HoldInfo:
        """Read one call that waits, with all that would run: its `body`.

        Raises:
            RoomException: What `toolbus.RoomClient.hold` raises.
        """
        return self._run(self._client.hold, id)

    def approve(
        self,
        id: str | HoldInfo,
        arguments: Mapping[str, Any] | None = None,
        rule: Rule | Sequence[Rule] | bool | None = None,
    ) -> None:
        """Let a call that waits run, with these very arguments; see `toolbus.RoomClient.approve`.

        Raises:
            RoomException: What that raises.
        """
        self._run(self._client.approve, id, arguments, rule)

    def deny(self, id: str | HoldInfo, reason: str = "") -> None:
        """Refuse a call that waits; raises as `approve`."""
        self._run(self._client.deny, id, reason)

    def answer(self, id: str | HoldInfo, /, *chunks: Any) -> None:
        """Answer a question, or a call without code; see `toolbus.RoomClient.answer`.

        Raises:
            RoomException: What that raises.
        """
        self._run(self._client.answer, id, *chunks)

    def granted_rules(self) -> list[GrantedHold]:
        """List the granted rules that this participant may take back; raises as `holds`."""
        return self._run(self._client.granted_rules)

    def take_back(self, granted: str | GrantedHold) -> None:
        """Take a granted rule back; see `toolbus.RoomClient.take_back`.

        Raises:
            RoomException: What that raises.
        """
        self._run(self._client.take_back, granted)

    # Tokens and administration

    def refresh(self) -> None:
        """Read or mint a new token now; its grants and its expiry replace those of the old one.

        Raises:
            PermissionDenied: It is invalid, or of another participant; the old token stays.
            TypeError: `token=` is not an async function that returns text.
        """
        self._run(self._client.refresh)

    def admin(self, action: str, **options: Any) -> dict[str, Any]:
        """Administer rooms, as `toolbus.RoomClient.admin` does; needs the grant `admin`.

        Raises:
            PermissionDenied: The grant is missing, or the token does not cover the room.
            InvalidArguments: There is no such action, or an option is missing.
        """
        return self._run(self._client.admin, action, **options)


class ToolkitProxy:
    """A hosted toolkit: `weather.forecast(city="Oslo")` calls its tool `forecast` and waits.

    A streaming tool is read: `with logs.tail(path="a.log") as chunks:`.
    """

    def __init__(self, run: Run, proxy: AsyncToolkitProxy) -> None:
        """Made by the library."""
        self._run = run
        self._proxy = proxy

    @property
    def info(self) -> ToolkitInfo:
        """Its summary, as of when the proxy was made."""
        return self._proxy.info

    @property
    def manifest(self) -> ToolkitManifest:
        """Its description, rules, and tools with their schemas."""
        return self._proxy.manifest

    def with_options(self, **options: Any) -> Self:
        """Return a proxy with other options of each call, as `toolbus.ToolkitProxy` does."""
        return type(self)(self._run, self._proxy.with_options(**options))

    def call(self, tool: str, arguments: Any = None, /, **named: Any) -> Any:
        """Call a tool by its own name and return the plain value, or it as the option `returns`.

        Raises:
            RoomException: Why there is no value; `executed` says whether the tool ran.
        """
        return self._waited(self._proxy.call, tool, arguments, **named)

    def stream(self, tool: str, arguments: Any = None, /, **named: Any) -> Stream[Chunk]:
        """Call a tool by its own name and read its chunks as they arrive."""
        return self._read(self._proxy.stream, tool, arguments, **named)

    def tool(self, name: str) -> ToolManifest:
        """Return the description of one tool. Raises NotFound."""
        return self._proxy.tool(name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name in {"_run", "_proxy"}:  # while it is copied
            raise AttributeError(name)
        method = getattr(self._proxy, name)
        way = self._read if self._proxy.tool(name).streaming else self._waited

        @wraps(method)  # a function, of which help() shows the signature; of a partial it does not
        def waiting(*positional: Any, **named: Any) -> Any:
            return way(method, *positional, **named)

        return waiting

    def _waited(self, method: Callable[..., Any], /, *positional: Any, **named: Any) -> Any:
        return with_blocking_files(self._run, self._run(method, *positional, **named))

    def _read(self, method: Callable[..., Any], /, *positional: Any, **named: Any) -> Stream[Chunk]:
        source = method(*positional, **named)
        return Stream(self._run, source, partial(with_blocking_files, self._run))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._proxy)})

    def __repr__(self) -> str:
        return repr(self._proxy)
