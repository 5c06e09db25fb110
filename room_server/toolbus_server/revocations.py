"""Which tokens count no more although they have not expired.

What is remembered goes by itself: a token lives for a day at most, so that a day later nothing is
left that could be shown. There is a limit all the same (PROTOCOL.md, ADMIN-4); what is forgotten
too early is logged. Time is handed in.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from toolbus.tokens import LEEWAY_S, MAX_TOKEN_LIFE_S, VerifiedToken
from toolbus_server.room_view import Identity

__all__ = ["Revocations"]

K = TypeVar("K")

_logger = logging.getLogger(__name__)
_KEPT_S = MAX_TOKEN_LIFE_S + 2 * LEEWAY_S
_MAX_KEPT = 100_000
"""Of identities, and of tokens."""


class Revocations:
    """The revocations of one server."""

    def __init__(self) -> None:
        self._identities: dict[Identity, float] = {}
        self._tokens: dict[str, float] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._identities) + len(self._tokens)

    def revoke_identity(self, identity: Identity, now: float) -> None:
        """Let no token count that was issued to an identity until now."""
        _keep(self._identities, identity, now)

    def revoke_token(self, jti: str, now: float) -> None:
        """Let the token with this id count no more."""
        _keep(self._tokens, jti, now)

    def covers(self, token: VerifiedToken) -> bool:
        """Whether a token that holds otherwise was revoked.

        A token of the same second as the revocation is taken for an older one.
        """
        if not self._identities and not self._tokens:
            return False
        return self.cover(Identity(token.issuer, token.name), token.jti, token.issued_at)

    def cover(self, identity: Identity, jti: str, issued_at: float) -> bool:
        """Whether a token with this holder, id and time was revoked."""
        revoked_at = self._identities.get(identity)
        if revoked_at is not None and issued_at <= revoked_at:
            return True
        return bool(jti) and jti in self._tokens


def _keep(kept: dict[K, float], key: K, now: float) -> None:
    """Remember a key from now on; forget what can cover no token any more, and what is too much."""
    kept[key] = max(now, kept.pop(key, now))
    surplus = len(kept) - _MAX_KEPT
    forgotten: list[K] = []
    for old, at in kept.items():
        if at + _KEPT_S >= now:
            if len(forgotten) >= surplus:
                break
            words = "over %d revocations are remembered: %r counts again, revoked %d s ago"
            _logger.warning(words, _MAX_KEPT, old, now - at)
        forgotten.append(old)
    for old in forgotten:
        del kept[old]
