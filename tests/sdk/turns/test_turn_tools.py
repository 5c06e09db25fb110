"""Names for providers: short, of few characters, and read back without loss."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from toolbus.turns.turn_tools import ProviderNames, without_namespace


def test_every_tool_has_a_name_of_its_own_that_leads_back_to_it() -> None:
    toolkits = ["a", "a_", "a__b", "a-b", "a_b", "b" * 64, "b" * 63]
    tools = [f"{toolkit}.{name}" for toolkit, name in product(toolkits, ["b", "_b", "b__c", "__c"])]
    tools += [f"long.{'x' * 64}", f"long.{'x' * 63}y"]
    names = ProviderNames(tools)
    given = {tool: names.name_of(tool) for tool in tools}
    assert len(set(given.values())) == len(tools)
    for tool, name in given.items():
        assert name is not None
        assert re.fullmatch(r"[a-z][A-Za-z0-9_-]{0,63}", name)
        assert names.tool_of(name) == tool
    assert given["a.b__c"] == "a__b__c"
    assert given["a__b.b"] != "a__b__b"


def test_name_does_not_depend_on_the_other_tools() -> None:
    alone, among = ProviderNames(["a__b.c"]), ProviderNames(["a.b__c", "x.y", "a__b.c"])
    assert alone.name_of("a__b.c") == among.name_of("a__b.c")


def test_tool_with_the_hashed_name_of_another_gets_a_different_one() -> None:
    hashed = ProviderNames(["a__b.c"]).name_of("a__b.c")
    assert hashed is not None
    other = "a.b__c-" + hashed.rpartition("-")[2]
    assert other.replace(".", "__") == hashed
    names = ProviderNames([other, "a__b.c"])
    assert names.tool_of(names.name_of("a__b.c") or "") == "a__b.c"
    assert names.name_of(other) == hashed


def test_unknown_names_are_in_no_table() -> None:
    assert ProviderNames(["a.b"]).tool_of("a.b") is None
    assert ProviderNames(["a.b"]).name_of("a__b") is None


TOOLKITS = st.from_regex(r"[a-z][a-z0-9_-]{0,63}", fullmatch=True)
TOOLS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(st.lists(st.tuples(TOOLKITS, TOOLS).map(".".join), unique=True, max_size=6))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_any_names_are_within_the_rules_of_all_providers_and_lead_back(tools: list[str]) -> None:
    """OpenAI and Anthropic take 64 of these characters; Gemini no digit or dash first."""
    names = ProviderNames(tools)
    for tool in tools:
        name = names.name_of(tool) or ""
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name)
        assert names.tool_of(name) == tool
        assert without_namespace(f"functions.{name}") == name


def test_only_namespaces_of_models_are_removed() -> None:
    assert without_namespace("default_api:a__b") == "a__b"
    assert without_namespace("other.a__b") == "other.a__b"
    assert without_namespace("functions") == "functions"
