"""Tokens of issuers with a key set: which key checks them, and which rule says who they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jwt import api_jws

from support.clients.forged_tokens import (
    ABSENT,
    CLAIMS,
    NOW,
    SECRET,
    reason_of,
    segment,
    signed,
    verify,
)
from toolbus import AgentsGrant, ApiScope
from toolbus.auth.jws import load_private
from toolbus.auth.key_sets import Issuer
from toolbus.auth.keys import Algorithm, Key, KeyRing

GITHUB = "https://token.actions.githubusercontent.com"
CLUSTER = "https://kubernetes.default.svc.cluster.local"
SIGNS = Key.generate(kid="k1", iss=GITHUB, alg="RS256")
"""Its id is that of another issuer's key too."""
CLUSTER_KEY = Key.generate(kid="k1", iss=CLUSTER, alg="ES256")
ROTATED = Key.generate(kid="k2", iss=GITHUB, alg="PS256")
TABLES = f"""
[[issuer]]
iss = "{GITHUB}"
alias = "github"
jwks = "github.json"
[[issuer]]
iss = "{CLUSTER}"
alias = "k8s"
jwks = "cluster.json"
algorithms = ["ES256"]
[[rule]]
iss = "{GITHUB}"
match = {{ repository = "octo-org/*", environment = "production" }}
name = "deploy-{{repository_id}}"
role = "deployer"
rooms = ["live", "lab-*"]
preset = "host"
[[rule]]
iss = "{GITHUB}"
match = {{ repository = "octo-org/*" }}
name = "ci-{{repository_id}}"
allow = ["tests.*"]
deny = ["tests.drop"]
grants = ["observe", "agents.act_for=bob"]
[[rule]]
iss = "{GITHUB}"
match = {{ groups = "staff", verified = true, level = 3 }}
allow = ["*"]
[[rule]]
iss = "{CLUSTER}"
match = {{ sub = "system:serviceaccount:tools:*" }}
preset = "host"
"""
GITHUB_CLAIMS: dict[str, Any] = {
    "jti": "example-id",
    "sub": "repo:octo-org/octo-repo:environment:production",
    "aud": "toolbus",
    "ref": "refs/heads/main",
    "repository": "octo-org/octo-repo",
    "repository_id": "74",
    "environment": "production",
    "run_id": "12",
    "iss": GITHUB,
    "nbf": NOW - 5,
    "iat": NOW,
    "exp": NOW + 900,
}
CLUSTER_CLAIMS: dict[str, Any] = {
    "aud": ["toolbus"],
    "exp": NOW + 3607,
    "iat": NOW,
    "iss": CLUSTER,
    "jti": "0e6f5d40-4a7b-4f3a-9a4e-6f5d404a7b4f",
    "kubernetes.io": {"namespace": "tools", "serviceaccount": {"name": "words", "uid": "1"}},
    "nbf": NOW,
    "sub": "system:serviceaccount:tools:words",
}


def set_of(*keys: Key, **changes: Any) -> bytes:
    """Write a key set, each key with these members changed."""
    jwks = [{**key.public_jwk(), **changes} for key in keys]
    return json.dumps({"keys": [without_absent(jwk) for jwk in jwks]}).encode()


def without_absent(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not ABSENT}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> KeyRing:
    """The ring of a file with a key and two issuers."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "github.json").write_bytes(set_of(SIGNS, ROTATED))
    (folder / "cluster.json").write_bytes(set_of(CLUSTER_KEY))
    own = KeyRing([Key(kid="k1", alg="HS256", iss="acme", alias="acme", secret=SECRET)]).to_toml()
    (folder / "keys.toml").write_text(own + TABLES)
    return KeyRing.load(folder / "keys.toml")


def github(key: Key = SIGNS, **changes: Any) -> str:
    claims = without_absent({**GITHUB_CLAIMS, **changes})
    return key.sign(json.dumps(claims).encode())


def cluster(key: Key = CLUSTER_KEY, **changes: Any) -> str:
    return key.sign(json.dumps({**CLUSTER_CLAIMS, **changes}).encode())


def calls(**agents: Any) -> AgentsGrant:
    return AgentsGrant(use_tools=True, call=True, **agents)


OBSERVES = ApiScope(
    agents=calls(allow=("tests.*",), deny=("tests.drop",), act_for=("bob",)), observe=True
)
LEVELS: dict[str, Any] = {
    "repository": ABSENT,
    "verified": True,
    "level": 3,
    "groups": ["staff", 7],
}


@pytest.mark.parametrize(
    ("jwt", "name", "role", "rooms", "scope"),
    [
        # Both rules of the repository match; the first wins.
        (github(), "deploy-74", "deployer", ("live", "lab-*"), ApiScope.host_default()),
        (github(environment="test"), "ci-74", "user", ("main",), OBSERVES),
        (github(environment=ABSENT, repository_id=74), "ci-74", "user", ("main",), OBSERVES),
        (github(ROTATED, environment=["x"]), "ci-74", "user", ("main",), OBSERVES),
        # Rooms, role and grants in the token are ignored.
        (
            github(environment="t", room=["*"], role="admin", api={"admin": True}),
            *("ci-74", "user", ("main",), OBSERVES),
        ),
        (
            github(**LEVELS, sub="a" * 512),
            *("a" * 512, "user", ("main",), ApiScope(agents=calls())),
        ),
        (cluster(), CLUSTER_CLAIMS["sub"], "user", ("main",), ApiScope.host_default()),
    ],
)
def test_the_first_rule_that_matches_makes_the_participant(
    ring: KeyRing, jwt: str, name: str, role: str, rooms: tuple[str, ...], scope: ApiScope
) -> None:
    """TOKEN-1, TOKEN-2, TOKEN-9."""
    token = verify(jwt, ring)

    assert (token.name, token.role, token.room, token.api) == (name, role, rooms, scope)
    assert token.issuer in (GITHUB, CLUSTER)


PUBLIC = SIGNS.public_half().public or ""
FOREIGN = Key.generate(kid="k1", iss=GITHUB, alg="RS256")
ELSEWHERE = {"jku": "https://evil.test/jwks", "x5u": "https://evil.test/cert"}
HEADERS = {**ELSEWHERE, "jwk": FOREIGN.public_jwk()}


def with_header(key: Key, claims: Mapping[str, Any], **header: Any) -> str:
    payload = json.dumps(claims).encode()
    private = load_private(key.private or "")
    return api_jws.encode(payload, private, key.alg, {"kid": key.kid, **header})


@pytest.mark.parametrize(
    ("jwt", "reason"),
    [
        # One issuer publishes the id of another's key.
        (cluster(SIGNS), "wrong_alg"),
        (cluster(Key.generate(kid="k1", iss=CLUSTER, alg="ES256")), "bad_signature"),
        (github(CLUSTER_KEY), "wrong_alg"),
        (signed({"alg": "HS256", "kid": "k1"}, GITHUB_CLAIMS), "wrong_alg"),
        (SIGNS.sign(json.dumps({**CLAIMS}).encode()), "wrong_alg"),
        (github(ROTATED, iss="acme"), "unknown_kid"),
        (github(FOREIGN), "bad_signature"),
        (github(iss="https://evil.test"), "wrong_alg"),
        (github(iss=[GITHUB]), "wrong_alg"),
        (with_header(FOREIGN, GITHUB_CLAIMS, **HEADERS), "bad_signature"),
        (with_header(SIGNS, GITHUB_CLAIMS, kid="k3", **HEADERS), "unknown_kid"),
        (signed({"alg": "HS256", "kid": "k1"}, GITHUB_CLAIMS, PUBLIC.encode()), "wrong_alg"),
        (f"{segment({'alg': 'none', 'kid': 'k1'})}.{segment(GITHUB_CLAIMS)}.", "alg_none"),
        (github(aud=CLUSTER), "wrong_audience"),
        (github(aud=["sts.amazonaws.com"]), "wrong_audience"),
        (github(exp=NOW + 86_401), "life_too_long"),
        (github(repository="octo-orga/x"), "no_rule"),
        (github(repository=["other/x", 7]), "no_rule"),
        (github(repository={"octo-org/x": 1}), "no_rule"),
        (github(**{**LEVELS, "verified": 1}), "no_rule"),
        (github(**{**LEVELS, "level": "3"}), "no_rule"),
        (github(**{**LEVELS, "groups": [["staff"]]}), "no_rule"),
        (github(repository=ABSENT), "no_rule"),
        (github(repository_id=ABSENT), "bad_name"),
        (github(repository_id=True), "bad_name"),
        (github(repository_id=["74"]), "bad_name"),
        (github(repository_id="7\n4"), "bad_name"),
        (github(repository_id="7" * 512), "bad_name"),
        (github(**LEVELS, sub=7), "bad_name"),
        (github(**LEVELS, sub="a" * 513), "bad_name"),
        (cluster(sub="system:serviceaccount:other:words"), "no_rule"),
    ],
)
def test_a_token_without_its_key_or_rule_is_refused(ring: KeyRing, jwt: str, reason: str) -> None:
    """TOKEN-1, TOKEN-2, TOKEN-9."""
    assert reason_of(jwt, ring) == reason


def test_a_clock_that_is_three_minutes_off_refuses_new_tokens(ring: KeyRing) -> None:
    """TOKEN-3."""
    assert reason_of(github(), ring, NOW - 180) == "issued_in_future"
    assert verify(github(), ring, NOW + 900 + 30).name == "deploy-74"
    assert reason_of(github(), ring, NOW + 900 + 180) == "expired"


def issuer(**changes: Any) -> Issuer:
    return Issuer(**{"iss": GITHUB, "jwks": "https://idp.test/jwks", **changes})


def test_a_set_that_was_never_read_refuses_with_a_reason_of_its_own() -> None:
    assert reason_of(github(), KeyRing([], [issuer()])) == "no_key_set"


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_key_without_alg_gets_the_first_algorithm_that_suits(alg: Algorithm) -> None:
    key = Key.generate(kid="k1", iss=GITHUB, alg=alg)
    found = issuer(algorithms=("EdDSA", alg)).with_set(set_of(key, alg=ABSENT)).keys

    assert found is not None
    assert found["k1"].alg == alg
    assert found["k1"].check(key.sign(b"payload")) == b"payload"


SMALL = {"n": "AQAB" * 40}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"[]", 'no list "keys"'),
        (b'{"keys": {}}', 'no list "keys"'),
        (b'{"keys": []}', "no key with a kid"),
        (b'{"keys": [7, null, {}]}', "no key with a kid"),
        (b" " * 65_537, "over 64 KiB"),
        (json.dumps({"keys": [{}] * 10_000}).encode(), "10000 keys"),
        (set_of(SIGNS, kid=ABSENT), "no key with a kid"),
        (set_of(SIGNS, kid=7), "no key with a kid"),
        (set_of(SIGNS, alg="HS256"), "no key with a kid"),
        (set_of(SIGNS, alg="RS512"), "no key with a kid"),
        (set_of(SIGNS, use="enc"), "no key with a kid"),
        (set_of(SIGNS, key_ops=["encrypt"]), "no key with a kid"),
        (set_of(SIGNS, key_ops=7), "no key with a kid"),
        (set_of(SIGNS, **SMALL), "no key with a kid"),
        (set_of(SIGNS, n=7), "no key with a kid"),
        (set_of(CLUSTER_KEY, crv="P-384"), "no key with a kid"),
        (set_of(CLUSTER_KEY, x="AAAA"), "no key with a kid"),
        (b'{"keys": [{"kty": "oct", "kid": "k1", "alg": "HS256", "k": "c2VjcmV0"}]}', "no key"),
    ],
)
def test_a_set_that_cannot_be_used_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        issuer().with_set(data)


def test_what_is_of_no_use_in_a_set_hides_no_key_and_a_private_half_is_not_read() -> None:
    jwks = json.loads(set_of(SIGNS))["keys"]
    data = {
        "keys": [{"kty": "oct", "kid": "k1"}, {**jwks[0], "d": "AQAB", "alg": "RS256"}, jwks[0]]
    }
    found = issuer().with_set(json.dumps(data).encode()).keys

    assert found is not None
    assert list(found) == ["k1"]
    assert not found["k1"].can_sign


ISSUER = f'[[issuer]]\niss = "{GITHUB}"\njwks = "set.json"\n'
RULE = f'[[rule]]\niss = "{GITHUB}"\nmatch = {{ a = "b" }}\npreset = "host"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (ISSUER, "issuer 1.*no .*rule"),
        (RULE, "no .*key"),
        (
            f'{ISSUER}{RULE}[[rule]]\niss = "x"\nmatch = {{ a = 1 }}\npreset = "host"',
            "rule 2: no .*'x'",
        ),
        (ISSUER + RULE + ISSUER, "no second one"),
        (ISSUER + RULE + KeyRing([Key.generate(kid="a", iss=GITHUB)]).to_toml(), "no second one"),
        (f'{ISSUER}algorithms = ["HS256"]\n{RULE}', "some of RS256, PS256, ES256, EdDSA"),
        (f"{ISSUER}algorithms = []\n{RULE}", "some of RS256"),
        (f'{ISSUER}alias = "A"\n{RULE}', "alias"),
        (f'{ISSUER}ca = "ca.pem"\n{RULE}', "for an address"),
        (f"{ISSUER}aud = 1\n{RULE}", "unknown field 'aud'"),
        (f"{ISSUER.replace('set.json', 'http://idp.test')}{RULE}", "https address"),
        (f"{ISSUER.replace('set.json', 'https://a@idp.test')}{RULE}", "https address"),
        (f"{ISSUER.replace('set.json', 'https:///x')}{RULE}", "https address"),
        (ISSUER + RULE.replace("match", "matches"), "match is missing"),
        (ISSUER + RULE.replace('{ a = "b" }', "{}"), "match is empty"),
        (ISSUER + RULE.replace('"b"', '"b*c"'), "match.a: '\\*' may only be at the end"),
        (ISSUER + RULE.replace('"b"', "[1]"), "match.a"),
        (f'{ISSUER}{RULE}name = "ci-{{"', "in braces"),
        (f'{ISSUER}{RULE}name = "{{}}"', "in braces"),
        (f'{ISSUER}{RULE}name = " {{a}}"', "name must not begin"),
        (f'{ISSUER}{RULE}role = ""', "role must be text"),
        (f"{ISSUER}{RULE}rooms = []", "rooms has 1 to 64"),
        (f'{ISSUER}{RULE}rooms = ["A"]', "not a room pattern"),
        (f'{ISSUER}{RULE}allow = ["a.b.c"]', "not a tool pattern"),
        (f'{ISSUER}{RULE}grants = ["obsrve"]', "did you mean observe"),
        (f'{ISSUER}{RULE}grants = ["approve"]', 'grants = \\["approve=files'),
        (ISSUER + RULE.replace("host", "hst"), "preset 'hst'"),
        (ISSUER + RULE.replace("preset", "role"), "needs grants: preset ="),
        ("issuer = 1", r"no \[\[issuer\]\] table"),
        ("issuer = [1]", r"must be a \[\[issuer\]\] table"),
    ],
)
def test_a_bad_table_is_refused_with_what_to_write(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        KeyRing.from_toml(text)


def test_a_missing_or_bad_set_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(ISSUER + RULE)
    with pytest.raises(OSError, match=r"set\.json"):
        KeyRing.load(tmp_path / "keys.toml")
    (tmp_path / "set.json").write_text("{}")
    with pytest.raises(ValueError, match=r"set\.json: the key set is not"):
        KeyRing.load(tmp_path / "keys.toml")


def test_issuers_need_aliases_of_their_own_as_keys_do(ring: KeyRing) -> None:
    assert ring.aliases() == {"acme": "acme", GITHUB: "github", CLUSTER: "k8s"}
    with pytest.raises(ValueError, match=r"no alias.*\[\[issuer\]\] table"):
        KeyRing([], [issuer(alias="a"), issuer(iss="b")]).aliases()
