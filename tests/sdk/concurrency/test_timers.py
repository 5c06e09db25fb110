from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.parts.manual_clock import ManualClock
from toolbus.concurrency.timers import Alarm, Deadlines


@dataclass(eq=False)
class Call:
    name: str
    ended: bool = False


class Expiry:
    """Deadlines on a manual clock, and the items that expired."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.expired: list[str] = []
        self.deadlines: Deadlines[Call] = Deadlines(self.clock.as_loop(), self.expire)

    def expire(self, call: Call) -> None:
        call.ended = True
        self.expired.append(call.name)

    def add(self, name: str, in_s: float) -> Call:
        call = Call(name)
        self.deadlines.add(self.clock.now + in_s, call)
        return call


def test_due_items_expire_once_in_the_order_of_their_deadlines() -> None:
    watch = Expiry()
    watch.add("late", 3)
    watch.add("early", 1)
    watch.add("middle", 2)
    watch.clock.advance(0.5)
    assert watch.expired == []
    watch.clock.advance(0.5)
    assert watch.expired == ["early"]
    watch.clock.advance(10)
    assert watch.expired == ["early", "middle", "late"]
    assert watch.clock.waiting == 0


def test_ended_item_does_not_expire() -> None:
    watch = Expiry()
    watch.add("ended", 1).ended = True
    watch.add("waiting", 2)
    watch.clock.advance(5)
    assert watch.expired == ["waiting"]


def test_an_earlier_deadline_is_kept_although_a_later_one_was_first() -> None:
    watch = Expiry()
    watch.add("later", 60)
    watch.add("sooner", 0.1)
    watch.clock.advance(0.1)
    assert watch.expired == ["sooner"]


def test_one_timer_serves_all_items_and_ended_ones_are_dropped() -> None:
    watch = Expiry()
    for number in range(20_000):
        watch.add(str(number), 60).ended = True
    watch.add("alive", 60)
    assert watch.clock.waiting == 1
    assert len(watch.deadlines) < 100
    watch.clock.advance(60)
    assert watch.expired == ["alive"]


def test_forgotten_item_is_not_held() -> None:
    watch = Expiry()
    calls = [watch.add(str(number), 60) for number in range(10)]
    for call in calls:
        call.ended = True
        watch.deadlines.forget(call)
    assert len(watch.deadlines) == 0


def test_ended_items_are_dropped_although_a_long_one_remains() -> None:
    watch = Expiry()
    watch.add("long", 3_600)
    most = 0
    for _ in range(500):
        short = watch.add("short", 0.02)
        others = [watch.add("other", 7_200) for _ in range(40)]
        watch.clock.advance(0.02)
        for call in (short, *others):
            call.ended = True
            watch.deadlines.forget(call)
        most = max(most, len(watch.deadlines))
    assert most < 300
    assert watch.expired == ["short"] * 500


def test_alarm_fires_once_at_the_earliest_time_and_again_when_set() -> None:
    clock = ManualClock()
    rung: list[float] = []

    def ring(now: float) -> float:
        rung.append(now)
        return clock.now + 5 if len(rung) == 1 else float("inf")

    alarm = Alarm(clock.as_loop(), ring)
    start = clock.now
    for in_s in (60, 1, 30):
        alarm.set(start + in_s)
    assert (alarm.at, clock.waiting) == (start + 1, 1)
    clock.advance(1)
    assert rung == [pytest.approx(start + 1, abs=0.01)]
    clock.advance(5)
    assert len(rung) == 2
    clock.advance(100)
    assert (len(rung), alarm.at, clock.waiting) == (2, float("inf"), 0)


def test_closed_alarm_never_fires() -> None:
    clock = ManualClock()
    alarm = Alarm(clock.as_loop(), lambda _: pytest.fail("it rang"))
    alarm.set(clock.now + 1)
    alarm.close()
    alarm.set(clock.now + 1)
    assert clock.waiting == 0
    clock.advance(5)


def test_ended_items_added_one_after_another_are_not_held() -> None:
    watch = Expiry()
    first = watch.add("first", 60)
    for number in range(10):
        call = watch.add(str(number), 60)
        call.ended = True
        watch.deadlines.forget(call)
        assert len(watch.deadlines) == 1
    later = watch.add("later", 60)
    first.ended = True
    watch.deadlines.forget(first)
    watch.clock.advance(60)
    assert watch.expired == ["later"]
    assert later.ended


def test_many_items_expire_by_deadline_and_then_by_insertion() -> None:
    watch = Expiry()
    times = [1 + number * 7 % 10 for number in range(500)]
    for number, in_s in enumerate(times):
        watch.add(str(number), in_s)
    watch.clock.advance(20)
    assert watch.expired == [str(n) for n in sorted(range(500), key=lambda n: (times[n], n))]


def test_item_added_while_another_expires_expires_in_time() -> None:
    watch = Expiry()

    def expire(call: Call) -> None:
        watch.expire(call)
        if call.name == "first":
            for number in range(2_000):
                watch.add(str(number), 30).ended = True
            watch.add("soon", 1)

    watch.deadlines = Deadlines(watch.clock.as_loop(), expire)
    watch.add("first", 1)
    watch.add("last", 60)
    watch.clock.advance(1)
    watch.clock.advance(1)
    assert watch.expired == ["first", "soon"]
    watch.clock.advance(60)
    assert watch.expired == ["first", "soon", "last"]


def test_nothing_expires_and_nothing_is_held_after_close() -> None:
    watch = Expiry()
    watch.add("open", 1)
    watch.deadlines.close()
    watch.add("late", 1)
    assert watch.clock.waiting == 0
    assert len(watch.deadlines) == 0
    watch.clock.advance(5)
    assert watch.expired == []
