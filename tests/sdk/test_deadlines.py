from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.still_clock import StillClock
from toolbus.deadlines import Alarm, Deadlines


@dataclass(eq=False)
class Call:
    name: str
    ended: bool = False


class Watch:
    """Deadlines on a clock that stands still, and what has expired."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.expired: list[str] = []
        self.deadlines: Deadlines[Call] = Deadlines(self.clock.as_loop(), self.expire)

    def expire(self, call: Call) -> None:
        call.ended = True
        self.expired.append(call.name)

    def add(self, name: str, in_s: float) -> Call:
        call = Call(name)
        self.deadlines.add(self.clock.now + in_s, call)
        return call


def test_what_is_due_expires_in_the_order_of_its_time_and_once() -> None:
    watch = Watch()
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


def test_what_has_ended_does_not_expire() -> None:
    watch = Watch()
    watch.add("ended", 1).ended = True
    watch.add("waiting", 2)
    watch.clock.advance(5)
    assert watch.expired == ["waiting"]


def test_an_earlier_deadline_is_kept_although_a_later_one_was_first() -> None:
    watch = Watch()
    watch.add("later", 60)
    watch.add("sooner", 0.1)
    watch.clock.advance(0.1)
    assert watch.expired == ["sooner"]


def test_one_timer_serves_all_and_what_ended_long_ago_is_forgotten() -> None:
    watch = Watch()
    for number in range(20_000):
        watch.add(str(number), 60).ended = True
    watch.add("alive", 60)
    assert watch.clock.waiting == 1
    assert len(watch.deadlines) < 100
    watch.clock.advance(60)
    assert watch.expired == ["alive"]


def test_what_is_forgotten_is_not_held_whenever_it_came() -> None:
    watch = Watch()
    calls = [watch.add(str(number), 60) for number in range(10)]
    for call in calls:
        call.ended = True
        watch.deadlines.forget(call)
    assert len(watch.deadlines) == 0


def test_what_ended_while_the_alarm_rings_often_is_not_held_behind_one_that_lasts() -> None:
    watch = Watch()
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


def test_an_alarm_rings_once_for_the_earliest_time_and_again_when_it_is_told_to() -> None:
    clock = StillClock()
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


def test_an_alarm_that_is_closed_never_rings() -> None:
    clock = StillClock()
    alarm = Alarm(clock.as_loop(), lambda _: pytest.fail("it rang"))
    alarm.set(clock.now + 1)
    alarm.close()
    alarm.set(clock.now + 1)
    assert clock.waiting == 0
    clock.advance(5)


def test_of_one_after_the_other_none_is_held_once_it_has_ended() -> None:
    watch = Watch()
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


def test_many_that_wait_expire_in_the_order_of_their_times_then_of_their_coming() -> None:
    watch = Watch()
    times = [1 + number * 7 % 10 for number in range(500)]
    for number, in_s in enumerate(times):
        watch.add(str(number), in_s)
    watch.clock.advance(20)
    assert watch.expired == [str(n) for n in sorted(range(500), key=lambda n: (times[n], n))]


def test_what_is_added_while_another_expires_is_kept_in_time() -> None:
    watch = Watch()

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
    watch = Watch()
    watch.add("open", 1)
    watch.deadlines.close()
    watch.add("late", 1)
    assert watch.clock.waiting == 0
    assert len(watch.deadlines) == 0
    watch.clock.advance(5)
    assert watch.expired == []
