"""The flags of every command that joins a room, and the joining itself.

A setting that no flag gives comes from `TOOLBUS_*` or the settings file: see `toolbus.settings`.
What is wrong with any of them is said before a connection is tried.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from toolbus.commands.near_names import FirstToolkits
from toolbus.commands.outcome import reporting
from toolbus.exit_codes import UsageMistake
from toolbus.joining import explaining, read_token, settle
from toolbus.recorded import recorded
from toolbus.room_client import RoomClient
from toolbus.settings import RoomSettings, Token
from toolbus.toolkit_proxy import ToolkitInfo
from toolbus.wire import ListToolkits

__all__ = ["CommandRoom", "RoomOptions", "in_room", "joins_a_room"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoomOptions:
    """What the flags said; None where they said nothing."""

    url: str | None = None
    room: str | None = None
    token: str | None = field(default=None, repr=False)
    name: str | None = None
    as_json: bool = False

    def choices(self) -> dict[str, Any]:
        """Return them as the arguments of `RoomClient` and `RoomSettings.resolve`.

        Raises:
            UsageMistake: The token is none.
        """
        return {"url": self.url, "room": self.room, "token": self._token(), "name": self.name}

    def _token(self) -> Token | None:
        if self.token is not None and self.token.startswith("@"):
            return Path(self.token[1:])
        if self.token is not None and os.path.isfile(self.token):
            raise UsageMistake(f"{self.token} is a file: write --token @{self.token}")
        return self.token

    def settle(self) -> RoomSettings:
        """Settle where to connect and as whom. Raises UsageMistake."""
        settings = settle(**self.choices())
        return (
            settings if self.token is None else replace(settings, token_from="the token (--token)")
        )

    def settle_place(self) -> RoomSettings:
        """Settle where to connect, whether there is a token or not. Raises UsageMistake."""
        return settle(url=self.url, room=self.room, token="not yet")


def _flag(name: str, kind: Any, default: Any, flag: str, words: str) -> inspect.Parameter:
    option = typer.Option(flag, help=words, rich_help_panel="Room")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


_FLAGS = (
    _flag("url", str | None, None, "--url", "The server: ws://HOST:PORT. [TOOLBUS_URL]"),
    _flag("room", str | None, None, "--room", "The room; main unless said. [TOOLBUS_ROOM]"),
    _flag("token", str | None, None, "--token", "The token, or @FILE. [TOOLBUS_TOKEN_FILE]"),
    _flag("name", str | None, None, "--name", "My name, where a key mints my token."),
    _flag("json", bool, False, "--json", "Print values and errors as JSON."),
)


def joins_a_room(command: Callable[Concatenate[RoomOptions, P], None]) -> Callable[..., None]:
    """Give a command the flags of all that join a room; its first parameter receives them.

    Errors that the command raises are reported, and end it with their exit code.
    """
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:
        as_json = given.pop("json")
        named = {flag.name: given.pop(flag.name) for flag in _FLAGS if flag.name in given}
        with reporting(as_json=as_json):
            command(RoomOptions(**named, as_json=as_json), **given)  # type: ignore[call-arg]  # typer fills them by the signature below

    parameters = [*own, *_FLAGS]
    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_flags


class CommandRoom(RoomClient):
    """A room as a command joins it."""

    __slots__ = ()

    @property
    def is_connected(self) -> bool:
        """Whether the server can be asked now; a lost connection comes back by itself."""
        return self._joined.link.is_ready

    async def first_toolkits(self) -> FirstToolkits:
        """List toolkits by one request: those on the first page."""
        body = await self._core.caller.request(ListToolkits, {})
        listed = [ToolkitInfo.from_wire(each) for each in body["toolkits"]]
        return FirstToolkits(listed, body["cursor"] is None)


def in_room(
    options: RoomOptions,
    work: Callable[[CommandRoom], Awaitable[T]],
    *,
    patience_s: float | None = None,
) -> T:
    """Join a room as the flags say, do something there, and leave.

    Args:
        options: The flags.
        work: What to do there.
        patience_s: How long all of it may take.

    Raises:
        RoomException: What the work raises, or why the room cannot be joined.
        TimeoutError: It took longer than `patience_s`.
    """

    async def join() -> T:
        settings = options.settle()
        await read_token(settings)
        async with (
            asyncio.timeout(patience_s),
            explaining(settings),
            CommandRoom(**options.choices()) as room,
        ):
            return await work(room)

    with recorded("toolbus-cli"):
        return asyncio.run(join())
