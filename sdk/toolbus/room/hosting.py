"""One toolkit that a participant hosts, from the start of its tools to the end of its last call.

Its definition may be replaced meanwhile. A former definition keeps its tools until its last call
has ended; a tool that both have is neither stopped nor started between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.hosting.hosted_toolkit import HostedToolkit, InvalidOffer
from toolbus.hosting.in_process import started_tools
from toolbus.hosting.loop_watchdog import watched_loop
from toolbus.hosting.runner import Runner
from toolbus.room.registrations import Registration, Registrations, checked_supersede
from toolbus.tools.omission import entries_of, fit_tools
from toolbus.tools.policy import warn_of_policies
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import Toolkit
from toolbus.untrusted_text import one_line
from toolbus.wire import pack_body
from toolbus.wire.manifest import MAX_MANIFEST_BYTES

__all__ = ["Hosting", "find_hosting", "packed_manifest"]

Key = tuple[str, bool]
_logger = bounded_logger(__name__)


def packed_manifest(toolkit: Toolkit) -> bytes:
    """Return a toolkit's manifest as it is registered. Raises `InvalidOffer`.

    A tool that the room would refuse by itself is left out of it, and named there and in the log:
    the others need not wait for its author.
    """
    manifest = toolkit.manifest()
    fitting, left_out = fit_tools(toolkit.tools)
    if left_out:
        named = one_line("; ".join(f"{entry.name}: {entry.reason}" for entry in left_out), 2_000)
        if not fitting:
            raise InvalidOffer(f"toolkit {toolkit.name}: no room takes its tools: {named}")
        text = "toolkit %s: %d of its tools cannot be hosted and are left out: %s"
        _logger.warning(text, toolkit.name, len(left_out), named)
        entries = entries_of("left_out", (*toolkit.left_out, *left_out))
        update = {
            "tools": tuple(tool.manifest() for tool in fitting),
            "annotations": {**manifest.annotations, **entries},
        }
        manifest = manifest.model_copy(update=update)
    try:
        packed = pack_body(manifest.model_dump(mode="json", exclude_defaults=True))
    except (ValueError, TypeError, RecursionError) as error:
        text = f"toolkit {toolkit.name}: its annotations or texts cannot be sent: {error}"
        raise InvalidOffer(text) from error
    if len(packed) > MAX_MANIFEST_BYTES:
        text = (
            f"the definition of toolkit {toolkit.name} has {len(packed):,} bytes, and a room takes "
            f"{MAX_MANIFEST_BYTES:,}"
        )
        # Not `TooLarge`: its advice is to send less, and no smaller request would help.
        raise InvalidOffer(": ".join(filter(None, (text, toolkit.size_hint))))
    return packed


class Hosting:
    """One toolkit that is hosted."""

    def __init__(
        self,
        room: Any,
        runner: Runner,
        registrations: Registrations,
        registration: Registration,
        *,
        is_ready: Callable[[], bool],
        is_closed: Callable[[], bool],
    ) -> None:
        self._room = room
        self._definitions = runner.definitions
        self._running_calls = runner.running_calls
        self._registrations = registrations
        self._is_ready = is_ready
        self._is_closed = is_closed
        self._registration = registration
        self._living = [registration.hosted]
        self._started: dict[Tool, AsyncExitStack] = {}
        self._retiring: dict[HostedToolkit, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self.has_ended: bool = False
        """Set when the block ends: nothing is replaced any more."""

    @property
    def key(self) -> Key:
        """Its name, and whether it is public."""
        return self._registration.hosted.key

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Start the tools, register, and do the reverse after the block."""
        async with AsyncExitStack() as stack:
            stack.enter_context(watched_loop(self._running_calls))
            stack.callback(lambda: self._definitions.remove(self._registration.hosted))
            stack.push_async_callback(lambda: self._stop(list(self._started)))
            toolkit = self._registration.hosted.toolkit
            if toolkit.policies:
                warn_of_policies(toolkit.manifest(), toolkit.tools, toolkit.policies)
            await self._start(toolkit.tools)
            # Also after a failure: the server may have registered it although its reply was lost.
            stack.push_async_callback(self._end)
            await self._registrations.add(self._registration)
            await stack.enter_async_context(toolkit.hosting(self._room))
            yield

    async def replace(self, toolkit: Toolkit, supersede: bool | None) -> None:
        """Serve another definition. Raises as `RoomClient.replace`; then the old one is served."""
        supersede = checked_supersede(toolkit, supersede)
        async with self._changing:
            if self.has_ended:
                raise InvalidOffer(f"toolkit {toolkit.name} is not hosted any more")
            old = self._registration
            if supersede is None:
                supersede = old.supersede
            hosted = HostedToolkit(toolkit, old.hosted.public, former=self._living)
            new = Registration(hosted, packed_manifest(toolkit), old.shared_with, supersede)
            added = [tool for tool in toolkit.tools if tool not in self._started]
            try:
                await self._start(added)
                await self._registrations.replace(old, new, self._definitions)
            finally:
                if self._registrations.is_active(new):
                    self._registration = new
                    if new.hosted.digest == old.hosted.digest:  # what was granted was for it
                        new.hosted.grants.end()
                        new.hosted.grants = old.hosted.grants
                    self._living.append(new.hosted)
                    retiring = asyncio.get_running_loop().create_task(self._retire(old.hosted))
                    self._retiring[old.hosted] = retiring
                else:
                    await self._stop(added)

    async def _retire(self, old: HostedToolkit) -> None:
        """Wait for the last call of a definition that another one has replaced; stop its tools."""
        await old.drained()
        async with self._changing:
            self._living.remove(old)
            if old.grants is not self._registration.hosted.grants:
                old.grants.end()
            in_use = {tool for hosted in self._living for tool in hosted.toolkit.tools}
            await self._stop(tool for tool in old.toolkit.tools if tool not in in_use)
        self._retiring.pop(old)

    async def _end(self) -> None:
        """Unregister, and wait for calls, unless this participant drains or is closed."""
        async with self._changing:
            self.has_ended = True
        await self._registrations.unregister(self._registration, is_ready=self._is_ready())
        if not self._registrations.is_draining and not self._is_closed():
            await self._registration.hosted.drained()
        else:
            for hosted, task in self._retiring.items():
                if hosted.running_calls:
                    task.cancel()
        await asyncio.gather(*self._retiring.values(), return_exceptions=True)

    async def _start(self, tools: Iterable[Tool]) -> None:
        """Start tools; if one cannot start, those before it stay started."""
        for tool in tools:
            stack = AsyncExitStack()
            await stack.enter_async_context(started_tools([tool], self._room))
            self._started[tool] = stack

    async def _stop(self, tools: Iterable[Tool]) -> None:
        """Stop those of the tools that are started, the last one first."""
        for tool in reversed(list(tools)):
            stack = self._started.pop(tool, None)
            if stack is not None:
                await stack.aclose()


def find_hosting(hostings: Mapping[Key, Hosting], toolkit: Toolkit) -> Hosting:
    """Return what is hosted under a toolkit's name; if public and private are, by its `public`.

    Raises InvalidOffer if nothing is, and TypeError for anything but a toolkit.
    """
    if not isinstance(toolkit, Toolkit):
        raise TypeError(f"replace takes one Toolkit, not {type(toolkit).__name__}")
    found = [hosting for key, hosting in hostings.items() if key[0] == toolkit.name]
    if len(found) == 1:
        return found[0]
    if found:
        return hostings[toolkit.name, getattr(toolkit, "public", True)]
    hint = "host it first, with `room.host(toolkit)`"
    if near := get_close_matches(toolkit.name, {name for name, _ in hostings}, n=1):
        hint = f"did you mean {near[0]}?"
    raise InvalidOffer(f"this connection hosts no toolkit {toolkit.name}: {hint}")
