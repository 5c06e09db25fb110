"""Stores which tokens are revoked before they expire.

A token is valid for a day at most, so a revocation is dropped after a day. There is a limit all the
same (PROTOCOL.md, ADMIN-4); a revocation that is dropped too early is logged. Time is passed in.
"""

from __future__ import annotations

from typing import TypeVar

from toolbus.auth.tokens import LEEWAY_S, MAX_TOKEN_LIFE_S, VerifiedToken
from toolbus.bounded_logging import bounded_logger
from toolbus_server.registry.models import Identity

__all__ = ["Revocations", "is_issued_before"]

K = TypeVar("K")

_logger = bounded_logger(__name__)
_RETENTION_S = MAX_TOKEN_LIFE_S + 2 * LEEWAY_S
_MAX_REVOCATIONS = 100_000
"""The maximum of revoked identities, and of revoked tokens."""


def is_issued_before(issued_at: float, revoked_at: float) -> bool:
    """Whether a token counts as issued before a revocation of all that its holder had until then.

    Its issuer's clock may be ahead by `LEEWAY_S`, so one issued up to that time later counts too.
    """
    return issued_at <= revoked_at + LEEWAY_S


class Revocations:
    """The revocations of one server."""

    def __init__(self) -> None:
        self._identities: dict[Identity, float] = {}
        self._tokens: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of stored revocations."""
        return len(self._identities) + len(self._tokens)

    def revoke_identity(self, identity: Identity, now: float) -> None:
        """Revoke all tokens issued to an identity until now, as `is_issued_before` decides."""
        _keep(self._identities, identity, now)

    def revoke_token(self, jti: str, now: float) -> None:
        """Revoke the token with this id."""
        _keep(self._tokens, jti, now)

    def covers(self, token: VerifiedToken) -> bool:
        """Whether a valid token was revoked."""
        if not self._identities and not self._tokens:
            return False
        return self.is_revoked(Identity(token.issuer, token.name), token.jti, token.issued_at)

    def is_revoked(self, identity: Identity, jti: str, issued_at: float) -> bool:
        """Whether a token with this holder, id and time of issue was revoked."""
        revoked_at = self._identities.get(identity)
        if revoked_at is not None and is_issued_before(issued_at, revoked_at):
            return True
        return bool(jti) and jti in self._tokens


def _keep(revocations: dict[K, float], key: K, now: float) -> None:
    """Store a revocation; drop those that no valid token can match, and those over the limit."""
    revocations[key] = max(now, revocations.pop(key, now))
    surplus = len(revocations) - _MAX_REVOCATIONS
    dropped: list[K] = []
    for old, at in revocations.items():
        if at + _RETENTION_S >= now:
            if len(dropped) >= surplus:
                break
            message = "over %d revocations: %r, revoked %d s ago, is valid again"
            _logger.warning(message, _MAX_REVOCATIONS, old, now - at)
        dropped.append(old)
    for old in dropped:
        del revocations[old]
