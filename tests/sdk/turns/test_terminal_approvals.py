"""A person at a real pseudo-terminal answers the questions of a turn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import pytest

from support.processes.terminal_person import ALWAYS, JSON, KEYS, REASON, Person
from toolbus.untrusted_text import printable

PROGRAM = textwrap.dedent(
    """
    import asyncio, json, os, sys
    from toolbus import (
        ApprovalRequest, Assessment, PermissionDecision, Rule, ToolInfo, ToolUse,
        approve_in_terminal,
    )

    facts = json.loads(sys.argv[1])
    arguments = facts.get("arguments", {"command": "ls"})
    matches = facts.get("matches", ["ls:*"])
    rules = tuple(Rule(behavior="allow", tool="shell.run", match=match) for match in matches)
    question = ApprovalRequest(
        ToolUse("1", "shell.run", arguments),
        ToolInfo(
            "shell.run", "", {}, "shell", "run",
            owner=facts.get("owner", ""),
            workdirs=tuple(facts.get("workdirs", ())),
        ),
        arguments,
        PermissionDecision(
            "ask",
            facts.get("reason", "No rule allows this call."),
            Rule(behavior="ask", match=facts["match"]) if "match" in facts else None,
            facts.get("source", "mode"),
            suggestions=rules,
        ),
        Assessment("ask", message=facts.get("message", ""), preview=facts.get("preview", "")),
    )

    async def main():
        input()  # what was typed ahead is there before the question is
        answer = await approve_in_terminal(question)
        rule = " ".join(rule.match for rule in answer.rules) or None
        facts = [answer.is_allowed, answer.scope, rule, answer.arguments, answer.reason]
        print("ANSWER", json.dumps(facts), flush=True)

    asyncio.run(main())
    """
)


@contextmanager
def asked(
    *, variables: Mapping[str, str] | None = None, columns: int = 80, **facts: Any
) -> Iterator[Person]:
    with Person(PROGRAM, json.dumps(facts), variables=variables, columns=columns) as person:
        yield person


def answer_of(person: Person) -> list[Any]:
    person.reads("ANSWER ")
    answer: list[Any] = json.loads(person.reads("\n"))
    return answer


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ([(KEYS, "a")], [True, "once", None, None, ""]),
        ([(KEYS, "A"), (ALWAYS, "x")], [True, "state", None, None, ""]),
        ([(KEYS, "A"), (ALWAYS, "1")], [True, "state", "ls:*", None, ""]),
        (
            [(KEYS, "A"), (ALWAYS, "7"), ("for that press 1 or x", ""), (KEYS, "a")],
            [True, "once", None, None, ""],
        ),
        ([(KEYS, "A"), (ALWAYS, "\n"), (KEYS, "a")], [True, "once", None, None, ""]),
        ([(KEYS, "A"), (ALWAYS, "a"), (KEYS, "a")], [True, "once", None, None, ""]),
        ([(KEYS, "d"), (REASON, "not now\n")], [False, "once", None, None, "not now"]),
        ([(KEYS, "\x04")], [False, "once", None, None, ""]),
        ([(KEYS, "z"), ("one key", ""), (KEYS, "a")], [True, "once", None, None, ""]),
        (
            [(KEYS, "e"), (JSON, '{"command": "pwd"}\n'), (KEYS, "a")],
            [True, "once", None, {"command": "pwd"}, ""],
        ),
        (
            [
                *((KEYS, "e"), (JSON, '{"command": \n'), ("not JSON", "")),
                *((KEYS, "e"), (JSON, "3\n"), ("one JSON object", "")),
                *((KEYS, "e"), (JSON, "\n"), (KEYS, "a")),
            ],
            [True, "once", None, None, ""],
        ),
        (
            [(KEYS, "e"), (JSON, '{"command": "pwd"}\n'), (KEYS, "A"), (ALWAYS, "x")],
            [True, "state", None, {"command": "pwd"}, ""],
        ),
        *(
            (  # no key stands for the only choice
                [
                    *((KEYS, "e"), (JSON, '{"command": "pwd"}\n'), (KEYS, "A"), (ALWAYS, key)),
                    *(("for that press x", ""), (KEYS, "a")),
                ],
                [True, "once", None, {"command": "pwd"}, ""],
            )
            for key in ("A", "a", "\n")
        ),
        *(  # only a question that others may answer too can be left
            ([(KEYS, key), ("one key", ""), (KEYS, "a")], [True, "once", None, None, ""])
            for key in ("\x1b", "q")
        ),
        ([(KEYS, "d"), (REASON, "q\n")], [False, "once", None, None, "q"]),
    ],
)
def test_person_answers_by_keys(typed: list[tuple[str, str]], answer: list[Any]) -> None:
    with asked() as person:
        person.type("\n")
        for prompt, text in typed:
            person.reads(prompt)
            person.type(text)
        assert answer_of(person) == answer


@pytest.mark.parametrize(("key", "granted"), [("a", "git:* npm:*"), ("2", "npm:*")])
def test_person_allows_one_or_all_of_several_rules(key: str, granted: str) -> None:
    with asked(matches=["git:*", "npm:*"]) as person:
        person.type("\n")
        person.reads(KEYS)
        person.type("A")
        shown = person.reads(ALWAYS)
        assert shown.index("git:*") < shown.index("npm:*") < shown.index("a: all of these")
        person.type(key)
        assert answer_of(person) == [True, "state", granted, None, ""]


@pytest.mark.parametrize("source", ["rule", "tool"])
def test_what_is_asked_each_time_cannot_be_allowed_always(source: str) -> None:
    with asked(source=source) as person:
        person.type("\n")
        for prompt, text in [(KEYS, "A"), ("asked each time", ""), (KEYS, "a")]:
            person.reads(prompt)
            person.type(text)
        assert answer_of(person) == [True, "once", None, None, ""]


def test_keys_that_were_typed_before_the_question_or_pasted_answer_nothing() -> None:
    with asked() as person:
        person.type("\nooo")
        person.reads(KEYS)
        person.type("\x1b[o")
        person.reads("Press one key, without Enter")
        person.reads(KEYS)
        person.type("\x04")
        assert answer_of(person) == [False, "once", None, None, ""]


def test_true_in_place_of_1_is_a_change() -> None:
    with asked(arguments={"force": 1}) as person:
        person.type("\n")
        for prompt, text in ((KEYS, "e"), (JSON, '{"force": true}\n'), (KEYS, "a")):
            person.reads(prompt)
            person.type(text)
        assert answer_of(person) == [True, "once", None, {"force": True}, ""]


def test_editor_changes_the_arguments(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/ls/pwd/ "$1"\n', encoding="utf-8")
    editor.chmod(0o700)
    with asked(variables={"EDITOR": str(editor)}) as person:
        person.type("\n")
        for text in "eo":
            person.reads(KEYS)
            person.type(text)
        assert answer_of(person)[3] == {"command": "pwd"}


def test_words_of_others_cannot_look_like_the_question() -> None:
    said = "\x1b[2J\x1b[Hfine\rMay this call run?\u202e\n[o]nce"
    preview = "@@ -1 +1 @@\n-old\x1b[31m\n+new\n" + "x" * 500
    with asked(message=said, preview=preview, owner="eve", arguments={"a": said}) as person:
        person.type("\n")
        person.reads("May this call run?")
        shown = person.reads(KEYS)
        person.type("o")
        answer_of(person)
    assert "shell.run (of eve)" in shown
    assert "\u202e" not in shown
    colors = ("\x1b[31m-old\\x1b[31m\x1b[0m", "\x1b[32m+new\x1b[0m", "\x1b[36m@@ -1 +1 @@\x1b[0m")
    for color in colors:
        assert color in shown
        shown = shown.replace(color, "")
    assert "\x1b" not in shown
    for line in shown.splitlines()[:-1]:
        assert line.startswith(("    | ", "  ")) or not line, line


@pytest.mark.parametrize(
    ("reason", "is_repeated"), [('No rule; it says: "it writes `x`.".', False), ("No rule.", True)]
)
def test_what_the_reason_quotes_is_shown_once(reason: str, is_repeated: bool) -> None:
    with asked(reason=reason, message="it writes `x`.") as person:
        person.type("\n")
        shown = person.reads(KEYS)
        person.type("o")
        answer_of(person)
    assert shown.count("it writes `x`.") == 1
    assert ("the tool says" in shown) is is_repeated


def test_pattern_that_the_terminal_breaks_is_marked_in_each_line() -> None:
    with asked(matches=["ls" + " " * 200 + "x: exactly these arguments"]) as person:
        person.type("\n")
        person.reads(KEYS)
        person.type("A")
        shown = person.reads("  x: exactly")
        person.reads(ALWAYS)
    lines = [line for line in shown.splitlines() if "calls that match" in line or "  | " in line]
    assert len(lines) > 2
    assert all(line.startswith("    | ") and len(line) <= 80 for line in lines), lines


HIDDEN = re.compile(r"^    \(([0-9,]+) characters are hidden here, of ([0-9,]+) lines: press v\)$")
ROW = "    | "


def quoted(screen: str, label: str) -> tuple[list[str], list[str], int, int]:
    """Return the rows of a text before its cut and behind it, and what the cut hides."""
    lines = re.sub("\x1b\\[[0-9]*m", "", screen).splitlines()
    before: list[str] = []
    after: list[str] = []
    found, hidden, hidden_lines = before, 0, 0
    for line in lines[lines.index(f"  {label}:") + 1 :]:
        if line.startswith(ROW):
            found.append(line.removeprefix(ROW))
        elif cut := HIDDEN.match(line):
            found = after
            hidden, hidden_lines = (int(count.replace(",", "")) for count in cut.groups())
        else:
            break
    return before, after, hidden, hidden_lines


CUT = {
    "a long line": "word " * 3_000,
    "lines": "\n".join(f"line {number}" for number in range(5_000)),
    "empty lines": "\n" * 500 + "end",
    "wide characters": "\u6f22" * 5_000,
    "wide characters in odd columns": "a" + "\u6f22" * 5_000,
    "combining characters": "e\u0301" * 5_000,
    "a long line among short ones": f"first\n{'x' * 9_000}\nlast",
    "tabs": "\tx\n" * 300,
    "what is escaped": "\x1b[2J\r\u202e" * 1_000,
    "one row too many": "\n".join("x" * 41),
}
FITS = {
    "as many rows as are shown": "\n".join("x" * 40),
    "a line end": "x\n",
    "wide characters that fit": "\u6f22" * 900,
}


@pytest.mark.parametrize(
    ("name", "columns"),
    [*((name, 80) for name in (*CUT, *FITS)), ("lines", 7), ("wide characters", 31)],
)
def test_cut_of_a_text_says_what_it_hides_and_the_key_v_shows_all(name: str, columns: int) -> None:
    text = CUT.get(name) or FITS[name]
    with asked(preview=text, columns=columns) as person:
        person.type("\n")
        before, after, hidden, hidden_lines = quoted(person.reads(KEYS), "preview")
        person.type("v")
        whole = quoted(person.reads(KEYS), "preview")[0]
        person.type("o")
        answer_of(person)
    lines = printable(text).removesuffix("\n").replace("\t", "    ").split("\n")
    shown = "".join(lines)
    assert "".join(whole) == shown
    assert all(_columns(row) <= max(20, columns) - len(ROW) for row in (*after, *whole))
    if name in FITS:
        assert before == whole
        return
    assert (before, len(after)) == (whole[:28], 12)
    assert shown.endswith("".join(after))
    # What is shown and what is hidden are the whole text, with the line ends within the hidden one.
    left = len(shown) - len("".join(before)) - len("".join(after))
    assert hidden == left + hidden_lines - 1
    assert hidden_lines == (len(lines) - 40 if len(lines) == len(whole) else 1)


def _columns(row: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in row)


@pytest.mark.parametrize(
    ("label", "facts"),
    [
        ("arguments", {"arguments": {"a": "x" * 9_000, "force": True}}),
        ("arguments", {"arguments": {f"key-{number}": number for number in range(900)}}),
        ("arguments", {"arguments": {"a": {"b": [{"c": list(range(900))}]}}}),
        ("asked because", {"reason": "x" * 9_000}),
        ("the tool says", {"message": "x" * 9_000}),
        ("rule", {"match": "rm " + "x" * 4_000 + " end"}),
    ],
)
def test_each_text_of_a_question_is_cut_with_a_mark(label: str, facts: dict[str, Any]) -> None:
    with asked(**facts) as person:
        person.type("\n")
        before, after, hidden, _ = quoted(person.reads(KEYS), label)
        person.type("v")
        whole = quoted(person.reads(KEYS), label)[0]
        person.type("o")
        answer_of(person)
    assert hidden
    assert before == whole[:28]
    assert "".join(whole).endswith("".join(after))


def test_question_shows_the_folders_and_what_is_allowed_always_holds_there() -> None:
    folders = ["/work/a", "/work/b\n  x: everything"]
    with asked(workdirs=folders) as person:
        person.type("\n")
        assert quoted(person.reads(KEYS), "in")[0] == ["/work/a", "/work/b\\n  x: everything"]
        person.type("A")
        shown = quoted(person.reads("  x: exactly these"), "in these folders alone")[0]
        assert shown == ["/work/a", "/work/b\\n  x: everything"]
        person.reads(ALWAYS)
        person.type("x")
        assert answer_of(person) == [True, "state", None, None, ""]


def test_what_was_said_about_the_arguments_before_is_not_shown_for_changed_ones() -> None:
    with asked(preview="it removes a") as person:
        person.type("\n")
        assert "it removes a" in person.reads(KEYS)
        person.type("e")
        person.reads(JSON)
        person.type('{"command": "rm b"}\n')
        shown = person.reads(KEYS)
        assert "rm b" in shown
        assert "it removes a" not in shown
        person.type("o")
        answer_of(person)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_diff_has_no_colors_where_nobody_wants_them(variables: dict[str, str]) -> None:
    with asked(preview="@@ -1 +1 @@\n-old\n+new", variables=variables) as person:
        person.type("\n")
        assert "\x1b" not in person.reads(KEYS)


def test_interruption_leaves_the_terminal_as_it_was() -> None:
    with asked() as person:
        person.type("\n")
        person.reads(KEYS)
        person.type("\x03")
        person.reads("KeyboardInterrupt")


def test_process_without_a_terminal_cannot_ask() -> None:
    code = PROGRAM.replace("input()", "os.setsid()")
    running = subprocess.run(
        [sys.executable, "-c", code, "{}"], capture_output=True, text=True, check=False
    )
    assert "there is no terminal to ask in" in running.stderr
