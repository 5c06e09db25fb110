"""An agent that acts for a participant, and a host that calls on within the agent's call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

from support.clients.ending_tokens import calling
from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    id_of,
    next_of,
    offer,
    refusal,
    toolkit_of,
)
from support.nodes.cluster import until_listed, until_present
from toolbus.wire import Admin, Cancel, Dispatch, Failed, Refresh, unpack_body
from toolbus_server.testing import TestServer

ENDLESS = {"credit_chunks": 9, "credit_bytes": 9_000}
WEAK = calling(deny=["deep", "echo"])
ACTING = calling(act_for=["ann"])
OUTER, NESTED = 7, 8


class Delegation:
    """Streams without a deadline: the agent's to `host` for ann, and the host's to `inner`."""

    agent: RawClient
    host: RawClient
    inner: RawClient
    outer: Dispatch
    nested: Dispatch

    def __init__(self) -> None:
        self._ids = count(100)

    async def begin(self) -> None:
        """Begin both calls."""
        outer = call_of("echo.say", OUTER, on_behalf_of="ann", **ENDLESS)
        self.outer = await call_through(self.agent, self.host, outer)
        nested = call_of("deep.down", NESTED, parent=self.outer.id, **ENDLESS)
        self.nested = await call_through(self.host, self.inner, nested)

    async def until_ended(self) -> None:
        """Read the ends of both calls, at their callers and their hosts; then new ones are refused.

        A host that gets its `cancel` before or after the error of its nested call is right.
        """
        lost = await failure_of(self.agent, OUTER)
        assert (lost.code, lost.executed, lost.retryable) == ("cancelled", "maybe", False)
        seen = [await self._end_at_host() for _ in range(2)]
        assert {OUTER: self.outer.id, NESTED: NESTED} == dict(seen)
        assert (await next_of(self.inner, Cancel)).id == self.nested.id
        later = call_of("deep.down", next(self._ids), parent=self.outer.id)
        refused = await refusal(self.host, later)
        assert (refused.code, refused.executed) == ("permission_denied", "no")

    async def _end_at_host(self) -> tuple[int, int]:
        while True:
            match await self.host.read_frame():
                case Cancel(id=number, reason="cancelled"):
                    return OUTER, number
                case Failed(id=number, code="cancelled", executed="maybe"):
                    return NESTED, number

    async def is_refused(self) -> None:
        """Check that the agent cannot begin another call for ann."""
        other = call_of("echo.say", next(self._ids), on_behalf_of="ann")
        refused = await refusal(self.agent, other)
        assert (refused.code, refused.executed) == ("permission_denied", "no")

    async def goes_on(self) -> str:
        """Call within the agent's call, for ann; return the id of the connection it is made for."""
        number = next(self._ids)
        call = call_of("deep.down", number, parent=self.outer.id)
        further = await call_through(self.host, self.inner, call)
        principal, name, *_ = unpack_body(further.header["on_behalf_of"])
        assert name == "ann"
        answer(self.inner, further)
        await self.host.reply_to(number)
        return str(principal)


async def _leave(_node: TestServer, ann: RawClient) -> None:
    ann.abort()


async def _weaken(node: TestServer, ann: RawClient) -> None:
    await ask(ann, Refresh(1, node.token("ann", api=WEAK)))


def _administered(action: str, *fields: str) -> Callable[[TestServer, RawClient], Awaitable[None]]:
    async def administer(node: TestServer, ann: RawClient) -> None:
        values = {"room": "lab", "participant": id_of(ann), "issuer": node.key.iss, "name": "ann"}
        options = {field: values[field] for field in fields}
        async with raw_participant(node, token=node.token("boss", room="*")) as boss:
            assert await ask(boss, Admin(1, action, options)) == {"closed": 1}

    return administer


LOSSES: dict[str, Callable[[TestServer, RawClient], Awaitable[None]]] = {
    "leaves": _leave,
    "is kicked": _administered("kick", "room", "participant"),
    "is revoked": _administered("revoke", "issuer", "name"),
    "loses the grant": _weaken,
}
"""How ann ends the authority that a call for it has; administrators are at the given node."""


@asynccontextmanager
async def delegation(
    agent_at: TestServer, host_at: TestServer, inner_at: TestServer
) -> AsyncIterator[Delegation]:
    """Connect all three while ann is in the room, and begin both calls."""
    made, nodes = Delegation(), (agent_at, host_at, inner_at)
    async with AsyncExitStack() as stack:
        join = stack.enter_async_context
        made.host = await join(raw_participant(host_at, "host"))
        made.inner = await join(raw_participant(inner_at, "inner"))
        token = agent_at.token("agent", api=ACTING)
        made.agent = await join(raw_participant(agent_at, token=token))
        await ask(made.host, offer())
        await ask(made.inner, offer(toolkit_of("deep", "down")))
        for node in set(nodes):
            async with node.room("observer") as observer:
                await until_listed(observer, "echo")
                await until_listed(observer, "deep")
                await until_present(observer, "ann", "agent", "host")
        await made.begin()
        yield made
