"""Two participants send arbitrary frames, and no other participant is affected.

A real server over real sockets. After each step it lives, a third participant gets an answer to a
call, and the one who did not speak is as it was, unless the rules say otherwise. At the end nothing
of the two is left. A failing run prints its steps, and a line that repeats it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import msgpack
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from support.clients.mutated_frames import (
    CALL_IDS,
    DISPATCH,
    NEXT_ID,
    OTHER_TOKEN,
    OWN_TOKEN,
    calls,
    frames,
    replies,
    settled,
)
from support.clients.raw_client import CLOSE, RawClient, raw_participant
from support.clients.raw_requests import ask, offer, toolkit_of
from support.rooms.unharmed_server import (
    check_call,
    connections_of,
    no_logged_errors,
    say,
    until_new_tasks_end,
)
from toolbus import ApiScope, KeyRing, Toolkit
from toolbus.wire import (
    Admin,
    BadFrame,
    Call,
    Cancel,
    Credit,
    Event,
    Failed,
    Frame,
    Input,
    Participants,
    Progress,
    Result,
    StreamChunk,
    Subscribe,
    decode_from_client,
    pack_body,
)
from toolbus_server import ServerSettings
from toolbus_server.calls.call_state import Connection, InFlightCall
from toolbus_server.limits import Limits
from toolbus_server.rooms.hub import OpenRoom
from toolbus_server.testing import TestServer, running_server

_UNANSWERED = (Result, Failed, Cancel, StreamChunk, Input, Credit, Progress)
EXAMPLES, STEPS = 40, 35
"""About 15 s."""
T = TypeVar("T")


class Person:
    """One of the two participants, with its current connection."""

    def __init__(self, name: str, server: TestServer) -> None:
        self.name = name
        self.token = server.token(name, api=ApiScope.full())
        self.calls = dict.fromkeys(CALL_IDS, 0)
        """How many calls of an id have not ended."""
        self.received = 0
        """The number of the last event."""
        self.client: RawClient
        self._server = server
        self._epochs = itertools.count(1)
        self._connection = AsyncExitStack()

    @property
    def room(self) -> OpenRoom:
        return self._server.server.hub.rooms["lab"]

    @property
    def connection(self) -> Connection:
        assert self.client.welcome is not None
        return self.room.routed.connections[self.client.welcome.participant]

    async def join(self) -> None:
        """Connect, replacing the connection before."""
        older, self._connection = self._connection, AsyncExitStack()
        self.client = await self._connection.enter_async_context(
            raw_participant(
                self._server,
                token=self.token,
                instance=self.name,
                epoch=next(self._epochs),
            )
        )
        self.calls = dict.fromkeys(CALL_IDS, 0)
        await older.aclose()
        kit = {"mallory": "home", "trudy": "den"}[self.name]
        await ask(self.client, offer(toolkit_of(kit, "wait"), 900))
        await ask(self.client, Subscribe(901, ["toolkits", "participants", "messages"]))
        self.received = 0

    async def leave(self) -> None:
        await self._connection.aclose()

    async def receive(self, probe_id: int) -> list[Frame]:
        """Send a request, and read all frames before its reply."""
        self.client.send_frame(Participants(probe_id, {"limit": 1}))
        received: list[Frame] = []
        while True:
            frame = await self.client.read_frame()
            if isinstance(frame, Result | Failed):
                if frame.id == probe_id:
                    return received
                if frame.id in self.calls:
                    self.calls[frame.id] -= 1
            elif isinstance(frame, Event):
                assert frame.number in {self.received + 1, 1}, "a hole, and no new subscription"
                self.received = frame.number
            received.append(frame)

    def facts(self, sender: Connection) -> tuple[Any, ...]:
        """State that no other participant may change; of its calls those without the sender.

        Calls within a call of the sender may end with it (CALL-25), and those for the sender when
        it leaves (CALL-26).
        """
        connection, participant = self.connection, self.connection.participant
        return (
            connection,
            [(each.name, each.public) for each in participant.toolkits],
            pack_body(participant.attributes),
            pack_body(participant.offers),
            self.room.feeds._feeds.get(participant.id),
            {each.call_id for each in connection.calls.values() if not concerns(each, sender)},
            {each.call_id for each in connection.dispatched.values() if not concerns(each, sender)},
        )


def concerns(call: InFlightCall, sender: Connection) -> bool:
    """Whether the sender makes or runs a call, or one around it, or is its principal."""
    parent = None if call.delegation is None else call.delegation.parent
    is_principal = call.principal is not None and (
        call.principal.identity == sender.participant.identity
    )
    is_part = is_principal or sender in (call.caller, call.host)
    return is_part or (parent is not None and concerns(parent, sender))


class Conversation(RuleBasedStateMachine):
    """Steps of the two, and the invariants after each."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.ids = itertools.count(1_000)
        self.run(self.begin())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(60):
                return await work

        return self.runner.run(bounded())

    async def begin(self) -> None:
        self.stack.enter_context(no_logged_errors())
        # A reserved name would still exist at the end.
        limits = Limits(reservation_ms=1, max_calls=6, max_toolkits=3)
        chosen = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, limits=limits)
        self.server = await self.stack.enter_async_context(running_server(settings=chosen))
        host = await self.stack.enter_async_context(self.server.room("host"))
        await self.stack.enter_async_context(host.host(Toolkit("echo", [say])))
        self.carol = await self.stack.enter_async_context(self.server.room("carol"))
        await check_call(self.carol)
        self.tasks, self.connections = asyncio.all_tasks(), connections_of(self.server)
        self.counted = dict(self.server.server.admission.quotas._counts)
        self.senders = [Person(name, self.server) for name in ("mallory", "trudy")]
        for person in self.senders:
            await person.join()

    def teardown(self) -> None:
        try:
            self.run(self.end())
        finally:
            self.runner.close()

    # Steps

    @rule(who=st.integers(0, 1), array=frames())
    def send_frame(self, who: int, array: list[Any]) -> None:
        self.run(self.send(self.senders[who], self.senders[1 - who], array))

    @rule(who=st.integers(0, 1), chance=st.integers(0, 5))
    def may_reconnect(self, who: int, chance: int) -> None:
        if chance == 5:
            self.run(self.reconnect(self.senders[who], self.senders[1 - who]))

    @rule(who=st.integers(0, 1), array=calls(), reply=replies())
    def calls_and_is_answered(self, who: int, array: list[Any], reply: list[Any]) -> None:
        """A call, which the other may run, and a reply of the other, which may be for it."""
        self.run(self.send(self.senders[who], self.senders[1 - who], array))
        self.run(self.send(self.senders[1 - who], self.senders[who], reply))

    async def reconnect(self, who: Person, other: Person) -> None:
        before, client = other.facts(who.connection), who.client
        older = who.connection
        await who.join()
        assert not older.calls
        assert not older.dispatched
        assert await client.close_code() in {4409, 1006}
        await self.check(other, before, older)

    async def send(self, who: Person, other: Person, array: list[Any]) -> None:
        running = list(who.connection.dispatched)
        request_id = next(self.ids)
        values = {
            NEXT_ID: request_id,
            DISPATCH: running[0] if running else 7,
            OWN_TOKEN: who.token,
            OTHER_TOKEN: other.token,
        }
        data = msgpack.packb(settled(array, values))
        sender = who.connection
        before = other.facts(sender)
        ends = ending_of(data)
        evict = sends_away(data)
        asks = not isinstance(ends, (int, *_UNANSWERED))
        if asks and ends.id in who.calls:
            who.calls[ends.id] += 1
        who.client.send_message(data)
        if isinstance(ends, int) or evict == who.name:
            assert await close_code(who.client) == (ends if isinstance(ends, int) else 4440)
            await who.join()
        else:
            received = await who.receive(next(self.ids))
            if asks and ends.id is not None and not isinstance(ends, Call):
                while not any(is_reply(each, ends.id) for each in received):
                    # One that is done in slices may be answered after later ones (REG-20).
                    received += await who.receive(next(self.ids))
                answers = [each for each in received if is_reply(each, ends.id)]
                assert len(answers) == 1 or ends.id in CALL_IDS
            assert min(who.calls.values()) >= 0, "a call has ended twice"
        if evict == other.name:
            assert await close_code(other.client) == 4440
            await other.join()
            before = other.facts(sender)
        await self.check(other, before, sender)

    # Invariants

    async def check(self, other: Person, before: tuple[Any, ...], sender: Connection) -> None:
        """No other participant was affected."""
        await other.receive(next(self.ids))
        assert other.facts(sender) == before
        await check_call(self.carol)

    async def end(self) -> None:
        """Both leave, and nothing of them is left."""
        for person in self.senders:
            await person.leave()
        current = asyncio.current_task()
        assert current is not None
        await until_new_tasks_end(self.tasks | {current})
        hub, room = self.server.server.hub, self.server.server.hub.rooms["lab"]
        while room.routed.state.toolkit_count > 1:  # their names stay reserved for a millisecond
            await check_call(self.carol)
        await check_call(self.carol)
        assert connections_of(self.server) == self.connections
        assert hub.router.in_flight == 0
        assert room.feeds._feeds == {}
        assert [
            connection
            for connection in room.routed.connections.values()
            if connection.calls or connection.dispatched
        ] == []
        assert self.server.server.admission.quotas._counts == self.counted
        await self.stack.aclose()


def ending_of(data: bytes) -> Any:
    """The frame that the server reads, or the code with which it must close."""
    try:
        return decode_from_client(data)
    except BadFrame as error:
        return error.close_code


def sends_away(data: bytes) -> str | None:
    """The participants that this frame evicts, by the rules."""
    frame = ending_of(data)
    if not isinstance(frame, Admin) or frame.action != "kick":
        return None
    return frame.options.get("participant") if frame.options.get("room") == "lab" else None


def is_reply(frame: Frame, request_id: int) -> bool:
    return isinstance(frame, Result | Failed) and frame.id == request_id


async def close_code(client: RawClient) -> int:
    """Read until the connection is closed."""
    while (raw := await client.read_raw()).opcode != CLOSE:
        pass
    return int.from_bytes(raw.payload[:2], "big")


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    print_blob=True,
    # Shrinking the steps might take longer than a test may.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
