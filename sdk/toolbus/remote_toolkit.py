"""A toolkit as a service of its own: `weather.run()` in one process, callers in all others."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NoReturn

from toolbus import event_loop
from toolbus.errors import Cancelled, RoomException
from toolbus.exit_codes import UsageMistake, exit_code, failure_lines
from toolbus.host_end import HostEnd
from toolbus.hosted_toolkit import OfferMistake, check_shares
from toolbus.joining import explaining, read_token, settle
from toolbus.room_client import RoomClient
from toolbus.standstill import Standstill
from toolbus.telemetry import configure
from toolbus.tool import Tool
from toolbus.toolkit import Toolkit

__all__ = ["RemoteToolkit", "serve_toolkits"]

_logger = logging.getLogger(__name__)


class RemoteToolkit(Toolkit):
    """A toolkit that hosts itself in a room.

    Args:
        name: A lower-case letter, then up to 63 of `a-z 0-9 _ -`.
        tools: Functions, decorated or not, bound methods, and instances of `Tool`.
        rules: How the tools are to be used together, for models.
        title: For people; made from the name unless given.
        description: What the toolkit is for.
        thumbnail_url: A picture.
        annotations: JSON values of its own, for programs.
        version: The definition's version, as its author counts.
        public: Whether the whole room sees it.
        shared_with: Who else sees a private one: `name:x`, `role:x`, or `*`.

    Raises `TypeError` or `ValueError` as `Toolkit` does, and `ValueError` for a public one that is
    shared, and where `shared_with` names nobody.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        name: str,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        rules: Sequence[str] = (),
        title: str | None = None,
        description: str = "",
        thumbnail_url: str = "",
        annotations: Mapping[str, Any] | None = None,
        version: str = "",
        public: bool = True,
        shared_with: Sequence[str] = (),
    ) -> None:
        super().__init__(
            name,
            tools,
            rules=rules,
            title=title,
            description=description,
            thumbnail_url=thumbnail_url,
            annotations=annotations,
            version=version,
        )
        if public and shared_with:
            raise ValueError(f"toolkit {name!r} is public: shared_with is for private ones")
        if isinstance(shared_with, str):
            raise TypeError(f"toolkit {name!r}: shared_with is a list of texts, not one text")
        check_shares(name, shared_with)
        self.public = public
        self.shared_with: tuple[str, ...] = tuple(shared_with)
        self._hosting: AsyncExitStack | None = None

    async def start(self, room: RoomClient) -> None:
        """Host the toolkit in a room until `stop`.

        Raises:
            RuntimeError: It is hosted already.
            RoomException: The server refuses the registration.
        """
        if self._hosting is not None:
            raise RuntimeError(f"toolkit {self.name} is started already")
        self._hosting = stack = AsyncExitStack()
        try:
            await stack.enter_async_context(room.host(self))
        except BaseException:
            self._hosting = None
            raise

    async def stop(self) -> None:
        """Unregister, let running calls finish, and end the tools. Idempotent."""
        stack, self._hosting = self._hosting, None
        if stack is not None:
            await stack.aclose()

    def run(self) -> None:
        """Connect as `TOOLBUS_*` says, host the toolkit, and return after SIGTERM or Ctrl-C.

        On either it takes no more calls and lets those that run end, for `TOOLBUS_DRAIN` seconds
        at most, 10 unless set; the log says how many there are. Where one of them then does not
        end, the process does, here, without it. A second signal ends the process at once, with
        exit code 5. So does a first one that comes before anything is hosted, as `SystemExit`.

        Where it cannot, or not any longer, it says on stderr why and what to do next, and ends the
        program with the exit code that `toolbus host` would have; `start` raises instead.

        Raises:
            SystemExit: A setting is missing or malformed, no server is there, or it refuses the
                connection or the registration.
        """
        with HostEnd(configure(self.name)) as end:
            try:
                event_loop.run(_serve_alone(self, end))
            except KeyboardInterrupt:
                _fail(Cancelled("given up by Ctrl-C", executed="no"))
            except RoomException as error:
                _fail(error)


def _fail(error: RoomException) -> NoReturn:
    """End the program with words and exit code; of an end that was asked for no call is lost."""
    lines = failure_lines(error, local=isinstance(error, Cancelled))
    sys.stderr.write("\n".join(lines) + "\n")
    raise SystemExit(exit_code(error)) from None


async def serve_toolkits(
    toolkits: Sequence[Toolkit],
    room: RoomClient | None = None,
    drain_s: float | None = None,
    *,
    end: HostEnd | None = None,
) -> None:
    """Host toolkits until SIGTERM or Ctrl-C, or until the room has ended for good.

    On a signal no new call comes any more, and those that run may finish (`RoomClient.drain`).
    What then does not end is left behind, with the end of the process. A second signal ends the
    process at once; its calls are then lost.

    Args:
        toolkits: What to host, each under its own name.
        room: A room that is not entered yet; one that `TOOLBUS_*` describes unless given.
        drain_s: How long they may take; as `TOOLBUS_DRAIN` says unless given, else 10.
        end: Ends the process; only as long as this runs unless given.

    Raises:
        Cancelled: A signal came before anything was hosted.
        RoomException: The server refuses the connection or a registration, or has ended the room.
    """
    if end is not None:
        await _serve(toolkits, room or RoomClient(), drain_s, end)
    else:
        with HostEnd() as own:
            await _serve(toolkits, room or RoomClient(), drain_s, own)


async def _serve(
    toolkits: Sequence[Toolkit], room: RoomClient, drain_s: float | None, end: HostEnd
) -> None:
    end.listen()
    async with AsyncExitStack() as stack:
        with end.joining():
            joined = await stack.enter_async_context(room)
            calls = joined._hosted_calls
            stack.enter_context(Standstill(calls))
            for toolkit in toolkits:
                await stack.enter_async_context(joined.host(toolkit))
                _logger.info("hosting toolkit %s", toolkit.name)
        limit_s = joined._drain_s if drain_s is None else drain_s
        end.hosts(calls, limit_s)
        await _either(end, joined)
        end.announce()
        await joined.drain(limit_s)
    await end.leave()


async def _serve_alone(toolkit: RemoteToolkit, end: HostEnd) -> None:
    """Settle what can be settled before connecting, so that it is told in words."""
    settings = settle()
    await read_token(settings)
    try:
        async with explaining(settings):
            await serve_toolkits([toolkit], end=end)
    except OfferMistake as error:
        raise UsageMistake(str(error)) from error


async def _either(end: HostEnd, room: RoomClient) -> None:
    waiting = [asyncio.ensure_future(end.told()), asyncio.ensure_future(room.closed())]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    for each in done:
        each.result()
