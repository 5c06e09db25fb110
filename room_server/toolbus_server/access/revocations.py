"""Stores which tokens are revoked.

A revocation is dropped when no valid token can match it any more: after the longest life of a token
without `until`, or, where this server gives tokens further lives, after the longest `until`. There
is a limit all the same (PROTOCOL.md, ADMIN-4); a revocation that is dropped too early is logged.
Time is passed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from toolbus.auth.tokens import LEEWAY_S, MAX_TOKEN_LIFE_S, MAX_UNTIL_S, VerifiedToken
from toolbus.bounded_logging import bounded_logger
from toolbus_server.registry.models import Identity

__all__ = ["MAX_REVOCATIONS", "Revocation", "Revocations", "is_issued_before", "revoked_until"]

K = TypeVar("K")

_logger = bounded_logger(__name__)
MAX_REVOCATIONS = 100_000
"""The maximum of revoked identities, and of revoked tokens; in Redis of both together."""


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
    if not extends:
        return at + MAX_TOKEN_LIFE_S + 2 * LEEWAY_S
    # The next life may be given already. A revoked token gets no further one, so after this time
    # it is refused as unused anyway.
    shortest = at + 2 * MAX_TOKEN_LIFE_S + 2 * LEEWAY_S
    longest = at + MAX_UNTIL_S + 2 * LEEWAY_S
    return longest if until is None else min(max(until + LEEWAY_S, shortest), longest)


class Revocations:
    """The revocations of one server."""

    def __init__(self) -> None:
        self._identities: dict[Identity, Revocation] = {}
        self._tokens: dict[str, Revocation] = {}
        self._cleaned_at = 0.0

    def __len__(self) -> int:
        """Return the number of stored revocations."""
        return len(self._identities) + len(self._tokens)

    def __iter__(self) -> Iterator[Revocation]:
        """Return the revocations."""
        return iter((*self._identities.values(), *self._tokens.values()))

    def add(self, revocation: Revocation, now: float) -> bool:
        """Revoke the token with an id, or all issued to an identity until a time.

        Returns:
            Whether that is new.
        """
        if now - self._cleaned_at > LEEWAY_S:  # each minute, as each looks at all of them
            self._cleaned_at = now
            self._identities = _unexpired(self._identities, now)
            self._tokens = _unexpired(self._tokens, now)
        if isinstance(revocation.target, str):
            return _add(self._tokens, revocation.target, revocation, now)
        return _add(self._identities, revocation.target, revocation, now)

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


def _add(revocations: dict[K, Revocation], key: K, new: Revocation, now: float) -> bool:
    """Add a revocation, and return whether it is new; drop the oldest one if there are too many."""
    old = revocations.get(key)
    if old is not None:
        new = new._replace(at=max(new.at, old.at), ends_at=max(new.ends_at, old.ends_at))
        if new == old:
            return False
        del revocations[key]  # it becomes the last one
    revocations[key] = new
    if len(revocations) > MAX_REVOCATIONS:
        target, dropped = next(iter(revocations.items()))
        del revocations[target]
        if dropped.ends_at >= now:
            message = "over %d revocations: %r, revoked %d s ago, is valid again"
            _logger.warning(message, MAX_REVOCATIONS, target, now - dropped.at)
    return True


def _unexpired(revocations: dict[K, Revocation], now: float) -> dict[K, Revocation]:
    return {target: found for target, found in revocations.items() if found.ends_at >= now}
