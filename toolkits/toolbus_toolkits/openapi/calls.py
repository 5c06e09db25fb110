"""One call of an operation over HTTP: credentials, deadline, and what a failure means."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import httpx2

from toolbus import ToolContext, ToolFailed
from toolbus_toolkits.credentials.references import CREDENTIAL_THREADS, CredentialSource
from toolbus_toolkits.network import (
    FINAL_URL,
    NOT_SENT,
    SECRET_QUERY,
    WAIT_UNTIL,
    AddressPolicy,
    AddressRefused,
    failure_reason,
    host_text,
    http_client,
    read_body,
)
from toolbus_toolkits.openapi.model import Operation, SecurityScheme
from toolbus_toolkits.openapi.requests import PreparedRequest
from toolbus_toolkits.openapi.responses import ReadResponse

__all__ = ["ApiClient", "Credentials", "Presented"]


@dataclass(frozen=True)
class Presented:
    """The parts of a request that hold credentials."""

    headers: dict[str, str] = field(default_factory=dict)
    query: list[str] = field(default_factory=list)
    cookies: list[str] = field(default_factory=list)


class Credentials:
    """Presents the configured credentials of an API.

    Args:
        schemes: The security schemes of the API.
        texts: The text of the credential of each scheme, with references such as
            `${cred:org/tool/key}`; of `basic`, the user and the password with a colon between them.
        resolver: It replaces references at the time of a call. None leaves texts as they are.

    Raises `ValueError` for a scheme that the API does not have, or that is not supported.
    """

    def __init__(
        self,
        schemes: Mapping[str, SecurityScheme],
        texts: Mapping[str, str],
        resolver: CredentialSource | None,
    ) -> None:
        for name in texts:
            if name not in schemes:
                known = ", ".join(sorted(schemes)) or "none"
                raise ValueError(f"the API has no security scheme {name!r}; it has: {known}")
            if schemes[name].kind == "unsupported":
                raise ValueError(f"the type of the security scheme {name!r} is not supported")
        self._schemes = schemes
        self._texts = dict(texts)
        self._resolver = resolver

    def present(self, operation: Operation, host: str) -> Presented:
        """Return what a request to a host presents.

        The first alternative of the operation counts whose schemes are all configured. Raises
        `ToolFailed` if there is none, and what the resolver raises.
        """
        shown = Presented()
        for name in self._chosen(operation):
            text = self._texts[name]
            if self._resolver is not None:
                text = self._resolver.for_host(text, host)
            scheme = self._schemes[name]
            pair = f"{quote(scheme.parameter, safe='')}={quote(text, safe='')}"
            if scheme.kind == "basic":
                basic = base64.b64encode(text.encode()).decode()
                shown.headers["authorization"] = f"Basic {basic}"
            elif scheme.kind == "bearer":
                shown.headers["authorization"] = f"Bearer {text}"
            elif scheme.location == "header":
                shown.headers[scheme.parameter] = text
            elif scheme.location == "query":
                shown.query.append(pair)
            else:
                shown.cookies.append(pair)
        return shown

    def redact(self, text: str) -> str:
        """Remove the values of credentials from a text."""
        return text if self._resolver is None else self._resolver.redact(text)

    def _chosen(self, operation: Operation) -> tuple[str, ...]:
        for alternative in operation.security:
            if alternative and all(name in self._texts for name in alternative):
                return alternative
        if not operation.security or () in operation.security:
            return ()
        names = ", ".join(sorted({name for schemes in operation.security for name in schemes}))
        text = f"{operation.label} needs a credential: the operator gives one of {names}"
        raise ToolFailed(f"{text} in `credentials`", executed="no", retryable=False)


_IDEMPOTENT = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")


class ApiClient:
    """Sends the requests of one toolkit.

    While its tools are hosted they share connections; a call outside of that has its own.

    Args:
        policy: Which hosts may be reached.
        credentials: What requests present.
        timeout_s: Seconds that one call may take.
        max_response_bytes: The most bytes of one response.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        credentials: Credentials,
        *,
        timeout_s: float,
        max_response_bytes: int,
    ) -> None:
        self.credentials = credentials
        self._policy = policy
        self._timeout_s = timeout_s
        self._max_bytes = max_response_bytes
        self._shared: httpx2.AsyncClient | None = None
        self._hosted = 0

    async def start(self) -> None:
        """Count one hosted tool; the first opens the shared client."""
        self._hosted += 1
        if self._shared is None:
            self._shared = self._new_client()

    async def stop(self) -> None:
        """Count one tool less; the last closes the shared client."""
        self._hosted -= 1
        if self._hosted == 0 and self._shared is not None:
            client, self._shared = self._shared, None
            await client.aclose()

    async def send(
        self, context: ToolContext, operation: Operation, request: PreparedRequest
    ) -> tuple[ReadResponse, str]:
        """Send a request with its credentials, and read the response.

        Returns the response and the URL that it came from. Raises `ToolFailed`: its `executed` is
        "no" if the request was not sent, and "maybe" if no response came.
        """
        limit_s = self._timeout_s
        if context.deadline is not None:
            limit_s = min(limit_s, context.deadline)
        until = asyncio.get_running_loop().time() + limit_s
        try:
            shared = None if self._shared is None else nullcontext(self._shared)
            async with asyncio.timeout_at(until), shared or self._new_client() as client:
                # On a thread, because a credential may be read from a keyring or a file.
                sent = await CREDENTIAL_THREADS.run(self._build, client, operation, request, until)
                response = await client.send(sent, stream=True)
                context.enter()  # the server has answered
                try:
                    body = await read_body(response, self._max_bytes)
                finally:
                    await response.aclose()
        except NOT_SENT as error:
            host = host_text(urlsplit(request.address).netloc)
            text = f"{operation.label} could not connect to {host}: {failure_reason(error)}"
            raise ToolFailed(
                text, executed="no", retryable=True, details={"request": "not sent"}
            ) from error
        except AddressRefused as error:
            if error.executed == "yes":  # for a redirect
                context.enter()
            raise
        except httpx2.TooManyRedirects as error:
            context.enter()
            raise ToolFailed(f"{operation.label} was redirected too often") from error
        except (TimeoutError, httpx2.TransportError, httpx2.DecodingError) as error:
            raise ToolFailed(
                f"{operation.label} got no complete response: {failure_reason(error)}",
                executed="maybe",
                retryable=operation.method in _IDEMPOTENT,
                details={"request": "unanswered"},
            ) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        url = str(response.extensions.get(FINAL_URL, sent.url))
        return ReadResponse(response.status_code, headers, body), url

    def _build(
        self,
        client: httpx2.AsyncClient,
        operation: Operation,
        request: PreparedRequest,
        until: float,
    ) -> httpx2.Request:
        self._policy.check_url(request.address)
        host = httpx2.URL(request.address).netloc.decode()
        shown = self.credentials.present(operation, host)
        secret = {part.partition("=")[0] for part in shown.query}
        if secret:  # the link to a next page may have them
            parts = [part for pairs in request.query for part in pairs.split("&")]
            request.query = [part for part in parts if part.partition("=")[0] not in secret]
        headers = {"accept": "application/json, */*;q=0.5"}
        for name, value in (*request.headers.items(), *shown.headers.items()):
            headers[name.lower()] = value  # a credential wins over an argument
        if cookies := [*request.cookies, *shown.cookies]:
            headers["cookie"] = "; ".join(cookies)
        if not request.content and request.method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = "0"
        return client.build_request(
            request.method,
            request.url,
            headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            content=request.content or None,
            extensions={WAIT_UNTIL: until, SECRET_QUERY: "&".join(shown.query)},
        )

    def _new_client(self) -> httpx2.AsyncClient:
        return http_client(
            self._policy, timeout_s=self._timeout_s, max_response_bytes=self._max_bytes
        )
