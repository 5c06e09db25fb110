"""The meaning of names: with a slash, in grants, and with issuers that come and go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.parts.models import participant
from toolbus.auth.grants import AgentsGrant, ApiScope
from toolbus.errors import InvalidArguments
from toolbus_server.registry.issuers import Issuers
from toolbus_server.registry.models import NO_ALIAS, Identity, name_between, read_name_between

TWO = {"iss-a": "a", "iss-b": "b"}
ANN = Identity("iss-a", "ann")


@pytest.mark.parametrize(
    ("aliases", "text", "meant"),
    [
        ({"iss-a": ""}, "b/ann", ("iss-a", "b/ann")),
        ({"iss-a": "a"}, "b/ann", ("iss-a", "b/ann")),
        ({"iss-a": "a"}, "a/ann", ("iss-a", "ann")),
        (TWO, "ann", ("iss-a", "ann")),
        (TWO, "b/ann", ("iss-b", "ann")),
        (TWO, "a/b/ann", ("iss-a", "b/ann")),
        (TWO, "b/", ("iss-b", "")),
        (TWO, "/ann", None),
        (TWO, "A/ann", None),
        (TWO, f"{NO_ALIAS}/ann", None),
        (TWO, "iss-b/ann", None),
    ],
)
def test_text_is_split_at_its_first_slash_where_there_are_several_issuers(
    aliases: Mapping[str, str], text: str, meant: tuple[str, str] | None
) -> None:
    """NAME-1, NAME-2."""
    issuers = Issuers(aliases)
    if meant is None:
        with pytest.raises(InvalidArguments, match="no issuer has the alias"):
            issuers.identity_of(text, ANN, "to")
    else:
        assert issuers.identity_of(text, ANN, "to") == Identity(*meant)


@pytest.mark.parametrize(
    ("text", "issuer", "meant"),
    [
        ("ann", "iss-b", ("iss-b", "ann")),
        ("b/ann", "iss-b", ("iss-b", "ann")),
        ("c/ann", "iss-b", ("iss-b", "c/ann")),
        ("ann", "iss-c", ("iss-c", "ann")),
        ("a/ann", "iss-b", None),
        ("a/ann", "iss-c", None),
    ],
)
def test_alias_in_a_text_must_be_that_of_the_issuer_given(
    text: str, issuer: str, meant: tuple[str, str] | None
) -> None:
    """ADMIN-4."""
    if meant is None:
        with pytest.raises(InvalidArguments, match="'a' is the alias of another issuer"):
            Issuers(TWO).identity_with(text, issuer, "name")
    else:
        assert Issuers(TWO).identity_with(text, issuer, "name") == Identity(*meant)


@pytest.mark.parametrize(
    ("entry", "covered"),
    [
        ("ann", "a:ann"),
        ("Ann", ""),
        ("an*", ""),
        ("*", "a:ann a:b/ann"),
        ("a/ann", "a:ann"),
        ("a/*", "a:ann a:b/ann"),
        ("b/ann", "b:ann"),
        ("b/*", "b:ann b:b/ann"),
        ("a/b/ann", "a:b/ann"),
        ("c/*", ""),
    ],
)
def test_an_entry_of_act_for_covers_the_issuer_that_it_names(entry: str, covered: str) -> None:
    """NAME-3: a name with a slash does not evade the alias."""
    agent = participant("agent", issuer="iss-a", api=ApiScope(agents=AgentsGrant(act_for=[entry])))
    named = [f"{issuer}:{name}" for issuer in "ab" for name in ("ann", "b/ann")]
    may = [
        each
        for each in named
        if Issuers(TWO).may_act_for(agent, Identity(f"iss-{each[0]}", each[2:]))
    ]
    assert " ".join(may) == covered


def test_a_former_issuer_keeps_its_alias_until_another_one_gets_it() -> None:
    """NAME-4: no participant is shown with an alias that another issuer has now."""
    issuers = Issuers(TWO)
    issuers.update({"iss-a": ""})
    assert [issuers.alias_of(each) for each in ("iss-a", "iss-b", "x")] == ["a", "b", NO_ALIAS]
    issuers.update({"iss-a": "a", "iss-c": "b"})
    assert [issuers.alias_of(each) for each in ("iss-b", "iss-c")] == [NO_ALIAS, "b"]
    assert issuers.identity_of("b/ann", ANN, "to").issuer == "iss-c"


def test_nodes_exchange_the_names_of_one_issuer_as_older_ones_do() -> None:
    assert name_between(ANN, "iss-a") == "ann"
    for issuer in ("iss-a", "iss-b"):
        assert read_name_between(name_between(ANN, issuer), issuer) == ANN
