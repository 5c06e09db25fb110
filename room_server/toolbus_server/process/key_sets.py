"""Key sets at addresses: fetched on threads every five minutes, never because of a token.

The last good set of an issuer is used until a newer one can be read; the reason of a failure is
logged once. The operator wrote the address, so it may be in a private network. The issuer writes
redirects, so they are not followed.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from toolbus.auth.key_sets import MAX_SET_BYTES, Issuer
from toolbus.auth.keys import Key, KeyRing
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads

__all__ = ["KeySets", "fetch_key_sets"]

_INTERVAL_S = 300.0
_RETRY_S = 10.0
"""The pause as long as an issuer has no set at all: until then its participants wait."""
_TIMEOUT_S = 10.0
"""Of one whole request: a server waits for its sets before it listens."""
_UNKNOWN_AUTHORITY = range(18, 22)
"""X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT to X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE."""
# One for each of few issuers: an address that hangs must not hold up the others.
_FETCH_THREADS = WorkerThreads("key sets", 16, may_take_long=True)
_logger = bounded_logger(__name__)


class _Fetched(NamedTuple):
    keys: Mapping[str, Key] | None
    loaded_at: float | None
    due_at: float
    """By the loop's clock."""
    fault: str
    """Why the last request failed; empty if it did not."""


class KeySets:
    """The last good key sets of issuers at addresses.

    Args:
        interval_s: Seconds between two requests to an address.
        retry_s: The same as long as there was no set.
        timeout_s: The most that one request may take.
    """

    def __init__(
        self,
        interval_s: float = _INTERVAL_S,
        retry_s: float = _RETRY_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._timeout_s = timeout_s
        self._fetched: dict[tuple[object, ...], _Fetched] = {}

    def filled(self, ring: KeyRing) -> KeyRing:
        """Return a ring with the sets that were fetched for its issuers."""
        return KeyRing(ring, map(self._filled, ring.issuers.values()))

    def _filled(self, issuer: Issuer) -> Issuer:
        fetched = self._fetched.get(_source_of(issuer))
        if fetched is None or fetched.keys is None:
            return issuer
        return replace(issuer, keys=fetched.keys, loaded_at=fetched.loaded_at)

    def next_due(self, ring: KeyRing) -> float:
        """Return when `fetch` has something to do, by the loop's clock; infinity for never."""
        return min((self._due_at(issuer) for issuer in _remote_of(ring)), default=inf)

    def request(self) -> None:
        """Make all sets due, whenever they were fetched."""
        self._fetched = {
            source: fetched._replace(due_at=-inf) for source, fetched in self._fetched.items()
        }

    def _due_at(self, issuer: Issuer) -> float:
        fetched = self._fetched.get(_source_of(issuer))
        return -inf if fetched is None else fetched.due_at

    async def fetch(self, ring: KeyRing, on_fetched: Callable[[], None]) -> None:
        """Fetch the sets that are due, each within the time limit; failures are logged.

        Calls `on_fetched` after each request, as others may take longer.
        """
        now = asyncio.get_running_loop().time()
        due = [issuer for issuer in _remote_of(ring) if self._due_at(issuer) <= now]
        for fetching in asyncio.as_completed(list(map(self._fetch, due))):
            await fetching
            on_fetched()
        sources = set(map(_source_of, _remote_of(ring)))
        self._fetched = {source: self._fetched[source] for source in sources & self._fetched.keys()}

    async def _fetch(self, issuer: Issuer) -> None:
        source = _source_of(issuer)
        keys, loaded_at, _, former_fault = self._fetched.get(source, _Fetched(None, None, 0, ""))
        fault = ""
        try:
            # The thread has the same limit, but not while the system looks for the address.
            async with asyncio.timeout(self._timeout_s + 1):
                found = await _FETCH_THREADS.run(_read_set, issuer, self._timeout_s)
            keys, loaded_at = found.keys, found.loaded_at
        except (OSError, ValueError, http.client.HTTPException) as error:
            fault = _fault_text(issuer, error)
        if fault and fault != former_fault:
            _logger.warning("the key set of %s was not fetched: %s", issuer.iss, fault)
        elif former_fault and not fault:
            _logger.warning("the key set of %s was fetched again", issuer.iss)
        pause_s = self._retry_s if keys is None else self._interval_s
        due_at = asyncio.get_running_loop().time() + pause_s
        self._fetched[source] = _Fetched(keys, loaded_at, due_at, fault)


def fetch_key_sets(ring: KeyRing, timeout_s: float = _TIMEOUT_S) -> KeyRing:
    """Return a ring with the key sets of its issuers at addresses, which are fetched now.

    Raises:
        ValueError: One cannot be fetched; the message names the issuer and says why.
    """
    filled = []
    for issuer in ring.issuers.values():
        try:
            filled.append(_read_set(issuer, timeout_s) if issuer.is_remote else issuer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            fault = _fault_text(issuer, error)
            raise ValueError(f"the key set of {issuer.iss} was not fetched: {fault}") from None
    return KeyRing(ring, filled)


def _remote_of(ring: KeyRing) -> list[Issuer]:
    return [issuer for issuer in ring.issuers.values() if issuer.is_remote]


def _source_of(issuer: Issuer) -> tuple[object, ...]:
    """Return what identifies a set: one of another address, or read otherwise, is another."""
    return issuer.iss, issuer.jwks, issuer.ca, issuer.token_file, issuer.algorithms


# On a thread


class _TimedSocket(ssl.SSLSocket):
    """A connection of which all reads together have a time limit.

    The limit of a socket is one for each read, and a server may send a byte before each of them.
    """

    ends_at: float
    """By the monotonic clock."""

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Read into a buffer. Raises TimeoutError."""
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(left_s)
        return super().recv_into(buffer, nbytes, flags)


def _read_set(issuer: Issuer, timeout_s: float) -> Issuer:
    return issuer.with_set(_get(issuer, timeout_s), time.time())


def _get(issuer: Issuer, timeout_s: float) -> bytes:
    ends_at = time.monotonic() + timeout_s
    address = urlsplit(issuer.jwks)
    try:
        tls = ssl.create_default_context(cafile=issuer.ca)
    except OSError as error:  # it does not name the file
        raise ValueError(f"ca {issuer.ca}: {error.strerror}") from None
    tls.sslsocket_class = _TimedSocket
    if issuer.ca is not None:
        # Python 3.13 checks the form of authorities too, and those of many clusters fail that.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    headers = {"Accept": "application/jwk-set+json, application/json", "User-Agent": "toolbus"}
    if issuer.token_file is not None:
        headers["Authorization"] = f"Bearer {_bearer_token(Path(issuer.token_file))}"
    connection = http.client.HTTPSConnection(
        address.hostname or "", address.port, timeout=timeout_s, context=tls
    )
    try:
        connection.connect()
        assert isinstance(connection.sock, _TimedSocket)
        connection.sock.ends_at = ends_at
        target = (address.path or "/") + (f"?{address.query}" if address.query else "")
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(_status_fault(response.status))
        return response.read(MAX_SET_BYTES + 1)
    finally:
        connection.close()


def _status_fault(status: int) -> str:
    if 300 <= status < 400:
        return f"the answer is HTTP {status}, and redirects are not followed"
    if status in (401, 403):
        return f"the answer is HTTP {status}: it may need another `token_file`"
    return f"the answer is HTTP {status}, not 200"


def _bearer_token(path: Path) -> str:
    token = path.read_text(encoding="utf-8").strip()
    # Checked here, since the library's error would have the token in its text.
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError(f"{path} has no token for a header of HTTP")
    return token


def _fault_text(issuer: Issuer, error: Exception) -> str:
    match error:
        case TimeoutError():
            fault = "no answer in time"
        case ssl.SSLCertVerificationError(verify_message=text, verify_code=code):
            fault = f"its certificate is not trusted: {text}"
            if code in _UNKNOWN_AUTHORITY:
                fault += "; `ca` names the authority to trust"
        case OSError(strerror=str(text), filename=name):
            fault = f"{name}: {text}" if name else text
        case ValueError():
            fault = str(error)
        case _:
            fault = type(error).__name__  # of HTTP: the text of a peer
    return f"{issuer.jwks}: {fault}"
