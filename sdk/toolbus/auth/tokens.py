"""The identity and grants of a participant as a signed token.

An issuer signs a `ParticipantToken`; a server makes a `VerifiedToken` of it. The reason of a
refusal stays in this process: the refused client always gets the same message. Sockets, live rooms
and the revocation of tokens are outside of this module.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, TypeGuard

from toolbus.auth.grants import ApiScope, check_room_pattern, matches_room
from toolbus.auth.key_sets import Issuer
from toolbus.auth.keys import Algorithm, Key, KeyRing
from toolbus.auth.participant_names import MAX_RULED_NAME_CHARS, is_participant_name, name_fault
from toolbus.auth.token_limits import LATEST_TIME, LEEWAY_S, MAX_JWT_BYTES, MAX_ROOM_PATTERNS
from toolbus.errors import PermissionDenied

__all__ = [
    "AUDIENCE",
    "LEEWAY_S",
    "MAX_JWT_BYTES",
    "MAX_TOKEN_LIFE_S",
    "MAX_UNTIL_S",
    "Algorithm",
    "Key",
    "KeyRing",
    "ParticipantToken",
    "RefusalReason",
    "TokenRefused",
    "VerifiedToken",
]

AUDIENCE = "toolbus"
"""The audience that every token names."""
MAX_TOKEN_LIFE_S = 24 * 3600
"""In seconds: a stolen token is of use, and a revoked one remembered, for as long (TOKEN-3)."""
MAX_UNTIL_S = 400 * 24 * 3600
"""In seconds: the most that a token may be valid while it is used (TOKEN-8). Servers remember the
revocation of one of these for as long."""
_MAX_JTI_CHARS = 128
"""Every server of a bus remembers the revoked ones."""

RefusalReason: TypeAlias = Literal[
    "malformed",
    "too_long",
    "bad_header",
    "alg_none",
    "no_kid",
    "unknown_kid",
    "no_key_set",
    "wrong_alg",
    "bad_signature",
    "wrong_audience",
    "wrong_issuer",
    "bad_time",
    "life_too_long",
    "issued_in_future",
    "not_yet_valid",
    "expired",
    "bad_jti",
    "bad_until",
    "bad_name",
    "bad_role",
    "bad_room",
    "bad_grants",
    "no_rule",
]
"""Why a token was refused: a closed set, suitable as the label of a counter."""


class TokenRefused(PermissionDenied):
    """A token is invalid.

    Args:
        reason: For logs and counters of the refusing side. The message is constant.
    """

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__("the token was refused")
        self.reason: RefusalReason = reason


@dataclass(frozen=True, slots=True)
class ParticipantToken:
    """A participant's name, rooms, role and grants; ValueError for what no server would accept."""

    name: str
    """The participant's name, 1 to 128 characters (PROTOCOL.md, TOKEN-7); unique to its issuer."""
    room: Sequence[str]
    """The rooms it may join: up to 64 names, or patterns with `*`. A string is one pattern."""
    role: str = "user"
    """The role that others see; same rules as for a name."""
    api: ApiScope = field(default_factory=ApiScope)
    """Its grants in these rooms."""

    def __post_init__(self) -> None:
        patterns = [self.room] if isinstance(self.room, str) else self.room
        object.__setattr__(self, "room", tuple(patterns))
        for label in ("name", "role"):
            fault = name_fault(getattr(self, label))
            if fault is not None:
                raise ValueError(f"{label} {fault}")
        if not 0 < len(self.room) <= MAX_ROOM_PATTERNS:
            raise ValueError(f"a token has 1 to {MAX_ROOM_PATTERNS} rooms or patterns of rooms")
        for pattern in self.room:
            check_room_pattern(pattern)

    def allows_room(self, room: str) -> bool:
        """Whether one of its patterns covers this room."""
        return matches_room(self.room, room)

    def to_jwt(
        self,
        key: Key,
        *,
        ttl_s: float = 3600,
        until_s: float | None = None,
        jti: str | None = None,
        not_before: float | None = None,
        now: float | None = None,
    ) -> str:
        """Mint a signed token that is valid for `ttl_s` seconds, at most a day.

        With `until_s` these seconds are its first life. A server that keeps state gives it another
        one as long as the last, while it has a connection, and so on.

        Args:
            key: Signs the token; its issuer is the token's.
            ttl_s: Seconds until it expires; a fraction is rounded up.
            until_s: Seconds until its last life ends, at most 400 days; None for one life.
            jti: Its id, 1 to 128 characters; by default a new one. Tokens with one id share their
                lives and their revocation.
            not_before: The time before which it is not valid, in seconds since the epoch.
            now: The current time in seconds since the epoch; this machine's clock by default.

        Raises:
            ValueError: If the key cannot sign, `ttl_s` is out of bounds, or the token is too long.
        """
        if not 0 < ttl_s <= MAX_TOKEN_LIFE_S:
            raise ValueError(f"ttl_s must be more than 0 and at most {MAX_TOKEN_LIFE_S}")
        if until_s is not None and not ttl_s < until_s <= MAX_UNTIL_S:
            raise ValueError(f"until_s must be more than ttl_s and at most {MAX_UNTIL_S}")
        issued_at = int(time.time() if now is None else now)
        claims: dict[str, Any] = {
            "sub": self.name,
            "room": list(self.room),
            "role": self.role,
            "aud": AUDIENCE,
            "iss": key.iss,
            "iat": issued_at,
            "exp": issued_at + math.ceil(ttl_s),
            "jti": jti or secrets.token_hex(16),
            "api": self.api.to_claims(),
        }
        if until_s is not None:
            claims["until"] = issued_at + math.ceil(until_s)
        if not_before is not None:
            claims["nbf"] = not_before
        jwt = key.sign(json.dumps(claims, separators=(",", ":"), allow_nan=False).encode())
        if len(jwt) > MAX_JWT_BYTES:
            raise ValueError(f"the token exceeds {MAX_JWT_BYTES} bytes: use fewer patterns")
        return jwt

    @classmethod
    def from_jwt(
        cls, jwt: str, keys: KeyRing, *, now: float | None = None, allow_extended: bool = False
    ) -> VerifiedToken:
        """Verify a signed token: header, signature, issuer, audience, times, then other claims.

        At most one signature is verified, and none if the header is already invalid.

        Args:
            jwt: The token as its holder sent it.
            keys: The trusted keys, and issuers with their key sets and rules; nothing is fetched.
            now: The current time in seconds since the epoch; this machine's clock by default.
            allow_extended: Accept a token with `until` after its first life too. Whether it was
                given another one is for the caller to check.

        Raises:
            TokenRefused: The token is invalid; no other exception is raised.
        """
        key, issuer = _pinned_key(jwt, keys)
        claims = _signed_claims(jwt, key)
        audience = claims.get("aud")
        expected = AUDIENCE if issuer is None else issuer.audience
        if audience != expected and not (isinstance(audience, list) and expected in audience):
            raise TokenRefused("wrong_audience")
        if claims.get("iss") != key.iss:
            raise TokenRefused("wrong_issuer")
        now = time.time() if now is None else now
        issued_at, expires_at = _checked_times(claims, now)
        jti = claims.get("jti", "")
        if not isinstance(jti, str) or len(jti) > _MAX_JTI_CHARS or not jti.isprintable():
            raise TokenRefused("bad_jti")
        # Of an identity provider the rules decide, and they give no further life.
        until = _checked_until(claims, issued_at, expires_at) if issuer is None else None
        ends_at = expires_at if until is None or not allow_extended else until
        if now >= ends_at + LEEWAY_S:
            raise TokenRefused("expired")
        if issuer is None:
            participant = _read_participant(claims)
        else:
            participant = _ruled_participant(claims, issuer)
        return VerifiedToken(
            **participant,
            issuer=key.iss,
            key_id=key.kid,
            issued_at=issued_at,
            expires_at=expires_at,
            jti=jti,
            until=until,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedToken(ParticipantToken):
    """A token with a valid signature and valid claims, made by `ParticipantToken.from_jwt` only."""

    issuer: str
    """The issuer; with the name, the participant's identity."""
    key_id: str
    """The `kid` of the key that signed."""
    issued_at: float
    """When it was issued, in seconds since the epoch by the issuer's clock."""
    expires_at: float
    """When it expires, likewise. `LEEWAY_S` later no server accepts it, unless it has `until`."""
    jti: str
    """Its id, for revocation; empty if the issuer gave none."""
    until: float | None = None
    """When the last life ends of one that is valid while it is used, likewise; None for one life.

    Each life is as long as the first, `expires_at - issued_at`.
    """

    def __post_init__(self) -> None:
        """Check nothing again: `from_jwt` has, and a name by a rule may be longer."""
        object.__setattr__(self, "room", tuple(self.room))


def _pinned_key(jwt: str, keys: KeyRing) -> tuple[Key, Issuer | None]:
    """Return the key that the header names, and its issuer if that has a key set.

    Only `kid` and `alg` of the header are used. The payload, not verified yet, chooses the set: a
    `kid` means a key of that issuer alone.
    """
    if not isinstance(jwt, str) or not jwt.isascii():
        raise TokenRefused("malformed")
    if len(jwt) > MAX_JWT_BYTES:
        raise TokenRefused("too_long")
    header = _header(jwt)
    alg, kid = header.get("alg"), header.get("kid")
    if isinstance(alg, str) and alg.strip().lower() == "none":
        raise TokenRefused("alg_none")
    if not isinstance(kid, str):
        raise TokenRefused("no_kid")
    issuer = _unverified_issuer(jwt, keys)
    if issuer is None:
        key = keys.get(kid)
    elif issuer.keys is None:
        raise TokenRefused("no_key_set")
    else:
        key = issuer.keys.get(kid)
    if key is None:
        raise TokenRefused("unknown_kid")
    if alg != key.alg:
        raise TokenRefused("wrong_alg")
    return key, issuer


def _unverified_issuer(jwt: str, keys: KeyRing) -> Issuer | None:
    if not keys.issuers:
        return None
    from toolbus.auth.jws import read_issuer

    name = read_issuer(jwt)
    return keys.issuers.get(name) if isinstance(name, str) else None


def _header(jwt: str) -> dict[str, Any]:
    from toolbus.auth.jws import read_header

    try:
        header = read_header(jwt)
    except ValueError as error:
        raise TokenRefused("malformed") from error
    except LookupError as error:
        raise TokenRefused("bad_header") from error
    if "crit" in header:  # no extension is supported, not even those that the library supports
        raise TokenRefused("bad_header")
    return header


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Claims are not checked by PyJWT's own options: those have no parameter for the current time, they
# truncate times to whole seconds, and they refuse an audience list that has another type in it.


def _signed_claims(jwt: str, key: Key) -> dict[str, Any]:
    try:
        payload = key.check(jwt)
    except ValueError as error:
        raise TokenRefused("bad_signature") from error
    try:
        claims = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise TokenRefused("malformed") from error
    if not isinstance(claims, dict):
        raise TokenRefused("malformed")
    return claims


def _time_of(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused("bad_time")
    if not 0 <= value <= LATEST_TIME:  # NaN fails too, and integers too big for a float
        raise TokenRefused("bad_time")
    return float(value)


def _checked_times(claims: dict[str, Any], now: float) -> tuple[float, float]:
    issued_at, expires_at = _time_of(claims, "iat"), _time_of(claims, "exp")
    if expires_at <= issued_at:
        raise TokenRefused("bad_time")
    if expires_at - issued_at > MAX_TOKEN_LIFE_S:
        raise TokenRefused("life_too_long")
    if issued_at > now + LEEWAY_S:
        raise TokenRefused("issued_in_future")
    if "nbf" in claims and _time_of(claims, "nbf") > now + LEEWAY_S:
        raise TokenRefused("not_yet_valid")
    return issued_at, expires_at


def _checked_until(claims: dict[str, Any], issued_at: float, expires_at: float) -> float | None:
    """Return the claim `until`, without which a token has one life."""
    value = claims.get("until")
    if value is None:
        return None
    # Its lives are counted by its id.
    if isinstance(value, bool) or not isinstance(value, int | float) or not claims.get("jti"):
        raise TokenRefused("bad_until")
    if not expires_at <= value <= issued_at + MAX_UNTIL_S:  # NaN fails too
        raise TokenRefused("bad_until")
    return float(value)


def _is_room_list(value: object) -> TypeGuard[list[str]]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ROOM_PATTERNS:
        return False
    try:
        return all(check_room_pattern(pattern) for pattern in value)
    except ValueError:
        return False


def _read_participant(claims: dict[str, Any]) -> dict[str, Any]:
    name, role, room = claims.get("sub"), claims.get("role", "user"), claims.get("room")
    if not is_participant_name(name):
        raise TokenRefused("bad_name")
    if not is_participant_name(role):
        raise TokenRefused("bad_role")
    if not _is_room_list(room):
        raise TokenRefused("bad_room")
    try:
        api = ApiScope.from_claims(claims.get("api", {}))
    except ValueError as error:
        raise TokenRefused("bad_grants") from error
    return {"name": name, "room": room, "role": role, "api": api}


def _ruled_participant(claims: dict[str, Any], issuer: Issuer) -> dict[str, Any]:
    rule = issuer.rule_of(claims)
    if rule is None:
        raise TokenRefused("no_rule")
    name = rule.name_of(claims)
    if not is_participant_name(name, MAX_RULED_NAME_CHARS):
        raise TokenRefused("bad_name")
    return {"name": name, "room": rule.rooms, "role": rule.role, "api": rule.api}
