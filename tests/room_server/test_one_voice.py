"""What several workers say of one event, as the log has it; on a clock that the test sets."""

from __future__ import annotations

import logging
from math import inf

import pytest

from toolbus_server.one_voice import OneVoice, Said

AWAY = Said("toolbus_server.nodes.redis_line", logging.WARNING, "it is away", "it is away")


def alone(name: str) -> Said:
    """Say in worker NAME that it serves by itself."""
    words = "node {} serves by itself"
    return Said(AWAY.logger, AWAY.level, words.format(name), words.format("lab"))


def test_what_several_say_is_said_once_of_all(caplog: pytest.LogCaptureFixture) -> None:
    voice = OneVoice()
    for number in (1, 2, 3):
        voice.take(f"lab-{number}", alone(f"lab-{number}"), number / 10)
    assert (caplog.messages, voice.due_s()) == ([], 0.6)
    voice.tell_due(0.59)
    assert caplog.messages == []
    voice.tell_due(0.6)
    assert caplog.messages == ["node lab serves by itself"]
    assert (caplog.records[0].name, caplog.records[0].levelno) == (AWAY.logger, AWAY.level)
    voice.take("lab-4", alone("lab-4"), 4.0)
    voice.tell_all()
    assert len(caplog.messages) == 1
    assert voice.due_s() == inf


def test_what_one_says_is_said_of_that_one(caplog: pytest.LogCaptureFixture) -> None:
    voice = OneVoice()
    voice.take("lab-2", alone("lab-2"), 0.0)
    voice.tell_due(0.5)
    assert caplog.messages == ["[lab-2] node lab-2 serves by itself"]


def test_what_turns_out_to_be_everybodys_is_said_once_more_of_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    voice = OneVoice()
    voice.take("lab-1", AWAY, 0.0)
    voice.tell_due(0.5)
    for number in (2, 3):
        voice.take(f"lab-{number}", AWAY, float(number))
    assert caplog.messages == ["[lab-1] it is away", "it is away"]


def test_who_says_it_twice_means_it_twice(caplog: pytest.LogCaptureFixture) -> None:
    voice = OneVoice()
    for at_s in (0.0, 0.1):
        voice.take("lab-1", AWAY, at_s)
    voice.tell_all()
    assert caplog.messages == ["[lab-1] it is away"] * 2


def test_what_is_said_long_after_is_another_event(caplog: pytest.LogCaptureFixture) -> None:
    voice = OneVoice()
    voice.take("lab-1", AWAY, 0.0)
    voice.take("lab-2", AWAY, 0.1)
    voice.tell_due(1.0)
    voice.take("lab-2", AWAY, 60.0)
    voice.take("lab-1", AWAY, 60.1)
    voice.tell_due(61.0)
    assert caplog.messages == ["it is away"] * 2


def test_different_words_are_different_events(caplog: pytest.LogCaptureFixture) -> None:
    voice = OneVoice()
    voice.take("lab-1", AWAY, 0.0)
    voice.take("lab-2", alone("lab-2"), 0.0)
    voice.tell_all()
    assert caplog.messages == ["[lab-1] it is away", "[lab-2] node lab-2 serves by itself"]
