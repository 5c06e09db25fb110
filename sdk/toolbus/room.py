"""A view of a room: every way to call, list and inspect toolkits.

It is what a program and a running tool share. What a tool gets as `context.room` is bound to its
call, so that whatever it calls becomes that call's child, with its principal and within its
deadline, without the tool's doing anything for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from random import getrandbits
from typing import Any

from toolbus.calls import DEFAULT_TIMEOUT_S, Caller
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.plain_json import plain_json
from toolbus.retries import Plan
from toolbus.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.wire import BadBody, Describe, ListToolkits, ToolkitManifest, pack_body

__all__ = ["Core", "Room"]

_MAX_TIMEOUT_S = 2**31


@dataclass(slots=True, eq=False)
class Core:
    """What all views of one connection share."""

    loop: asyncio.AbstractEventLoop
    caller: Caller
    call_prefix: str = field(default_factory=partial(secrets.token_hex, 8))
    """Half of the 128 random bits of a call's id; the other half is drawn for each."""


def _no_tool(tool: str) -> InvalidArguments:
    return InvalidArguments(f"{tool[:64]!r} names no tool: write toolkit.tool")


def _text(what: str, value: Any) -> str:
    """Return text as plain text; a server takes anything else for a broken frame."""
    if not isinstance(value, str):
        raise InvalidArguments(f"{what} is text, not {type(value).__name__}")
    return str.__str__(value)


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and -_MAX_TIMEOUT_S < value < _MAX_TIMEOUT_S:
        return float(value)
    raise InvalidArguments("timeout_s is a number of seconds, and not for ever")


def _packed_as_json(what: str, value: Any) -> bytes:
    try:
        return pack_body(plain_json({} if value is None else value))
    except (BadBody, InvalidResult) as error:
        words = f"{what} {error}"
        path = str(error.path if isinstance(error, BadBody) else error.details.get("path", ""))
        raise InvalidArguments(words, details={"path": path, "message": words}) from error


class Room:
    """Every way to call, list and inspect toolkits.

    Args:
        core: What all views of one connection share.
        parent: The call that a view is bound to, as its host knows it.
        deadline_at: When that call's time is up, by the loop's clock.
    """

    __slots__ = ("_core", "_deadline_at", "_parent")

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
            raise _no_tool(tool)
        return (await self.invoke(toolkit, name, arguments)).value

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
            attachment: An upload; this release sends none, so anything but None is refused.
            pin: The digest of the definition that is meant; another one is refused.
            retry: Whether to try again where that can do no harm.
            returns: A type that the value is converted to.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
        """
        if not type(toolkit) is type(tool) is str:
            toolkit, tool = _text("toolkit", toolkit), _text("tool", tool)
        if attachment is not None:
            raise InvalidArguments("attachments are not supported yet")
        seconds = DEFAULT_TIMEOUT_S if timeout_s is None else _seconds(timeout_s)
        deadline_at = self._core.loop.time() + seconds
        if self._deadline_at is not None and self._deadline_at < deadline_at:
            deadline_at = self._deadline_at
        try:
            packed = pack_body({} if arguments is None else arguments)
            context = None if caller_context is None else pack_body(caller_context)
        except BadBody:
            # Models, enums, dates and the like are written as JSON; what cannot be is refused.
            packed = _packed_as_json("arguments", arguments)
            context = None if caller_context is None else _packed_as_json("caller", caller_context)
        options: dict[str, Any] = {}
        if participant is not None:
            options["participant"] = participant = _text("participant", participant)
        if self._parent is not None:
            options["parent"] = self._parent
        if on_behalf_of is not None:
            options["on_behalf_of"] = _text("on_behalf_of", on_behalf_of)
        if pin is not None:
            options["pin"] = _text("pin", pin)
        if context is not None:
            options["caller_context"] = context
        key = (toolkit, participant)
        call_id = f"{self._core.call_prefix}{getrandbits(64):016x}"
        plan = Plan(toolkit, tool, packed, options, call_id, deadline_at, retry, key)
        chunk = await self._core.caller.call(plan)
        return chunk if returns is None else chunk.into(returns)

    async def toolkit(
        self, name: str, participant: str | None = None, pin: str | None = None
    ) -> ToolkitProxy:
        """Read a toolkit's description and return it with its tools as methods.

        Raises:
            NotFound: There is none that you may know of.
            DefinitionChanged: `pin` names another definition; raised by the first call.
        """
        name = _text("toolkit", name)
        participant = None if participant is None else _text("participant", participant)
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
            wanted = None if search is None else _text("search", search)
            options = {"search": wanted, "cursor": cursor}
            body = await self._core.caller.request(ListToolkits, options)
            for summary in body["toolkits"]:
                yield ToolkitInfo.from_wire(summary)
            cursor = body["cursor"]
            if cursor is None:
                return
