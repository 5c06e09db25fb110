"""A caller that a lock file bounds: it calls only toolkits with the locked owner and definition.

The first call of a toolkit waits for its description, which is compared with the file: owner,
issuer and digest. Every call is then sent with the locked digest as its pin and the locked owner as
`participant`, so that the server refuses any other for each call. Where the server has several
issuers, that is the owner's `alias/name`, with the alias that its issuer has now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolbus.chunks.chunk_types import read_chunk
from toolbus.client.caller import Caller
from toolbus.client.pending_requests import InboundStream, PendingRequest, PendingRequests
from toolbus.client.reconnecting_connection import ReconnectingConnection
from toolbus.client.retry import CallPlan, ToolkitKey
from toolbus.errors import DeadlineExceeded, DefinitionChanged, NotFound, RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.room.lock_file import LockedToolkit, LockFile, LockRefused
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.telemetry.tracing import Tracing
from toolbus.wire import Explain, ToolkitManifest

__all__ = ["LockedCaller"]


class LockedCaller(Caller):
    """Makes the calls of one participant that has a lock file."""

    __slots__ = ("_entries", "_on_error", "_stale", "lock")

    def __init__(
        self,
        connection: ReconnectingConnection,
        pending: PendingRequests,
        tracing: Tracing,
        lock: LockFile,
    ) -> None:
        super().__init__(connection, pending, tracing)
        self.lock: LockFile = lock
        """The lock file."""
        self._entries: dict[ToolkitKey, LockedToolkit] = {}
        """The entries of the toolkits whose description was compared."""
        self._stale: set[ToolkitKey] = set()
        """Those that are compared again before the next call."""
        self._on_error = self.retries.on_error
        self.retries.on_error = self._forget_refused

    @property
    def pinned(self) -> frozenset[str]:
        """The digests of the definitions in the lock file."""
        return frozenset(toolkit.digest for toolkit in self.lock.toolkits)

    async def request(
        self,
        build: Any,
        *fields: Any,
        timeout_s: float = 30.0,
        on_result: Callable[[Any], None] | None = None,
    ) -> dict[str, Any]:
        """Send a request as `Caller.request` does; compare the toolkit of an `Explain` first."""
        if build is Explain:
            await self.describe(fields[0], fields[2].get("participant"))
        return await super().request(build, *fields, timeout_s=timeout_s, on_result=on_result)

    async def describe(
        self, toolkit: str, participant: str | None, known: str | None = None
    ) -> dict[str, Any]:
        """Request the whole description of a toolkit and compare it with the lock file.

        Raises:
            DefinitionChanged: It is not in the file, or differs from it.
        """
        body = await super().describe(toolkit, participant)
        info = ToolkitInfo.from_wire(body["toolkit"])
        manifest = ToolkitManifest.model_validate(body["manifest"])
        key = (toolkit, participant)
        self._stale.add(key)
        self._entries[key] = self.lock.check(info, manifest).with_alias(info.alias)
        self._stale.discard(key)
        return body

    async def call(self, plan: CallPlan, read: Callable[[bytes], Any] = read_chunk) -> Any:
        """Make a call of a locked toolkit and return its result, as `Caller.call` does.

        Raises:
            DefinitionChanged: The toolkit is not in the lock file, or differs from it.
            RoomException: The call failed; `executed` says whether the tool ran.
        """
        await self._compare(plan)
        try:
            return await super().call(plan, read)
        except (DefinitionChanged, NotFound) as error:
            if error.executed == "no":
                await self._explain_refusal(plan)
            raise

    async def assess(self, plan: CallPlan) -> Assessment:
        """Ask about a call of a locked toolkit, as `Caller.assess` does."""
        await self._compare(plan)
        return await super().assess(plan)

    async def send_attempt(
        self, plan: CallPlan, options: dict[str, Any] | None, stream: InboundStream
    ) -> PendingRequest:
        """Send one attempt of a call of a locked toolkit, as `Caller.send_attempt` does."""
        await self._compare(plan)
        return await super().send_attempt(plan, options, stream)

    def _send_call(
        self, plan: CallPlan, options: dict[str, Any] | None, stream: InboundStream | None = None
    ) -> PendingRequest | None:
        entry = self._entries[plan.key]
        locked = {"participant": entry.full_owner, "pin": entry.digest}
        return super()._send_call(plan, {**(options or {}), **locked}, stream)

    async def _compare(self, plan: CallPlan) -> None:
        """Compare the toolkit of a call with the lock file, unless that is done."""
        if plan.key not in self._entries or plan.key in self._stale:
            until = None if plan.deadline_at == float("inf") else plan.deadline_at
            try:
                async with asyncio.timeout_at(until):
                    await self.describe(*plan.key)
            except TimeoutError:
                text = "the deadline passed before the call"
                raise DeadlineExceeded(text, executed="no") from None
        entry = self._entries[plan.key]
        pin = plan.options.get("pin")
        if pin not in (None, entry.digest):
            raise LockRefused(
                f"the call is pinned to the digest {pin}, and {self.lock.path} has"
                f" {entry.digest} for toolkit {entry.name}",
                details={"toolkit": entry.name, "digest": entry.digest},
            )

    async def _explain_refusal(self, plan: CallPlan) -> None:
        """Compare again after the server refused a call. Raises LockRefused for a difference."""
        try:
            await self.describe(*plan.key)
        except LockRefused:
            raise
        except RoomException:
            return  # the error of the call stands

    def _forget_refused(self, plan: CallPlan, error: RoomException) -> bool:
        """Compare the toolkit again at its next call if the server refused this one."""
        if isinstance(error, DefinitionChanged | NotFound):
            self._stale.add(plan.key)
        return self._on_error(plan, error)
