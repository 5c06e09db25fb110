"""Batches between two nodes: what is reported as lost was never read, and never will be."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolbus.transport.websocket import NotifyingTicket
from toolbus_server.cluster.peer_link import Entry, PeerLink, ReceivedBatch, SentBatch, decode_batch

WINDOW_BYTES = 64 * 1024


class Side:
    """One node's link, with what it published and the other has not received yet."""

    def __init__(self, name: str) -> None:
        self.out: deque[tuple[SentBatch | None, bytes]] = deque()
        self.link = PeerLink(name, count(1), self._publish, lambda: WINDOW_BYTES)
        self.read: list[int] = []
        self.lost: list[int] = []
        self.resets = 0

    def _publish(self, sent: SentBatch | None, data: bytes) -> bool:
        self.out.append((sent, data))
        return True

    def put(self, number: int) -> None:
        """Queue an entry, and send it if possible."""
        self.link.put(Entry(msgspec.msgpack.encode(number)))
        self.link.send()

    def receive(self, data: bytes) -> ReceivedBatch:
        """Receive a batch as a peer does."""
        received = self.link.receive(decode_batch(data), len(data))
        self.resets += received.was_reset
        self.lost += [msgspec.msgpack.decode(entry.data) for entry in received.lost]
        self.read += [msgspec.msgpack.decode(entry) for entry in received.entries]
        self.link.send()
        if self.link.ack_due:
            self.send_ack()
        return received

    def send_ack(self) -> None:
        """Send an acknowledgement if one is due."""
        ack = self.link.ack()
        if ack is not None:
            self._publish(None, ack)

    def probe(self) -> None:
        """Send a probe if in doubt, as with each heartbeat."""
        probe = self.link.probe()
        if probe is not None:
            self._publish(None, probe)


def settle(one: Side, other: Side) -> None:
    """Deliver everything, and probe until nothing is in doubt."""
    for _ in range(4):
        for side in (one, other):
            side.link.send()
            side.probe()
        while one.out or other.out:
            for sender, receiver in ((one, other), (other, one)):
                while sender.out:
                    receiver.receive(sender.out.popleft()[1])
                receiver.send_ack()


def established() -> tuple[Side, Side]:
    """Create two sides that know each other's session."""
    here, there = Side("here"), Side("there")
    here.put(0)
    settle(here, there)
    assert there.read == [0]
    return here, there


def test_nothing_is_sent_before_the_session_of_the_peer_is_known() -> None:
    here, there = Side("here"), Side("there")
    here.put(1)
    here.put(2)
    assert [sent for sent, _ in here.out] == [None]
    settle(here, there)
    assert there.read == [1, 2]


def test_batch_between_two_gaps_is_not_lost() -> None:
    here, there = established()
    for number in range(1, 5):
        here.put(number)
    sent = [data for _, data in here.out]
    here.out.clear()
    there.receive(sent[1])
    there.receive(sent[3])
    there.send_ack()
    settle(here, there)
    assert there.read == [0, 2, 4]
    assert here.lost == [1, 3]


def test_batch_that_was_reported_lost_is_not_read_later() -> None:
    here, there = established()
    here.put(1)
    late = here.out.popleft()[1]
    here.put(2)
    settle(here, there)
    assert here.lost == [1]
    there.receive(late)
    assert there.read == [0, 2]


def test_missing_batches_are_reported_until_acknowledged() -> None:
    here, there = established()
    here.put(1)
    here.out.clear()
    here.put(2)
    there.receive(here.out.popleft()[1])
    there.send_ack()
    there.out.clear()  # so the acknowledgement is lost
    settle(here, there)
    assert here.lost == [1]
    there.send_ack()
    assert not there.out, "it was acknowledged"


def test_loss_of_the_last_batch_is_found_by_a_probe() -> None:
    here, there = established()
    here.put(1)
    here.out.clear()
    here.probe()
    settle(here, there)
    assert (there.read, here.lost) == ([0], [1])


def test_no_probe_is_sent_when_all_is_acknowledged() -> None:
    here, there = established()
    here.put(1)
    settle(here, there)
    here.probe()
    there.probe()
    assert not here.out
    assert not there.out


def test_reset_side_reports_unread_batches() -> None:
    here, there = established()
    here.put(1)
    there.receive(here.out.popleft()[1])
    here.put(2)
    there.link.reset()
    there.receive(here.out.popleft()[1])
    settle(here, there)
    assert there.read == [0, 1]
    assert (here.resets, here.lost) == (1, [2])
    here.put(3)
    settle(here, there)
    assert there.read == [0, 1, 3]


def test_batch_without_a_subscriber_is_returned_once() -> None:
    here, there = established()
    here.put(1)
    sent = here.out.popleft()[0]
    assert [entry.data for entry in here.link.undelivered(sent)] == [b"\x01"]
    assert here.link.undelivered(sent) == []
    here.put(2)
    settle(here, there)
    assert (there.read, here.lost) == ([0, 2], [])


def test_entries_waiting_for_an_absent_peer_are_returned() -> None:
    here = Side("here")
    here.put(1)
    assert [entry.data for entry in here.link.undelivered(here.out.popleft()[0])] == [b"\x01"]
    here.put(2)
    assert len(here.out) == 1, "it sends another probe"


Step = Literal[
    "here", "there", "pass", "lose", "twice", "back", "lose back", "probe", "break", "cut"
]


@settings(max_examples=300)
@example(["cut", "cut", "back", "lose back", "pass", "lose back"])
@example(["here", "pass", "cut", "here", "there", "pass", "lose back", "lose back"])
@given(st.lists(st.sampled_from(Step.__args__), max_size=60))  # type: ignore[attr-defined]
def test_nothing_is_read_twice_or_after_it_was_reported_lost(
    steps: list[Any],
) -> None:
    here, there = established()
    numbers = count(1)
    for step in steps:
        _take(step, here, there, next(numbers))
        for one, other in ((here, there), (there, here)):
            assert len(set(other.read)) == len(other.read)
            assert not set(one.lost) & set(other.read), "it was read, and reported as lost"
    broke = {"break", "cut"} & set(steps)
    settle(here, there)
    for one, other in ((here, there), (there, here)):
        assert not set(one.lost) & set(other.read)
        assert len(set(one.lost)) == len(one.lost)
    here.put(1_000)  # may be too early for a side that has not seen the reset
    settle(here, there)
    assert 1_000 in {*there.read, *here.lost}
    here.put(1_001)
    settle(here, there)
    assert there.read[-1] == 1_001, "the two cannot exchange messages any more"
    for name, one, other in (("here", here, there), ("there", there, here)):
        put = {number for number, step in enumerate(steps, 1) if step == name}
        assert broke or put <= set(other.read) | set(one.lost), (
            "an entry was neither read nor reported as lost"
        )


def _take(step: str, here: Side, there: Side, number: int) -> None:
    if step in ("here", "there"):
        (here if step == "here" else there).put(number)
        return
    if step == "probe":
        here.probe()
        return
    if step in ("break", "cut"):
        # Only earlier messages are still on their way, and none to the side that was reset.
        broken, other = (here, there) if step == "break" else (there, here)
        broken.link.reset()
        if step == "cut":
            other.out.clear()
        broken.probe()
        return
    sender, receiver = (there, here) if "back" in step else (here, there)
    if not sender.out:
        return
    data = sender.out.popleft()[1]
    if "lose" not in step:
        receiver.receive(data)
    if step == "twice":
        receiver.receive(data)


@pytest.mark.parametrize("data", [b"P", b"P\x90", b"Pnonsense", b"P\x93\xa1x\x01\x00"])
def test_invalid_batch_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_batch(data)


def test_waiting_entries_that_are_dropped_are_reported_to_their_tickets() -> None:
    """CALL-28: what they took of a caller's limit is free again."""
    side, dropped = Side("here"), list[str]()
    ticket = NotifyingTicket(
        lambda: dropped.append("written"), on_dropped=lambda: dropped.append("x")
    )
    side.link.put(Entry(msgspec.msgpack.encode(1), ticket))
    side.link.put(Entry(msgspec.msgpack.encode(2), NotifyingTicket(lambda: None)))
    side.link.reset()
    side.link.reset()
    assert dropped == ["x"]
