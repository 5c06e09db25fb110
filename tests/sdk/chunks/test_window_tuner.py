"""The window of a sender, on a manual clock."""

from toolbus.chunks.receive_credit import GROW_DELAY_S, MIN_WINDOW_BYTES, WindowTuner
from toolbus.wire.flow_control import WINDOW_BYTES


class Clock:
    """Returns the time that it was set to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_window_stays_for_a_sender_that_answers_soon() -> None:
    clock = Clock()
    tuner = WindowTuner(clock)
    for _ in range(10):
        tuner.credit_sent()
        clock.now_s += GROW_DELAY_S / 2
        tuner.data_received()
    assert tuner.bytes == MIN_WINDOW_BYTES


def test_window_doubles_for_each_late_answer_up_to_the_limit() -> None:
    clock = Clock()
    tuner = WindowTuner(clock)
    for expected in (2 * MIN_WINDOW_BYTES, WINDOW_BYTES, WINDOW_BYTES):
        tuner.credit_sent()
        clock.now_s += GROW_DELAY_S * 2
        tuner.data_received()
        assert tuner.bytes == expected


def test_sender_that_did_not_wait_does_not_grow_the_window() -> None:
    clock = Clock()
    tuner = WindowTuner(clock)
    clock.now_s += 1.0
    tuner.data_received()
    assert tuner.bytes == MIN_WINDOW_BYTES


def test_time_counts_from_the_first_credit_after_a_wait() -> None:
    clock = Clock()
    tuner = WindowTuner(clock)
    tuner.credit_sent()
    clock.now_s += GROW_DELAY_S
    tuner.credit_sent()
    clock.now_s += GROW_DELAY_S / 2
    tuner.data_received()
    assert tuner.bytes == 2 * MIN_WINDOW_BYTES
