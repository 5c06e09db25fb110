"""Parcels between two nodes: what is told to be lost was never read, and never will be."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolbus_server.nodes.parcels import Arrival, Entry, Parcels, Sent, read_parcel

WINDOW_BYTES = 64 * 1024


class Side:
    """One node's parcels, with what it published and has not been taken yet."""

    def __init__(self, name: str) -> None:
        self.out: deque[tuple[Sent | None, bytes]] = deque()
        self.parcels = Parcels(name, count(1), self._publish, lambda: WINDOW_BYTES)
        self.read: list[int] = []
        self.lost: list[int] = []
        self.has_broken = 0

    def _publish(self, sent: Sent | None, data: bytes) -> bool:
        self.out.append((sent, data))
        return True

    def tell(self, number: int) -> None:
        """Put something in, and send it if that can be."""
        self.parcels.put(Entry(msgspec.msgpack.encode(number)))
        self.parcels.send()

    def arrives(self, data: bytes) -> Arrival:
        """Take what came, as a peer does."""
        arrival = self.parcels.arrive(read_parcel(data), len(data))
        self.has_broken += arrival.has_broken
        self.lost += [msgspec.msgpack.decode(entry.data) for entry in arrival.lost]
        self.read += [msgspec.msgpack.decode(entry) for entry in arrival.entries]
        self.parcels.send()
        if self.parcels.owes_word:
            self.say()
        return arrival

    def say(self) -> None:
        """Say a word if one is due."""
        word = self.parcels.word()
        if word is not None:
            self._publish(None, word)

    def ask(self) -> None:
        """Ask, if in doubt, as with each beat."""
        question = self.parcels.question()
        if question is not None:
            self._publish(None, question)


def settle(one: Side, other: Side) -> None:
    """Let everything arrive, and every doubt be asked away."""
    for _ in range(4):
        for side in (one, other):
            side.parcels.send()
            side.ask()
        while one.out or other.out:
            for sender, receiver in ((one, other), (other, one)):
                while sender.out:
                    receiver.arrives(sender.out.popleft()[1])
                receiver.say()


def agreed() -> tuple[Side, Side]:
    """Make two that know each other."""
    here, there = Side("here"), Side("there")
    here.tell(0)
    settle(here, there)
    assert there.read == [0]
    return here, there


def test_nothing_leaves_before_the_other_side_has_said_where_it_is() -> None:
    here, there = Side("here"), Side("there")
    here.tell(1)
    here.tell(2)
    assert [sent for sent, _ in here.out] == [None]
    settle(here, there)
    assert there.read == [1, 2]


def test_of_two_holes_what_came_between_them_is_not_lost() -> None:
    here, there = agreed()
    for number in range(1, 5):
        here.tell(number)
    sent = [data for _, data in here.out]
    here.out.clear()
    there.arrives(sent[1])
    there.arrives(sent[3])
    there.say()
    settle(here, there)
    assert there.read == [0, 2, 4]
    assert here.lost == [1, 3]


def test_what_was_told_to_be_lost_is_not_read_when_it_comes_late() -> None:
    here, there = agreed()
    here.tell(1)
    late = here.out.popleft()[1]
    here.tell(2)
    settle(here, there)
    assert here.lost == [1]
    there.arrives(late)
    assert there.read == [0, 2]


def test_what_is_missing_is_said_until_it_was_heard() -> None:
    here, there = agreed()
    here.tell(1)
    here.out.clear()
    here.tell(2)
    there.arrives(here.out.popleft()[1])
    there.say()
    there.out.clear()  # so the word of it is lost
    settle(here, there)
    assert here.lost == [1]
    there.say()
    assert not there.out, "it was heard"


def test_the_last_that_was_lost_is_found_by_asking() -> None:
    here, there = agreed()
    here.tell(1)
    here.out.clear()
    here.ask()
    settle(here, there)
    assert (there.read, here.lost) == ([0], [1])


def test_who_has_got_everything_is_not_asked_again() -> None:
    here, there = agreed()
    here.tell(1)
    settle(here, there)
    here.ask()
    there.ask()
    assert not here.out
    assert not there.out


def test_a_side_that_begins_anew_tells_what_it_had_not_read() -> None:
    here, there = agreed()
    here.tell(1)
    there.arrives(here.out.popleft()[1])
    here.tell(2)
    there.parcels.begin_anew()
    there.arrives(here.out.popleft()[1])
    settle(here, there)
    assert there.read == [0, 1]
    assert (here.has_broken, here.lost) == (1, [2])
    here.tell(3)
    settle(here, there)
    assert there.read == [0, 1, 3]


def test_a_parcel_that_nobody_hears_is_given_back_once() -> None:
    here, there = agreed()
    here.tell(1)
    sent = here.out.popleft()[0]
    assert [entry.data for entry in here.parcels.give_up(sent)] == [b"\x01"]
    assert here.parcels.give_up(sent) == []
    here.tell(2)
    settle(here, there)
    assert (there.read, here.lost) == ([0, 2], [])


def test_what_waits_for_a_side_that_nobody_hears_is_given_back() -> None:
    here = Side("here")
    here.tell(1)
    assert [entry.data for entry in here.parcels.give_up(here.out.popleft()[0])] == [b"\x01"]
    here.tell(2)
    assert len(here.out) == 1, "it asks anew"


Step = Literal["here", "there", "pass", "lose", "twice", "back", "lose back", "ask", "break", "cut"]


@settings(max_examples=300, deadline=None)
@example(["cut", "cut", "back", "lose back", "pass", "lose back"])
@given(st.lists(st.sampled_from(Step.__args__), max_size=60))  # type: ignore[attr-defined]
def test_whatever_happens_nothing_is_read_twice_or_after_it_was_told_to_be_lost(
    steps: list[Any],
) -> None:
    here, there = agreed()
    numbers = count(1)
    for step in steps:
        _take(step, here, there, next(numbers))
        for one, other in ((here, there), (there, here)):
            assert len(set(other.read)) == len(other.read)
            assert not set(one.lost) & set(other.read), "it was read, and told to be lost"
    broke = {"break", "cut"} & set(steps)
    settle(here, there)
    for one, other in ((here, there), (there, here)):
        assert not set(one.lost) & set(other.read)
        assert len(set(one.lost)) == len(one.lost)
    here.tell(1_000)  # may be too late for a side that began anew, unheard
    settle(here, there)
    assert 1_000 in {*there.read, *here.lost}
    here.tell(1_001)
    settle(here, there)
    assert there.read[-1] == 1_001, "the two cannot speak any more"
    for name, one, other in (("here", here, there), ("there", there, here)):
        said = {number for number, step in enumerate(steps, 1) if step == name}
        assert broke or said <= set(other.read) | set(one.lost), "of one nobody was told"


def _take(step: str, here: Side, there: Side, number: int) -> None:
    if step in ("here", "there"):
        (here if step == "here" else there).tell(number)
        return
    if step == "ask":
        here.ask()
        return
    if step in ("break", "cut"):
        # Only what left before is on its way still; the one whose way broke hears nothing of it.
        broken, other = (here, there) if step == "break" else (there, here)
        broken.parcels.begin_anew()
        if step == "cut":
            other.out.clear()
        broken.ask()
        return
    sender, receiver = (there, here) if "back" in step else (here, there)
    if not sender.out:
        return
    data = sender.out.popleft()[1]
    if "lose" not in step:
        receiver.arrives(data)
    if step == "twice":
        receiver.arrives(data)


@pytest.mark.parametrize("data", [b"P", b"P\x90", b"Pnonsense", b"P\x93\xa1x\x01\x00"])
def test_what_is_no_parcel_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_parcel(data)
