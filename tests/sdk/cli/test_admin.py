"""`toolbus call --explain`, `--assess` and `toolbus admin`, against a separate server and host."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from support.processes.command_line import CommandLine
from toolbus.cli.output import show_assessment
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.rule import Rule

TOOLS = """
from toolbus import Toolkit, tool

@tool(affinity="customer")
async def add(customer: str, count: int = 1) -> str:
    raise AssertionError("this never runs")

@tool(approval=True)
async def pay() -> str:
    raise AssertionError("this never runs")

def carts():
    return Toolkit("carts", [add, pay])
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("admin")
    (folder / "cart_tools.py").write_text(TOOLS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("cart_tools:carts", "--name", "bob"):
            yield there


def test_explain_names_the_host_and_runs_nothing(toolbus: CommandLine) -> None:
    outcome = toolbus.run("call", "carts.add", "customer=7", "--explain")
    assert outcome.code == 0
    assert outcome.out.startswith("would run at bob (")
    assert "the only host, and later calls of the same affinity go to it too" in outcome.out
    facts = toolbus.value_here("call", "carts.add", "customer=7", "--explain", "--json")
    assert (facts["would_run"], facts["host"]["name"], facts["affinity"]) == (True, "bob", True)


def test_explain_says_that_a_person_would_be_asked(toolbus: CommandLine) -> None:
    shown = toolbus.run_here("call", "carts.pay", "--explain").out
    text = "  a person would be asked first: the tool asks that a person approves each call"
    assert text in shown.splitlines()
    assert toolbus.value_here("call", "carts.pay", "--explain", "--json")["asks"]
    assert (
        toolbus.value_here("call", "carts.add", "customer=7", "--explain", "--json")["asks"] == ""
    )


def test_assess_shows_what_the_tool_says_and_runs_nothing(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "carts.add", "customer=7", "--assess")
    assert outcome.code == 0
    assert outcome.out == "with these arguments the call may change something\n"
    said = toolbus.value_here("call", "carts.add", "customer=7", "--assess", "--json")
    assert said == {"behavior": "pass"}
    explained = toolbus.value_here("call", "carts.add", "customer=7", "--explain", "--json")
    assert explained["assessment"] == said
    assert toolbus.run_here("call", "carts.drop", "--assess").code == 4


def test_an_assessment_is_shown_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assessment = Assessment(
        "ask",
        read_only=True,
        within_workdir=True,
        immune=True,
        message="clears\n\x1b[2J",
        preview="-a\x1b[31m\n+b\u202e\n",
        suggestions=(Rule(behavior="allow", tool="shell.run", match="ls:*"),),
        source="manifest",
        reaches="a.b\x07",
        refusal="rule\r",
    )
    show_assessment(assessment, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "with these arguments the call changes nothing, all of it within a working directory",
        "the tool wants a person to be asked, whatever rules allow",
        r"it says: clears\n\x1b[2J",
        r"it passes the call on to a.b\x07",
        r"the policy of its host refuses the call: rule\r",
        'it suggests the rule: allow shell.run "ls:*"',
        "its host cannot be asked: these are the flags of the tool",
        r"| -a\x1b[31m",
        r"| +b\u202e",
    ]


def test_a_denial_that_no_policy_enforces_is_shown_as_such(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_assessment(Assessment("deny"), as_json=False)
    words = "no policy of its host enforces that"
    assert words in capsys.readouterr().out
    show_assessment(Assessment("deny", refusal="rule"), as_json=False)
    assert words not in capsys.readouterr().out
    show_assessment(Assessment("pass", asks="mode\r"), as_json=False)
    assert r"its host would ask a person first: mode\r" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["carts.drop"], 4, "not_found"),
        (["carts.add", "customer=7", "--pin", "0" * 64], 3, "definition_changed"),
    ],
)
def test_explain_fails_with_the_error_of_the_call(
    toolbus: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    outcome = toolbus.run_here("call", *arguments, "--explain")
    assert outcome.code == code
    assert message in outcome.err
    assert "(executed: no)" in outcome.err


def test_rooms_are_listed_with_their_numbers_of_participants(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("admin", "rooms")
    assert outcome.out.splitlines()[0].split() == ["name", "participants", "toolkits", "calls"]
    [main] = toolbus.value_here("admin", "rooms", "--json")
    assert (main["name"], main["toolkits"]) == ("main", 1)


def test_kicked_host_exits_and_reports_the_reason(toolbus: CommandLine) -> None:
    with toolbus.hosting("clock", "--name", "eve") as host:
        outcome = toolbus.run("admin", "kick", "eve")
        assert (outcome.code, outcome.out) == (0, "closed 1 connection of eve\n")
        ended = host.ended()
    assert ended.code == 3
    assert "permission_denied: an administrator removed this participant" in ended.err
    again = toolbus.run_here("admin", "kick", "eve")
    assert (again.code, again.out) == (4, "")
    assert "no participant 'eve' is in room main" in again.err
    assert "next: `toolbus room participants` lists" in again.err


@pytest.mark.parametrize(
    "arguments", [[], ["--issuer", "x"], ["eve", "--issuer", "x", "--jti", "y"]]
)
def test_incomplete_revoke_is_refused(toolbus: CommandLine, arguments: list[str]) -> None:
    outcome = toolbus.run_here("admin", "revoke", *arguments)
    assert outcome.code == 2
    assert "--jti" in outcome.err


@pytest.mark.parametrize(
    ("issuer", "code", "text"),
    [
        ([], 0, r"revoked; closed 0 connections, nobody of that name was connected; tokens .*"),
        (["--issuer", "toolbus-dev"], 0, r".*; tokens of ghost that are created after .*"),
        (["--issuer", "nope"], 4, "no key of the server has the issuer 'nope'"),
    ],
)
def test_revoke_fails_for_an_issuer_without_a_key(
    toolbus: CommandLine, issuer: list[str], code: int, text: str
) -> None:
    boss = toolbus.run_here("token", "create", "--name", "boss", "--preset", "full", "--room", "*")
    outcome = toolbus.run_here("admin", "revoke", "ghost", *issuer, "--token", boss.out.strip())
    assert outcome.code == code
    assert re.search(text, outcome.err if code else outcome.out)
    assert ("revoked;" in outcome.out) is (code == 0)


def test_revoke_says_when_new_tokens_are_accepted(toolbus: CommandLine) -> None:
    boss = toolbus.run_here("token", "create", "--name", "boss", "--preset", "full", "--room", "*")
    revoke = ("admin", "revoke", "--token", boss.out.strip())
    before = time.time()
    outcome = toolbus.run_here(*revoke, "gone")
    times = [datetime.fromtimestamp(at + 60, UTC) for at in (before, time.time() + 1)]
    first, last = (f"{at:%H:%M:%SZ}" for at in times)
    found = re.search(r"; tokens of gone that are created after (\S+Z) are accepted$", outcome.out)
    assert found is not None, outcome.out
    assert first <= found[1] <= last or last < first  # midnight
    assert toolbus.value_here(*revoke, "gone", "--json") == {"closed": 0}
    assert toolbus.run_here(*revoke, "--jti", "j").out == "revoked; closed 0 connections\n"
    for until, code in (("30d", 0), ("2030-01-31T12:00:00Z", 0), ("soon", 2)):
        assert toolbus.run_here(*revoke, "--jti", "j", "--until", until).code == code


def test_revoking_names_the_token_that_it_needs(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("admin", "revoke", "ann")
    assert (outcome.code, "--grant admin --room '*'" in outcome.err) == (3, True)


def test_admin_without_the_grant_exits_with_3(toolbus: CommandLine) -> None:
    token = toolbus.run_here("token", "create", "--name", "ann", "--preset", "user").out.strip()
    for arguments in (["rooms"], ["kick", "bob"], ["revoke", "bob", "--issuer", "x"]):
        outcome = toolbus.run_here("admin", *arguments, "--token", token)
        assert outcome.code == 3
        assert "admin" in outcome.err
