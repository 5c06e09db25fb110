"""Events of a chat as lines: what others wrote is escaped, cut and never relied on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from toolbus.cli.chat import render
from toolbus.cli.chat.screens import JsonScreen, PipeScreen, Screen, TerminalScreen
from toolbus.cli.chat.transcript import ReceivedFile, Transcript

CALL = {"type": "tool_call", "id": "1", "tool": "sql.query", "arguments": {"sql": "select 1"}}
RESULT = {
    "type": "tool_result",
    "id": "1",
    "tool": "sql.query",
    "state": "ok",
    "executed": "yes",
    "text": "one\ntwo",
}
HOSTILE = "a\x1b[2J\x9b\x07\u202eb\nc"
ESCAPED = "a\\x1b[2J\\x9b\\x07\\u202eb\\nc"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (CALL, '> sql.query {"sql": "select 1"}'),
        (CALL | {"tool": HOSTILE, "arguments": HOSTILE}, f"> {ESCAPED} {ESCAPED}"),
        (CALL | {"arguments": {"x": "y" * 100}}, '> sql.query {"x": "' + "y" * 40 + "…"),
        (CALL | {"arguments": {"x": "漢" * 100}}, '> sql.query {"x": "' + "漢" * 20 + "…"),
        ({"type": "tool_call", "arguments": None, "tool": 7}, "> 7 null"),
    ],
)
def test_call_is_one_line(event: dict[str, Any], line: str) -> None:
    assert render.call_line(event, 60) == line


@pytest.mark.parametrize(
    ("event", "took_s", "line"),
    [
        (RESULT, 0.0123, "< 3 sql.query ok, 12 ms: one …"),
        (RESULT | {"text": "\n one \n\n"}, 3.21, "< 3 sql.query ok, 3.2 s: one "),
        (RESULT | {"text": "", "executed": "maybe", "state": "failed"}, 65.4,
         "< 3 sql.query failed, executed: maybe, 1 min 5 s: "),
        (RESULT | {"state": HOSTILE, "text": "x\x1bc"}, None,
         f"< 3 sql.query {ESCAPED}: x\\x1bc"),
        ({"text": [1]}, None, "< 3  , executed: : [1]"),
    ],
)  # fmt: skip
def test_result_is_one_line(event: dict[str, Any], took_s: float | None, line: str) -> None:
    assert render.result_line(event, 3, took_s, 80) == line


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"waits_for": "sql.run", "hold": "ab12", "left_s": 299.6, "nobody": False},
         "  waits for approval: sql.run, id ab12, for 5 min 0 s at most"),
        ({"tool": "sql.run", "hold": None, "left_s": None, "nobody": True},
         "  nobody in the room may approve sql.run"),
        ({"waits_for": "sql.run", "hold": "ab12", "may_settle": False},
         "  waits for somebody else to approve sql.run, id ab12"),
        ({"waits_for": HOSTILE, "hold": HOSTILE, "left_s": HOSTILE, "nobody": HOSTILE},
         f"  waits for approval: {ESCAPED}, id {ESCAPED}"),
        ({"waits_for": "a.b", "left_s": float("nan")}, "  waits for approval: a.b"),
        ({"type": "resumed", "outcome": HOSTILE}, f"  approval: {ESCAPED}"),
        ({"type": "resumed", "outcome": "approved", "changed": True},
         "  approval: approved with other arguments"),
        ({"type": "parked", "tool": HOSTILE}, f"  waits for its result from outside: {ESCAPED}"),
        ({}, "  waits for approval: a call"),
    ],
)  # fmt: skip
def test_wait_is_one_line(event: dict[str, Any], line: str) -> None:
    assert render.hold_line({"type": "held"} | event, 100) == line


def test_file_of_any_form_is_one_line() -> None:
    event = {"type": "file", "name": HOSTILE, "size": HOSTILE, "path": HOSTILE}
    assert render.file_line(event) == f"  file {ESCAPED}, {ESCAPED} bytes: saved as {ESCAPED}"


INNER = {"type": "progress", "id": "9", "tool": "critic.ask"}
EVENTS: list[dict[str, Any]] = [
    {"type": "dropped", "reason": "it is\x1b long"},
    {"type": "text", "text": "Let me see.\x1b[31m"},
    CALL | {"id": "9", "tool": "critic.ask"},
    INNER | {"value": CALL},
    INNER | {"value": INNER | {"value": CALL | {"tool": "deep.call"}}},
    INNER | {"value": {"type": ["of", "no", "event"]}},
    INNER | {"value": RESULT},
    {"type": "progress", "id": "9", "tool": "critic.ask", "value": "half\x1b"},
    RESULT | {"id": "9", "tool": "critic.ask"},
    ReceivedFile("../\x1bx", 3, path="out/x").event(),
    {"type": "text", "text": "No"},
    {"type": "restart"},
    {"type": "unknown", "text": "of a later release"},
    {"type": "text", "text": "Yes 👩\u200d🚀."},
    {"type": "end", "reason": "max_steps", "text": "Yes"},
]


def shown(screen: Screen, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    transcript = Transcript()
    transcript.begin(0)
    for event in EVENTS:
        screen.show(event, transcript.add(event, 0))
    screen.notice("a notice")
    screen.pause()
    captured = capfd.readouterr()
    return captured.out, captured.err


def test_terminal_shows_text_and_lines_of_all_depths(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out, _ = shown(TerminalScreen(), capfd)
    # A line that another one takes the place of is erased.
    assert re.sub(r"[^\n]*\r\x1b\[K", "", out) == (
        "(the model does not see all that was said before: it is\\x1b long)\n"
        "Let me see.\\x1b[31m\n"
        "> critic.ask {\"sql\": \"select 1\"}\n"
        "  > sql.query {\"sql\": \"select 1\"}\n"
        "    > deep.call {\"sql\": \"select 1\"}\n"
        "  < 1 sql.query ok, 0 ms: one …\n"
        "< 2 critic.ask ok, 0 ms: one …\n"
        "  file ../\\x1bx, 3 bytes: saved as out/x\n"
        "No\n"
        "(the reply broke off, its text does not count: it is asked again)\n"
        "Yes 👩\u200d🚀.\n"
        "(it stopped: max_steps)\n"
        "a notice\n"
    )  # fmt: skip


def test_colors_are_for_terminals_that_have_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for term, has_colors in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", term)
        out, _ = shown(TerminalScreen(), capfd)
        assert ("\x1b[2m> critic.ask" in out) is has_colors
        assert ("\x1b" in out) is has_colors


def test_pipe_has_the_last_reply_alone(capfd: pytest.CaptureFixture[str]) -> None:
    out, err = shown(PipeScreen(), capfd)
    assert out == "Yes 👩\u200d🚀.\n"
    assert "long)\nLet me see.\\x1b[31m\n> critic.ask" in err
    assert "\x1b" not in err


def test_json_has_each_event_in_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    out, err = shown(JsonScreen(), capfd)
    assert len(out.splitlines()) == len(EVENTS)
    assert "\x1b" not in out
    assert err == "a notice\n"


def test_tree_has_a_step_for_each_reply() -> None:
    transcript = Transcript()
    assert list(transcript.tree(0)) == ["nothing was asked yet"]
    transcript.begin(0)
    for now, event in enumerate(EVENTS):
        transcript.add(event, now)
    transcript.add(
        {"type": "end", "reason": "done", "trace": "ab" * 16, "tokens": {"input": 5}}, 14
    )
    assert list(transcript.tree(99)) == [
        "question  14.0 s  done  tokens: 5 in, None out",
        "  step 1  9.0 s  text of 16 characters",
        "    critic.ask  6.0 s  ok",
        "      sql.query  3.0 s  ok",
        "        deep.call  not ended",
        "  step 2  5.0 s  text of 8 characters",
        "trace abababababababababababababababab",
    ]
    assert transcript.answer == "Yes 👩\u200d🚀."
    transcript.begin(20)
    transcript.fail("host_lost, executed: maybe", 21)
    assert next(iter(transcript.tree(99))) == "question  1.0 s  host_lost, executed: maybe"
    assert transcript.result(1) is not None  # of a question before


def test_transcript_is_bounded() -> None:
    transcript = Transcript()
    transcript.begin(0)
    for number in range(2_000):
        transcript.add(CALL | {"id": str(number)}, 0)
        transcript.add(RESULT | {"id": str(number), "text": "x" * 100_000}, 0)
    assert transcript.numbers == "1501 to 2000"
    kept = transcript.result(2_000)
    assert kept is not None
    assert len(kept.event["text"]) == 65_536
    assert len(list(transcript.tree(0))) < 2_100
    transcript.add_file(ReceivedFile("a", 10, b"0123456789"))
    assert transcript.left_bytes() == 64 * 1024 * 1024 - 10
    for _ in range(2_000):
        transcript.add_file(ReceivedFile("../" * 10_000 + "a.txt"))
    assert len(kept.files) == 1_000
    assert len(kept.files[-1].name) == 1_000
    assert kept.files[-1].name.endswith("/a.txt")
