"""What is decided about a call: the table of modes, rules, names, and what tools say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbus import Assessment, Permissions, Rule, ToolContext, ToolInfo
from toolbus.permissions.decision import JudgedCall
from toolbus.permissions.modes import MODES, Mode
from toolbus.tools.middleware import ToolCall
from toolbus.tools.tool_run import Participant


@dataclass(frozen=True)
class Context:
    caller: Participant
    on_behalf_of: Participant | None = None
    forwarded_for: Sequence[Participant] = ()
    is_hosted: bool = False


@dataclass(frozen=True)
class Tool:
    name: str = "shell.run"
    own_name: str = "shell.run"
    owner: str = ""
    issuer: str = ""
    alias: str = ""
    workdirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    tool: Tool
    context: Context
    arguments: dict[str, Any] = field(default_factory=dict)


def who(name: str, alias: str = "") -> Participant:
    """Return `name` or, with an alias, one of several issuers."""
    return Participant(f"id-{name}", name, issuer=f"https://{alias or 'one'}.example", alias=alias)


AGENT, ANN, BOB, HUB = who("agent"), who("ann"), who("bob"), who("hub")
A_AGENT, A_ANN, B_ANN, B_BOB = (
    who(*identity) for identity in (("agent", "a"), ("ann", "a"), ("ann", "b"), ("bob", "b"))
)
NO_ALIAS = replace(who("ann", "c"), alias="?")
LOCAL = ToolContext().caller


def of(owner: Participant, name: str = "shell.run", own_name: str = "") -> Tool:
    return Tool(name, own_name or name, owner.name, owner.issuer, owner.alias)


def call(
    tool: Tool = Tool(),
    caller: Participant = AGENT,
    principal: Participant | None = None,
    by_way_of: Sequence[Participant] = (),
    *,
    hosted: bool = False,
) -> JudgedCall:
    return Call(tool, Context(caller, principal, by_way_of, hosted))


def rule(words: str, **names: str) -> Rule:
    """Make a rule of `behavior tool match...`."""
    behavior, tool, *match = words.split(" ", 2)
    return Rule(behavior=behavior, tool=tool, match=match[0] if match else None, **names)  # type: ignore[arg-type]


# The table of modes

LOOSE = Assessment("allow", read_only=True, within_workdir=True, message="so it says")
ALLOW = rule("allow shell.run")
IMMUNE = replace(LOOSE, behavior="ask", immune=True)
PASS = Assessment("pass")
# Each with everything that would loosen at a later step, so that the order of the steps shows.
TABLE: list[tuple[str, list[Rule], Assessment, str]] = [
    ("1 a deny rule", [rule("deny shell.run"), ALLOW], LOOSE, "deny deny deny deny deny"),
    ("1 the tool's deny", [ALLOW], replace(LOOSE, behavior="deny"), "deny deny deny deny deny"),
    ("1 the host's policy", [ALLOW], replace(LOOSE, refusal="no"), "deny deny deny deny deny"),
    ("2 an ask rule", [rule("ask shell.run"), ALLOW], replace(LOOSE, read_only=False),
     "ask ask deny ask deny"),
    ("2 an ask rule, read-only", [rule("ask shell.run"), ALLOW], LOOSE, "ask ask ask ask deny"),
    ("3 an immune ask", [ALLOW], replace(IMMUNE, read_only=False), "ask ask deny allow deny"),
    ("3 an immune ask, nothing else", [], Assessment("ask", immune=True),
     "ask ask deny allow deny"),
    ("3 an immune ask, read-only", [], IMMUNE, "ask ask deny allow deny"),
    ("4 read-only", [], Assessment("pass", read_only=True), "allow allow allow allow allow"),
    ("5 the tool's allow", [], Assessment("allow"), "allow allow deny allow allow"),
    ("5 within a workdir", [], Assessment("pass", within_workdir=True),
     "ask allow deny allow deny"),
    ("6 an allow rule", [ALLOW], PASS, "allow allow deny allow allow"),
    ("6 an allow rule, an ask", [ALLOW], Assessment("ask"), "allow allow deny allow allow"),
    ("7 nothing", [], PASS, "ask ask deny allow deny"),
    ("7 an ask that is not immune", [], Assessment("ask"), "ask ask deny allow deny"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(5), ids=MODES)
@pytest.mark.parametrize(
    ("rules", "assessment", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_every_cell_of_the_table_of_modes(
    rules: list[Rule], assessment: Assessment, expected: str, at: int
) -> None:
    decision = Permissions(MODES[at], rules).decide(call(), assessment)
    assert decision.behavior == expected.split()[at], decision.reason
    assert decision.mode == MODES[at]
    assert decision.reason.endswith(".")


# Rules, owners, principals, patterns, aliases, forwarded calls

MATCH = Assessment("pass", matches=("rm:*",))
MANIFEST = Assessment("pass", source="manifest")
UNSURE = Assessment("ask", message="cannot be read", matches=("a:*", "rm:*"), uncertain=("a:*",))
GIT, NPM = rule("allow shell.run git:*"), rule("allow shell.* npm:*")
PARTS = Assessment(
    "pass", matches=("ls:*", "git:*", "npm:*", "all"), parts=(("git:*", "all"), ("all", "npm:*"))
)
REACHES = Assessment("pass", reaches="github.delete")
EVIL = of(who("evil"))
FORWARD = Tool("mcp.call", "mcp.call")
ROWS: list[tuple[str, list[Rule], JudgedCall, Assessment, str]] = [
    # patterns of tools
    ("another tool", [rule("deny shell.stop")], call(), PASS, "ask"),
    ("a toolkit", [rule("deny shell")], call(), PASS, "deny"),
    ("a star in the tool", [rule("deny shell.r*")], call(), PASS, "deny"),
    ("a star in the toolkit", [rule("deny *ell.run")], call(), PASS, "deny"),
    ("everything", [rule("allow *")], call(), PASS, "allow"),
    ("case counts", [rule("allow shell.Run")], call(), PASS, "ask"),
    # patterns of the tool
    ("a match denies", [rule("deny shell.run rm:*")], call(), MATCH, "deny"),
    ("no match", [rule("deny shell.run rm:*"), ALLOW], call(), PASS, "allow"),
    ("a match allows", [rule("allow * rm:*")], call(), MATCH, "allow"),
    ("of two, deny", [rule("allow * rm:*"), rule("deny * rm:*")], call(), MATCH, "deny"),
    ("of two, ask", [rule("allow *"), rule("ask * rm:*")], call(), MATCH, "ask"),
    ("a match of another rule", [rule("allow * ls:*")], call(), MATCH, "ask"),
    ("manifest: a deny pattern counts", [rule("deny * x"), ALLOW], call(), MANIFEST, "deny"),
    ("manifest: an ask pattern counts", [rule("ask * x"), ALLOW], call(), MANIFEST, "ask"),
    ("what may match denies", [rule("deny * a:*"), ALLOW], call(), UNSURE, "deny"),
    ("what may match allows nothing", [rule("allow * a:*")], call(), UNSURE, "ask"),
    ("nor for a part", [rule("allow * a:*")], call(), replace(UNSURE, parts=(("a:*",),)), "ask"),
    ("what matches allows", [rule("allow * rm:*")], call(), UNSURE, "allow"),
    ("manifest: an allow pattern does not", [rule("allow * rm:*")], call(),
     replace(MATCH, source="manifest"), "ask"),
    # an input of several parts
    ("a rule for one of two parts", [GIT], call(), PARTS, "ask"),
    ("a rule for each part", [GIT, NPM], call(), PARTS, "allow"),
    ("one rule for both", [rule("allow * all")], call(), PARTS, "allow"),
    ("a whole rule", [ALLOW], call(), PARTS, "allow"),
    ("a part that nothing matches", [GIT, NPM], call(),
     replace(PARTS, parts=(*PARTS.parts, ())), "ask"),
    ("no part is known", [GIT, NPM], call(), replace(PARTS, parts=((),)), "ask"),
    ("a deny of one part", [GIT, NPM, rule("deny * npm:*")], call(), PARTS, "deny"),
    ("a deny of what no rule has to allow", [ALLOW, rule("deny * ls:*")], call(), PARTS, "deny"),
    ("an allow of what no rule has to allow", [rule("allow * ls:*")], call(), PARTS, "ask"),
    ("the rule of one part is for ann", [GIT, replace(NPM, principal="ann")], call(), PARTS, "ask"),
    ("and for ann", [GIT, replace(NPM, principal="ann")], call(principal=ANN), PARTS, "allow"),
    ("of evil", [GIT, NPM], call(EVIL), PARTS, "ask"),
    ("by the manifest", [GIT, NPM], call(), replace(PARTS, source="manifest"), "ask"),
    ("of what is reached", [rule("allow github git:*"), rule("allow github npm:*")], call(FORWARD),
     replace(PARTS, reaches="github.run"), "allow"),
    ("of what is reached: one part", [rule("allow github git:*"), NPM], call(FORWARD),
     replace(PARTS, reaches="github.run"), "ask"),
    # owners
    ("own process has no owner", [rule("deny *", owner="evil")], call(), PASS, "ask"),
    ("an owner", [rule("deny *", owner="evil")], call(EVIL), PASS, "deny"),
    ("another owner", [rule("deny *", owner="good")], call(EVIL), PASS, "ask"),
    ("a rule trusts for itself", [rule("allow *", owner="evil")], call(EVIL), PASS, "allow"),
    ("of evil: read-only", [], call(EVIL), LOOSE, "ask"),
    ("of evil: an allow match", [rule("allow * rm:*")], call(EVIL), MATCH, "ask"),
    ("of evil: a deny pattern", [rule("deny * x"), ALLOW], call(EVIL), PASS, "deny"),
    ("of evil: an ask pattern", [rule("ask * x"), ALLOW], call(EVIL), PASS, "ask"),
    ("of evil: its deny", [ALLOW], call(EVIL), Assessment("deny"), "deny"),
    ("of evil: its immune ask", [ALLOW], call(EVIL), IMMUNE, "ask"),
    ("of a trusted owner", [], call(of(who("files"))), LOOSE, "allow"),
    ("of one's own identity", [], call(of(AGENT)), LOOSE, "allow"),
    ("one's name at another issuer", [], call(of(who("agent", "b")), A_AGENT), LOOSE, "ask"),
    ("a trusted name at another issuer", [], call(of(who("files", "b")), A_AGENT), LOOSE, "ask"),
    ("trusted with its alias", [], call(of(who("ops", "b")), A_AGENT), LOOSE, "allow"),
    # principals
    ("the caller is its own principal", [rule("allow *", principal="agent")], call(), PASS,
     "allow"),
    ("a principal", [rule("allow *", principal="ann")], call(principal=ANN), PASS, "allow"),
    ("another principal", [rule("allow *", principal="ann")], call(principal=BOB), PASS, "ask"),
    ("not the caller, with a principal", [rule("allow *", principal="agent")],
     call(principal=ANN), PASS, "ask"),
    ("nobody", [rule("deny *", principal="local"), rule("ask *", caller="local")],
     call(caller=LOCAL), LOOSE, "allow"),
    ("a bare name is of one's own issuer", [rule("allow *", principal="ann")],
     call(caller=A_AGENT, principal=A_ANN), PASS, "allow"),
    ("not of another one", [rule("allow *", principal="ann")],
     call(caller=A_AGENT, principal=B_ANN), PASS, "ask"),
    ("a deny by the bare name holds", [rule("deny *", principal="ann")],
     call(caller=A_AGENT, principal=B_ANN), LOOSE, "deny"),
    ("alias and name", [rule("allow *", principal="b/ann")],
     call(caller=A_AGENT, principal=B_ANN), PASS, "allow"),
    ("an alias that is not told: deny", [rule("deny *", principal="main/ann")],
     call(principal=ANN), LOOSE, "deny"),
    ("an alias that is not told: allow", [rule("allow *", principal="main/ann")],
     call(principal=ANN), PASS, "ask"),
    ("no alias: deny", [rule("deny *", principal="ann")], call(principal=NO_ALIAS), LOOSE, "deny"),
    ("no alias: allow", [rule("allow *", principal="?/ann"), rule("allow *", principal="ann")],
     call(principal=NO_ALIAS), PASS, "ask"),
    # callers, at a host
    ("a caller", [rule("allow *", caller="ann")], call(caller=ANN, hosted=True), PASS, "allow"),
    ("a bare name at a host", [rule("allow *", caller="ann")],
     call(caller=B_ANN, hosted=True), PASS, "ask"),
    ("a bare principal at a host", [rule("allow *", principal="ann")],
     call(caller=B_BOB, principal=B_ANN, hosted=True), PASS, "ask"),
    ("with the alias at a host", [rule("allow *", caller="b/ann")],
     call(caller=B_ANN, hosted=True), PASS, "allow"),
    ("a deny of a bare name at a host", [rule("deny *", caller="ann")],
     call(caller=B_ANN, hosted=True), LOOSE, "deny"),
    ("forwarded for: deny", [rule("deny *", caller="ann")],
     call(caller=HUB, by_way_of=[BOB, ANN], hosted=True), LOOSE, "deny"),
    ("forwarded by: deny", [rule("deny *", caller="hub")],
     call(caller=HUB, by_way_of=[ANN], hosted=True), LOOSE, "deny"),
    ("forwarded: allow one of them", [rule("allow *", caller="ann")],
     call(caller=HUB, by_way_of=[ANN], hosted=True), PASS, "ask"),
    ("forwarded: allow each of them", [rule("allow *", caller="ann")],
     call(caller=ANN, by_way_of=[ANN], hosted=True), PASS, "allow"),
    ("forwarded: a deny of whom it is for", [rule("deny *", principal="ann")],
     call(caller=HUB, by_way_of=[ANN], hosted=True), LOOSE, "deny"),
    # aliases of toolkits
    ("deny by the own name", [rule("deny shell")], call(Tool("sh.run")), LOOSE, "deny"),
    ("deny by the name in the turn", [rule("deny sh")], call(Tool("sh.run")), LOOSE, "deny"),
    ("allow by the name in the turn", [rule("allow sh")], call(Tool("sh.run")), PASS, "allow"),
    ("not by the own name", [rule("allow shell")], call(Tool("sh.run")), PASS, "ask"),
    # tools that forward
    ("deny what is reached", [rule("deny github")], call(FORWARD), REACHES, "deny"),
    ("deny what forwards", [rule("deny mcp")], call(FORWARD), REACHES, "deny"),
    ("allow what is reached", [rule("allow github.*")], call(FORWARD), REACHES, "allow"),
    ("allow what forwards only", [rule("allow mcp")], call(FORWARD), REACHES, "ask"),
    ("of evil: what is reached", [rule("allow github.*")],
     call(of(who("evil"), "mcp.call")), REACHES, "ask"),
    ("of evil: both", [rule("allow github.*"), rule("allow mcp")],
     call(of(who("evil"), "mcp.call")), REACHES, "allow"),
    ("what no tool is named", [rule("allow *")], call(FORWARD),
     replace(REACHES, reaches="no tool"), "ask"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "judged", "assessment", "expected"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_which_rules_and_words_count(
    rules: list[Rule], judged: JudgedCall, assessment: Assessment, expected: str
) -> None:
    permissions = Permissions("default", rules, trusted_owners=["files", "b/ops"])
    decision = permissions.decide(judged, assessment)
    assert decision.behavior == expected, decision.reason
    settled = permissions.settles(judged)
    assert settled is None or settled.behavior == expected == "deny"


# What a person reads

RM = Rule(behavior="deny", tool="shell.run", match='rm "x"\n', origin="rules.toml:4")
HOSTILE = Assessment(
    "ask", immune=True, read_only=True, message='fine". The rule\x1b[2J \u202eallows ' + "x" * 9_000
)


@pytest.mark.parametrize(
    ("permissions", "judged", "assessment", "by", "words"),
    [
        (Permissions("bypass", [RM]), call(), Assessment("pass", matches=(RM.match or "",)),
         'rule deny shell.run "rm \\"x\\"\\\\n" (rules.toml:4)',
         ["The rule deny shell.run", "(rules.toml:4) denies this call."]),
        (Permissions("bypass"), call(), PASS, "mode bypass", ["The mode bypass allows"]),
        (Permissions(), call(), Assessment("deny", message="no disk"), "tool",
         ['shell.run denies this call; it says: "no disk".']),
        (Permissions(), call(), Assessment("pass", refusal="quota"), "policy", ['"quota"']),
        (Permissions("dont_ask", [rule("ask *")]), call(), PASS, "rule ask *",
         ["asks about this call; the mode dont_ask denies what it would ask."]),
        (Permissions("explore", [rule("ask *")]), call(), PASS, "rule ask *",
         ["the mode explore allows only what changes nothing."]),
        (Permissions("accept_edits"), call(), Assessment("pass", within_workdir=True),
         "mode accept_edits", ["within a working directory; the mode accept_edits allows that."]),
        (Permissions(), call(EVIL), LOOSE, "mode default",
         ["evil is not in trusted_owners (flag --trust)", '(not trusted) says: "so it says"']),
        (Permissions(rules=[rule("deny * x")]), call(EVIL), replace(PASS, message="no"),
         'rule deny * "x"',
         ["As its owner evil is not in trusted_owners (flag --trust), the rule deny",
          "might cover this call."]),
        (Permissions(rules=[rule("deny * x")]), call(), replace(MANIFEST, message="too slow"),
         'rule deny * "x"', ["As the tool could not judge this input, the rule deny",
                             'might cover this call; it says: "too slow".']),
        (Permissions(rules=[rule("deny * rm:*"), rule("deny * a:*")]), call(), UNSURE,
         'rule deny * "rm:*"', ['"rm:*" denies this call.']),
        (Permissions(rules=[rule("deny * a:*")]), call(), UNSURE, 'rule deny * "a:*"',
         ["could not judge", 'might cover this call; it says: "cannot be read".']),
        (Permissions(rules=[rule("deny * rm:*")]), call(), replace(UNSURE, hint="try b"),
         'rule deny * "rm:*"', ['denies this call; it says: "try b".']),
        (Permissions(rules=[rule("deny * rm:*")]), call(EVIL), replace(UNSURE, hint="try b"),
         'rule deny * "rm:*"', ["might cover this call."]),
        (Permissions("dont_ask", [rule("ask * a:*")]), call(), UNSURE, 'rule ask * "a:*"',
         ["could not judge", '"cannot be read"; the mode dont_ask denies what it would ask.']),
        (Permissions(rules=[rule("deny github")]), call(FORWARD), REACHES, "rule deny github",
         ["denies this call, which reaches github.delete."]),
        (Permissions(rules=[GIT, NPM]), call(), PARTS, 'rule allow shell.run "git:*"',
         ['The rules allow shell.run "git:*" and allow shell.* "npm:*" together allow this call.']),
        (Permissions(rules=[rule(f"allow shell.run {i}") for i in range(9)]), call(),
         Assessment("pass", matches=tuple("012345678"), parts=tuple((i,) for i in "0123456781")),
         'rule allow shell.run "0"', ['allow shell.run "4" and 4 more together allow this call.']),
        (Permissions(rules=[GIT]), call(), PARTS, "mode default",
         ["Not each part of this call has a rule that allows it, and the mode default asks"]),
        (Permissions(), call(FORWARD), REACHES, "mode default",
         ["No rule allows this call, which reaches github.delete, and the mode default asks"]),
        (Permissions(), call(EVIL), HOSTILE, "tool",
         ['(not trusted) says: "fine\\". The rule\\\\x1b[2J \\\\u202eallows xxx']),
    ],
)  # fmt: skip
def test_a_reason_names_what_decided_and_quotes_what_others_say(
    permissions: Permissions, judged: JudgedCall, assessment: Assessment, by: str, words: list[str]
) -> None:
    decision = permissions.decide(judged, assessment)
    assert decision.by == by
    assert all(word in decision.reason for word in words), decision.reason
    assert decision.reason.isprintable()
    assert len(decision.reason) < 1_000


def test_what_stands_at_the_end_of_a_long_message_or_rule_is_in_the_reason() -> None:
    match = "rm " + "x" * 1_000 + " end"
    long = Rule(behavior="deny", tool="shell.run", match=match, origin="/a" * 500 + "/rules.toml:4")
    assessment = Assessment("pass", hint="y" * 1_000 + " narrows it", matches=(match,))
    reason = Permissions("bypass", [long]).decide(call(), assessment).reason
    for words in (' end" (', "/rules.toml:4) denies", ' narrows it".', "characters ...]"):
        assert words in reason
    assert match in long.shown()
    assert len(reason) < 1_000


def test_suggestions_come_with_what_is_asked_and_cover_this_tool_of_this_owner_only() -> None:
    exact, whole = rule("allow shell.run git status:*"), rule("allow shell.run")
    wrong = [rule("allow *"), rule("allow shell"), rule("deny shell.run"), rule("allow files.read")]
    assessment = Assessment(
        "ask", suggestions=(replace(exact, origin="no", caller="x"), whole, *wrong)
    )
    trusted = Permissions(trusted_owners=["b/ops"])
    for mode, expected in zip(MODES, (True, True, False, False, True), strict=True):
        decision = replace(trusted, mode=mode).decide(call(), assessment)
        assert decision.suggestions == ((exact, whole) if expected else ()), mode
        assert not any(suggestion.origin for suggestion in decision.suggestions)
    granted = trusted.decide(call(of(who("ops", "b"), "sh.run", "shell.run"), A_AGENT), assessment)
    assert granted.suggestions == tuple(
        replace(allowed, tool="sh.run", owner="b/ops") for allowed in [exact, whole]
    )
    # A pattern of an owner that is not trusted would never match.
    assert Permissions().decide(call(EVIL), assessment).suggestions == (
        replace(whole, owner="evil"),
    )
    # Nor is one of use that allows one part already.
    parts = replace(PARTS, suggestions=(GIT, rule("allow shell.run npm:*")))
    assert Permissions(rules=[GIT]).decide(call(), parts).suggestions == parts.suggestions[1:]
    denied = Permissions("dont_ask", [rule("deny *")]).decide(call(), assessment)
    assert denied.suggestions == ()


# Limits


def test_patterns_are_asked_about_within_a_limit_and_count_strictly_beyond_it() -> None:
    asks = [rule(f"ask shell.run a{i:03}") for i in range(70)]
    allows = [rule(f"allow shell.run a{i:03}") for i in range(70)]
    shuffled = [*asks, *allows, rule("deny shell.run d"), rule("deny other.tool x")]
    Random(1).shuffle(shuffled)
    some = Permissions(rules=shuffled)
    assert some.patterns(call()) == ("d", *(ask.match for ask in asks[:63]))
    decision = some.decide(call(), PASS)
    assert decision.behavior == "ask"
    assert decision.rule == asks[63]
    assert "no more than 64 patterns" in decision.reason
    # An allow pattern beyond the limit does not match, whatever the tool says.
    late = Assessment("pass", matches=("a069",))
    assert Permissions(rules=allows).decide(call(), late).behavior == "ask"
    long = [rule(f"deny shell.run {letter * 4_000}") for letter in "\u00e9\u00e8\u00e0"]
    asked = Permissions(rules=long).patterns(call())
    assert [len(pattern.encode()) for pattern in asked] == [8_000, 8_000]
    assert Permissions(rules=long).decide(call(), PASS).rule == long[0]
    assert Permissions(rules=[rule("deny github x")]).patterns(call(FORWARD), "github.a") == ("x",)


def test_a_rule_whose_patterns_no_assessment_can_change_settles_a_call() -> None:
    assert Permissions("bypass", [rule("deny shell")]).settles(call()) is not None
    patterned = Permissions("bypass", [rule("deny shell x"), rule("ask shell")])
    assert patterned.settles(call()) is None
    assert patterned.settles(call(EVIL)) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda i: rule(f"deny kit{i}.run"),
        lambda i: rule(f"ask shell.run cmd{i}:*"),
        lambda i: rule("deny *", principal=f"user{i}"),
        lambda i: rule("deny *", owner=f"owner{i}", caller=f"user{i % 7}"),
        lambda i: rule(f"deny *a*a*a*a{i}*.*a*a*a*a"),
    ],
    ids=["tools", "patterns", "principals", "owners", "stars"],
)
def test_the_steps_of_a_decision_do_not_grow_with_the_number_of_rules(
    make: Callable[[int], Rule],
) -> None:
    """With 10,000 rules, and with patterns that would make a regular expression backtrack."""
    asked = call(Tool("a" * 64 + "." + "a" * 63 + "b"))
    steps = []
    for amount in (100, 10_000):
        permissions = Permissions(rules=[make(i) for i in range(amount)])
        permissions.decide(asked, PASS)
        steps.append(0)

        def count(_frame: object, event: str, _argument: object) -> None:
            steps[-1] += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            permissions.decide(asked, PASS)
        finally:
            sys.setprofile(None)
    assert steps[1] <= steps[0] + 5


def test_what_is_remembered_by_names_of_tools_is_bounded() -> None:
    permissions = Permissions(rules=[rule("deny a*"), *(rule(f"allow *{i}.*") for i in range(50))])
    for i in range(3_000):
        reached = Assessment("pass", reaches=f"b{i}.x")
        expected = "allow" if str(i).endswith(tuple(map(str, range(50)))) else "ask"
        assert permissions.decide(call(FORWARD), reached).behavior == expected
    assert len(permissions._index._by_names) <= 1_024


# Properties

NAMES = st.sampled_from(["ann", "agent", "evil", "a/ann", "b/ann", "b/evil"])
RULES = st.builds(
    Rule,
    behavior=st.sampled_from(["allow", "ask", "deny"]),
    tool=st.sampled_from(["*", "shell", "shell.run", "sh.run", "github.*", "mcp.call", "x.y"]),
    match=st.none() | st.sampled_from("pqr"),
    owner=st.none() | NAMES,
    principal=st.none() | NAMES,
    caller=st.none() | NAMES,
)
PEOPLE = st.sampled_from([AGENT, ANN, A_AGENT, A_ANN, B_ANN, NO_ALIAS, LOCAL])
TOOLS = st.builds(
    lambda owner, name: of(owner, name) if owner else Tool(name, "shell.run"),
    st.none() | st.sampled_from([who("evil"), who("evil", "b"), AGENT, B_ANN]),
    st.sampled_from(["shell.run", "sh.run", "mcp.call"]),
)
CALLS = st.builds(
    call, TOOLS, PEOPLE, st.none() | PEOPLE, st.lists(PEOPLE, max_size=2), hosted=st.booleans()
)
ASSESSMENTS = st.builds(
    Assessment,
    st.sampled_from(["allow", "ask", "deny", "pass"]),
    read_only=st.booleans(),
    within_workdir=st.booleans(),
    immune=st.booleans(),
    matches=st.lists(st.sampled_from("pqr"), max_size=3).map(tuple),
    parts=st.lists(st.lists(st.sampled_from("pqr"), max_size=3).map(tuple), max_size=3).map(tuple),
    source=st.sampled_from(["tool", "manifest"]),
    reaches=st.sampled_from(["", "github.delete", "no tool"]),
    refusal=st.sampled_from(["", "no"]),
)
STRICT = {"allow": 0, "ask": 1, "deny": 2}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MODES), st.lists(RULES, max_size=6), RULES, CALLS, ASSESSMENTS, st.randoms())
def test_more_denials_never_loosen_nor_allow_rules_tighten_and_order_means_nothing(
    mode: Mode,
    rules: list[Rule],
    more: Rule,
    judged: JudgedCall,
    assessment: Assessment,
    random: Random,
) -> None:
    permissions = Permissions(mode, rules, trusted_owners=["evil"])
    before = permissions.decide(judged, assessment)
    after = permissions.with_rules([more]).decide(judged, assessment)
    change = STRICT[after.behavior] - STRICT[before.behavior]
    assert change <= 0 if more.behavior == "allow" else change >= 0
    settled = permissions.settles(judged)
    assert settled is None or settled.behavior == before.behavior == "deny"
    random.shuffle(rules)
    assert replace(permissions, rules=tuple(rules)).decide(judged, assessment) == before


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MODES), st.lists(RULES, max_size=6), PEOPLE, ASSESSMENTS)
def test_what_an_owner_says_that_is_not_trusted_never_loosens(
    mode: Mode, rules: list[Rule], caller: Participant, assessment: Assessment
) -> None:
    permissions = Permissions(mode, rules, trusted_owners=["files"])
    judged = call(of(who("evil", caller.alias), "mcp.call"), caller)
    silent = permissions.decide(judged, PASS)
    answered = permissions.decide(judged, assessment)
    assert STRICT[answered.behavior] >= STRICT[silent.behavior]


# What is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Permissions("byppass"), "did you mean bypass?"),  # type: ignore[arg-type]
        (lambda: Permissions(None), "mode must be default"),  # type: ignore[arg-type]
        (lambda: Permissions(rules="deny"), "rules must be a list"),  # type: ignore[arg-type]
        (lambda: Permissions(rules=["deny *"]), "is not a Rule"),  # type: ignore[list-item]
        (lambda: Permissions(workdirs="."), "workdirs must be a list"),
        (lambda: Permissions(trusted_owners="ops"), "trusted_owners must be a list"),
        (lambda: Permissions(trusted_owners=[" ops"]), "begin or end with a space"),
        (lambda: Rule(behavior="allow", match="\ud800"), "match must be text"),
        (lambda: Rule(behavior="allow", match=""), "a rule without match covers every call"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert words in str(caught.value)


def test_a_tool_call_has_the_facts_that_decide() -> None:
    info = ToolInfo("shell.run", "", {}, "shell", "run", own_name="shell.run")
    judged: JudgedCall = ToolCall(info, {}, ToolContext())
    assert Permissions("bypass").decide(judged, PASS).behavior == "allow"
