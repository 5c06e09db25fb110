"""The flags of commands that join a room, and joining the room.

Settings without a flag come from `TOOLBUS_*` or the settings file: see `toolbus.settings`. Errors
in settings are reported before connecting.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import typer

from toolbus.cli.error_report import reporting
from toolbus.cli.options import takes
from toolbus.client.caller import Caller
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.join_errors import explain_refusal, read_token, resolve_settings
from toolbus.errors import DeadlineExceeded
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.settings import RoomSettings
from toolbus.telemetry.tracing import Tracing, recorded
from toolbus.untrusted_text import json_text
from toolbus.wire import ListToolkits

if TYPE_CHECKING:  # few commands are given a lock file
    from toolbus.room.lock_file import LockFile

__all__ = [
    "ROOM_SETTINGS",
    "CommandRoom",
    "FirstToolkits",
    "Locked",
    "RoomOptions",
    "in_room",
    "joined_room",
    "joins_a_room",
    "read_lock",
    "say_hosted",
]

T = TypeVar("T")

Locked: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--locked",
        metavar="FILE",
        help="Refuse toolkits that are not in this lock file, or differ from it. [TOOLBUS_LOCK]",
    ),
]
"""The option `--locked` of commands that call tools."""


_Option = functools.partial(typer.Option, rich_help_panel="Room")


@dataclass(frozen=True, slots=True)
class RoomOptions:
    """The values of the flags; None where a flag was not given."""

    url: Annotated[str | None, _Option(help="URL of the server: ws://HOST:PORT. [TOOLBUS_URL]")] = (
        None
    )
    room: Annotated[str | None, _Option(help="Name of the room. Default: main. [TOOLBUS_ROOM]")] = (
        None
    )
    token: Annotated[
        str | None,
        _Option(
            help="The token, or the name of its file, also as @FILE. "
            "[TOOLBUS_TOKEN, TOOLBUS_TOKEN_FILE]"
        ),
    ] = field(default=None, repr=False)
    name: Annotated[
        str | None,
        _Option(help="Your name, if your token is created from a key. [TOOLBUS_NAME]"),
    ] = None
    context: Annotated[
        str | None,
        _Option(
            help="Name of a context, which overrides variables: see `toolbus context`. "
            "[TOOLBUS_CONTEXT]"
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print values and errors as JSON.")] = (
        False
    )

    def choices(self) -> dict[str, Any]:
        """Return the arguments for `RoomClient` and `RoomSettings.resolve`."""
        return {name: getattr(self, name) for name in ROOM_SETTINGS}

    def resolve(self) -> RoomSettings:
        """Resolve server, room and identity. Raises UsageError."""
        settings = resolve_settings(**self.choices())
        if self.token is None:
            return settings
        return replace(settings, token_from="the token (--token)")

    def resolve_room(self) -> RoomSettings:
        """Resolve server and room; a token is not needed. Raises UsageError."""
        return resolve_settings(**{**self.choices(), "token": _no_token, "name": None})


ROOM_SETTINGS = ("url", "room", "token", "name", "context")
"""The flags that say which room is joined, and as whom."""


def say_hosted(room: RoomClient, toolkit: str, *, as_json: bool) -> None:
    """Print that a toolkit of this process can be called now."""
    if as_json:
        facts = {"toolkit": toolkit, "room": room.room, "name": room.name}
        typer.echo(json_text(facts))
    else:
        typer.echo(f"hosting {toolkit} in room {room.room} as {room.me.full_name}")


async def _no_token() -> str:
    raise UsageError("no token was given")


def joins_a_room(command: Callable[..., None]) -> Callable[..., None]:
    """Add the room flags to a command, in place of its parameter `options: RoomOptions`.

    Errors that the command raises are reported; their exit code ends the command.
    """

    @functools.wraps(command)
    def reported(options: RoomOptions, **given: Any) -> None:
        with reporting(as_json=options.as_json):
            command(options=options, **given)

    return takes(RoomOptions)(reported)


class FirstToolkits(NamedTuple):
    """The first page of the toolkits that a participant can see, ordered by name."""

    toolkits: list[ToolkitInfo]
    is_complete: bool

    def cover(self, name: str) -> bool:
        """Whether a toolkit of this name would be on this page."""
        return self.is_complete or (bool(self.toolkits) and name < self.toolkits[-1].name)


class CommandRoom(RoomClient):
    """A room with what only commands need."""

    __slots__ = ()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open; a lost connection is reopened automatically."""
        # False as soon as the end of the stream is read: a call of that moment would wait.
        return connection_of(self).link.check_ready()

    @property
    def lock(self) -> LockFile | None:
        """The lock file that calls are checked by, if there is one."""
        caller = connection_of(self).caller
        if type(caller) is Caller:
            return None
        from toolbus.room.locked_caller import LockedCaller

        assert isinstance(caller, LockedCaller), "the other kind of caller"
        return caller.lock

    async def all_toolkits(self) -> list[ToolkitInfo]:
        """Return the whole toolkit list."""
        return [info async for info in self.toolkits()]

    async def first_toolkits(self) -> FirstToolkits:
        """Return the first page of the toolkit list."""
        body = await connection_of(self).caller.request(ListToolkits, {})
        listed = [ToolkitInfo.from_wire(entry) for entry in body["toolkits"]]
        return FirstToolkits(listed, body["cursor"] is None)


def read_lock(
    settings: RoomSettings, locked: Path | Literal[False] | None
) -> LockFile | Literal[False]:
    """Read the lock file of an option, else of the settings; False if there is none.

    Raises:
        UsageError: It is missing or malformed.
    """
    path = settings.lock if locked is None else locked
    if not path:
        return False
    from toolbus.room.lock_file import InvalidLockFile, LockFile

    try:
        return LockFile.load(path)
    except InvalidLockFile as error:
        raise UsageError(str(error)) from error


def in_room(
    options: RoomOptions,
    work: Callable[[CommandRoom], Awaitable[T]],
    *,
    timeout_s: float | None = None,
    join_timeout_s: float | None = None,
    locked: Path | Literal[False] | None = None,
    tracing: Tracing | None = None,
) -> T:
    """Join a room, run a function there, and leave.

    `timeout_s` limits all of it, `join_timeout_s` the joining. The lock file is by default that of
    the settings; with `locked=False` there is none. `tracing` records spans, by default as the
    `OTEL_*` variables say.

    Raises:
        UsageError: The lock file is missing or malformed.
        DeadlineExceeded: Joining took longer than `join_timeout_s`.
        RoomException: The room cannot be joined, or the function raised it.
        TimeoutError: It took longer than `timeout_s`.
    """

    async def join() -> T:
        async with (
            asyncio.timeout(timeout_s),
            joined_room(
                options, join_timeout_s=join_timeout_s, locked=locked, tracing=tracing
            ) as room,
        ):
            return await work(room)

    with recorded("toolbus-cli"):
        return asyncio.run(join())


@asynccontextmanager
async def joined_room(
    options: RoomOptions,
    *,
    join_timeout_s: float | None = None,
    locked: Path | Literal[False] | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[CommandRoom]:
    """Join a room for a block. Arguments and errors are those of `in_room`."""
    settings = options.resolve()
    async with explain_refusal(settings):
        await read_token(settings)
        lock = read_lock(settings, locked)
        room = CommandRoom(**options.choices(), locked=lock, tracing=tracing)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(join_timeout_s):
                    await stack.enter_async_context(room)
            except TimeoutError:
                text = f"the deadline passed before {settings.url} accepted the connection"
                raise DeadlineExceeded(text, executed="no") from None
            yield room
