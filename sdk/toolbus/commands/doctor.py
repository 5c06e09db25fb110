"""`toolbus doctor`: looks at each thing that joining a room needs, and names the repair.

It goes from the near to the far: what is set, the token, the server's port, its clock, the room,
the grants. What cannot be looked at because something nearer is broken is said to be skipped. At
the Redis of many servers those look who speak with one; here it is only named.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from importlib.metadata import entry_points
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from toolbus.commands.plain_words import plain_words
from toolbus.commands.room_options import RoomOptions, joins_a_room
from toolbus.errors import PermissionDenied, RoomException
from toolbus.exit_codes import ExitCode, UsageMistake, printable
from toolbus.findings import CHECKS, Ailment, Check, Finding
from toolbus.findings import examine as make_checks
from toolbus.grants import ApiScope, matches_room
from toolbus.joining import life_words, read_claims, read_token, rooms_of
from toolbus.keys import KeyRing
from toolbus.room_client import RoomClient
from toolbus.settings import DEV_KEYS_FILE, RoomSettings, home_of, is_loopback
from toolbus.tokens import LEEWAY_S

__all__ = ["Finding", "doctor", "examine"]

_PATIENCE_S = 5.0
_SKIPS_SHOWN = 2
"""So many in a row that wait for the same have a line each."""
_MAX_ANSWER_BYTES = 16_384
_SKEW_S = 5.0
_LATEST_TIME = 253_402_300_799  # the last second of the year 9999


@dataclass(slots=True)
class _Patient:
    """What the checks have learned so far."""

    options: RoomOptions
    place: RoomSettings | None = None
    settings: RoomSettings | None = None
    claims: dict[str, Any] = field(default_factory=dict)
    server_time_s: float | None = None
    joined: bool = False


_RedisFlag = Annotated[
    str | None,
    typer.Option(
        "--redis",
        help="Look at the Redis of many servers instead, as `toolbus serve --redis` has it; "
        "@FILE reads the URL from a file.",
        metavar="URL",
    ),
]


@joins_a_room
def doctor(options: RoomOptions, redis: _RedisFlag = None) -> None:
    """Check key, token, port, clock, room and grants, and name the repair of what is wrong."""
    if redis is None:
        findings = asyncio.run(examine(options))
    else:
        findings = _look_at_redis(options, redis)
    if options.as_json:
        facts = [
            {"check": f.check, "status": f.status, "found": f.found, "repair": f.repair}
            for f in findings
        ]
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        for (status, found), alike in groupby(findings, lambda each: (each.status, each.found)):
            same = list(alike)
            is_told = any(each.repair for each in same)
            if status == "skip" and len(same) > _SKIPS_SHOWN and not is_told:
                names = _listed([each.check for each in same])
                typer.echo(f"skip  {len(same)} more    {printable(found)}: {names}")
            else:
                typer.echo("\n".join(line for each in same for line in _lines(each)))
    failed = (finding.exit_code for finding in findings if finding.exit_code)
    raise typer.Exit(next(failed, ExitCode.OK))


def _lines(finding: Finding) -> list[str]:
    """Tell one finding, and what to do about it."""
    told = f"{finding.status:<4}  {finding.check:<8}  {printable(finding.found)}"
    return [told, *([f"                repair: {finding.repair}"] if finding.repair else [])]


async def examine(options: RoomOptions) -> list[Finding]:
    """Make every check of a room that makes sense, the near before the far."""
    return await make_checks(_CHECKS, _Patient(options))


def _look_at_redis(options: RoomOptions, redis: str) -> list[Finding]:
    """Leave the looking to who speaks with Redis. Raises UsageMistake."""
    if options != RoomOptions(as_json=options.as_json):
        raise UsageMistake("--redis looks at a Redis and at no room: leave the flags of a room out")
    if redis.startswith("@"):
        try:
            redis = Path(redis[1:]).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageMistake(f"cannot read {redis[1:]}: {error.strerror}") from None
        except ValueError:
            raise UsageMistake(f"{redis[1:]} is no text") from None
    for entry in entry_points(group=CHECKS, name="redis"):
        findings: list[Finding] = asyncio.run(entry.load()(redis))
        return findings
    raise UsageMistake("nothing here can look at a Redis: pip install 'toolbus[server]'")


async def _look_at_settings(patient: _Patient) -> str:
    try:
        patient.place = patient.options.settle_place()
    except UsageMistake as mistake:
        raise Ailment(
            mistake.message, "set it by a flag, a TOOLBUS_ variable or the settings file"
        ) from None
    return f"{patient.place.url}, room {patient.place.room}"


async def _look_at_key(patient: _Patient) -> str:
    """Look at what tokens come from: one that is given, or keys to mint it with."""
    try:
        patient.settings = patient.options.settle()
    except UsageMistake as mistake:
        repair = "`toolbus token create` makes a token, `toolbus key create` a key"
        if patient.options.token and patient.options.name:
            repair = "leave one of --token and --name out"
        raise Ailment(mistake.message, repair) from None
    if patient.options.token or any(
        os.environ.get(name) for name in ("TOOLBUS_TOKEN", "TOOLBUS_TOKEN_FILE")
    ):
        return "none needed: a token is given"
    named = os.environ.get("TOOLBUS_KEYS")
    path = Path(named) if named else home_of(os.environ) / DEV_KEYS_FILE
    if not path.exists():
        if named:
            raise Ailment(f"{path} is not there", f"`toolbus key create --out {path}`")
        return "the settings file names a token or keys"
    try:
        signing = KeyRing.load(path).signing_key
    except (OSError, ValueError) as error:
        raise Ailment(
            f"cannot read the keys: {error}", "`toolbus key create` makes a file"
        ) from None
    if signing is None:
        raise Ailment(f"no key in {path} can sign", "use the file with the private keys")
    if path.stat().st_mode & 0o077:
        raise Ailment(f"others can read {path}", f"chmod 600 {path}")
    return f"{signing.kid!r} of {path} signs ({signing.alg}, issuer {signing.iss})"


async def _look_at_token(patient: _Patient) -> str:
    assert patient.settings is not None
    try:
        claims = patient.claims = read_claims(await read_token(patient.settings))
    except UsageMistake as mistake:
        raise Ailment(mistake.message, "`toolbus token create` makes one") from None
    expires_at = claims.get("exp")
    if not isinstance(expires_at, int | float) or not 0 < expires_at <= _LATEST_TIME:
        raise Ailment("the token does not say when it expires", "`toolbus token create` makes one")
    now = time.time()
    life = life_words(expires_at, now)
    if not life:
        raise Ailment(
            f"the token expired {round(now - expires_at)} s ago",
            "make a new one: `toolbus token create`",
        )
    room = patient.settings.room
    rooms = rooms_of(claims)
    if not matches_room(rooms, room):
        raise Ailment(
            f"the token is for {_listed(rooms) or 'no room'}, not for room {room}",
            f"`toolbus token create --room {room}`, or another --room",
        )
    return f"{claims.get('sub')!r} in {_listed(rooms) or 'no room'}, {life}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


async def _look_at_port(patient: _Patient) -> str:
    assert patient.place is not None
    url = patient.place.url
    serve = "toolbus serve --dev" if is_loopback(url) else "toolbus serve"
    start = f"`{serve}` starts a server; is --url (TOOLBUS_URL) right?"
    try:
        async with asyncio.timeout(_PATIENCE_S):
            head = await _answer_of(url, patient.place.room)
    except TimeoutError:
        raise Ailment(f"{url} does not answer within {_PATIENCE_S:g} s", start) from None
    except ssl.SSLCertVerificationError as error:
        raise Ailment(
            f"the certificate of {url} is not trusted: {error.verify_message}",
            "let SSL_CERT_FILE name a file with its authority's certificate",
        ) from None
    except OSError as error:
        raise Ailment(f"no answer from {url}: {error.strerror or error}", start) from None
    status, _, rest = head.partition("\r\n")
    if not status.startswith("HTTP/1.1 "):
        raise Ailment(f"what listens at {url} does not speak HTTP", start)
    patient.server_time_s = _date_of(rest)
    return f"{url} answers"


async def _answer_of(url: str, room: str) -> str:
    """Knock without a token, which costs the server nothing, and return the head of the answer."""
    parts = urlsplit(url)
    secure = parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None)
    try:
        request = (
            f"GET /rooms/{room} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dG9vbGJ1cy1kb2N0b3IhIQ==\r\n\r\n"
        )
        writer.write(request.encode())
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _MAX_ANSWER_BYTES:
            part = await reader.read(4_096)
            if not part:
                break
            head += part
        return head.decode("latin-1")
    finally:
        writer.close()


def _date_of(headers: str) -> float | None:
    for line in headers.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                return parsedate_to_datetime(value.strip()).timestamp()
            except ValueError:
                return None
    return None


async def _look_at_clock(patient: _Patient) -> str:
    if patient.server_time_s is None:
        return "the server does not tell its time"
    ahead_s = round(time.time() - patient.server_time_s)
    if abs(ahead_s) >= LEEWAY_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        raise Ailment(
            f"this clock is {abs(ahead_s)} s {side} the server's",
            "set both by NTP: tokens hold by the clock",
        )
    if abs(ahead_s) > _SKEW_S:
        return f"{ahead_s:+d} s against the server's; {LEEWAY_S:g} s are forgiven"
    return "agrees with the server's"


async def _look_at_room(patient: _Patient) -> str:
    assert patient.settings is not None
    try:
        async with (
            asyncio.timeout(2 * _PATIENCE_S),
            RoomClient(**patient.options.choices()) as room,
        ):
            patient.joined = True
            return f"joined {room.name} as {room.identity}"
    except PermissionDenied as error:
        raise Ailment(error.message, _room_repair(error)) from None
    except (RoomException, TimeoutError) as error:
        found = str(error) or "no welcome in time"
        raise Ailment(found, "look at the server's log") from None


def _room_repair(error: PermissionDenied) -> str:
    match error.details.get("status"):
        case 401:
            return (
                "it has not expired, so it was revoked, or the server has no such key, or no more: "
                "make a new one, signed with a key that the server has (--keys there and here), or "
                "use the same TOOLBUS_HOME as `toolbus serve --dev`"
            )
        case 403:
            return "make a token for this room: `toolbus token create --room`"
        case 404 | 426:
            return "is --url a toolbus server of this release?"
    return "make a new token: `toolbus token create`"


async def _look_at_grants(patient: _Patient) -> str:
    try:
        scope = ApiScope.from_claims(patient.claims.get("api", {}))
    except ValueError as error:
        raise Ailment(
            f"the grants are not readable: {plain_words(error)}", "`toolbus token create`"
        ) from None
    agents = scope.agents
    tools = _listed(agents.allow) + (f" but not {_listed(agents.deny)}" if agents.deny else "")
    names = "" if tuple(agents.register) == ("*",) else f" named {_listed(agents.register)}"
    may = {
        f"list {tools}": agents.use_tools,
        f"call {tools}": agents.call,
        f"host public toolkits{names}": agents.register_public_toolkit,
        f"host private toolkits{names}": agents.register_private_toolkit,
        f"act for {_listed(agents.act_for)}": agents.act_for,
        f"ask for builders {_listed(agents.builders)}": agents.builders,
        "see who is there (presence)": scope.presence,
        "send and hear messages (messaging)": scope.messaging,
        "have its traces continued (trace)": scope.trace,
        "observe calls (observe)": scope.observe,
        "look after rooms (admin)": scope.admin,
        f"approve {_listed(scope.approve)}": scope.approve,
        f"answer {_listed(scope.answer)}": scope.answer,
    }
    granted = [words for words, given in may.items() if given]
    if not granted:
        raise Ailment(
            "it may join the room and nothing else",
            "`toolbus token create` with --preset host, agent, user or full, or with --allow",
        )
    words = f"may {'; '.join(granted)}"
    return words if patient.joined else f"no room was joined; by its token it {words}"


_CHECKS = (
    Check("settings", _look_at_settings, ExitCode.USAGE),
    Check("key", _look_at_key, ExitCode.USAGE, ("settings",)),
    Check("token", _look_at_token, ExitCode.REFUSED, ("key",)),
    Check("port", _look_at_port, ExitCode.AWAY, ("settings",)),
    Check("clock", _look_at_clock, ExitCode.REFUSED, ("port",)),
    Check("room", _look_at_room, ExitCode.REFUSED, ("token", "port")),
    Check("grants", _look_at_grants, ExitCode.REFUSED, ("token",)),
)
