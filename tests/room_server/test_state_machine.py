"""Two participants say whatever frames can be made to say, and nobody else notices.

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

from support.bystanders import check_call, nothing_complains, say, seats_of, strangers_gone
from support.mutated_frames import (
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
from support.raw_client import CLOSE, RawClient, raw_participant
from support.wire_talk import ask, offer, toolkit_of
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
from toolbus_server.flights import Seat
from toolbus_server.hub import OpenRoom
from toolbus_server.limits import Limits
from toolbus_server.testing import TestServer, running_server

_UNANSWERED = (Result, Failed, Cancel, StreamChunk, Input, Credit, Progress)
EXAMPLES, STEPS = 40, 35
"""Some 15 s."""
T = TypeVar("T")


class Person:
    """One of the two who speak, with the connection that it has now."""

    def __init__(self, name: str, server: TestServer) -> None:
        self.name = name
        self.token = server.token(name, api=ApiScope.full())
        self.calls = dict.fromkeys(CALL_IDS, 0)
        """How many calls of an id have had no end yet."""
        self.heard = 0
        """The number of the last event."""
        self.client: RawClient
        self._server = server
        self._epochs = itertools.count(1)
        self._connection = AsyncExitStack()

    @property
    def room(self) -> OpenRoom:
        return self._server.server.hub.rooms["lab"]

    @property
    def seat(self) -> Seat:
        assert self.client.welcome is not None
        return self.room.room.seats[self.client.welcome.participant]

    async def join(self) -> None:
        """Come, or come again, in place of the connection before."""
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
        self.heard = 0

    async def leave(self) -> None:
        await self._connection.aclose()

    async def hear(self, probe_id: int) -> list[Frame]:
        """Ask for something, and read all that comes before the answer."""
        self.client.send_frame(Participants(probe_id, {"limit": 1}))
        heard: list[Frame] = []
        while True:
            frame = await self.client.read_frame()
            if isinstance(frame, Result | Failed):
                if frame.id == probe_id:
                    return heard
                if frame.id in self.calls:
                    self.calls[frame.id] -= 1
            elif isinstance(frame, Event):
                assert frame.number in {self.heard + 1, 1}, "a hole, and no new subscription"
                self.heard = frame.number
            heard.append(frame)

    def facts(self, speaker: Seat) -> tuple[Any, ...]:
        """What nobody else may change; of its calls those that the speaker has no part in."""
        seat, member = self.seat, self.seat.member
        return (
            seat,
            [(each.name, each.public) for each in member.toolkits],
            pack_body(member.attributes),
            pack_body(member.offers),
            self.room.feeds._feeds.get(member.id),
            {each.call_id for each in seat.calls.values() if each.host is not speaker},
            {each.call_id for each in seat.dispatched.values() if each.caller is not speaker},
        )


class Conversation(RuleBasedStateMachine):
    """Steps of the two, and what must hold after each."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.ids = itertools.count(1_000)
        self.run(self.begin())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(20):
                return await work

        return self.runner.run(bounded())

    async def begin(self) -> None:
        self.stack.enter_context(nothing_complains())
        # A name that is kept for a while would be there at the end.
        limits = Limits(reservation_ms=1, max_calls=6, max_toolkits=3)
        chosen = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, limits=limits)
        self.server = await self.stack.enter_async_context(running_server(settings=chosen))
        host = await self.stack.enter_async_context(self.server.room("host"))
        await self.stack.enter_async_context(host.host(Toolkit("echo", [say])))
        self.carol = await self.stack.enter_async_context(self.server.room("carol"))
        await check_call(self.carol)
        self.tasks, self.seats = asyncio.all_tasks(), seats_of(self.server)
        self.crowd = dict(self.server.server.admission.crowd._counts)
        self.people = [Person(name, self.server) for name in ("mallory", "trudy")]
        for person in self.people:
            await person.join()

    def teardown(self) -> None:
        try:
            self.run(self.end())
        finally:
            self.runner.close()

    # What happens

    @rule(who=st.integers(0, 1), array=frames())
    def speaks(self, who: int, array: list[Any]) -> None:
        self.run(self.speak(self.people[who], self.people[1 - who], array))

    @rule(who=st.integers(0, 1), chance=st.integers(0, 5))
    def may_come_again(self, who: int, chance: int) -> None:
        if chance == 5:
            self.run(self.come_again(self.people[who], self.people[1 - who]))

    @rule(who=st.integers(0, 1), array=calls(), reply=replies())
    def calls_and_is_answered(self, who: int, array: list[Any], reply: list[Any]) -> None:
        """A call, which the other may run, and an answer by the other, which may be to it."""
        self.run(self.speak(self.people[who], self.people[1 - who], array))
        self.run(self.speak(self.people[1 - who], self.people[who], reply))

    async def come_again(self, who: Person, other: Person) -> None:
        before, client = other.facts(who.seat), who.client
        older = who.seat
        await who.join()
        assert not older.calls
        assert not older.dispatched
        assert await client.close_code() in {4409, 1006}
        await self.check(other, before, older)

    async def speak(self, who: Person, other: Person, array: list[Any]) -> None:
        running = list(who.seat.dispatched)
        request_id = next(self.ids)
        words = {
            NEXT_ID: request_id,
            DISPATCH: running[0] if running else 7,
            OWN_TOKEN: who.token,
            OTHER_TOKEN: other.token,
        }
        data = msgpack.packb(settled(array, words))
        speaker = who.seat
        before = other.facts(speaker)
        ends = ending_of(data)
        sent_away = sends_away(data)
        asks = not isinstance(ends, (int, *_UNANSWERED))
        if asks and ends.id in who.calls:
            who.calls[ends.id] += 1
        who.client.send_message(data)
        if isinstance(ends, int) or sent_away == who.name:
            assert await close_code(who.client) == (ends if isinstance(ends, int) else 4440)
            await who.join()
        else:
            heard = await who.hear(next(self.ids))
            if asks and ends.id is not None and not isinstance(ends, Call):
                answers = [each for each in heard if is_reply(each, ends.id)]
                assert len(answers) == 1 or ends.id in CALL_IDS
            assert min(who.calls.values()) >= 0, "a call has ended twice"
        if sent_away == other.name:
            assert await close_code(other.client) == 4440
            await other.join()
            before = other.facts(speaker)
        await self.check(other, before, speaker)

    # What holds

    async def check(self, other: Person, before: tuple[Any, ...], speaker: Seat) -> None:
        """Nobody else was touched."""
        await other.hear(next(self.ids))
        assert other.facts(speaker) == before
        await check_call(self.carol)

    async def end(self) -> None:
        """Both go, and nothing of them is left."""
        for person in self.people:
            await person.leave()
        current = asyncio.current_task()
        assert current is not None
        await strangers_gone(self.tasks | {current})
        hub, room = self.server.server.hub, self.server.server.hub.rooms["lab"]
        while room.room.state.toolkit_count > 1:  # their names are kept for a millisecond
            await check_call(self.carol)
        await check_call(self.carol)
        assert seats_of(self.server) == self.seats
        assert hub.router.in_flight == 0
        assert room.feeds._feeds == {}
        assert [seat for seat in room.room.seats.values() if seat.calls or seat.dispatched] == []
        assert self.server.server.admission.crowd._counts == self.crowd
        await self.stack.aclose()


def ending_of(data: bytes) -> Any:
    """What the server reads, or the code with which it must close."""
    try:
        return decode_from_client(data)
    except BadFrame as error:
        return error.close_code


def sends_away(data: bytes) -> str | None:
    """Whom this frame sends away, by the rules."""
    frame = ending_of(data)
    if not isinstance(frame, Admin) or frame.action != "kick":
        return None
    return frame.options.get("participant") if frame.options.get("room") == "lab" else None


def is_reply(frame: Frame, request_id: int) -> bool:
    return isinstance(frame, Result | Failed) and frame.id == request_id


async def close_code(client: RawClient) -> int:
    """Read to the end, which must be a close."""
    while (raw := await client.read_raw()).opcode != CLOSE:
        pass
    return int.from_bytes(raw.payload[:2], "big")


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    # The steps as they were are told within the time that a test has; shorter ones might not be.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
