"""The time that a node is without Redis, and whether it is isolated: another node has Redis then.

Without Redis a node asks other nodes directly, over HTTP, at the addresses that it last read from
Redis. It is isolated once every round of questions for `ISOLATED_AFTER_S` found a node that has
Redis. Without such an answer it is not: if Redis has failed for all nodes, each of them continues.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from math import inf
from random import sample
from types import MappingProxyType
from urllib.parse import urlsplit

from toolbus.bounded_logging import bounded_logger
from toolbus.transport.addresses import open_streams

__all__ = ["ALONE_TEXT", "ISOLATED_TEXT", "NODE_HEADER", "READY_TEXT", "Isolation", "RedisOutage"]

_logger = bounded_logger(__name__)
READY_TEXT = "ready\n"
"""The answer of a node that has Redis."""
ALONE_TEXT = "ready, but without Redis: calls to other nodes wait\n"
"""The answer of a node without Redis that does not know of another node with Redis."""
ISOLATED_TEXT = "not ready: this node has no Redis, and other nodes have\n"
"""The answer of an isolated node."""
NODE_HEADER = "Toolbus-Node"
"""The header with the name of the node that answers: processes may share a port."""
# Below the 7 to 10 s after which the others declare this node lost: its participants are asked to
# move before they have disappeared for the others.
ISOLATED_AFTER_S = 6.0
"""Seconds in which each round of questions found a node with Redis.

Where Redis hangs for all nodes, the last of them detects that 4 s after the first; where it is back
for all, the last one has joined 3 s after the first.
"""
# Some ten rounds within `ISOLATED_AFTER_S` have to agree. A longer pause would also prolong an
# isolation that has ended.
_ROUND_S = 0.5
_ANSWER_S = 1.0
# More than one, as one may be down or without Redis too; not all, as each of N nodes that lost
# Redis would ask N others.
_ASKED_NODES = 3
"""Nodes that are asked in one round."""
# The answer has some 200 bytes. What listens at that address may be another program by now.
_MAX_ANSWER_BYTES = 4096


class RedisOutage:
    """Whether a node is without Redis, and since when."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began_at: float | None = None

    def failed(self, reason: str) -> None:
        """Record a lost connection or a failed attempt; the first of an outage is logged."""
        if self._began_at is None:
            self._began_at = self._now()
            _logger.warning("Redis is unavailable: %s", reason)
        else:
            _logger.info("Redis is still unavailable: %s", reason)

    def ended(self) -> None:
        """Record that the node has joined the other nodes."""
        if self._began_at is not None:
            _logger.warning("Redis is available again, after %.1f s", self.lasts_s)
            self._began_at = None

    @property
    def lasts_s(self) -> float:
        """Seconds since the outage began; 0 without one."""
        return 0.0 if self._began_at is None else self._now() - self._began_at


class Isolation:
    """Watches for isolation while a node has no Redis."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self.addresses: Mapping[str, str] = MappingProxyType({})
        """The URLs of the other nodes, by node with its incarnation, as Redis named them last."""
        self.is_isolated = False
        """Whether another node has Redis, and this one has not."""
        self.on_change: Callable[[bool], None] = lambda _: None
        """Called when `is_isolated` changes. Must not raise."""

    def begin(self) -> None:
        """Start to ask other nodes: this one has lost Redis. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._ask_repeatedly())

    def end(self) -> None:
        """Stop asking: this node has Redis, or ends. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._set(False)

    async def _ask_repeatedly(self) -> None:
        loop = asyncio.get_running_loop()
        confirmed_since = inf
        while True:
            # One round without proof starts the time anew: an isolated node asks its participants
            # to leave, which is worse than to keep them a few seconds more.
            if await self._others_have_redis():
                confirmed_since = min(confirmed_since, loop.time())
            else:
                confirmed_since = inf
            self._set(loop.time() - confirmed_since >= ISOLATED_AFTER_S)
            await asyncio.sleep(_ROUND_S)

    def _set(self, is_isolated: bool) -> None:
        if is_isolated == self.is_isolated:
            return
        self.is_isolated = is_isolated
        if is_isolated:
            _logger.warning(
                "node %s has no Redis, and other nodes have: its participants are asked to connect "
                "to another node",
                self._name,
            )
        self.on_change(is_isolated)

    async def _others_have_redis(self) -> bool:
        urls = list(set(self.addresses.values()))
        asked = sample(urls, min(_ASKED_NODES, len(urls)))
        names = await asyncio.gather(*map(_node_with_redis, asked))
        # Its own name proves nothing: workers share a port, so this node may have answered itself.
        return any(name not in ("", self._name) for name in names)


async def _node_with_redis(url: str) -> str:
    """Ask a node; return its name if it has Redis, else ""."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            answer = await _request(url)
    except (OSError, TimeoutError, ValueError):
        return ""
    head, _, body = answer.decode("latin-1").partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    # The exact text: a node without Redis answers 200 as well, with another text.
    if not status.startswith("HTTP/1.1 200 ") or body != READY_TEXT:
        return ""
    headers = (line.partition(":") for line in lines)
    names = (value.strip() for name, _, value in headers if name.lower() == NODE_HEADER.lower())
    return next(names, "")


async def _request(url: str) -> bytes:
    parts = urlsplit(url)
    tls: ssl.SSLContext | None = None
    if parts.scheme == "https":
        # Any certificate: it has a name, and nodes know addresses. Nothing secret is sent.
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    reader, writer = await open_streams(
        parts.hostname or "", parts.port or 0, timeout_s=_ANSWER_S, tls=tls
    )
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        answer = b""
        while len(answer) < _MAX_ANSWER_BYTES and (part := await reader.read(_MAX_ANSWER_BYTES)):
            answer += part
        return answer
    finally:
        writer.transport.abort()
