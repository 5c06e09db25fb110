"""`toolbus token`: mints tokens with the keys of a file, and reads what one says."""

from __future__ import annotations

import json as json_codec
import os
import re
import shlex
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from toolbus.commands.completion import complete_preset
from toolbus.commands.outcome import reporting
from toolbus.commands.plain_words import plain_words
from toolbus.errors import PermissionDenied
from toolbus.exit_codes import UsageMistake, printable
from toolbus.grants import ApiScope
from toolbus.joining import expired_s, life_words, read_claims
from toolbus.keys import KeyRing
from toolbus.settings import DEV_KEYS_FILE, PRESETS, home_of
from toolbus.tokens import (
    MAX_JWT_BYTES,
    MAX_TOKEN_LIFE_S,
    ParticipantToken,
    RefusalReason,
    TokenRefused,
)

__all__ = ["read_duration_s", "token"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

_REASONS: MappingProxyType[RefusalReason, str] = MappingProxyType(
    {
        "malformed": "it is no JWT, or no JSON object is in it",
        "too_long": f"it is longer than {MAX_JWT_BYTES} bytes",
        "bad_header": "its header is not understood",
        "alg_none": "it is not signed",
        "no_kid": "its header names no key",
        "unknown_kid": "none of these keys has the name in its header",
        "wrong_alg": "it was signed another way than with the key that its header names",
        "bad_signature": "the key that its header names did not sign it like this",
        "wrong_audience": "it is for another service than toolbus",
        "wrong_issuer": "its issuer is another than the key's",
        "bad_time": "a time in it is not valid",
        "life_too_long": f"it is to live for more than {MAX_TOKEN_LIFE_S // 3600} hours",
        "issued_in_future": "it was issued in the future: do the clocks agree?",
        "not_yet_valid": "it does not hold yet",
        "expired": "it has expired",
        "bad_jti": "its id is not valid",
        "bad_name": "its participant's name is not valid",
        "bad_role": "its role is not valid",
        "bad_room": "its rooms are not valid",
        "bad_grants": "its grants are not understood",
    }
)

_KeysFlag = Annotated[
    Path | None,
    typer.Option(
        help="The keys; the development key of this machine unless said.", envvar="TOOLBUS_KEYS"
    ),
]

token: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)


@token.callback()
def _token() -> None:
    """Make tokens, and read them."""


_Rooms = Annotated[
    list[str] | None,
    typer.Option(help="A room, or a pattern with *; main unless said. Repeat it."),
]
_Preset = Annotated[
    str | None,
    typer.Option(help="What it may do: host, agent, user or full.", autocompletion=complete_preset),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(help="Tools that it may see and call, as 'weather.*'. Repeat it."),
]
_Deny = Annotated[
    list[str] | None, typer.Option(help="Tools that it may not; wins over --allow. Repeat it.")
]
_Ttl = Annotated[str, typer.Option(help="How long it holds: 90s, 15m, 1h, 1d at most.")]
_JsonErrors = Annotated[bool, typer.Option("--json", help="Print errors as JSON.")]


@token.command("create")
def _create(  # noqa: PLR0913 - a parameter for each flag
    name: Annotated[str, typer.Option(help="Who it is for.")],
    room: _Rooms = None,
    preset: _Preset = None,
    allow: _Allow = None,
    deny: _Deny = None,
    role: Annotated[str, typer.Option(help="What others see it as.")] = "user",
    ttl: _Ttl = "1h",
    keys: _KeysFlag = None,
    json: _JsonErrors = False,
) -> None:
    """Make a token and print it alone."""
    with reporting(as_json=json, local=True):
        ring = _load(keys or home_of(os.environ) / DEV_KEYS_FILE)
        rooms = room or [os.environ.get("TOOLBUS_ROOM") or "main"]
        try:
            key = ring.signing_key
            if key is None:
                raise ValueError("none of these keys can sign: they are public halves")
            scope = _scope(preset, tuple(allow or ()), tuple(deny or ()))
            made = ParticipantToken(name=name, room=rooms, role=role, api=scope)
            typer.echo(made.to_jwt(key, ttl_s=_read_ttl_s(ttl)))
        except ValueError as error:
            raise UsageMistake(f"no token was made: {plain_words(error)}") from error
        _warn_of_readers()


@token.command("inspect")
def _inspect(
    jwt: Annotated[str, typer.Argument(metavar="TOKEN", help="The token, a file, or - for stdin.")],
    keys: Annotated[
        Path | None, typer.Option(help="Check it with these keys, as a server would.")
    ] = None,
    json: _JsonErrors = False,
) -> None:
    """Print what a token says, as JSON. Only --keys checks whether it holds."""
    with reporting(as_json=json, local=True):
        text = _read_text(jwt)
        claims = _claims_of(text, is_given=text == jwt)
        if keys is None:
            ago_s = expired_s(claims)
            over = "" if ago_s is None else f", and it expired {round(ago_s)} s ago"
            typer.echo(f"not checked{over}: --keys keys.toml says whether it holds", err=True)
        else:
            _check(text, _load(keys))
        typer.echo(printable(json_codec.dumps(claims, ensure_ascii=False, indent=2)))


def _scope(preset: str | None, allow: tuple[str, ...], deny: tuple[str, ...]) -> ApiScope:
    if preset is None and not allow:
        raise ValueError(
            f"say what it may do: --preset {', '.join(PRESETS)}, or --allow 'toolkit.*', or both"
        )
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"no preset is called {preset!r}: there are {', '.join(PRESETS)}")
    scope = ApiScope() if preset is None else PRESETS[preset]()
    changes: dict[str, Any] = {"deny": deny} if deny else {}
    if allow:
        changes |= {"allow": allow, "use_tools": True, "call": True}
    return replace(scope, agents=replace(scope.agents, **changes))


def read_duration_s(text: str) -> float:
    """Read seconds, or a number with s, m, h or d after it. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time: write 90s, 15m, 1h or 1d")
    return float(match[1]) * _UNITS_S[match[2]]


def _read_ttl_s(text: str) -> float:
    ttl_s = read_duration_s(text)
    if not 0 < ttl_s <= MAX_TOKEN_LIFE_S:
        raise ValueError(f"--ttl {text} is no life of a token: more than 0, and at most 1d")
    return ttl_s


def _warn_of_readers() -> None:
    """Say where stdout is a file that others can read."""
    try:
        number = sys.stdout.fileno()
        mode = os.fstat(number).st_mode
    except OSError:  # no file at all
        return
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        words = f"this file can be read by others: chmod 600 {_name_of_file(number)}"
        typer.echo(words, err=True)


def _name_of_file(number: int) -> str:
    try:
        path = Path(os.readlink(f"/dev/fd/{number}"))
    except OSError:  # not on every system
        return "FILE"
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _load(path: Path) -> KeyRing:
    try:
        return KeyRing.load(path)
    except FileNotFoundError as error:
        raise UsageMistake(
            f"there are no keys at {path}: name the file with --keys, make one with "
            "`toolbus key create`, or start `toolbus serve --dev` once"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageMistake(f"cannot read the keys: {error}") from error


def _read_text(given: str) -> str:
    try:
        if given == "-":
            return sys.stdin.read(MAX_JWT_BYTES + 1).strip()
        if given.startswith("@") or os.path.isfile(given):
            return Path(given.removeprefix("@")).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UsageMistake(f"cannot read the token: {error}") from error
    return given.strip()


def _claims_of(text: str, *, is_given: bool) -> dict[str, Any]:
    try:
        return read_claims(text)
    except UsageMistake as mistake:
        if is_given:  # not repeated: it may be a part of a token
            raise UsageMistake(f"no file of this name is here, and {mistake}") from mistake
        raise


def _check(jwt: str, keys: KeyRing) -> None:
    try:
        verified = ParticipantToken.from_jwt(jwt, keys)
    except TokenRefused as refused:
        # Whoever has the keys may know why; a server says it to nobody.
        words = f"the token does not hold: {_REASONS[refused.reason]} ({refused.reason})"
        raise PermissionDenied(words) from refused
    words = life_words(verified.expires_at, time.time())
    typer.echo(f"it holds: {words or 'until now'}", err=True)
