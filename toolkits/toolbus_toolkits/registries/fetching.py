"""The requests to one source: bounded, checked, with its headers, and errors in clear words.

Headers go to the origin of the source alone, whatever it refers or redirects to. Answers 429 and
503 with `Retry-After` are waited for, up to a limit for all requests of one operation.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import httpx2

from toolbus import ToolFailed
from toolbus_toolkits.bounded_json import parse_json
from toolbus_toolkits.bundles.contents import MAX_BYTES
from toolbus_toolkits.credentials import StoreUnavailable
from toolbus_toolkits.credentials.references import CredentialResolver
from toolbus_toolkits.network import FINAL_URL, WAIT_UNTIL, AddressPolicy, http_client, read_body
from toolbus_toolkits.registries.model import (
    NotInRegistry,
    RegistryRefused,
    RegistrySource,
    SourceUnavailable,
    short,
)

__all__ = ["Advertised", "Fetcher", "fetching"]

MAX_JSON_BYTES = 32 * 1024 * 1024
"""Of one answer with entries; a registry of the type `agx` lists skills with their texts."""
_TIMEOUT_S = 30.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Advertised:
    """What a source says of a file; an empty hash is not checked."""

    sha256: str = ""
    size: int = MAX_BYTES
    is_exact: bool = False
    """Whether `size` is its size, not only a limit."""


class Fetcher:
    """Sends the requests of one operation.

    Args:
        source: A source with a URL.
        client: Made for its addresses.
        resolver: Replaces the references in its headers.
        wait_until: Until when, by the loop's clock, `Retry-After` is awaited.
    """

    def __init__(
        self,
        source: RegistrySource,
        client: httpx2.AsyncClient,
        resolver: CredentialResolver,
        wait_until: float,
    ) -> None:
        self._source = source
        self._client = client
        self._resolver = resolver
        self._wait_until = wait_until

    @property
    def base(self) -> str:
        """The URL of the source, to which paths are appended."""
        return self._source.url.rstrip("/")

    async def read_json(self, url: str = "", query: Mapping[str, str] | None = None) -> Any:
        """Return the JSON value of a URL, which may be relative to that of the source.

        Raises `NotInRegistry` for 404 and 410, `SourceUnavailable`, and `RegistryRefused` for what
        is not JSON or is refused.
        """
        async with self._response(_with_query(url, query)) as response:
            body = await read_body(response, MAX_JSON_BYTES)
        try:
            return parse_json(self._resolver.redact(body.decode()))
        except ValueError as error:
            why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else short(error)
            raise RegistryRefused(
                f"it did not answer with JSON: is this its address? The answer {why}"
            ) from None

    async def read_list(self, url: str = "", query: Mapping[str, str] | None = None) -> Any:
        """Return what `read_json` returns, of a URL that every such registry has."""
        try:
            return await self.read_json(url, query)
        except NotInRegistry as error:
            raise RegistryRefused(f"{error}: is this its address?") from None

    async def save(
        self, url: str, target: Path, advertised: Advertised, query: Mapping[str, str] | None = None
    ) -> None:
        """Save a file, whose URL may be relative to that of the source.

        Raises `RegistryRefused` if it is not as advertised, and what `read_json` raises.
        """
        digest, count = hashlib.sha256(), 0
        limit = min(advertised.size, MAX_BYTES)
        async with self._response(_with_query(url, query)) as response:
            with target.open("xb") as file:
                async for piece in response.aiter_bytes():
                    count += len(piece)
                    if count > limit:
                        raise RegistryRefused(f"the download has more than {limit:,} bytes")
                    digest.update(piece)
                    file.write(piece)
        if advertised.is_exact and count != advertised.size:
            raise RegistryRefused(
                f"the download has {count:,} bytes, and the source advertises {advertised.size:,}"
            )
        if advertised.sha256 and digest.hexdigest() != advertised.sha256.lower():
            raise RegistryRefused(
                f"the download has the SHA-256 {digest.hexdigest()}, and the source advertises "
                f"{advertised.sha256}: it was changed, or the source is wrong"
            )

    @asynccontextmanager
    async def _response(self, url: str) -> AsyncIterator[httpx2.Response]:
        """Yield a response of status 200."""
        url = urljoin(self._source.url, url)
        if urlsplit(self._source.url).scheme == "https" and urlsplit(url).scheme == "http":
            raise RegistryRefused(f"it refers to {_host(url)} without encryption")
        with _clear_errors():
            headers: dict[str, str] = {}
            if self._source.headers and _origin(url) == _origin(self._source.url):
                host = _host(url)
                for name, text in self._source.headers.items():
                    headers[name] = self._resolver.for_host(text, host)
            request = self._client.build_request(
                "GET", url, headers=headers, extensions={WAIT_UNTIL: self._wait_until}
            )
            response = await self._client.send(request, stream=True)
            try:
                _check_status(response)
                yield response
            finally:
                await response.aclose()


@asynccontextmanager
async def fetching(
    source: RegistrySource, resolver: CredentialResolver, max_wait_s: float
) -> AsyncIterator[Fetcher]:
    """Yield what sends the requests of one operation; the parameters are those of `Fetcher`."""
    policy = AddressPolicy(allow_private=source.allow_private)
    wait_until = asyncio.get_running_loop().time() + max_wait_s
    async with http_client(policy, timeout_s=_TIMEOUT_S, max_response_bytes=MAX_BYTES) as client:
        yield Fetcher(source, client, resolver, wait_until)


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except ToolFailed as error:  # the address, the credential or the size is refused
        raise RegistryRefused(error.message) from None
    except (StoreUnavailable, ModuleNotFoundError) as error:
        raise RegistryRefused(str(error)) from None
    except httpx2.InvalidURL:
        raise RegistryRefused("its URL is not valid") from None
    except httpx2.TimeoutException:
        raise SourceUnavailable(f"it did not answer within {_TIMEOUT_S:g} s") from None
    except httpx2.HTTPError as error:
        raise SourceUnavailable(
            f"it cannot be reached: {short(str(error) or type(error).__name__)}"
        ) from None


def _check_status(response: httpx2.Response) -> None:
    """Raise what a status other than 200 stands for. The texts of servers are not repeated."""
    status = response.status_code
    where = _host(str(response.extensions.get(FINAL_URL, "")))
    if status == 200:
        return
    if status in (404, 410):
        raise NotInRegistry(f"{where} answered {status}: it does not have this, or no longer")
    if status in (401, 403):
        raise RegistryRefused(
            f"{where} answered {status}: it needs a credential in `headers`, or refuses this one"
        )
    if status in (429, 503):
        retry_after = response.headers.get("retry-after", "")
        wait_s = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 10 else None
        when = "later" if wait_s is None else f"in {wait_s:.0f} s"
        text = f"{where} answered {status}: it has too many requests, try again {when}"
        raise SourceUnavailable(text, retry_after_s=wait_s)
    if status >= 500:
        raise SourceUnavailable(f"{where} answered {status}: it has a problem, try again later")
    raise RegistryRefused(f"{where} answered {status}")


def _with_query(url: str, query: Mapping[str, str] | None) -> str:
    return f"{url}?{urlencode(query)}" if query else url


def _host(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    try:
        return short(f"{host}:{parts.port or _PORTS.get(parts.scheme, 0)}")
    except ValueError:
        return short(host)


def _origin(url: str) -> tuple[str, str]:
    return urlsplit(url).scheme, _host(url).lower()
