"""How far a sender is let go ahead, on a clock that stands until it is set."""

from toolbus.reach import LEAST_BYTES, LONG_S, Reach
from toolbus.wire.windows import WINDOW_BYTES


class Clock:
    """Tells the time that it was set to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_sender_that_is_heard_soon_is_let_no_further() -> None:
    clock = Clock()
    reach = Reach(clock)
    for _ in range(10):
        reach.let_go()
        clock.now_s += LONG_S / 2
        reach.heard()
    assert reach.bytes == LEAST_BYTES


def test_reach_doubles_each_time_that_a_sender_is_heard_late_up_to_the_most() -> None:
    clock = Clock()
    reach = Reach(clock)
    for expected in (2 * LEAST_BYTES, WINDOW_BYTES, WINDOW_BYTES):
        reach.let_go()
        clock.now_s += LONG_S * 2
        reach.heard()
        assert reach.bytes == expected


def test_sender_that_did_not_have_to_wait_may_take_its_time() -> None:
    clock = Clock()
    reach = Reach(clock)
    clock.now_s += 1.0
    reach.heard()
    assert reach.bytes == LEAST_BYTES


def test_time_counts_from_the_first_word_that_lets_go() -> None:
    clock = Clock()
    reach = Reach(clock)
    reach.let_go()
    clock.now_s += LONG_S
    reach.let_go()
    clock.now_s += LONG_S / 2
    reach.heard()
    assert reach.bytes == 2 * LEAST_BYTES
