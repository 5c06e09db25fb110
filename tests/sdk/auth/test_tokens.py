"""Tokens: a created token is accepted, and each invalid claim is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jwt import api_jws

from support.clients.forged_tokens import (
    ABSENT,
    CLAIMS,
    HEADER,
    KEY,
    NOW,
    RING,
    reason_of,
    signed,
    token_with,
    verify,
)
from toolbus.auth.grants import AgentsGrant, ApiScope
from toolbus.auth.tokens import LEEWAY_S, Algorithm, Key, KeyRing, ParticipantToken, TokenRefused
from toolbus.errors import PermissionDenied


@pytest.mark.parametrize("alg", ["HS256", "EdDSA", "ES256", "RS256"])
@pytest.mark.parametrize("half", ["own key", "public half"])
def test_minted_token_verifies_under_every_algorithm(alg: Algorithm, half: str) -> None:
    key = Key.generate(kid="k1", iss="acme", alg=alg)
    api = ApiScope(agents=AgentsGrant(call=True, allow=["weather.*"]), presence=True)
    jwt = ParticipantToken("Zoë", ["lab", "dev-*"], "service", api).to_jwt(key, now=NOW)
    checks = key.public_half() if half == "public half" and alg != "HS256" else key

    token = verify(jwt, KeyRing([checks]))

    assert (token.name, token.room, token.role) == ("Zoë", ("lab", "dev-*"), "service")
    assert token.api == api
    assert (token.issuer, token.key_id) == ("acme", "k1")
    assert (token.issued_at, token.expires_at) == (NOW, NOW + 3600)
    assert len(token.jti) == 32


def test_minted_claims_are_the_promised_ones_and_no_more() -> None:
    """TOKEN-2."""
    key = Key.generate(kid="k1", iss="acme", alg="EdDSA")
    jwt = ParticipantToken("alice", "lab").to_jwt(key, ttl_s=0.5, not_before=NOW + 1, now=NOW)
    claims = json.loads(key.check(jwt))

    assert len(claims.pop("jti")) == 32
    assert claims == {
        "sub": "alice",
        "room": ["lab"],
        "role": "user",
        "aud": "toolbus",
        "iss": "acme",
        "iat": NOW,
        "exp": NOW + 1,
        "nbf": NOW + 1,
        "api": {},
    }
    header = api_jws.get_unverified_header(jwt)
    assert header == {"alg": "EdDSA", "kid": "k1", "typ": "JWT"}


def test_two_tokens_never_share_a_jti() -> None:
    token = ParticipantToken("alice", "lab")
    first, second = (verify(token.to_jwt(KEY, now=NOW)) for _ in range(2))

    assert first.jti != second.jti


def test_this_machines_clock_is_used_unless_another_is_given() -> None:
    jwt = ParticipantToken("alice", "lab").to_jwt(KEY)

    assert ParticipantToken.from_jwt(jwt, RING).name == "alice"


@pytest.mark.parametrize("ttl_s", [0, -1, 86401, float("nan"), float("inf")])
def test_token_with_a_life_out_of_bounds_is_not_minted(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        ParticipantToken("alice", "lab").to_jwt(KEY, ttl_s=ttl_s)


def test_token_of_a_whole_day_is_minted_and_verified() -> None:
    jwt = ParticipantToken("alice", "lab").to_jwt(KEY, ttl_s=86400, now=NOW + 0.9)

    assert verify(jwt).expires_at == NOW + 86400


def test_token_that_is_too_long_for_a_server_is_not_minted() -> None:
    api = ApiScope(approve=[f"toolkit-{number}.{'x' * 60}" for number in range(100)])

    with pytest.raises(ValueError, match="use fewer patterns"):
        ParticipantToken("alice", "lab", api=api).to_jwt(KEY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "lab"), "name must be"),
        (("a\nb", "lab"), "name must be"),
        (("x" * 129, "lab"), "name must be"),
        (("alice", "lab", ""), "role must be"),
        (("alice", "lab", "a\x00"), "role must be"),
        (("alice", ""), "is not a room pattern"),
        (("alice", ["lab", "Lab"]), "'Lab' is not a room pattern"),
        (("alice", ["la**b"]), "is not a room pattern"),
        (("alice", []), "1 to 64 rooms"),
        (("alice", ["lab"] * 65), "1 to 64 rooms"),
    ],
)
def test_participant_that_no_server_would_accept_is_refused_at_once(
    arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ParticipantToken(*arguments)


def test_token_allows_the_rooms_that_it_names() -> None:
    token = ParticipantToken("alice", ["lab", "dev-*"])

    rooms = ["lab", "dev-7", "dev", "prod", "Lab", "lab\n"]
    assert [token.allows_room(room) for room in rooms] == [True, True, False, False, False, False]


def test_refusal_is_a_permission_denied_without_the_reason() -> None:
    refusal = TokenRefused("expired")

    assert isinstance(refusal, PermissionDenied)
    assert "expired" not in f"{refusal}{refusal!r}{refusal.args}{refusal.details}"


AUDIENCES = [ABSENT, None, "", "other", "tool", "toolbus2", "toolbus.evil", "Toolbus", "toolbus "]
AUDIENCES += [[], ["other"], ["toolbus2"], [["toolbus"]], {"toolbus": True}, 7]
TEXTS = [None, "", 7, ["a"], "a\nb", "a\x1b[31m", "a\x00", "x" * 129]
ROOMS = [ABSENT, None, "lab", [], {}, [7], [None], ["Lab"], ["la b"], ["**"], ["lab\n"], ["a"] * 65]
GRANTS: list[Any] = [None, [], "admin", {"root": True}, {"admin": 1}, {"admin": "true"}]
GRANTS += [{"agents": {"allow": ["a.b.c"]}}, {"agents": {"allow": "*"}}]
GRANTS += [{"agents": {"call": True, "sudo": True}}]
# Before its expiry, after 400 days, in the year 9999, and no time at all.
UNTILS: list[Any] = [0, NOW + 3599, NOW + 400 * 86_400 + 1, 253_402_300_799, True, "9", []]
REFUSED_VALUES: list[tuple[str, str, list[Any]]] = [
    ("aud", "wrong_audience", AUDIENCES),
    (
        "iss",
        "wrong_issuer",
        [ABSENT, None, "", "acm", "acme2", "Acme", "acme ", ["acme"], {"acme": 1}],
    ),
    ("nbf", "bad_time", [None, "1700000000", True, 1e15]),
    ("sub", "bad_name", [ABSENT, *TEXTS]),
    ("role", "bad_role", TEXTS),
    ("room", "bad_room", ROOMS),
    ("jti", "bad_jti", [None, 7, "x" * 129, "a\n", ["a"]]),
    ("api", "bad_grants", GRANTS),
    ("until", "bad_until", UNTILS),
]
"""A claim, the reason of the refusal, and the values."""


@pytest.mark.parametrize(
    ("claim", "value", "reason"),
    [(claim, value, reason) for claim, reason, values in REFUSED_VALUES for value in values],
)
def test_token_with_a_claim_out_of_its_rules_is_refused(
    claim: str, value: object, reason: str
) -> None:
    """TOKEN-2, TOKEN-4, TOKEN-5."""
    assert reason_of(token_with(**{claim: value})) == reason


@pytest.mark.parametrize("audience", ["toolbus", ["toolbus"], ["other", "toolbus"]])
def test_token_for_us_among_others_is_accepted(audience: object) -> None:
    assert verify(token_with(aud=audience)).name == "alice"


def test_key_of_one_issuer_signs_for_no_other() -> None:
    other = Key(kid="k2", alg="HS256", iss="acme2", secret="y" * 40)
    jwt = signed({"alg": "HS256", "kid": "k2"}, CLAIMS, b"y" * 40)

    assert reason_of(jwt, KeyRing([KEY, other])) == "wrong_issuer"


@pytest.mark.parametrize("late_s", [0, 30, LEEWAY_S - 0.1])
def test_token_past_its_end_within_the_leeway_is_accepted(late_s: float) -> None:
    """TOKEN-3."""
    assert verify(token_with(), now=NOW + 3600 + late_s).expires_at == NOW + 3600


@pytest.mark.parametrize("late_s", [LEEWAY_S, LEEWAY_S + 1, 1e9])
def test_token_past_its_end_and_leeway_is_refused(late_s: float) -> None:
    assert reason_of(token_with(), now=NOW + 3600 + late_s) == "expired"


def test_token_is_refused_before_its_nbf() -> None:
    assert verify(token_with(nbf=NOW + 30)).name == "alice"
    assert verify(token_with(nbf=NOW + LEEWAY_S)).name == "alice"
    assert reason_of(token_with(nbf=NOW + LEEWAY_S + 1)) == "not_yet_valid"


def test_token_from_the_future_is_refused_beyond_the_leeway() -> None:
    assert verify(token_with(iat=NOW + 30)).issued_at == NOW + 30
    assert reason_of(token_with(iat=NOW + LEEWAY_S + 1)) == "issued_in_future"


@pytest.mark.parametrize("claim", ["exp", "iat"])
@pytest.mark.parametrize(
    "value", [ABSENT, None, "1700000000", True, False, [], {}, -1, 1e400, 10**400, 1e15]
)
def test_token_without_a_usable_time_is_refused(claim: str, value: object) -> None:
    claims = {name: v for name, v in {**CLAIMS, claim: value}.items() if v is not ABSENT}
    payload = json.dumps(claims).replace("Infinity", "1e400").encode()

    assert reason_of(signed(HEADER, payload)) == "bad_time"


def test_token_of_more_than_a_day_is_refused() -> None:
    """TOKEN-3."""
    assert verify(token_with(exp=NOW + 86400)).expires_at == NOW + 86400
    assert reason_of(token_with(exp=NOW + 86401)) == "life_too_long"


def test_token_that_ends_before_it_begins_is_refused() -> None:
    assert reason_of(token_with(exp=NOW)) == "bad_time"
    assert reason_of(token_with(exp=NOW - 10)) == "bad_time"


def test_token_with_until_is_valid_after_its_expiry_where_that_is_allowed() -> None:
    """TOKEN-8: whether it was used is for the server to know."""
    jwt = token_with(until=NOW + 7200)
    assert (verify(jwt).until, verify(token_with()).until) == (NOW + 7200, None)
    later = NOW + 3600 + LEEWAY_S
    assert reason_of(jwt, now=later) == "expired"
    for now in (later, NOW + 7259):
        ParticipantToken.from_jwt(jwt, KeyRing([KEY]), now=now, allow_extended=True)
    with pytest.raises(TokenRefused) as refused:
        ParticipantToken.from_jwt(jwt, KeyRing([KEY]), now=NOW + 7260, allow_extended=True)
    assert refused.value.reason == "expired"
    assert reason_of(token_with(until=NOW + 7200, jti=ABSENT)) == "bad_until"


@pytest.mark.parametrize("until_s", [0, 60, 400 * 86_400 + 1, float("nan")])
def test_no_token_is_made_that_lives_for_too_short_or_too_long(until_s: float) -> None:
    with pytest.raises(ValueError, match="until_s must be more than ttl_s and at most 34560000"):
        ParticipantToken("alice", ["lab"]).to_jwt(KEY, ttl_s=60, until_s=until_s)


def test_token_without_a_role_is_a_users() -> None:
    assert verify(token_with(role=ABSENT)).role == "user"


def test_token_with_64_rooms_is_accepted() -> None:
    assert len(verify(token_with(room=["a"] * 64)).room) == 64


def test_token_without_jti_is_accepted() -> None:
    assert verify(token_with(jti=ABSENT)).jti == ""


def test_token_without_grants_grants_nothing() -> None:
    assert verify(token_with(api=ABSENT)).api == ApiScope()


def test_keys_rotate_by_overlap() -> None:
    old, new = KEY, Key.generate(kid="k2", iss="acme", alg="EdDSA")
    token = ParticipantToken("alice", "lab")
    from_old, from_new = token.to_jwt(old, now=NOW), token.to_jwt(new, now=NOW)

    both = KeyRing([new, old])
    assert verify(from_old, both).key_id == "k1"
    assert verify(from_new, both).key_id == "k2"
    assert verify(from_old, both).issuer == verify(from_new, both).issuer
    assert both.signing_key == new
    assert reason_of(from_old, KeyRing([new])) == "unknown_kid"
