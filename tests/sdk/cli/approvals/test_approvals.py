"""`toolbus approvals` and its commands, and what `toolbus call` says while it waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from support.processes.held_files import Callers, hosted_files
from toolbus.cli.output import held_text
from toolbus.client.held_calls import HeldCall


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with hosted_files(tmp_path_factory.mktemp("approvals")) as toolbus:
        yield toolbus


@pytest.fixture
def callers(toolbus: CommandLine) -> Iterator[Callers]:
    with Callers(toolbus) as callers:
        yield callers


def test_call_waits_beyond_its_time_limit_and_says_what_for(
    toolbus: CommandLine, callers: Callers
) -> None:
    running, hold_id = callers.held("a", "--timeout", "1", "--purpose", "to\x1b[2J see")
    (listed,) = toolbus.value_here("approvals", "--json", "--name", "ann")
    assert (listed["id"], listed["asked_for"]) == (hold_id, "ann")
    assert listed["purpose"] == "to\x1b[2J see"
    shown = toolbus.run_here("approvals", "--once", "--name", "ann").out.splitlines()
    assert [line.split()[0] for line in shown] == ["id", hold_id[:8]]
    assert "to\\x1b[2J see" in shown[1]
    while callers.lists()[0]["age_s"] < 1.2:  # type: ignore[operator]
        pass
    approved = toolbus.run("approvals", "approve", hold_id[:8], "--name", "ann")
    assert (approved.code, approved.out) == (0, "files.write (ann): approved by ann\n")
    ended = running.ended()
    assert (ended.code, ended.value) == (0, ["a", "b", 1])
    assert ended.err == "approved: files.write\n"


def test_call_says_that_only_others_or_nobody_may_approve_it(
    toolbus: CommandLine, callers: Callers
) -> None:
    without = ("token", "create", "--name", "eve", "--allow", "files.*")
    token = toolbus.run_here(*without).out.strip()
    waiting = "nobody who is in the room now may approve files.write (approval "
    assert callers.call("a", "--token", token, name="eve")[1].startswith(waiting)
    refused = toolbus.run_here("approvals", "--once", "--token", token)
    assert refused.code == 3
    assert "toolbus token create --name NAME --grant" in refused.err
    told = callers.call("a", "--json", "--token", token, name="eve")[1]
    assert json.loads(told)["held"]["nobody"] is True


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (
            HeldCall("a1", "b.c", may_settle=True),
            "waiting for a person to approve b.c: toolbus approvals approve a1",
        ),
        (HeldCall("a1", "b.c"), "waiting for somebody else to approve b.c (approval a1)"),
        (HeldCall("", "b.c", kind="answer"), "waiting for somebody else to answer b.c"),
        (
            HeldCall("", "b.c", nobody=True),
            "nobody who is in the room now may approve b.c",
        ),
        (HeldCall("a1", "b.c", outcome="denied"), "denied: b.c"),
        (
            HeldCall.from_wire(
                {"hold": "a1", "tool": "b.c", "outcome": "approved", "changed": True}
            ),
            "approved with other arguments: b.c",
        ),
    ],
)
def test_wait_and_its_end_are_one_line(held: HeldCall, text: str) -> None:
    assert held_text(held) == text


def test_purpose_that_is_too_long_is_no_argument_of_the_tool(toolbus: CommandLine) -> None:
    refused = toolbus.run_here("call", "files.write", "path=a", "--purpose", "x" * 501)
    assert refused.code == 2
    assert "--purpose must have at most 500 characters" in refused.err
    assert "toolbus tools" not in refused.err


def test_answer_of_the_caller_where_another_is_needed_advises_no_token(
    toolbus: CommandLine, callers: Callers
) -> None:
    _, waiting = callers.call("a", tool="files.pay")
    hold_id = waiting.partition("(approval ")[2].rstrip(")\n")
    refused = toolbus.run_here("approvals", "approve", hold_id, "--name", "ann")
    assert refused.code == 3
    assert refused.err.endswith("\n  next: let somebody else answer it\n")


def test_changed_arguments_of_who_may_not_call_advise_a_token_that_may_call_this_tool(
    toolbus: CommandLine, callers: Callers
) -> None:
    create = ("token", "create", "--name", "carol", "--grant", "approve_all=files")
    token = toolbus.run_here(*create).out.strip()
    _, hold_id = callers.held("a")
    refused = toolbus.run_here("approvals", "approve", hold_id, "path=b", "--token", token)
    assert refused.code == 3
    assert "`toolbus token create --name NAME --allow files.write`" in refused.err


@pytest.mark.parametrize(
    ("typed", "code", "text"),
    [
        ("0", 3, "next: let the call wait for a person: --approval-timeout"),
        ("0.01", 3, "next: repeat the call, and let somebody approve it in time"),
        ("-1", 2, "must be a number of seconds, 0 or more, or none"),
        ("soon", 2, "must be a number of seconds, 0 or more, or none"),
    ],
)
def test_approval_timeout_ends_the_wait(
    toolbus: CommandLine, typed: str, code: int, text: str
) -> None:
    call = ("call", "files.write", "path=a", "--name", "ann", "--approval-timeout", typed)
    ended = toolbus.run_here(*call)
    assert ended.code == code
    assert text in ended.err


def test_call_without_code_that_nobody_answers_advises_to_answer_it(toolbus: CommandLine) -> None:
    call = ("call", "files.review", "path=a", "--name", "ann", "--approval-timeout", "0.01")
    ended = toolbus.run_here(*call)
    assert ended.code == 3
    assert "next: repeat the call, and let somebody answer it in time" in ended.err


@pytest.mark.parametrize(
    ("asked", "typed", "value"),
    [
        ("text", ["two weeks"], "two weeks"),
        ("text", ["3"], "3"),
        ("choice", ["blue"], "blue"),
        ("number", ["3"], 3),
        ("object", ["size=3", "name=3"], {"size": 3, "name": "3"}),
        ("object", ["size=3"], {"size": 3}),
        ("object", ['{"size": 4}'], {"size": 4}),
    ],
)
def test_question_is_answered_as_its_schema_reads_what_is_typed(
    toolbus: CommandLine, callers: Callers, asked: str, typed: list[str], value: object
) -> None:
    running, hold_id = callers.asking(asked)
    answered = toolbus.run_here("approvals", "answer", hold_id[:8], *typed, "--name", "ann")
    assert (answered.code, answered.out) == (0, "files.ask (ann): answered by ann\n")
    assert running.ended().value == [value]


@pytest.mark.parametrize(
    ("asked", "typed", "text"),
    [
        ("number", ["1"], "the answer does not fit: "),
        ("number", ["many"], "the answer does not fit: "),
        ("choice", ["green"], 'it must be one of "red\\u001b[2J", "blue"'),
        ("object", ["size=1"], "the answer does not fit: at /size: "),
        ("object", ["size=many"], "does not match integer"),
        ("text", ["two", "weeks"], "is not an argument"),
        ("text", [], "Missing argument"),
    ],
)
def test_answer_that_does_not_fit_leaves_the_question_open(
    toolbus: CommandLine, callers: Callers, asked: str, typed: list[str], text: str
) -> None:
    running, hold_id = callers.asking(asked)
    refused = toolbus.run_here("approvals", "answer", hold_id, *typed, "--name", "ann")
    assert refused.code == 2
    assert text in refused.err
    (listed,) = callers.lists()
    assert (listed["id"], listed["kind"]) == (hold_id, "answer")
    denied = toolbus.run_here("approvals", "deny", hold_id, "no", "--name", "ann")
    assert denied.out == "files.ask (ann): denied by ann: no\n"
    assert "next: a person refused what the tool asked" in running.ended().err


def test_call_without_code_is_shown_listed_and_answered(
    toolbus: CommandLine, callers: Callers
) -> None:
    running, hold_id = callers.asking("a\x1b[2J", "files.review")
    listed = toolbus.run_here("approvals", "--once", "--name", "ann").out.splitlines()[1]
    assert listed.split()[2:4] == ["files.review", "(answer)"]
    shown = toolbus.run_here("approvals", "show", hold_id, "--name", "ann").out
    assert 'arguments:\n    | {\n    |   "path": "a\\u001b[2J"\n    | }\n' in shown
    refused = toolbus.run_here("approvals", "approve", hold_id, "--name", "ann")
    text = f"it asks for an answer: toolbus approvals answer {hold_id[:8]}"
    assert (refused.code, text in refused.err) == (2, True)
    toolbus.run_here("approvals", "answer", hold_id, "good", "--name", "ann")
    assert running.ended().out == "good\n"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        (["times=3", "text=3"], ["c", "3", 3]),
        (['{"path": "d"}'], ["d", "b", 1]),
        (["--always"], ["c", "b", 1]),
        (["--rule", "c*", "--rule", "d*"], ["c", "b", 1]),
        (["--suggested"], ["c", "b", 1]),
        (["--always", "path=d"], ["d", "b", 1]),
    ],
)
def test_call_runs_as_it_is_approved_and_what_is_granted_can_be_taken_back(
    toolbus: CommandLine, callers: Callers, typed: list[str], value: list[object]
) -> None:
    running, hold_id = callers.held("c", "--approval-timeout", "none")
    approve = ("approvals", "approve", hold_id, *typed, "--json", "--name", "ann")
    facts = toolbus.value_here(*approve)
    assert (facts["id"], facts["outcome"], facts["by"]["name"]) == (hold_id, "approved", "ann")
    assert running.ended().value == value
    settled = toolbus.run_here("approvals", "--settled", "--name", "ann").out
    assert hold_id[:8] in settled
    granted = toolbus.value_here("approvals", "--granted", "--json", "--name", "ann")
    if not typed[0].startswith("--"):
        assert granted == []
        return
    again = toolbus.run_here("call", "files.write", f"path={value[0]}", "--name", "ann")
    assert (again.err, again.value) == ("", [value[0], "b", 1])
    assert [rule["asked_for"] for rule in granted] == ["ann"] * typed.count("--rule") or ["ann"]
    shown = toolbus.run_here("approvals", "--granted", "--name", "ann").out
    assert " bob   ann  allow files.write " in shown
    for rule in granted:
        taken = toolbus.run("approvals", "take-back", rule["id"][:12], "--name", "ann")
        assert taken.out.startswith("taken back: allow files.write "), taken.err
    none = toolbus.run_here("approvals", "--granted", "--name", "ann")
    assert (none.out, none.err) == ("", "no rule is granted that you may take back\n")
    callers.held(str(value[0]))


def test_denial_has_its_reason_and_the_second_answer_who_decided(
    toolbus: CommandLine, callers: Callers
) -> None:
    running, hold_id = callers.held("a")
    denied = toolbus.run("approvals", "deny", hold_id, "not\nnow", "--name", "ann")
    assert denied.out == "files.write (ann): denied by ann: not\\nnow\n"
    ended = running.ended()
    assert ended.code == 3
    assert "not\\nnow" in ended.err
    for typed in ("approve", "deny"):
        late = toolbus.run_here("approvals", typed, hold_id, "--json", "--name", "ann")
        assert (late.code, late.error["code"]) == (3, "already_exists")
        assert late.error["details"]["by"]["name"] == "ann"
    shown = toolbus.run_here("approvals", "show", hold_id, "--name", "ann")
    assert shown.out == denied.out


@pytest.mark.parametrize(
    ("tool", "typed", "done", "rest"),
    [
        ("files.write", ["approve", "ID"], "approved", "; it runs only if the caller makes"),
        ("files.review", ["answer", "ID", "good"], "answered", "; the answer counts only if the"),
        ("files.write", ["deny", "ID"], "denied", "\n"),
    ],
)
def test_decision_about_a_caller_that_is_away_says_so(
    toolbus: CommandLine, callers: Callers, tool: str, typed: list[str], done: str, rest: str
) -> None:
    running, waiting = callers.call("a", tool=tool)
    hold_id = waiting.split()[-1]
    running.process.kill()
    while not next(hold for hold in callers.lists() if hold["id"] == hold_id)["is_away"]:
        pass
    words = [hold_id if word == "ID" else word for word in typed]
    decided = toolbus.run_here("approvals", *words, "--name", "ann")
    text = f"{done} by ann while its caller was away"
    assert decided.out.startswith(f"{tool} (ann): {text}{rest}")
    settled = toolbus.run_here("approvals", "--settled", "--name", "ann").out
    assert text in next(line for line in settled.splitlines() if line.startswith(hold_id[:8]))


def test_all_that_is_asked_is_shown_and_escaped(toolbus: CommandLine, callers: Callers) -> None:
    _, hold_id = callers.held("a\u202e")
    shown = toolbus.run_here("approvals", "show", hold_id, "--name", "ann").out
    for line in (
        "    | files.write (of bob)",
        '    |   "path": "a\\u202e"',
        "its owner says:\n    | it writes\\u202e\n",
        "preview:\n    | @@ -1 +1 @@\n    | -old\\x1b[2J\n    | +new\\u202e\n",
        'rule that would allow it:\n    | allow files.write "a\\\\u202e*"\n',
    ):
        assert line in shown
    facts = toolbus.value_here("approvals", "show", hold_id, "--json", "--name", "ann")
    assert facts["body"]["arguments"] == {"path": "a\u202e"}
    assert facts["body"]["suggestions"][0]["match"] == "a\u202e*"


def wrong(*typed: str) -> Any:
    return pytest.param(typed[:-2], int(typed[-2]), typed[-1], id=" ".join(typed[:-2]))


@pytest.mark.parametrize(
    ("typed", "code", "text"),
    [
        wrong("approve", "", "2", "the id is empty"),
        wrong("approve", "zz", "4", "next: `toolbus approvals --once` lists the calls that wait"),
        wrong("approve", "ID", "times=x", "2", "times: 'x' does not match integer"),
        wrong("approve", "ID", "{", "2", "not a JSON object"),
        wrong("approve", "ID", "--always", "--suggested", "2", "exclude each other"),
        wrong("approve", "ID", "--rule", "", "2", "--rule: match must be text"),
        wrong("take-back", "zz", "4", "there is no granted rule zz"),
        wrong("take-back", "", "2", "the id is empty"),
        wrong("deny", "ID", "x" * 2_001, "2", "at most 2000 characters"),
        wrong("--once", "approve", "ID", "2", "options follow the command"),
        wrong("--once", "--bell", "2", "--bell is for the live table"),
        wrong("--once", "--granted", "2", "--granted lists rules"),
        wrong("--json", "--bell", "2", "--bell is for the live table"),
        wrong("2", "there is no terminal for a live table: add --once for a list"),
    ],
)
def test_wrong_commands_say_what_is_wrong_and_settle_nothing(
    toolbus: CommandLine, callers: Callers, typed: tuple[str, ...], code: int, text: str
) -> None:
    _, hold_id = callers.held("a")
    words = [hold_id if word == "ID" else word for word in typed]
    ended = toolbus.run_here("approvals", *words, TOOLBUS_NAME="ann")
    assert ended.code == code, ended.err
    assert text in ended.err + ended.out
    assert hold_id in [hold["id"] for hold in callers.lists()]


def test_pattern_is_refused_for_a_tool_that_compares_none(
    toolbus: CommandLine, callers: Callers
) -> None:
    _, waiting = callers.call("51", tool="files.stop")
    hold_id = waiting.split()[-1]
    refused = toolbus.run_here("approvals", "approve", hold_id, "--rule", "51", "--name", "ann")
    assert refused.code == 2
    assert "the tool has no patterns: --always allows these arguments" in refused.err
    assert [hold["id"] for hold in callers.lists()] == [hold_id]
    assert toolbus.value_here("approvals", "--granted", "--json", "--name", "ann") == []


def test_ids_are_completed(toolbus: CommandLine, callers: Callers) -> None:
    _, hold_id = callers.held("a")
    typed = f"toolbus approvals approve --name ann {hold_id[:4]}"
    words = {"_TOOLBUS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "5"}
    assert toolbus.run_here(**words).out.split() == [hold_id]


def test_id_that_several_have_or_that_is_mistyped_is_answered_with_those_that_are_there(
    toolbus: CommandLine, callers: Callers
) -> None:
    ids = callers.many(17)  # one more than there are first digits
    shared = next(first for first in "0123456789abcdef" if sum(i[0] == first for i in ids) > 1)
    several = toolbus.run_here("approvals", "deny", shared, "--name", "ann")
    assert (several.code, "several ids begin with" in several.err) == (2, True)
    mistyped = ids[0][:-1] + ("0" if ids[0][-1] != "0" else "1")
    found = toolbus.run_here("approvals", "deny", mistyped, "--name", "ann")
    assert (found.code, f"did you mean {ids[0]}?" in found.err) == (4, True)
