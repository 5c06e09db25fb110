"""What a person is asked about a call that waits: all that is known of it, and nothing hidden."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from toolbus.cli.approvals.questions import clock_text, outcome_text, question_of, who_text
from toolbus.errors import InvalidResult
from toolbus.room.holds import HoldBody, HoldInfo
from toolbus.tools.tool_run import Participant

BAD = "\x1b[2J\u202e\x9b"
BODY = HoldBody(
    {"path": "a"},
    f"reason{BAD}",
    f"message{BAD}",
    f"preview{BAD}\nmore",
    f"reaches{BAD}\n",
    has_input=True,
    approvers=(f"role:{BAD}boss", "others"),
)
HOLD = HoldInfo(
    "0" * 16,
    "files",
    f"files.write{BAD}",
    f"bob{BAD}",
    f"ann{BAD}",
    "f" * 64,
    b"",
    caller=Participant("1", f"bot{BAD}\n", "agent"),
    is_own=True,
    on_behalf_of=Participant("2", "ann"),
    forwarded_for=(Participant("3", f"carl{BAD}"),),
    purpose=f"purpose{BAD}\nof it",
    left_s=3_700.0,
    replaces="1" * 16,
    body=BODY,
)


def test_all_texts_are_shown_and_escaped() -> None:
    question = question_of(HOLD)
    texts = dict([*question.about, *question.reasons])
    shown = "\n".join(f"{label}: {text}" for label, text in texts.items())
    assert "".join(shown.split("\n")).isprintable()
    words = ("files.write", "bob", "ann", "bot", "carl", "purpose", "boss", "others", "reason")
    for word in (*words, "message", "preview", "reaches", "attachment", "role agent"):
        assert word in shown, word
    assert texts["asked by"].startswith("the caller itself")
    assert texts["once more"] == "the host or the caller of an earlier attempt was lost"
    # It stays on the screen: no time that goes on.
    assert re.fullmatch(r"\d\d:\d\d:\d\d", texts["expires at"])
    for label in ("tool", "for", "called by", "reaches"):  # no line of others begins with a label
        assert "\n" not in texts[label]


def test_what_is_at_its_default_is_not_shown() -> None:
    body = HoldBody(BODY.arguments, BODY.reason)
    bare = replace(HOLD, is_own=False, forwarded_for=(), purpose="", left_s=None, replaces="")
    question = question_of(replace(bare, body=body))
    assert [label for label, _ in question.about] == ["tool", "for", "called by"]
    assert [label for label, _ in question.reasons] == ["asked because"]


def test_settled_call_is_no_question() -> None:
    settled = replace(HOLD, body=None, outcome="denied", by=Participant("4", "dan"), reason="no\n")
    with pytest.raises(InvalidResult, match=r"denied by dan: no\\n"):
        question_of(settled)
    assert outcome_text(replace(HOLD, outcome="lost")) == "lost"
    assert who_text(replace(HOLD, caller=None, asked_for="ann")) == "ann"
    assert who_text(replace(HOLD, caller=Participant("5", "bot"), asked_for="a/n")) == "bot for a/n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0:00"), (0.9, "0:00"), (61.0, "1:01"), (3_599.9, "59:59"), (90_000.0, "25:00:00")],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
