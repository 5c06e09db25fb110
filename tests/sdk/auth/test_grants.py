"""Grants: what each preset allows, what a pattern matches, and which patterns are refused."""

from __future__ import annotations

import dataclasses
import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.auth.grants import (
    ROOM_NAME,
    TOOL_NAME,
    TOOLKIT_NAME,
    AgentsGrant,
    ApiScope,
    ToolPatterns,
    ToolRights,
    is_room_name,
    is_tool_name,
    is_toolkit_name,
    matches_room,
)

PRESETS = {
    "none": ApiScope(),
    "host": ApiScope.host_default(),
    "agent": ApiScope.agent_default(),
    "user": ApiScope.user_default(),
    "full": ApiScope.full(),
}


def test_scope_without_arguments_grants_nothing() -> None:
    scope = ApiScope()
    rights = ToolRights(scope.agents)

    assert scope.to_claims() == {}
    assert not rights.may_call("weather", "forecast")
    assert not rights.may_see("weather", "forecast")
    assert not rights.may_register("weather", True)
    assert not rights.may_register("weather", False)
    assert not rights.has_act_for("*")


def test_host_registers_both_kinds_lists_and_calls() -> None:
    assert ApiScope.host_default().to_claims() == {
        "agents": {
            "register_public_toolkit": True,
            "register_private_toolkit": True,
            "use_tools": True,
            "call": True,
        },
        "trace": True,
    }


def test_agent_sends_messages_and_registers_private_toolkits_only() -> None:
    assert ApiScope.agent_default().to_claims() == {
        "agents": {"register_private_toolkit": True, "use_tools": True, "call": True},
        "presence": True,
        "messaging": True,
        "trace": True,
    }


def test_user_is_an_agent_that_approves_and_answers() -> None:
    assert ApiScope.user_default().to_claims() == {
        **ApiScope.agent_default().to_claims(),
        "approve": ["*"],
        "answer": ["*"],
    }


def test_full_leaves_out_only_what_older_servers_do_not_know() -> None:
    full = ApiScope.full()
    rights = {field.name: getattr(full, field.name) for field in dataclasses.fields(full)}
    rights |= {
        name.name: getattr(full.agents, name.name) for name in dataclasses.fields(AgentsGrant)
    }

    assert {name for name, right in rights.items() if not right} == {
        "approve_all",
        "approve_own",
        "deny",
    }
    assert ToolRights(full.agents).has_act_for("*")


@pytest.mark.parametrize("preset", PRESETS)
def test_scope_survives_its_claims(preset: str) -> None:
    scope = PRESETS[preset]

    assert ApiScope.from_claims(scope.to_claims()) == scope


def test_claims_have_lists_and_only_values_that_are_not_default() -> None:
    """TOKEN-5."""
    scope = ApiScope(agents=AgentsGrant(call=True, allow=["weather.*"], deny=["weather.drop"]))

    assert scope.to_claims() == {
        "agents": {"call": True, "allow": ["weather.*"], "deny": ["weather.drop"]}
    }
    assert scope.agents.allow == ("weather.*",)


def test_grants_are_frozen_and_hashable() -> None:
    scope = ApiScope(agents=AgentsGrant(allow=["a"]))

    with pytest.raises(dataclasses.FrozenInstanceError):
        scope.admin = True  # type: ignore[misc]  # what the test is about
    assert hash(scope) == hash(ApiScope(agents=AgentsGrant(allow=("a",))))


@pytest.mark.parametrize(
    "claims",
    [
        None,
        [],
        "agents",
        {"agent": {}},
        {"agents": None},
        {"agents": {"calls": True}},
        {"agents": {"call": "yes"}},
        {"agents": {"call": 1}},
        {"agents": {"allow": "*"}},
        {"agents": {"allow": [None]}},
        {"agents": {"allow": {"weather": True}}},
        {"agents": {"register": ["weather.forecast"]}},
        {"agents": {"act_for": ["a\nb"]}},
        {"approve": ["weather.forecast.now"]},
        {"__dataclass_self__": 1},
    ],
)
def test_invalid_claims_of_a_scope_raise_value_error(claims: object) -> None:
    with pytest.raises(ValueError, match="ApiScope"):
        ApiScope.from_claims(claims)  # type: ignore[arg-type]  # what a token may hold


def test_error_for_text_instead_of_a_list_of_patterns_shows_the_right_form() -> None:
    with pytest.raises(ValueError, match=r"did you mean \['words'\]\?"):
        AgentsGrant(allow="words")


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".",
        "weather.",
        ".forecast",
        "a.b.c",
        "**",
        "weather.**",
        "we**er",
        "Weather",
        "1weather",
        "weather.fore cast",
        "weather.?",
        "weather.[a]",
        "weather/forecast",
        "wetter.größe",
        "weather\n",
        "weather.forecast\n",
        "\nweather",
        "weather.forecast ",
        "a" * 65,
        "a." + "b" * 65,
    ],
)
def test_pattern_outside_the_grammar_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a tool pattern") as direct:
        ToolPatterns([pattern])
    with pytest.raises(ValueError, match="is not a tool pattern") as in_scope:
        AgentsGrant(allow=[pattern])

    assert repr(pattern) in str(direct.value)
    assert repr(pattern) in str(in_scope.value)


@pytest.mark.parametrize("pattern", ["weather.*", "*.*", "weather.", "**", "We", "", "a\n"])
def test_register_takes_names_of_toolkits_only(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a toolkit pattern"):
        AgentsGrant(register=[pattern])


@pytest.mark.parametrize(
    ("pattern", "covered", "uncovered"),
    [
        ("*", ["a.b", "weather.forecast"], []),
        ("*.*", ["a.b", "weather.forecast"], []),
        ("weather", ["weather.forecast"], ["weather2.forecast", "weathe.r"]),
        ("weather.*", ["weather.forecast"], ["weather2.forecast"]),
        ("weather.forecast", ["weather.forecast"], ["weather.forecast2", "weather.Forecast"]),
        ("*.forecast", ["weather.forecast", "x.forecast"], ["weather.now"]),
        ("sql-*.query", ["sql-.query", "sql-eu.query"], ["sql.query", "sql-eu.drop"]),
        ("sql*", ["sql.query", "sql-eu.drop"], ["mysql.query"]),
        ("*sql*", ["sql.q", "mysqlx.q"], ["my.sql"]),
        ("files.get*", ["files.get", "files.get_all"], ["files.forget"]),
        ("files.*_read_*", ["files.all_read_now"], ["files.read", "files.all_read"]),
        ("a*b*c.x", ["abc.x", "aXbXbXc.x"], ["ab.x", "acb.x"]),
    ],
)
def test_pattern_covers_the_expected_tools(
    pattern: str, covered: list[str], uncovered: list[str]
) -> None:
    """TOKEN-5."""
    patterns = ToolPatterns(["other.thing", pattern])

    assert [name for name in covered if not patterns.covers(*name.split("."))] == []
    assert [name for name in uncovered if patterns.covers(*name.split("."))] == []


def test_no_pattern_covers_nothing() -> None:
    assert not ToolPatterns([]).covers("weather", "forecast")
    assert not ToolPatterns([]).covers_toolkit("weather")


def test_toolkit_is_covered_only_by_patterns_for_all_its_tools() -> None:
    patterns = ToolPatterns(["weather", "sql-*", "files.*", "logs.tail", "*.now"])

    names = ["weather", "sql-eu", "files", "logs", "sql", "now"]
    assert [name for name in names if patterns.covers_toolkit(name)] == [
        "weather",
        "sql-eu",
        "files",
    ]
    assert ToolPatterns(["*"]).covers_toolkit("anything")


@given(
    pattern=st.text("ab*", min_size=1, max_size=8).filter(lambda text: "**" not in text),
    name=st.text("ab", min_size=1, max_size=8),
)
def test_wildcards_agree_with_the_standard_library(pattern: str, name: str) -> None:
    expected = fnmatch.fnmatchcase(name, pattern)

    assert ToolPatterns([f"x.{pattern}"]).covers("x", name) == expected
    assert ToolPatterns([pattern]).covers(name, "x") == expected
    assert ToolPatterns([pattern]).covers_toolkit(name) == expected
    assert matches_room([pattern], name) == expected


def test_many_wildcards_match_in_linear_time() -> None:
    """The naive regex needs years."""
    patterns = ToolPatterns(["x." + "a*" * 31 + "b", "a*" * 31 + "b.y"])
    assert not patterns.covers("x", "a" * 64)
    assert not patterns.covers("a" * 64, "y")
    assert not matches_room(["a*" * 31 + "b"], "a" * 63)


def test_deny_wins_over_allow_for_seeing_and_calling() -> None:
    grant = AgentsGrant(use_tools=True, call=True, allow=["sql.*"], deny=["sql.drop*", "sql.exec"])
    rights = ToolRights(grant)

    for may in (rights.may_call, rights.may_see):
        assert may("sql", "query")
        assert not may("sql", "drop_table")
        assert not may("sql", "exec")
        assert not may("clock", "now")


def test_calling_and_seeing_are_separate_rights() -> None:
    caller = ToolRights(AgentsGrant(call=True))
    reader = ToolRights(AgentsGrant(use_tools=True))

    assert (caller.may_call("a", "b"), caller.may_see("a", "b")) == (True, False)
    assert (reader.may_call("a", "b"), reader.may_see("a", "b")) == (False, True)


def test_public_and_private_registration_are_separate_rights() -> None:
    public = ToolRights(AgentsGrant(register_public_toolkit=True))
    private = ToolRights(AgentsGrant(register_private_toolkit=True, register=["sql", "my-*"]))

    assert (public.may_register("sql", True), public.may_register("sql", False)) == (True, False)
    names = ["sql", "my-notes", "sql2"]
    assert [private.may_register(name, False) for name in names] == [True, True, False]
    assert not private.may_register("sql", True)


@pytest.mark.parametrize(
    ("patterns", "room", "expected"),
    [
        (["lab"], "lab", True),
        (["lab"], "lab2", False),
        (["x", "lab-*"], "lab-7", True),
        (["lab-*"], "lab", False),
        (["*"], "lab", True),
        ([], "lab", False),
        (["*"], "Lab", False),
        (["*"], "lab\n", False),
        (["*"], "", False),
        (["lab"], "lab\n", False),
    ],
)
def test_room_pattern_matches_room(patterns: list[str], room: str, expected: bool) -> None:
    """TOKEN-4."""
    assert matches_room(patterns, room) is expected


@pytest.mark.parametrize(
    ("accepts", "good", "bad"),
    [
        (is_room_name, ["a", "0", "a-b", "a" * 63], ["", "-a", "a-", "A", "a_b", "a" * 64]),
        (is_toolkit_name, ["a", "a-_9", "a" * 64], ["", "0a", "_a", "A", "a.b", "a" * 65]),
        (is_tool_name, ["a", "_", "-", "A9", "a" * 64], ["", "a.b", "a b", "*", "a" * 65]),
    ],
)
def test_names_are_checked_against_their_grammar(
    accepts: object, good: list[str], bad: list[str]
) -> None:
    assert callable(accepts)
    assert [name for name in good if not accepts(name)] == []
    assert [name for name in bad if accepts(name)] == []


@pytest.mark.parametrize("accepts", [is_room_name, is_toolkit_name, is_tool_name])
def test_names_have_no_control_characters_and_are_text(accepts: object) -> None:
    assert callable(accepts)
    for name in ("a\n", "\na", "a\x00", "a\x7f", "a\u2028", "\ud800", b"a", None, 1, ["a"]):
        assert not accepts(name), name


@pytest.mark.parametrize("grammar", [ROOM_NAME, TOOLKIT_NAME, TOOL_NAME])
def test_grammar_applies_to_the_whole_text(grammar: re.Pattern[str]) -> None:
    for ask in (grammar.match, grammar.search, grammar.fullmatch):
        assert ask("a") is not None
        assert [text for text in ("a\n", "\na", "a b", "a.") if ask(text)] == []


@pytest.mark.parametrize("accepts", [is_room_name, is_toolkit_name, is_tool_name])
def test_names_in_routes_are_ascii(accepts: object) -> None:
    assert callable(accepts)
    for name in ("а", "é", "ﬁ", "aé", "a１"):  # noqa: RUF001  # look-alikes are the point
        assert not accepts(name), name


def test_unknown_grants_of_a_newer_server_are_ignored() -> None:
    claims = {
        "agents": {"call": True, "deny": ["a.b"], "fly": True},
        "presence": True,
        "levitate": ["*"],
    }
    known = ApiScope(agents=AgentsGrant(call=True, deny=("a.b",)), presence=True)
    assert ApiScope.known_of(claims) == known
    assert ApiScope.known_of({}) == ApiScope()


_PARTS = st.text("ab*", min_size=1, max_size=6).filter(lambda part: "**" not in part)


@given(
    st.lists(st.tuples(_PARTS, _PARTS).map(".".join), max_size=6),
    st.text("ab", min_size=1, max_size=6),
    st.text("ab", min_size=1, max_size=6),
)
def test_patterns_cover_what_their_regexes_match(
    patterns: list[str], toolkit: str, tool: str
) -> None:
    expected = any(
        re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]*"), f"{toolkit}.{tool}")
        for pattern in patterns
    )
    assert ToolPatterns(patterns).covers(toolkit, tool) == expected
    of_toolkit = ToolPatterns(patterns).of_toolkit(toolkit)
    assert of_toolkit.covers(tool) == expected
    rights = ToolRights(AgentsGrant(use_tools=True, deny=patterns))
    assert rights.seen_in(toolkit).covers(tool) == rights.may_see(toolkit, tool) == (not expected)


def test_patterns_of_other_toolkits_cost_a_tool_nothing() -> None:
    patterns = ToolPatterns([f"t{number}.a*{number}b*c" for number in range(200)])
    assert patterns.of_toolkit("other").is_empty
    assert patterns.of_toolkit("t7").effort == 1
    assert ToolPatterns([f"*.x{n}*" for n in range(200)]).of_toolkit("t").effort == 0
