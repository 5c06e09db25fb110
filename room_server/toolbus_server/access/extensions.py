"""Further lives of tokens with `until`, which are valid beyond their `exp` while they are used.

Lives follow each other without a gap, each as long as the first, so all servers of a bus compute
the same ends. The end of the last life is noted by issuer and token id, and stored for a restart
and for other servers. Time is passed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from math import ceil
from typing import TypeAlias
from zlib import crc32

from toolbus.auth.tokens import LEEWAY_S, VerifiedToken

__all__ = [
    "Extensions",
    "StateUnavailable",
    "TokenKey",
    "extended_at",
    "key_of",
    "renewed_at",
]

TokenKey: TypeAlias = tuple[str, str]
"""The issuer and the id of a token."""
_RENEWED_AFTER = 0.8
_SPREAD = 0.05


class StateUnavailable(OSError):
    """The state of tokens cannot be read or written now."""


def key_of(token: VerifiedToken) -> TokenKey:
    """Return the key of a token."""
    return token.issuer, token.jti


def _next_end(token: VerifiedToken, end: float, now: float) -> float:
    """Return the end of the first life after `end` that is not over at `now`."""
    life_s = token.expires_at - token.issued_at
    assert token.until is not None
    lives = max(1, ceil((now - end) / life_s))
    return min(end + lives * life_s, token.until)


def renewed_at(token: VerifiedToken, end: float) -> float:
    """Return when a newer token is asked for: after 80 % of the life that ends at `end`."""
    return end - (1 - _RENEWED_AFTER) * (token.expires_at - token.issued_at)


def extended_at(token: VerifiedToken, end: float) -> float:
    """Return when the next life is noted: after 80 to 85 % of the life that ends at `end`.

    Thousands of tokens that were issued together would otherwise be verified at one moment.
    """
    spread = crc32(token.jti.encode()) / 2**32 * _SPREAD
    return renewed_at(token, end) + spread * (token.expires_at - token.issued_at)


class Extensions:
    """The extensions that one server knows, and stores.

    Args:
        write: Stores ends of lives in the background; it tries again until it succeeds.
        read: Returns the stored end of a token's last life, or raises `StateUnavailable`; None
            where all that is stored was learned at the start.
    """

    def __init__(
        self,
        write: Callable[[Mapping[TokenKey, float]], None],
        read: Callable[[TokenKey], Awaitable[float | None]] | None = None,
    ) -> None:
        self._write = write
        self._read = read
        self._ends: dict[TokenKey, float] = {}
        self._cleaned_at = 0.0

    def __len__(self) -> int:
        """Return how many tokens are known that have been extended."""
        return len(self._ends)

    def __iter__(self) -> Iterator[tuple[TokenKey, float]]:
        """Return each known key with the end of its last life."""
        return iter(tuple(self._ends.items()))

    def end_of(self, token: VerifiedToken) -> float:
        """Return when the current life of a token ends, as far as it is known here."""
        noted = self._ends.get(key_of(token), 0.0)  # perhaps by a token of this id with a later end
        return max(token.expires_at, min(noted, token.until or 0.0))

    def extend(self, token: VerifiedToken, now: float) -> None:
        """Note that a token that is in use is good for another life."""
        end = _next_end(token, self.end_of(token), now)
        self.learn([(key_of(token), end)], now)
        self._write({key_of(token): end})

    def learn(self, ends: Iterable[tuple[TokenKey, float]], now: float) -> None:
        """Add what is stored, or what another server has noted."""
        for key, end in ends:
            self._ends[key] = max(end, self._ends.get(key, 0.0))
        if now - self._cleaned_at > LEEWAY_S:  # each minute, as a life may be that short
            self._cleaned_at = now
            self._ends = {key: end for key, end in self._ends.items() if end + LEEWAY_S > now}

    async def read(self, key: TokenKey, now: float) -> None:
        """Learn what is stored of a token. Raises `StateUnavailable`."""
        if self._read is not None and (end := await self._read(key)) is not None:
            self.learn([(key, end)], now)
