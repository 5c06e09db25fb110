"""The paths of the gateway over HTTP: who asks for which room, and what refuses the request.

    POST /rooms/{room}/mcp                 the tools of the room, as `toolkit__tool`
    POST /rooms/{room}/mcp/{toolkit}       those of one toolkit, by their own names
    GET  /healthz, /metrics
    GET  /.well-known/oauth-protected-resource, and with the path of a room after it

Both revisions of MCP share the paths. A request of 2026-07-28 is whole by itself. One of 2025-11-25
or older belongs to a session, of which nothing is stored: its id is random, and any replica takes
any id.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from toolbus.auth.grants import is_room_name, is_toolkit_name
from toolbus.errors import PermissionDenied, RoomException
from toolbus_gateway.http_access import (
    METADATA_PATH,
    NO_TOKEN,
    AccessSettings,
    Guard,
    RefusalLog,
    RequestQuotas,
    ResourceMetadata,
    TooManyRequests,
    bearer_of,
)
from toolbus_gateway.limits import MAX_BODY_PARTS, MAX_LISTEN_BYTES
from toolbus_gateway.listing import Target
from toolbus_gateway.mcp_server import ASKER, ASKER_KEY, Asker, GatewayServer
from toolbus_gateway.member_pool import MemberPool, PoolFull
from toolbus_gateway.metrics import GatewayMetrics, OpenRequest, Requests
from toolbus_gateway.results import shown_error

__all__ = ["GatewayApp"]

_SESSION = "mcp-session-id"
_VERSION = "mcp-protocol-version"
_METHOD = "mcp-method"
_CANCELLED = b"notifications/cancelled"
_find_method = re.compile(rb'"method"\s*:\s*"([a-z/]{1,40})"').search
# It matches at each quote, whatever follows: else a body could be read again from each of them.
# No zero, which only other encodings than UTF-8 have: there a quote may be half of a character.
_without_texts = re.compile(rb'"[^"\\\0]*(?:\\[^\0][^"\\\0]*)*"?').sub
_RETRY_S = 1
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_MAX_FIELDS = 16
"""Of a query: a client may write any number, which would be read at each request."""


class GatewayApp:
    """The paths, and what of them runs.

    Args:
        pool: The connections to the room server.
        server: The methods of MCP.
        access: Which requests are answered.
        has_metrics: Whether `/metrics` is answered.
    """

    def __init__(
        self, pool: MemberPool, server: GatewayServer, access: AccessSettings, *, has_metrics: bool
    ) -> None:
        self._pool = pool
        self._manager = StreamableHTTPSessionManager(server.mcp, stateless=True)
        self._metadata = ResourceMetadata(access.authorization_servers)
        self._refusals = RefusalLog()
        self.requests: Requests = Requests()
        """Those of MCP."""
        self.is_draining = False
        """Whether further requests are refused."""
        self._metrics = GatewayMetrics(self.requests, pool) if has_metrics else None
        endpoint = _McpEndpoint(self, pool, server, self._manager, access)
        routes = [Route("/healthz", self._health, methods=["GET"])]
        if self._metrics is not None:
            routes.append(Route("/metrics", self._exposition, methods=["GET"]))
        for path in ("/rooms/{room}/mcp", "/rooms/{room}/mcp/{toolkit}"):
            routes.append(Route(path, endpoint))
            routes.append(Route(METADATA_PATH + path, self._describe, methods=["GET"]))
        routes.append(Route(METADATA_PATH, self._describe, methods=["GET"]))
        router = Router(routes, redirect_slashes=False, default=_not_found, lifespan=self._lifespan)
        self.asgi: ASGIApp = Guard(router, access)
        """The application as servers call it."""

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        async with self._manager.run():
            yield
        await self._pool.aclose()

    def challenge(self, scope: Scope, room: str, refusal: str | None) -> Response:
        """Return the response to a request without a token, or why its token was refused."""
        self._refusals.add(refusal or NO_TOKEN, room, _address(scope))
        return self._metadata.challenge(scope, refusal)

    async def _health(self, _: Request) -> Response:
        if self.is_draining:
            return PlainTextResponse(
                "leaving\n", HTTPStatus.SERVICE_UNAVAILABLE, {"Connection": "close", **_NOT_STORED}
            )
        return PlainTextResponse("ok\n", headers=_NOT_STORED)

    async def _exposition(self, _: Request) -> Response:
        assert self._metrics is not None
        text, content_type = self._metrics.exposition()
        return Response(text, headers={"Content-Type": content_type, **_NOT_STORED})

    async def _describe(self, request: Request) -> Response:
        found = _target_of(request.scope) if request.path_params else (None, Target())
        if found is None:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        return self._metadata.document(request.scope, *found)


_NOT_STORED = {"Cache-Control": "no-store"}


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=HTTPStatus.NOT_FOUND)(scope, receive, send)


class _McpEndpoint:
    """Answers the requests of MCP."""

    def __init__(
        self,
        app: GatewayApp,
        pool: MemberPool,
        server: GatewayServer,
        manager: StreamableHTTPSessionManager,
        access: AccessSettings,
    ) -> None:
        self._app = app
        self._pool = pool
        self._server = server
        self._manager = manager
        self._quotas = RequestQuotas(access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        opened = self._app.requests.open(headers.get(_VERSION), headers.get(_METHOD))
        with opened as request:
            send = request.watched(send)
            with suppress(ClientDisconnect):  # before the end of its request
                refusal = await self._answer(request, headers, scope, receive, send)
                if refusal is not None:
                    await refusal(scope, receive, send)

    async def _answer(
        self, request: OpenRequest, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """Answer a request, or return why it is refused."""
        found = _target_of(scope)
        if found is None:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        if self._app.is_draining:
            return _unavailable("this gateway is shutting down", _RETRY_S, {"Connection": "close"})
        room, target = found
        token = bearer_of(headers)
        if token is None:
            return self._app.challenge(scope, room, None)
        address = _address(scope)
        async with AsyncExitStack() as stack:
            try:
                stack.enter_context(self._quotas.counted(address, token))
                lease = self._pool.lease(token, room, address)
                member = await stack.enter_async_context(lease)
            except TooManyRequests as error:
                retry = {"Retry-After": str(_RETRY_S)}
                return PlainTextResponse(f"{error}\n", HTTPStatus.TOO_MANY_REQUESTS, retry)
            except PermissionDenied as error:
                if error.details.get("status") != HTTPStatus.UNAUTHORIZED:
                    return PlainTextResponse(f"{error.message}\n", HTTPStatus.FORBIDDEN)
                self._app.requests.refused_tokens += 1
                return self._app.challenge(scope, room, error.message)
            except PoolFull:
                return _unavailable("all connections are in use", _RETRY_S)
            except RoomException as error:
                return _unavailable(shown_error(error).message, error.retry_after_s or _RETRY_S)
            asker = Asker(member, target)
            return await self._handle(request, asker, headers, scope, receive, send)

    async def _handle(
        self,
        request: OpenRequest,
        asker: Asker,
        headers: Headers,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> Response | None:
        """Let the SDK answer a request, or return why it is refused."""
        is_of_session = headers.get(_VERSION) in (None, *HANDSHAKE_PROTOCOL_VERSIONS)
        response = _Response(send)
        send = response.send
        if scope["method"] == "POST":
            try:
                body = await _read_body(headers, receive)
            except _TooLarge as error:
                return PlainTextResponse(f"{error}\n", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            receive = _replayed(body, receive)
            if is_of_session:
                asker, send = self._of_session(request, asker, headers, body, send)
            elif headers.get(_METHOD) == "tools/call" and asker.member.is_connected:
                # Without a connection the call waits for it, and not this as well.
                with suppress(RoomException):  # the call itself says what is wrong
                    await asker.member.listing(asker.target)
        elif is_of_session:
            if scope["method"] == "DELETE":
                return Response(status_code=HTTPStatus.OK)
            allowed = {"Allow": "POST, DELETE"}
            return Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers=allowed)
        ASKER.set(asker)
        await self._manager.handle_request({**scope, ASKER_KEY: asker}, receive, send)
        await response.end()
        return None

    def _of_session(
        self, request: OpenRequest, asker: Asker, headers: Headers, body: bytes, send: Send
    ) -> tuple[Asker, Send]:
        """Return the asker of a request of 2025-11-25 or older, and what sends its response.

        Its server cannot match a `notifications/cancelled` to the call, which is another request:
        the session id that both have, and the id of the call, find it here.
        """
        # The first of that name: for the metrics, which take any text, it is near enough.
        if request.method is None and (method := _find_method(body)) is not None:
            request.method = method[1].decode()
        session = headers.get(_SESSION)
        if session is not None:
            asker = asker._replace(session=(asker.member, session))
            if _CANCELLED in body and (cancelled := _cancelled_id(body)) is not None:
                self._server.running.cancel((asker.session, cancelled))
        elif _VERSION not in headers:  # as the first request of a session
            send = _with_session(send)
        return asker, send


class _Response:
    """Sends a response, whose end waits until the client has read what is before it.

    uvicorn waits before it sends a part, and not after the last one. A client that does not read
    could else have any number of large responses in memory: none of them would be counted.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_end = False

    async def send(self, message: Message) -> None:
        """Send a part."""
        if len(message.get("body", b"")) > HIGH_WATER_LIMIT and not message.get("more_body"):
            message["more_body"] = self._has_end = True
        await self._send(message)

    async def end(self) -> None:
        """Send the end. Who made the response has returned, so that it is in memory once."""
        if self._has_end:
            await self._send({"type": "http.response.body"})


def _target_of(scope: Scope) -> tuple[str, Target] | None:
    """Return the room and what of it a path names; None for a path that names none."""
    room, toolkit = (scope["path_params"].get(name) for name in ("room", "toolkit"))
    if not is_room_name(room) or not (toolkit is None or is_toolkit_name(toolkit)):
        return None
    try:
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_MAX_FIELDS)
    except ValueError:
        return None
    participant = query.get("participant", [None])[-1] if toolkit is not None else None
    return room, Target(toolkit, participant)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _unavailable(text: str, retry_s: float, headers: Mapping[str, str] = _NO_HEADERS) -> Response:
    headers = {"Retry-After": str(max(1, round(retry_s))), **headers}
    return PlainTextResponse(f"{text}\n", HTTPStatus.SERVICE_UNAVAILABLE, headers)


class _TooLarge(Exception):
    """The body of a request is."""


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    """Return the body of a request.

    Raises `ClientDisconnect` if the client closes before its end, and `_TooLarge`.
    """
    limit = DEFAULT_MAX_REQUEST_BODY_SIZE
    if headers.get(_METHOD) == "subscriptions/listen":
        limit = MAX_LISTEN_BYTES
    size = int(headers.get("content-length", "0"))  # a number: the parser has checked it
    body = bytearray()
    has_more = True
    while has_more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        size = len(body)
        has_more = message.get("more_body", False)
    if size > limit:
        raise _TooLarge(f"a body here has at most {limit:,} bytes")
    if _parts_of(body) > MAX_BODY_PARTS and _parts_of(_without_texts(b"", body)) > MAX_BODY_PARTS:
        raise _TooLarge(f"a body has at most {MAX_BODY_PARTS:,} objects and lists")
    return bytes(body)


def _parts_of(body: bytes | bytearray) -> int:
    return body.count(b"[") + body.count(b"{")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, and then what follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _cancelled_id(body: bytes) -> Hashable:
    """Return the id of the request that a notification cancels; None for another message."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match message:
        case {"method": "notifications/cancelled", "params": {"requestId": str() | int() as found}}:
            return None if isinstance(found, bool) else found  # `true` would be 1
    return None


def _with_session(send: Send) -> Send:
    """Return what sends a response with a random session id."""

    async def send_with_session(message: Message) -> None:
        if message["type"] == "http.response.start":
            header = _SESSION.encode(), secrets.token_hex(16).encode()
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_session
