"""Stores which tokens are revoked.

A revocation is dropped when no valid token can match it any more: after the longest life of a token
without `until`, or, where this server gives tokens further lives, after the longest `until`. There
is a limit all the same (PROTOCOL.md, ADMIN-4); a revocation that is dropped too early is logged.
Time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from toolbus.auth.tokens import LEEWAY_S, MAX_TOKEN_LIFE_S, MAX_UNTIL_S, VerifiedToken
from toolbus.bounded_logging import bounded_logger
from toolbus_server.registry.models import Identity

__all__ = ["Revocation", "Revocations", "is_issued_before", "revoked_until"]

K = TypeVar("K")

_logger = bounded_logger(__name__)
_MAX_REVOCATIONS = 100_000
"""The maximum of revoked identities, and of revoked tokens."""


class Revocation(NamedTuple):
    """A revocation of one token, or of all that an identity had."""

    target: Identity | str
    """An identity, or the id of a token."""
    at: float
    """When it was made, in seconds since the epoch."""
    ends_at: float
    """When no token can match it any more, likewise."""


def is_issued_before(issued_at: float, revoked_at: float) -> bool:
    """Whether a token counts as issued before a revocation of all that its holder had until then.

    Its issuer's clock may be ahead by `LEEWAY_S`, so one issued up to that time later counts too.
    """
    return issued_at <= revoked_at + LEEWAY_S


def revoked_until(at: float, until: float | None, *, extends: bool) -> float:
    """Return when a revocation may be dropped.

    Args:
        at: When it was made.
        until: When the last life of the token ends, if the administrator gave it.
        extends: Whether tokens get further lives.
    """
    # A revoked token gets no further life, so after this time it is refused as unused anyway.
    shortest = at + MAX_TOKEN_LIFE_S + 2 * LEEWAY_S
    longest = at + MAX_UNTIL_S + 2 * LEEWAY_S
    if not extends:
        return shortest
    return longest if until is None else min(max(until + LEEWAY_S, shortest), longest)


class Revocations:
    """The revocations of one server."""

    def __init__(self) -> None:
        self._identities: dict[Identity, Revocation] = {}
        self._tokens: dict[str, Revocation] = {}
        self._cleaned_at = 0.0
        self.on_revoked: Callable[[Revocation], object] = lambda _: None
        """Gets each revocation that is made, to store it."""

    def __len__(self) -> int:
        """Return the number of stored revocations."""
        return len(self._identities) + len(self._tokens)

    def revoke(self, revocation: Revocation) -> None:
        """Revoke the token with an id, or all issued to an identity until a time."""
        self.learn(revocation, revocation.at)
        self.on_revoked(revocation)

    def learn(self, revocation: Revocation, now: float) -> None:
        """Add a revocation that is stored already."""
        if now - self._cleaned_at > LEEWAY_S:  # each minute, as each looks at all of them
            self._cleaned_at = now
            self._identities = _unexpired(self._identities, now)
            self._tokens = _unexpired(self._tokens, now)
        if isinstance(revocation.target, str):
            _add(self._tokens, revocation.target, revocation, now)
        else:
            _add(self._identities, revocation.target, revocation, now)

    def covers(self, token: VerifiedToken) -> bool:
        """Whether a valid token was revoked."""
        if not self._identities and not self._tokens:
            return False
        return self.is_revoked(Identity(token.issuer, token.name), token.jti, token.issued_at)

    def is_revoked(self, identity: Identity, jti: str, issued_at: float) -> bool:
        """Whether a token with this holder, id and time of issue was revoked."""
        revocation = self._identities.get(identity)
        if revocation is not None and is_issued_before(issued_at, revocation.at):
            return True
        return bool(jti) and jti in self._tokens


def _add(revocations: dict[K, Revocation], key: K, new: Revocation, now: float) -> None:
    """Add a revocation; drop the oldest one if there are too many."""
    old = revocations.pop(key, new)
    at, ends_at = max(new.at, old.at), max(new.ends_at, old.ends_at)
    revocations[key] = new._replace(at=at, ends_at=ends_at)
    if len(revocations) > _MAX_REVOCATIONS:
        target, dropped = next(iter(revocations.items()))
        del revocations[target]
        if dropped.ends_at >= now:
            message = "over %d revocations: %r, revoked %d s ago, is valid again"
            _logger.warning(message, _MAX_REVOCATIONS, target, now - dropped.at)


def _unexpired(revocations: dict[K, Revocation], now: float) -> dict[K, Revocation]:
    return {target: found for target, found in revocations.items() if found.ends_at >= now}
