"""`toolbus doctor`: checks everything that joining a room needs, and suggests repairs.

It checks in this order: settings, key, token, port, ready, clock, room, renewal, grants. Checks
whose precondition failed are skipped. The checks of `--redis` come from the server package, those
of `--sandbox` from the toolkits.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from email import message_from_string
from email.utils import parsedate_to_datetime
from importlib.metadata import entry_points
from itertools import groupby
from math import inf
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from toolbus.auth.grants import ApiScope, matches_room
from toolbus.auth.keys import KeyRing
from toolbus.auth.participant_names import name_fault
from toolbus.auth.token_limits import LATEST_TIME, LEEWAY_S
from toolbus.cli.arguments import read_file
from toolbus.cli.columns import show_columns
from toolbus.cli.room_options import RoomOptions, joins_a_room
from toolbus.client.connect_errors import (
    certificate_text,
    foreign_server_error,
    serve_command,
    url_with_other_scheme,
    wrong_scheme_error,
)
from toolbus.diagnostics.checks import CHECKS, Check, CheckFailed, Finding, run_checks
from toolbus.diagnostics.exit_codes import ExitCode, UsageError, certificate_step
from toolbus.diagnostics.join_errors import (
    REFUSED_STEP,
    key_id_text,
    last_life_left_s,
    lifetime_text,
    read_claims,
    read_token,
    rooms_text,
    token_rooms,
)
from toolbus.diagnostics.spans import span_text
from toolbus.diagnostics.user_code_errors import error_text
from toolbus.errors import PermissionDenied, RoomException
from toolbus.room.room_client import RoomClient
from toolbus.settings import DEV_KEY_ORIGIN, VARIABLES, RoomSettings
from toolbus.transport.addresses import connect_to_host
from toolbus.untrusted_text import json_text, one_line
from toolbus.wire import PROTOCOL_HEADER

__all__ = ["check_room", "doctor"]

_TIMEOUT_S = 5.0
_CLOCK_SKEW_S = 5.0
_KEY_SET_AGE = re.compile(
    r'^toolbus_key_set_age_seconds\{issuer="([^"\n]{1,128})"\} (\+Inf|[0-9.e+-]{1,24})$',
    re.MULTILINE,
)
_OLD_KEY_SET_S = 900.0
"""Three requests of the server have failed by then."""
_SOON_S = 14 * 86_400
"""Someone has to create a new token by hand, and may be away for as long."""
_MAX_METRICS_BYTES = 262_144
"""The address may be that of any server, which could answer without end."""


@dataclass(slots=True)
class _Context:
    """What earlier checks have found out, for later ones."""

    options: RoomOptions
    target: RoomSettings | None = None
    settings: RoomSettings | None = None
    claims: dict[str, Any] = field(default_factory=dict)
    key_id: str = ""
    """The id of the key that signed the token."""
    server_time_s: float | None = None
    joined: bool = False
    until: float | None = None
    """When the last life of the token ends, by the server; None if it gives it no further one."""
    scope: ApiScope | None = None
    """The grants by which it joined."""


_RedisFlag = Annotated[
    str | None,
    typer.Option(
        "--redis",
        help="Check this Redis instead, the one of `toolbus serve --redis`; "
        "@FILE reads the URL from a file.",
        metavar="URL",
    ),
]
_SandboxFlag = Annotated[
    bool,
    typer.Option(
        "--sandbox",
        help="Check instead what confines commands on this machine, and show what each holds.",
    ),
]


@joins_a_room
def doctor(options: RoomOptions, redis: _RedisFlag = None, sandbox: _SandboxFlag = False) -> None:
    """Check settings, connection and grants, and suggest repairs.

    The checks are of settings, key, token, port, server, clock, room, renewal and grants.
    """
    holds: list[list[str]] = []
    if sandbox:
        findings, holds = _check_sandbox(options, redis)
    elif redis is None:
        findings = asyncio.run(check_room(options))
    else:
        findings = _check_redis(options, redis)
    if options.as_json:
        facts: list[dict[str, Any]] = [
            {"check": f.check, "status": f.status, "found": f.found, "repair": f.repair}
            for f in findings
        ]
        for fact in facts if sandbox else ():
            column = holds[0].index(fact["check"])
            fact["holds"] = {row[0]: row[column] for row in holds[1:]}
        typer.echo(json_text(facts))
    else:
        _show(findings)
        if holds:
            typer.echo()
            show_columns(holds)
    failed = (finding.exit_code for finding in findings if finding.exit_code)
    raise typer.Exit(next(failed, ExitCode.OK))


def _show(findings: Sequence[Finding]) -> None:
    for (status, found), alike in groupby(
        findings, lambda finding: (finding.status, finding.found)
    ):
        same = list(alike)
        # More skipped checks in a row with the same cause are shown in one line.
        if status == "skip" and len(same) > 2 and not any(finding.repair for finding in same):
            names = ", ".join(finding.check for finding in same)
            typer.echo(f"skip  {len(same)} more    {one_line(found)}: {names}")
            continue
        for finding in same:
            typer.echo(f"{status:<4}  {finding.check:<8}  {one_line(found)}")
            if finding.repair:
                typer.echo(f"                repair: {one_line(finding.repair)}")


async def check_room(options: RoomOptions) -> list[Finding]:
    """Run all checks of a room; skip those whose precondition failed."""
    return await run_checks(_CHECKS, _Context(options))


def _check_redis(options: RoomOptions, redis: str) -> list[Finding]:
    """Run the Redis checks of the server package. Raises UsageError."""
    if options != RoomOptions(as_json=options.as_json):
        raise UsageError("--redis checks a Redis and no room: omit the room flags")
    if redis.startswith("@"):
        redis = read_file("--redis", redis[1:]).strip()
    for entry in entry_points(group=CHECKS, name="redis"):
        findings: list[Finding] = asyncio.run(entry.load()(redis))
        return findings
    raise UsageError("the checks for Redis are not installed: pip install 'toolbus[server]'")


def _check_sandbox(
    options: RoomOptions, redis: str | None
) -> tuple[list[Finding], list[list[str]]]:
    """Try the sandboxes of the toolkits; return the table of what they hold too."""
    if redis is not None or options != RoomOptions(as_json=options.as_json):
        raise UsageError("--sandbox checks this machine and no room: omit the other flags")
    for entry in entry_points(group=CHECKS, name="sandbox"):
        found: tuple[list[Finding], list[list[str]]] = entry.load()()
        return found
    raise UsageError("the checks for sandboxes are not installed")


async def _check_settings(context: _Context) -> str:
    try:
        context.target = context.options.resolve_room()
    except UsageError as mistake:
        raise CheckFailed(
            mistake.message, "set it with a flag, a TOOLBUS_ variable or the settings file"
        ) from None
    text = f"{context.target.url}, room {context.target.room}"
    if context.target.context is not None:
        text = f"{text}, context {context.target.context}"
    for name in sorted(os.environ.keys() - VARIABLES):
        if name.startswith("TOOLBUS_") and (near := get_close_matches(name, VARIABLES, 1, 0.9)):
            unknown = f"{text}; {name} has no effect"
            raise CheckFailed(unknown, f"did you mean {near[0]}?", status="warn")
    return text


async def _check_key(context: _Context) -> str:
    """Check the source of the token: a given token, or a key to create one."""
    try:
        context.settings = context.options.resolve()
    except UsageError as mistake:
        repair = "`toolbus token create` creates a token, `toolbus key create` a key"
        if context.options.token and context.options.name:
            repair = "omit --token or --name"
        raise CheckFailed(mistake.message, repair) from None
    path = context.settings.keys
    if path is None:
        return f"not needed: {context.settings.token_from} is given"
    if not path.exists():
        raise CheckFailed(f"{path} does not exist", f"`toolbus key create --out {path}`")
    try:
        signing = KeyRing.load(path).signing_key
    except (OSError, ValueError) as error:
        raise CheckFailed(
            f"cannot read the keys: {error}", "`toolbus key create` creates a file"
        ) from None
    if signing is None:
        raise CheckFailed(f"no key in {path} can sign", "use a file with private keys")
    if path.stat().st_mode & 0o077:
        raise CheckFailed(f"other users can read {path}", f"chmod 600 {path}")
    return f"tokens are signed with {signing.kid!r} of {path} ({signing.alg}, issuer {signing.iss})"


async def _check_token(context: _Context) -> str:
    assert context.settings is not None
    try:
        jwt = await read_token(context.settings)
        claims = context.claims = read_claims(jwt)
    except UsageError as mistake:
        raise CheckFailed(mistake.message, "`toolbus token create` creates one") from None
    context.key_id = key_id_text(jwt)
    # Without rooms it is of an identity provider: a rule of the server decides name and rooms.
    is_own = "room" in claims
    fault = name_fault(claims.get("sub"))
    if fault is not None and is_own:
        raise CheckFailed(
            f"the name in the token {fault}", "`toolbus token create --name NAME` creates a new one"
        )
    expires_at = claims.get("exp")
    if not isinstance(expires_at, int | float) or not 0 < expires_at <= LATEST_TIME:
        raise CheckFailed(
            "the token has no valid time of expiry", "`toolbus token create` creates a new one"
        )
    now = time.time()
    lifetime = lifetime_text(expires_at, now)
    left_s = last_life_left_s(claims) or -LEEWAY_S
    if not lifetime and left_s <= -LEEWAY_S:
        raise CheckFailed(
            f"the token expired {span_text(now - expires_at, 2)} ago",
            "create a new one: `toolbus token create`",
        )
    if not is_own:
        return f"for {claims.get('sub')!r}, which needs a rule of the server, {lifetime}"
    room = context.settings.room
    rooms = token_rooms(claims)
    if not matches_room(rooms, room):
        raise CheckFailed(
            f"the token is for {rooms_text(rooms)}, not for room {room}",
            f"`toolbus token create --room {room}`, or use another --room",
        )
    if left_s > -LEEWAY_S:
        first = lifetime or "its first life is over"
        lifetime = f"{first}; {lifetime_text(now + left_s, now)} while it is used (`until`)"
    return f"for {claims.get('sub')!r} in {rooms_text(rooms)}, {lifetime}"


async def _check_port(context: _Context) -> str:
    assert context.target is not None
    url = context.target.url
    start = "start the server; is --url (TOOLBUS_URL) correct?"
    if context.settings is None or context.settings.token_from == DEV_KEY_ORIGIN:
        start = f"`{serve_command(url)}` starts a server; is --url (TOOLBUS_URL) correct?"
    try:
        head = await _http_response(url, f"/rooms/{context.target.room}")
    except TimeoutError:
        raise CheckFailed(f"{url} does not respond within {_TIMEOUT_S:g} s", start) from None
    except ssl.SSLCertVerificationError as error:
        step = certificate_step(error.verify_message)
        raise CheckFailed(f"{url}: {certificate_text(error)}", step) from None
    except OSError as error:
        await _check_scheme(url)
        raise CheckFailed(f"no response from {url}: {error.strerror or error}", start) from None
    status, _, rest = head.partition("\r\n")
    if not status.startswith("HTTP/1.1 "):
        await _check_scheme(url)
        raise CheckFailed(foreign_server_error(url, "it does not speak HTTP/1.1").message, start)
    if f"\r\n{PROTOCOL_HEADER.lower()}:" not in head.lower():
        found = " ".join(status.split()[1:2])
        raise CheckFailed(foreign_server_error(url, f"HTTP {found}").message, start)
    with suppress(ValueError, OverflowError):  # not every server sends its time
        date = message_from_string(rest).get("date", "")
        context.server_time_s = parsedate_to_datetime(date).timestamp()
    return f"{url} responds"


async def _check_scheme(url: str) -> None:
    """Raise CheckFailed if the server expects wss instead of ws, or ws instead of wss."""
    right = await url_with_other_scheme(url)
    if right is not None:
        raise CheckFailed(wrong_scheme_error(url, right).message, f"use --url {right}") from None


async def _check_ready(context: _Context) -> str:
    """Ask the server, or the balancer before it, whether it accepts participants."""
    assert context.target is not None
    url = context.target.url
    try:
        head = await _http_response(url, "/readyz")
    except OSError:
        raise CheckFailed(f"{url} does not answer /readyz", "", status="skip") from None
    status, _, rest = head.partition("\r\n")
    text = rest.partition("\r\n\r\n")[2].strip().partition("\n")[0]
    if " 404 " in f"{status} " and not text.startswith(("leaving", "not ready")):
        raise CheckFailed("the server, or a proxy, shows no readiness", "", status="skip")
    if " 200 " in f"{status} " and "without" not in text:
        return "accepts participants" + await _key_set_ages(url)
    repair = ""
    if "Redis" in text or "another release" in text:
        repair = "`toolbus doctor --redis URL` checks the Redis of the server, from its machine"
    raise CheckFailed(text or status, repair, status="warn")


async def _key_set_ages(url: str) -> str:
    """Return how old the key sets of the server are, by its metrics; empty if it shows none."""
    try:
        metrics = await _http_response(url, "/metrics", _MAX_METRICS_BYTES)
    except OSError:
        return ""
    ages = {found[1]: float(found[2]) for found in _KEY_SET_AGE.finditer(metrics)}
    texts = []
    for issuer, age_s in ages.items():
        age = "was not fetched yet" if age_s == inf else f"is {age_s:.0f} s old"
        texts.append(f"the key set of {issuer} {age}")
    if any(age_s > _OLD_KEY_SET_S for age_s in ages.values()):
        text = "the log of the server has the reason; its keys that are new are not accepted"
        raise CheckFailed("; ".join(texts), text, status="warn")
    return "".join(f"; {text}" for text in texts)


async def _http_response(url: str, path: str, most: int = 16_384) -> str:
    """Request a path without a token, and return the first bytes of the response.

    Addresses are chosen as for a websocket: one that does not answer gives way to the next.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dG9vbGJ1cy1kb2N0b3IhIQ==\r\n\r\n"
    )

    port = parts.port or 80
    tls: dict[str, Any] = {}
    if parts.scheme == "wss":
        port = parts.port or 443
        tls = {"ssl": True, "server_hostname": host}

    async def ask(sock: socket.socket) -> bytes:
        reader, writer = await asyncio.open_connection(sock=sock, **tls)
        try:
            writer.write(request.encode())
            response = b""
            # It may be of whatever listens there.
            while not _is_complete(response) and len(response) < most:
                part = await reader.read(4_096)
                if not part:
                    break
                response += part
            return response
        finally:
            writer.close()

    return (await connect_to_host(host, port, ask, timeout_s=_TIMEOUT_S)).decode("latin-1")


def _is_complete(response: bytes) -> bool:
    head, end, body = response.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d{1,9})\r\n", head + b"\r\n", re.IGNORECASE)
    return bool(end) and (length is None or len(body) >= int(length[1]))


async def _check_clock(context: _Context) -> str:
    if context.server_time_s is None:
        return "the server does not send its time"
    ahead_s = round(time.time() - context.server_time_s)
    if abs(ahead_s) >= LEEWAY_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        raise CheckFailed(
            f"the local clock is {abs(ahead_s)} s {side} the server's",
            "synchronize both by NTP: tokens are valid by the clock",
        )
    if abs(ahead_s) > _CLOCK_SKEW_S:
        return f"differs by {ahead_s:+d} s from the server's; {LEEWAY_S:g} s are tolerated"
    return "same time as the server's"


async def _check_room(context: _Context) -> str:
    assert context.settings is not None
    try:
        async with (
            asyncio.timeout(2 * _TIMEOUT_S),
            RoomClient(**context.options.choices(), locked=False) as room,
        ):
            context.joined = True
            context.scope = room.grants
            until = room._entered.checked_welcome.facts.get("until")
            if isinstance(until, int | float) and 0 < until <= LATEST_TIME:
                context.until = until
            return f"joined {room.room} as {room.me.full_name}"
    except PermissionDenied as error:
        raise CheckFailed(error.message, _room_repair(error)) from None
    except (RoomException, TimeoutError) as error:
        found = str(error) or "the server did not accept the connection in time"
        raise CheckFailed(found, "check the server's log") from None


def _room_repair(error: PermissionDenied) -> str:
    match error.details.get("status"):
        case 401:
            return getattr(error, "next_step", REFUSED_STEP)
        case 403:
            return "create a token for this room: `toolbus token create --room`"
        case 404 | 426:
            return "is the server at --url a toolbus server of this release?"
    return "create a new token: `toolbus token create`"


async def _check_renewal(context: _Context) -> str:
    """Find for how long the participant can go on, and what it needs for that."""
    settings, claims = context.settings, context.claims
    assert settings is not None
    if settings.keys is not None:
        return "makes new tokens itself, for as long as the server trusts its key"
    if context.until is not None:
        life_s = claims["exp"] - claims["iat"]
        text = (
            f"can go on until {_time_text(context.until)} without a newer token, while the server"
            f" stores its state and trusts key {context.key_id!r}; not after {span_text(life_s, 2)}"
            " without a connection"
        )
        soon_s = min(_SOON_S, (context.until - claims["iat"]) / 10)
        if context.until - time.time() < soon_s:
            repair = "create a new token: `toolbus token create` with the same flags and --until"
            raise CheckFailed(text, repair, status="warn")
        return text
    text = f"can go on until {_time_text(claims['exp'])}"
    if last_life_left_s(claims) is not None:
        repair = "start the server with --state FOLDER, or with --redis"
        unused = "no further life is given, since the server stores no state"
        raise CheckFailed(f"{text}; {unused}", repair, status="warn")
    if not settings.renewable:
        return f"{text}; {settings.token_from} is not read again"
    writer = ", which the kubelet writes" if "kubernetes.io" in claims else ""
    return f"{text}; by then {settings.token_from} has to be a newer one{writer}"


def _time_text(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(at))


async def _check_grants(context: _Context) -> str:
    scope = context.scope
    if "room" in context.claims:
        try:
            scope = ApiScope.from_claims(context.claims.get("api", {}))
        except ValueError as error:
            raise CheckFailed(
                f"the grants are not valid: {error_text(error)}", "`toolbus token create`"
            ) from None
    if scope is None:
        raise CheckFailed("a rule of the server decides the grants", "", status="skip")
    agents = scope.agents
    tools = ", ".join(agents.allow)
    if agents.deny:
        tools += f" but not {', '.join(agents.deny)}"
    names = ""
    if tuple(agents.register) != ("*",):
        names = f" named {', '.join(agents.register)}"
    may = {
        f"list {tools}": agents.use_tools,
        f"call {tools}": agents.call,
        f"host public toolkits{names}": agents.register_public_toolkit,
        f"host private toolkits{names}": agents.register_private_toolkit,
        f"act on behalf of {', '.join(agents.act_for)}": agents.act_for,
        f"use builders {', '.join(agents.builders)}": agents.builders,
        f"approve calls that are made for it to {', '.join(scope.approve)}": scope.approve,
        f"approve everybody's calls to {', '.join(scope.approve_all)}": scope.approve_all,
        "approve calls that it makes itself for others (approve_own)": scope.approve_own,
        f"answer what is asked in calls for it of {', '.join(scope.answer)}": scope.answer,
        "see participants (presence)": scope.presence,
        "send and receive messages (messaging)": scope.messaging,
        "pass on its trace context (trace)": scope.trace,
        "observe calls (observe)": scope.observe,
        "administer rooms (admin)": scope.admin,
    }
    granted = [text for text, given in may.items() if given]
    if not granted:
        raise CheckFailed(
            "the token permits only to join the room",
            "`toolbus token create` with --preset host, agent, user or full, with --allow, or "
            "with --grant",
        )
    text = f"may {'; '.join(granted)}"
    if context.joined:
        return text
    return f"no room was joined; by its token it {text}"


_CHECKS = (
    Check("settings", _check_settings, ExitCode.USAGE),
    Check("key", _check_key, ExitCode.USAGE, ("settings",)),
    Check("token", _check_token, ExitCode.REFUSED, ("key",)),
    Check("port", _check_port, ExitCode.UNAVAILABLE, ("settings",)),
    Check("ready", _check_ready, ExitCode.UNAVAILABLE, ("port",)),
    Check("clock", _check_clock, ExitCode.REFUSED, ("port",)),
    Check("room", _check_room, ExitCode.REFUSED, ("token", "port")),
    Check("renewal", _check_renewal, ExitCode.REFUSED, ("room",)),
    Check("grants", _check_grants, ExitCode.REFUSED, ("token",)),
)
