"""`toolbus token` creates tokens that servers accept, and shows their content."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import jwt as pyjwt
import pytest

from support.processes.command_line import CommandLine
from toolbus.auth.grants import GRANTS, ApiScope
from toolbus.auth.jws import read_unverified
from toolbus.auth.keys import Key, KeyRing
from toolbus.auth.tokens import ParticipantToken, RefusalReason, VerifiedToken
from toolbus.cli.commands.token import _REASONS, read_duration_s

FULL = ApiScope.full().to_claims()
SWITCHES = [name for name, has_values in GRANTS.items() if not has_values]
ALL = {name: True for name in SWITCHES if "." not in name}
ALL_AGENTS = {name.removeprefix("agents."): True for name in SWITCHES if "." in name}


@pytest.fixture
def toolbus(tmp_path: Path) -> CommandLine:
    KeyRing([Key.generate(kid="k1", iss="us")]).save(tmp_path / "keys.toml")
    return CommandLine(tmp_path, {"TOOLBUS_KEYS": str(tmp_path / "keys.toml")})


def verified(toolbus: CommandLine, *arguments: str) -> VerifiedToken:
    outcome = toolbus.run_here("token", "create", "--name", "alice", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    jwt, end, rest = outcome.out.partition("\n")
    assert (end, rest) == ("\n", "")
    return ParticipantToken.from_jwt(jwt, KeyRing.load(toolbus.folder / "keys.toml"))


def test_only_the_token_is_printed_and_it_is_valid(toolbus: CommandLine) -> None:
    token = verified(toolbus, "--preset", "agent")
    assert (token.name, token.room, token.role, token.issuer) == ("alice", ("main",), "user", "us")
    assert token.expires_at - token.issued_at == 3600
    assert token.api.messaging


def test_allow_implies_use_tools_and_call(toolbus: CommandLine) -> None:
    agents = verified(toolbus, "--allow", "weather.*", "--allow", "clock", "--deny", "clock.now")
    assert agents.api.agents.allow == ("weather.*", "clock")
    assert agents.api.agents.deny == ("clock.now",)
    assert agents.api.agents.use_tools
    assert agents.api.agents.call
    assert not agents.api.presence
    assert not agents.api.agents.register_public_toolkit


def test_allow_narrows_a_preset(toolbus: CommandLine) -> None:
    scope = verified(toolbus, "--preset", "host", "--allow", "weather").api
    assert scope.agents.register_public_toolkit
    assert scope.agents.allow == ("weather",)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--grant observe", {"observe": True}),
        (
            "--grant agents.act_for=* --grant agents.register=my*",
            {"agents": {"act_for": ["*"], "register": ["my*"]}},
        ),
        ("--grant approve=files.* --grant approve=db", {"approve": ["files.*", "db"]}),
        (
            "--allow words --grant agents.allow=clock --deny clock.now --grant agents.deny=words.x",
            {
                "agents": {
                    "use_tools": True,
                    "call": True,
                    "allow": ["words", "clock"],
                    "deny": ["clock.now", "words.x"],
                }
            },
        ),
        (
            "--preset full --grant agents.act_for=bob --grant agents.register=my*",
            {**FULL, "agents": {**FULL["agents"], "act_for": ["*", "bob"], "register": ["my*"]}},
        ),
        (" ".join(f"--grant {name}" for name in SWITCHES), {**ALL, "agents": ALL_AGENTS}),
    ],
)
def test_grants_are_added_to_the_other_flags(
    toolbus: CommandLine, arguments: str, expected: dict[str, Any]
) -> None:
    assert verified(toolbus, *arguments.split()).api.to_claims() == expected


def test_rooms_role_and_lifetime_are_set_by_flags(toolbus: CommandLine) -> None:
    token = verified(
        toolbus, *("--preset", "user", "--room", "lab-*", "--room", "main"), "--role", "bot"
    )
    assert (token.room, token.role) == (("lab-*", "main"), "bot")
    short = verified(toolbus, "--preset", "user", "--ttl", "90s")
    assert short.expires_at - short.issued_at == 90


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "a token needs grants"),
        (["--preset", "king"], "preset 'king' does not exist"),
        (
            ["--preset", "user", "--ttl", "2d"],
            "--ttl 2d is not valid: it must be more than 0 and at most 1d",
        ),
        (["--preset", "user", "--ttl", "0"], "more than 0"),
        (["--preset", "user", "--ttl", "soon"], "'soon' is not a duration"),
        (["--preset", "user", "--room", "A B"], "A B"),
        (["--allow", "a.b.c"], "a.b.c"),
        (["--grant", "obsrve"], "no grant 'obsrve': did you mean observe?"),
        (["--grant", "call"], "did you mean agents.call?"),
        (["--grant", "actfor=bob"], "did you mean agents.act_for?"),
        (["--grant", "zzz"], "the grants are admin, agents.act_for, agents.allow"),
        (["--grant", "observe=yes"], "observe has no value: write --grant observe"),
        (["--grant", "approve"], "approve has patterns of tools: write for example --grant app"),
        (["--grant", "agents.act_for="], "has names of participants"),
        (["--grant", "approve=a,b"], "write a grant for each value: --grant approve='a'"),
        (["--grant", "agents.register=a.b"], "'a.b' is not a toolkit pattern"),
        (["--preset", "user", "--keys", "nowhere.toml"], "toolbus key create"),
    ],
)
def test_invalid_token_request_exits_with_2_and_prints_no_token(
    toolbus: CommandLine, arguments: list[str], text: str
) -> None:
    outcome = toolbus.run_here("token", "create", "--name", "alice", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert text in outcome.err
    assert "pydantic" not in outcome.err
    assert "[type=" not in outcome.err


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
def test_token_in_a_file_readable_by_others_gives_a_warning(
    toolbus: CommandLine, mode: int
) -> None:
    place = toolbus.folder / "a b.jwt"
    place.touch()
    place.chmod(mode)
    command = [sys.executable, "-m", "toolbus", *"token create --name a --preset user".split()]
    with place.open("w") as out:
        made = subprocess.run(
            command,
            cwd=toolbus.folder,
            env=toolbus.environment(),
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    warning = "other users can read this file: chmod 600 'a b.jwt'\n"
    assert made.stderr.decode() == ("" if mode == 0o600 else warning)
    assert place.read_text().count("\n") == 1


def test_token_is_written_to_a_file_for_its_user_alone(toolbus: CommandLine) -> None:
    command = ("token", "create", "--name", "a", "--preset", "user", "--out")
    made = toolbus.run_here(*command, "a.jwt")
    place = toolbus.folder / "a.jwt"
    assert (made.code, made.out, made.err) == (0, "", "")
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.read_text().count(".") == 2
    refused = toolbus.run_here(*command, "nowhere/a.jwt")
    assert refused.code == 2
    assert "nowhere/a.jwt" in refused.err


def test_public_keys_create_no_token(toolbus: CommandLine) -> None:
    public = Key.generate(kid="p", iss="us", alg="EdDSA").public_half()
    KeyRing([public]).save(toolbus.folder / "keys.toml")
    outcome = toolbus.run_here("token", "create", "--name", "alice", "--preset", "user")
    assert outcome.code == 2
    assert "can sign" in outcome.err


def test_inspect_shows_claims_and_validity(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "alice", "--preset", "user").out.strip()
    (toolbus.folder / "token").write_text(made)
    place = f"@{toolbus.folder / 'token'}"
    keys = str(toolbus.folder / "keys.toml")
    unchecked = toolbus.run_here("token", "inspect", place)
    assert unchecked.value["sub"] == "alice"
    assert "not checked" in unchecked.err
    checked = toolbus.run_here("token", "inspect", place, "--keys", keys)
    assert "signature and claims are valid; " in checked.err
    assert "whether it was revoked: `toolbus doctor --token FILE` asks it" in checked.err


def test_just_expired_token_is_valid_within_the_leeway(
    toolbus: CommandLine,
) -> None:
    keys = toolbus.folder / "keys.toml"
    key = KeyRing.load(keys).signing_key
    assert key is not None
    claims = ParticipantToken(name="eve", room=["main"])
    just = claims.to_jwt(key, ttl_s=60, now=time.time() - 70)
    outcome = toolbus.run_here("token", "inspect", just, "--keys", str(keys))
    received = re.search(r"expired (\d+) s ago; servers accept it for (\d+) s more", outcome.err)
    assert outcome.code == 0
    assert received is not None
    assert int(received[1]) + int(received[2]) == 60
    long_ago = claims.to_jwt(key, ttl_s=60, now=time.time() - 130)
    assert toolbus.run_here("token", "inspect", long_ago, "--keys", str(keys)).code == 3


def test_inspect_with_another_key_exits_with_3_and_the_reason(toolbus: CommandLine) -> None:
    other = Key.generate(kid="k1", iss="us")
    jwt = ParticipantToken(name="eve", room=["main"]).to_jwt(other)
    keys = str(toolbus.folder / "keys.toml")
    outcome = toolbus.run_here("token", "inspect", jwt, "--keys", keys)
    assert (outcome.code, outcome.value["sub"]) == (3, "eve")
    assert "its signature does not match the key (bad_signature)" in outcome.err
    assert "key id (kid): k1\n" in outcome.err


def test_inspect_reports_an_expired_token(toolbus: CommandLine) -> None:
    key = KeyRing.load(toolbus.folder / "keys.toml").signing_key
    assert key is not None
    claims = ParticipantToken(name="eve", room=["main"])
    old = claims.to_jwt(key, ttl_s=60, now=time.time() - 600)
    outcome = toolbus.run_here("token", "inspect", old)
    assert outcome.value["sub"] == "eve"
    assert re.search(r"^not checked, expired \d+ min( \d+ s)? ago: ", outcome.err, re.MULTILINE)


def test_inspect_reads_until(toolbus: CommandLine) -> None:
    keys = str(toolbus.folder / "keys.toml")
    create = ("token", "create", "--name", "alice", "--preset", "user", "--until")
    made = toolbus.run_here(*create, "90d").out.strip()
    checked = toolbus.run_here("token", "inspect", made, "--keys", keys)
    assert re.search(
        r"valid; (1 h|59 min \d+ s) left in its first life; (90 d|89 d 23 h) left w", checked.err
    )
    key = KeyRing.load(keys).signing_key
    assert key is not None
    claims = ParticipantToken(name="eve", room=["main"])
    for age, words in (
        (5_000, "got no further life"),
        (9_000, "its last life (`until`)"),
    ):
        old = claims.to_jwt(key, ttl_s=60, until_s=8_000, now=time.time() - age)
        assert words in toolbus.run_here("token", "inspect", old).err
        valid = toolbus.run_here("token", "inspect", old, "--keys", keys).err
        assert ("its first life is over; " in valid) == (age == 5_000)
        assert ("it was used in each life, and whether it" in valid) == (age == 5_000)
    for until in ("1h", "401d", "soon"):
        refused = toolbus.run_here(*create, until)
        assert (refused.code, "no token was created" in refused.err) == (2, True)


PROVIDER = Key.generate(kid="gh1", iss="https://idp.test", alg="RS256")
RULED = {"iss": PROVIDER.iss, "sub": "a", "aud": ["bus", "x"], "repo": "74", "ref": "main"}
TABLES = """
[[issuer]]
iss = "https://idp.test"
alias = "idp"
jwks = "set.json"
audience = "bus"
algorithms = ["RS256"]

[[rule]]
iss = "https://idp.test"
match = { repo = "74", ref = "main" }
name = "ci-{run}"
preset = "user"

[[rule]]
iss = "https://idp.test"
match = { repo = 74, groups = "x*" }
preset = "user"
"""


@pytest.mark.parametrize(
    ("claims", "lines"),
    [
        (
            {"ref": "pull"},
            [
                'rule 1: ref is "pull", not "main"',
                'rule 2: repo is the text "74", not the number 74',
            ],
        ),
        (
            {"repo": 74, "groups": [74]},
            [
                'rule 1: repo is the number 74, not the text "74"',
                'rule 2: groups is [74], which does not contain "x*"',
            ],
        ),
        (
            {"repo": 74},
            ["rule 2: the token has no claim 'groups', which has to be \"x*\""],
        ),
        ({"repo": "x" * 300}, ["x [... 1"]),
        ({}, ["rule 1: name: the token has no claim 'run'"]),
        ({"run": [1]}, ["rule 1: name: run is [1], neither text nor a whole number"]),
        ({"run": " 7 "}, ['rule 1: name: "ci- 7 " must not begin or end with a space']),
        ({"aud": "toolbus"}, ['aud is "toolbus", not "bus"']),
        ({"aud": ["a"]}, ['aud is ["a"], which does not contain "bus"']),
        (
            {"iss": "https://idp.test/"},
            ["no [[issuer]] has the iss 'https://idp.test/': did you mean 'https://idp.test'?"],
        ),
        ({"iss": "us"}, ["none of these keys has its key id (kid) (unknown_kid)"]),
        (None, ["the algorithm (alg) is PS256, but the key 'gh1' is RS256"]),
    ],
)
def test_inspect_says_which_claim_or_field_a_provider_s_token_is_refused_for(
    toolbus: CommandLine, claims: dict[str, Any] | None, lines: list[str]
) -> None:
    keys = toolbus.folder / "keys.toml"
    keys.write_text(keys.read_text() + 'alias = "us"\n' + TABLES)
    (toolbus.folder / "set.json").write_text(json.dumps({"keys": [PROVIDER.public_jwk()]}))
    now = int(time.time())
    content = {**RULED, "iat": now, "exp": now + 60, **(claims or {})}
    if claims is None:
        jwt = pyjwt.encode(content, str(PROVIDER.private), "PS256", headers={"kid": "gh1"})
    else:
        jwt = PROVIDER.sign(json.dumps(content).encode())
    outcome = toolbus.run_here("token", "inspect", jwt, "--keys", str(keys))
    assert outcome.code == 3, outcome.err
    assert outcome.value == content
    for line in lines:
        assert line in outcome.err
    assert "next: correct the tables [[issuer]] and [[rule]], or get another" in outcome.err


def test_inspect_says_why_a_token_of_these_keys_is_refused(toolbus: CommandLine) -> None:
    (key,) = KeyRing.load(toolbus.folder / "keys.toml")
    now = int(time.time())
    usual = {"iss": "us", "aud": "toolbus", "room": ["main"], "iat": now, "exp": now + 60}
    for claims, line in (
        ({"sub": "ann "}, "the name (sub) must not begin"),
        ({"sub": "ann", "iss": "them"}, 'iss is "them", not "us"'),
        ({"sub": "ann", "aud": "x"}, 'aud is "x", not "toolbus"'),
    ):
        jwt = key.sign(json.dumps({**usual, **claims}).encode())
        outcome = toolbus.run_here("token", "inspect", jwt, "--keys", "keys.toml")
        assert (outcome.code, line in outcome.err) == (3, True)
        assert "next: `toolbus doctor`" in outcome.err


def test_each_refusal_reason_has_a_text() -> None:
    assert set(_REASONS) == set(get_args(RefusalReason))


def test_inspect_reads_a_file_or_a_pipe_by_its_name(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "alice", "--preset", "user").out
    place = toolbus.folder / "a\udcff.jwt"  # names of files may have any bytes
    place.write_text(made)
    assert toolbus.run_here("token", "inspect", str(place)).value["sub"] == "alice"
    reader, writer = os.pipe()
    os.write(writer, made.encode())
    os.close(writer)
    try:
        pipe = toolbus.run_here("token", "inspect", f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert pipe.value["sub"] == "alice"


def test_inspect_of_an_invalid_token_exits_with_2_and_does_not_repeat_it(
    toolbus: CommandLine,
) -> None:
    for given in ("nonsense.jwt", "a" * 5_000, "a\0b"):
        outcome = toolbus.run_here("token", "inspect", given)
        assert outcome.code == 2
        assert outcome.err.startswith(
            "toolbus: the token is neither a signed token nor the name of"
        )
        assert given not in outcome.err


def test_token_in_place_of_the_name_of_its_file_is_not_repeated(toolbus: CommandLine) -> None:
    token = toolbus.run_here("token", "create", "--name", "alice", "--preset", "user").out.strip()
    for given in (token, f"@{token}"):
        outcome = toolbus.run_here("tools", TOOLBUS_TOKEN_FILE=given)
        assert (outcome.code, token in outcome.err) == (2, False)
        assert "the token itself, not the name of its file" in outcome.err
    outcome = toolbus.run_here("token", "inspect", f"@{token}")
    assert (outcome.code, token in outcome.err) == (2, False)


def test_inspect_of_a_file_without_a_token_exits_with_2(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("token", "inspect", str(toolbus.folder / "keys.toml"))
    assert (outcome.code, outcome.err[:29]) == (2, "toolbus: this is not a token:")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600), ("1d", 86_400)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds


WANTED = ("--name", "depot", "--preset", "host", "--ttl", "1h", "--until", "90d")


@pytest.mark.parametrize(
    ("change", "is_left"),
    [
        ({}, True),
        ({"age_s": 2_800}, True),
        ({"age_s": 2_900}, False),  # participants read the file at 80 %
        ({"age_s": 9_000}, False),  # whether it got further lives is unknown
        ({"name": "other"}, False),
        ({"role": "admin"}, False),
        ({"room": ["main", "other"]}, False),
        ({"api": ApiScope.full()}, False),
        ({"until_s": None}, False),
        ({"kid": "gone"}, False),
        (None, False),
    ],
    ids=str,
)
def test_token_of_a_file_is_replaced_only_if_needed(
    toolbus: CommandLine, change: dict[str, Any] | None, is_left: bool
) -> None:
    file = toolbus.folder / "depot.jwt"
    file.write_text("")
    if change is not None:
        usual = {"name": "depot", "room": ["main"], "role": "user", "api": ApiScope.host_default()}
        (key,) = KeyRing.load(toolbus.folder / "keys.toml")
        if "kid" in change:
            key = Key.generate(kid="gone", iss="us")
        token = ParticipantToken(**{name: change.get(name, usual[name]) for name in usual})
        made_at = time.time() - change.get("age_s", 0)
        until_s = change.get("until_s", 90 * 86_400)
        file.write_text(token.to_jwt(key, ttl_s=3_600, until_s=until_s, now=made_at))
    before = file.read_text()
    outcome = toolbus.run_here("token", "create", *WANTED, "--if-needed", "--out", str(file))
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert (file.read_text() == before) == is_left
    pattern = r"kept .*: (1 h|\d+ min)( \d+ s)? left in its first life" if is_left else "wrote .*"
    assert re.fullmatch(f"{pattern}\n", outcome.err)
    keys = KeyRing.load(toolbus.folder / "keys.toml")
    made = ParticipantToken.from_jwt(file.read_text().strip(), keys)
    assert made.name == "depot"
    # With the same id it has the lives of the old one, with which a service may be connected.
    is_same = change is not None and change.keys() <= {"age_s"}
    assert (bool(before) and read_unverified(before)["jti"] == made.jti) == is_same


def test_if_needed_is_for_a_file(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("token", "create", *WANTED, "--if-needed")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--out FILE" in outcome.err
