"""The paths of the gateway over HTTP: who asks for which room, and what refuses the request.

    POST /rooms/{room}/mcp                 the tools of the room, as `toolkit__tool`
    POST /rooms/{room}/mcp/{toolkit}       those of one toolkit, by their own names
    GET  /healthz, /metrics

Both revisions of MCP share the paths. A request of 2026-07-28 is whole by itself. One of 2025-11-25
or older belongs to a session, of which nothing is stored: its id is random, and any replica takes
any id.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolbus.auth.grants import is_room_name, is_toolkit_name
from toolbus.errors import PermissionDenied, RoomException
from toolbus_gateway.listing import Target
from toolbus_gateway.mcp_server import ASKER, ASKER_KEY, Asker, GatewayServer
from toolbus_gateway.member_pool import MemberPool, PoolFull

__all__ = ["make_app"]

_SESSION = "mcp-session-id"
_VERSION = "mcp-protocol-version"
_CANCELLED = b"notifications/cancelled"
_RETRY_S = 1
_MAX_FIELDS = 16
"""Of a query: a client may write any number, which would be read at each request."""


def make_app(
    pool: MemberPool, server: GatewayServer, manager: StreamableHTTPSessionManager
) -> ASGIApp:
    """Make the application.

    Args:
        pool: The connections to the room server.
        server: The methods of MCP.
        manager: The SDK's transport of that server.
    """
    endpoint = _McpEndpoint(pool, server, manager)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with manager.run():
            yield
        await pool.aclose()

    routes = [
        Route("/rooms/{room}/mcp", endpoint),
        Route("/rooms/{room}/mcp/{toolkit}", endpoint),
        Route("/healthz", _healthz, methods=["GET"]),
    ]
    return Router(routes, redirect_slashes=False, default=_not_found, lifespan=lifespan)


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=HTTPStatus.NOT_FOUND)(scope, receive, send)


class _McpEndpoint:
    """Answers the requests of MCP."""

    def __init__(
        self, pool: MemberPool, server: GatewayServer, manager: StreamableHTTPSessionManager
    ) -> None:
        self._pool = pool
        self._server = server
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The parser leaves the white space behind a value, which is not part of it (RFC 9110, 5.5).
        fields = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope = {**scope, "headers": fields}
        found = _target_of(scope)
        headers = Headers(scope=scope)
        token = _bearer(headers)
        if found is None:
            await _not_found(scope, receive, send)
            return
        if token is None:
            await _unauthorized()(scope, receive, send)
            return
        room, target = found
        async with AsyncExitStack() as stack:
            lease = self._pool.lease(token, room, _address(scope))
            try:
                member = await stack.enter_async_context(lease)
            except (RoomException, PoolFull) as error:
                await _refusal(error)(scope, receive, send)
                return
            asker = Asker(member, target)
            if headers.get(_VERSION) in (None, *HANDSHAKE_PROTOCOL_VERSIONS):
                await self._of_session(asker, headers, scope, receive, send)
            else:
                await self._of_one_request(asker, headers, scope, receive, send)

    async def _of_one_request(
        self, asker: Asker, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request of 2026-07-28, or of a revision that nobody knows."""
        if headers.get("mcp-method") == "tools/call":
            with suppress(RoomException):  # the call itself says what is wrong
                await asker.member.listing(asker.target)
        ASKER.set(asker)
        await self._manager.handle_request({**scope, ASKER_KEY: asker}, receive, send)

    async def _of_session(
        self, asker: Asker, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request of 2025-11-25 or older.

        Its server cannot match a `notifications/cancelled` to the call, which is another request:
        the session id that both have, and the id of the call, find it here.
        """
        if scope["method"] != "POST":
            is_end = scope["method"] == "DELETE"
            status = HTTPStatus.OK if is_end else HTTPStatus.METHOD_NOT_ALLOWED
            allowed = {} if is_end else {"Allow": "POST, DELETE"}
            await Response(status_code=status, headers=allowed)(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            await Response(status_code=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)(scope, receive, send)
            return
        session = headers.get(_SESSION)
        if session is not None:
            asker = asker._replace(session=(asker.member, session))
            if _CANCELLED in body and (cancelled := _cancelled_id(body)) is not None:
                self._server.running.cancel((asker.session, cancelled))
        elif _VERSION not in headers:  # as the first request of a session
            send = _with_session(send)
        scope = {**scope, ASKER_KEY: asker}
        await self._manager.handle_request(scope, _replayed(body, receive), send)


def _target_of(scope: Scope) -> tuple[str, Target] | None:
    """Return the room and what of it a path names; None for a path that names none."""
    room, toolkit = (scope["path_params"].get(name) for name in ("room", "toolkit"))
    if not is_room_name(room) or not (toolkit is None or is_toolkit_name(toolkit)):
        return None
    query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_MAX_FIELDS)
    participant = query.get("participant", [None])[-1] if toolkit is not None else None
    return room, Target(toolkit, participant)


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _unauthorized() -> Response:
    headers = {"WWW-Authenticate": "Bearer"}
    return Response(status_code=HTTPStatus.UNAUTHORIZED, headers=headers)


def _refusal(error: RoomException | PoolFull) -> Response:
    """Return the response where there is no connection to the room."""
    if isinstance(error, PermissionDenied):
        if error.details.get("status") == HTTPStatus.UNAUTHORIZED:
            return _unauthorized()
        return PlainTextResponse(f"{error.message}\n", HTTPStatus.FORBIDDEN)
    retry_s = _RETRY_S
    text = "all connections are in use"
    if isinstance(error, RoomException):
        text = error.message
        retry_s = max(1, round(error.retry_after_s or _RETRY_S))
    headers = {"Retry-After": str(retry_s)}
    return PlainTextResponse(f"{text}\n", HTTPStatus.SERVICE_UNAVAILABLE, headers)


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > DEFAULT_MAX_REQUEST_BODY_SIZE:
            return None
        if not message.get("more_body", False):
            return bytes(body)


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
            return found
    return None


def _with_session(send: Send) -> Send:
    """Return what sends a response with a random session id."""

    async def send_with_session(message: Message) -> None:
        if message["type"] == "http.response.start":
            header = _SESSION.encode(), secrets.token_hex(16).encode()
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_session
