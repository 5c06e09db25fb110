"""`toolbus token`: creates tokens with the keys of a file, and shows the content of a token."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from toolbus.atomic_file import write_atomically
from toolbus.auth.claim_rules import claim_fault
from toolbus.auth.grant_options import FLAGS, read_scope
from toolbus.auth.jws import read_header
from toolbus.auth.key_sets import Issuer
from toolbus.auth.keys import KeyRing
from toolbus.auth.participant_names import full_name, name_fault
from toolbus.auth.tokens import (
    AUDIENCE,
    LEEWAY_S,
    MAX_JWT_BYTES,
    MAX_TOKEN_LIFE_S,
    MAX_UNTIL_S,
    ParticipantToken,
    RefusalReason,
    TokenRefused,
    VerifiedToken,
)
from toolbus.cli.columns import counted
from toolbus.cli.completion import complete_grant, complete_preset
from toolbus.cli.error_report import reporting, writing
from toolbus.diagnostics.checks import CHECKS
from toolbus.diagnostics.exit_codes import UsageError, with_step
from toolbus.diagnostics.join_errors import (
    expired_for_s,
    expiry_text,
    key_id_text,
    lifetime_text,
    read_claims,
    rooms_text,
)
from toolbus.diagnostics.user_code_errors import error_text
from toolbus.errors import PermissionDenied
from toolbus.settings import DEV_KEYS_FILE, home_of, read_token_file, token_or_file
from toolbus.untrusted_text import SHOWN_CHARS, json_text, one_line, shortened

__all__ = ["read_duration_s", "token"]

_MAX_RULES = 8
"""Of the rules that do not match, which a file may have hundreds of, so many are shown."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

_REASONS: MappingProxyType[RefusalReason, str] = MappingProxyType(
    {
        "malformed": "it is not a JWT with a JSON object",
        "too_long": f"it is longer than {MAX_JWT_BYTES} bytes",
        "bad_header": "its header is not valid",
        "alg_none": "it is not signed",
        "no_kid": "its header has no key id (kid)",
        "unknown_kid": "none of these keys has its key id (kid)",
        "no_key_set": "the key set of its issuer could not be read yet",
        "wrong_alg": "its signature algorithm is not that of the key",
        "bad_signature": "its signature does not match the key",
        "wrong_audience": "its audience is not toolbus",
        "wrong_issuer": "its issuer is not that of the key",
        "bad_time": "it contains an invalid time",
        "life_too_long": f"its lifetime is longer than {MAX_TOKEN_LIFE_S // 3600} hours",
        "issued_in_future": "its time of issue is in the future: check the clocks",
        "not_yet_valid": "it is not valid yet",
        "expired": "it has expired",
        "bad_jti": "its id is not valid",
        "bad_until": "its last time (until) is before its expiry, later than 400 days, or it has no"
        " id (jti)",
        "bad_name": "its participant name is not valid (PROTOCOL.md, TOKEN-7)",
        "bad_role": "its role is not valid (PROTOCOL.md, TOKEN-7)",
        "bad_room": "its rooms are not valid",
        "bad_grants": "its grants are not valid",
        "no_rule": "no [[rule]] of its issuer matches its claims",
    }
)

_KeysFlag = Annotated[
    Path | None,
    typer.Option(
        help="File with the keys. Default: the development key of this machine.",
        envvar="TOOLBUS_KEYS",
    ),
]

token: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)


@token.callback()
def _token() -> None:
    """Create tokens, and show their content."""


_Rooms = Annotated[
    list[str] | None,
    typer.Option(help="A room, or a pattern with *. Default: main. Repeatable."),
]
_Preset = Annotated[
    str | None,
    typer.Option(
        help="A preset of grants: host, agent, user or full.", autocompletion=complete_preset
    ),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(help="Tools that may be seen and called, for example 'weather.*'. Repeatable."),
]
_Deny = Annotated[
    list[str] | None,
    typer.Option(help="Tools that may be neither seen nor called; overrides --allow. Repeatable."),
]
_Grants = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=VALUE]",
        help="A further grant, for example observe or agents.act_for='*'; one value each. "
        "Repeatable.",
        autocompletion=complete_grant,
    ),
]
_Ttl = Annotated[str, typer.Option(help="Lifetime, for example 90s, 15m or 1h; at most 1d.")]
_Until = Annotated[
    str | None,
    typer.Option(
        help="How long it may live while it is used, for example 90d; at most 400d. --ttl is then "
        "one life: a server that keeps state gives it another one as long as it is connected."
    ),
]
_JsonErrors = Annotated[bool, typer.Option("--json", help="Print errors as JSON.")]


@token.command("create")
def _create(  # noqa: PLR0913 - a parameter for each flag
    name: Annotated[str, typer.Option(help="Name of the participant.")],
    room: _Rooms = None,
    preset: _Preset = None,
    allow: _Allow = None,
    deny: _Deny = None,
    grant: _Grants = None,
    role: Annotated[str, typer.Option(help="Role of the participant, visible to others.")] = "user",
    ttl: _Ttl = "1h",
    until: _Until = None,
    keys: _KeysFlag = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the token to this file, which only you can read; print nothing."),
    ] = None,
    if_needed: Annotated[
        bool,
        typer.Option(
            help="Leave the file of --out as it is while it has such a token, by one of these keys,"
            " in the first 80 % of its --ttl; a newer one has the same id. For services that start"
            " again. After a revocation remove the file."
        ),
    ] = False,
    json: _JsonErrors = False,
) -> None:
    """Create a token and print only the token.

    It needs grants: --preset, --allow or --grant.
    """
    with reporting(as_json=json, local=True):
        if if_needed and out is None:
            raise UsageError("--if-needed is for a file: name it with --out FILE")
        ring = _load(keys or home_of(os.environ) / DEV_KEYS_FILE)
        rooms = room or [os.environ.get("TOOLBUS_ROOM") or "main"]
        try:
            key = ring.signing_key
            if key is None:
                raise ValueError("none of these keys can sign: they are public keys")
            scope = read_scope(preset, grant or (), allow or (), deny or (), syntax=FLAGS)
            made = ParticipantToken(name=name, room=rooms, role=role, api=scope)
            ttl_s = read_duration_s(ttl)
            if not 0 < ttl_s <= MAX_TOKEN_LIFE_S:
                raise ValueError(f"--ttl {ttl} is not valid: it must be more than 0 and at most 1d")
            until_s = None if until is None else read_duration_s(until)
            if until_s is not None and not ttl_s < until_s <= MAX_UNTIL_S:
                text = "it must be longer than --ttl, and at most 400d"
                raise ValueError(f"--until {until} is not valid: {text}")
            jti = None
            if if_needed and out and (old := _same_token(out, made, until_s, ring)) is not None:
                # Participants read the file again at 80 % of a life, and then need a newer token.
                now = time.time()
                if now < old.issued_at + 0.8 * (old.expires_at - old.issued_at):
                    typer.echo(f"kept {out}: {_first_life_text(old, now)}", err=True)
                    return
                # A service may stay connected with the old one for longer than a life. With
                # another id the new one would then be refused as unused when it reconnects.
                jti = old.jti
            jwt = made.to_jwt(key, ttl_s=ttl_s, until_s=until_s, jti=jti)
        except ValueError as error:
            raise UsageError(f"no token was created: {error_text(error)}") from error
        if out is not None:
            with writing(out):
                write_atomically(out, f"{jwt}\n".encode(), mode=0o600)
            if if_needed:
                typer.echo(f"wrote {out}", err=True)
            return
        typer.echo(jwt)
        _warn_if_readable()


@token.command("inspect")
def _inspect(
    jwt: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="The token, the name of its file, also as @FILE, or - for stdin."
        ),
    ],
    keys: Annotated[
        Path | None,
        typer.Option(help="Check the token with the keys of this file, as a server does."),
    ] = None,
    json: _JsonErrors = False,
) -> None:
    """Print the content of a token as JSON. It is checked only with --keys."""
    with reporting(as_json=json, local=True):
        text = _read_text(jwt)
        claims = read_claims(text)
        ring = None if keys is None else _with_key_sets(_load(keys))
        typer.echo(f"key id (kid): {key_id_text(text)}", err=True)
        if ring is None:
            state = "not checked"
            if (ago_s := expired_for_s(claims)) is not None:
                state = f"{state}, {expiry_text(claims, ago_s).removeprefix('it ')}"
            typer.echo(f"{state}: --keys FILE checks the token", err=True)
            fault = name_fault(claims.get("sub"))
            # Without rooms it is of an identity provider: a rule of the server decides its name.
            if fault is not None and "room" in claims:
                typer.echo(f"no server accepts this token: the name (sub) {fault}", err=True)
        try:
            if ring is not None:
                _check(text, ring)
        finally:
            typer.echo(json_text(claims, indent=2))


def _same_token(
    path: Path, wanted: ParticipantToken, until_s: float | None, keys: KeyRing
) -> VerifiedToken | None:
    """Return the token of a file if it is what is wanted, and one of these keys signed it."""
    try:
        old = ParticipantToken.from_jwt(read_token_file(path), keys, allow_extended=True)
    except (OSError, ValueError, TokenRefused):
        return None
    if (old.until is None) != (until_s is None):
        return None
    fields = ("name", "room", "role", "api")
    return old if all(getattr(old, name) == getattr(wanted, name) for name in fields) else None


def _first_life_text(token: VerifiedToken, now: float) -> str:
    text = lifetime_text(token.expires_at, now) or "until now"
    return text if token.until is None else f"{text} in its first life"


def read_duration_s(text: str) -> float:
    """Parse seconds, or a number with the unit s, m, h or d. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write for example 90s, 15m, 1h or 1d")
    return float(match[1]) * _UNITS_S[match[2]]


def _warn_if_readable() -> None:
    """Warn if stdout is a file that other users can read."""
    try:
        number = sys.stdout.fileno()
        mode = os.fstat(number).st_mode
    except OSError:  # stdout is not a file
        return
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        text = f"other users can read this file: chmod 600 {_name_of_file(number)}"
        typer.echo(text, err=True)


def _name_of_file(number: int) -> str:
    try:
        path = Path(os.readlink(f"/dev/fd/{number}"))
    except OSError:  # not on every system
        return "FILE"
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def _load(path: Path) -> KeyRing:
    try:
        return KeyRing.load(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"there are no keys at {path}: name a file with --keys, create one with "
            "`toolbus key create`, or start `toolbus serve --dev` once"
        ) from error
    except OSError as error:
        text = "name a file with --keys; the default is in TOOLBUS_HOME"
        raise UsageError(f"cannot read the keys: {error}; {text}") from error
    except ValueError as error:
        raise UsageError(f"cannot read the keys: {error}") from error


def _read_text(given: str) -> str:
    try:
        if given == "-":
            return sys.stdin.read(MAX_JWT_BYTES + 1).strip()
        found = token_or_file(given)
        if isinstance(found, str):
            return found
        return read_token_file(found)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot read the token: {error}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check(jwt: str, keys: KeyRing) -> None:
    try:
        verified = ParticipantToken.from_jwt(jwt, keys, allow_extended=True)
    except TokenRefused as refused:
        # The owner of the keys may know the reason; a server tells it to no client.
        claims = read_claims(jwt)
        for line in _faults(refused.reason, jwt, claims, keys):
            typer.echo(one_line(line), err=True)
        text = f"the token is not valid: {_REASONS[refused.reason]} ({refused.reason})"
        error = PermissionDenied(text)
        if "room" not in claims:  # of an identity provider
            step = "correct the tables [[issuer]] and [[rule]], or get another token of its issuer"
            error = with_step(error, step)
        raise error from refused
    now = time.time()
    text = _first_life_text(verified, now)
    unknown = "it was revoked"
    if verified.until is not None:
        left = lifetime_text(verified.until, now) or "until now"
        text = f"{text}; {left} while it is used"
        if verified.expires_at + LEEWAY_S <= now:
            text = f"its first life is over; {left} while it is used"
            unknown = "it was used in each life, and whether it was revoked"
    typer.echo(f"signature and claims are valid; {text}", err=True)
    typer.echo(
        f"only the server knows whether {unknown}: `toolbus doctor --token FILE` asks it", err=True
    )
    issuer = keys.issuers.get(verified.issuer)
    rule = None if issuer is None else issuer.rule_of(read_claims(jwt))
    if issuer is None or rule is None:
        return
    name = full_name(verified.name, issuer.alias or "")
    for line in (
        f"rule {rule.number}: {json_text(dict(rule.match))}",
        f"identity: {one_line(name)} (issuer {issuer.iss}), role {verified.role}",
        f"{rooms_text(verified.room)}; grants: {json_text(verified.api.to_claims())}",
    ):
        typer.echo(line, err=True)


def _faults(
    reason: RefusalReason, jwt: str, claims: dict[str, Any], keys: KeyRing
) -> Iterator[str]:
    """Yield, as lines, which claims or fields a refusal is for, where that can be said."""
    iss = claims.get("iss")
    issuer = keys.issuers.get(iss) if isinstance(iss, str) else None
    match reason:
        case "unknown_kid" | "wrong_alg" | "wrong_issuer":
            yield from _key_faults(jwt, claims, keys, issuer)
        case "wrong_audience":
            yield claim_fault(claims, "aud", issuer.audience if issuer else AUDIENCE)
        case "no_rule" if issuer is not None:
            for rule in issuer.rules[:_MAX_RULES]:
                yield f"rule {rule.number}: {rule.mismatch(claims)}"
            if len(issuer.rules) > _MAX_RULES:
                yield f"and {counted(len(issuer.rules) - _MAX_RULES, 'further rule')}"
        case "bad_name":
            found = issuer.rule_of(claims) if issuer else None
            if found is not None:
                yield f"rule {found.number}: name: {found.fault_of_name(claims)}"
            else:
                yield f"the name (sub) {name_fault(claims.get('sub'))}"


def _key_faults(
    jwt: str, claims: dict[str, Any], keys: KeyRing, issuer: Issuer | None
) -> Iterator[str]:
    header, iss = read_header(jwt), claims.get("iss")
    key = ((issuer.keys if issuer else None) or keys).get(header["kid"])
    if key is None:
        known = {*keys.issuers, *(own.iss for own in keys)}
        if keys.issuers and isinstance(iss, str) and iss not in known:
            near = get_close_matches(iss, keys.issuers, 1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            yield f"no [[issuer]] has the iss {shortened(iss, SHOWN_CHARS)!r}{hint}"
    elif header.get("alg") != key.alg:
        alg = shortened(str(header.get("alg")), SHOWN_CHARS)
        yield f"the algorithm (alg) is {alg}, but the key {key.kid!r} is {key.alg}"
    else:
        yield claim_fault(claims, "iss", key.iss)


def _with_key_sets(keys: KeyRing) -> KeyRing:
    """Return the keys with the key sets at addresses, which are fetched by the server's package."""
    if not any(issuer.is_remote for issuer in keys.issuers.values()):
        return keys
    for entry in entry_points(group=CHECKS, name="key_sets"):
        try:
            filled: KeyRing = entry.load()(keys)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return filled
    raise UsageError("what fetches key sets is not installed: pip install 'toolbus[server]'")
