"""The room server: accepts connections, opens sessions, and drains when it is stopped.

It owns everything that one process serves; a single server needs no other service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from inspect import isawaitable
from random import Random
from typing import TYPE_CHECKING, Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from toolbus.auth.tokens import KeyRing
from toolbus.bounded_logging import bounded_logger
from toolbus.forked_children import keep_from_children
from toolbus.transport.client_addresses import TrustedProxies
from toolbus.transport.websocket import CLOSE_TIMEOUT_S, WRITE_LIMIT_BYTES, RedactingLogger
from toolbus.wire import LIMIT_HEADER, PROTOCOL_HEADER, SUBPROTOCOL
from toolbus_server.access.admission import (
    Admission,
    Admitted,
    Refusal,
    Unread,
    offered_bearer,
)
from toolbus_server.access.connection_limits import DescriptorReserve, JoinRateLimiter
from toolbus_server.access.extensions import Extensions
from toolbus_server.access.unread_memory import UnreadMemory
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.clock import Clock, SystemClock
from toolbus_server.rooms.administration import AdminActions, Administration
from toolbus_server.rooms.hub import Hub
from toolbus_server.settings import ServerSettings
from toolbus_server.websocket.accepted_connection import AcceptedConnection, Handshakes
from toolbus_server.websocket.http_endpoints import HttpEndpoints
from toolbus_server.websocket.leaving import Relocation, drain, stop_accepting
from toolbus_server.websocket.request_reader import ReceivedRequest
from toolbus_server.websocket.session import Session, SessionServices

if TYPE_CHECKING:
    from toolbus_server.access.state_file import StateFolder
    from toolbus_server.cluster.node import Node
    from toolbus_server.websocket.metrics import ServerMetrics

__all__ = ["RoomServer"]

_logger = bounded_logger(__name__)
_RETRY_AFTER_S = "1"
# Refusals after which another attempt may succeed.
_TEMPORARY = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_TOO_MANY_AT_ONCE = "Too many clients connect at once: try again in a moment.\n"
_SERVICE_RESTART = 1012
_REPLACED = 4409
_EVICTED = 4440
_LEAVING = "the server is shutting down"
_STORED_S = 5.0
"""The most that the end of the server waits for the state to be written."""
# Replaces the request of an open session: its headers take memory and contain the token.
_EMPTY_REQUEST = Request("", Headers())


class RoomServer:
    """A server of rooms; `async with RoomServer(settings) as server:` runs it.

    Args:
        settings: Address, trusted keys and limits.
        telemetry: Records spans; by default with the process's own OpenTelemetry set-up.
        random: Chooses hosts; pass a seeded one to repeat a run.
        clock: Tells the time of day, by which tokens end; that of this machine by default.

    Raises:
        ValueError: There is no trusted key, one of several issuers has no alias of its own, or a
            trusted proxy is not a network.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        telemetry: ServerTelemetry | None = None,
        random: Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._settings = _checked(settings)
        self._telemetry = telemetry or ServerTelemetry()
        self._random = random
        self._server: Server | None = None
        self._state: StateFolder | None = None
        self.node: Node | None = None
        """Its part in a cluster; None for a single server."""
        self.hub: Hub
        """Rooms and routing; set when the server starts."""
        self.admission: Admission
        """Decides who may connect; set when the server starts."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, *, share_port: bool = False) -> None:
        """Join the cluster, if there is one, and listen.

        Args:
            share_port: Whether other processes may listen on the same port (`SO_REUSEPORT`).

        Raises:
            OSError: The address is not available.
            AlreadyExists: Another living node has its name.
            ValueError: `redis` is not the URL of a Redis, or `node` is not a valid name.
            FolderUnavailable: The folder of `state` cannot be used.
        """
        loop = asyncio.get_running_loop()
        self.hub = Hub(loop, self._settings.limits, self._telemetry, self._random)
        self.hub.set_issuers(self._settings.keys.aliases())
        self.admission = Admission(
            self._settings, self.hub.epoch_of, self.hub.remote_count, self._clock.now
        )
        actions = AdminActions(self.hub, self.admission.revocations, self._clock.now)
        self.node = _node_of(self._settings, self.hub, actions)
        if self.node is None:
            self.hub.router.hosts_return_until = loop.time() + self._settings.hosts_return_s
        administration = Administration(
            self.hub,
            actions,
            self._clock.now,
            self.node,
            issuers=lambda: set(self.admission.keys.aliases()),
        )
        await self._open_state(administration)
        self._services = SessionServices(
            self.admission, administration, loop, self._clock, self._settings.asks_for_error_text
        )
        self._prepare_handshakes()
        self._relocation = Relocation(self.hub)
        if self.node is not None:
            self.node.isolation.on_change = self._on_isolation
            self.node.standby.on_change = self._on_standby
            await self.node.start()
        try:
            await self._listen(share_port)
        except BaseException:
            if self.node is not None:  # it does not listen, so it must not count as a node
                await self.node.stop()
            await self._close_state()
            raise

    async def _open_state(self, administration: Administration) -> None:
        """Read the state of tokens. Raises `FolderUnavailable`."""
        admission = self.admission
        if self.node is not None:
            shared = self.node.tokens
            administration.writer = shared.writer
            admission.extensions = Extensions(shared.writer.add_ends, shared.read)
            shared.known = admission.extensions.__iter__
        elif self._settings.state is not None:
            # Few servers need SQLite.
            from toolbus_server.access.state_file import StateFolder

            folder = await StateFolder.open(self._settings.state)
            lives, revocations = await folder.load()
            self._state = folder
            admission.extensions = Extensions(folder.writer.add_ends)
            admission.extensions.learn(lives, self._clock.now())
            for revocation in revocations:
                admission.revocations.add(revocation, self._clock.now())
            administration.writer = folder.writer
        administration.extends_tokens = admission.extensions is not None

    async def _close_state(self) -> None:
        if self._state is not None:
            await self._state.aclose(_STORED_S)
            self._state = None

    async def _listen(self, share_port: bool) -> None:
        self._server = await serve(
            self._handle,
            self._settings.host,
            self._settings.port,
            reuse_port=share_port or None,
            process_request=self._process_request,
            process_response=_name_protocol,
            create_connection=self._make_connection,  # type: ignore[arg-type]  # a factory, as its documentation allows
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            max_size=self._settings.limits.max_frame_bytes,
            write_limit=WRITE_LIMIT_BYTES,
            open_timeout=self._settings.handshake_timeout_s,
            server_header=None,
            logger=RedactingLogger("websockets.server"),
            ping_interval=self._settings.ping_interval_s,
            ping_timeout=self._settings.ping_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
        )
        for listening in self._server.sockets:
            keep_from_children(listening)
        if self.node is not None:
            self.node.listen(self._settings.host, self.port, is_tls=self._settings.tls is not None)

    def _on_isolation(self, is_isolated: bool) -> None:
        """Move the participants to other nodes, which have the Redis that this one has not."""
        self.admission.is_isolated = is_isolated
        self._relocation.set_active(is_isolated)

    def _on_standby(self, is_active: bool) -> None:
        """Refuse newcomers, and move participants to the nodes of another release."""
        self.admission.stands_by = is_active
        self._relocation.set_active(is_active)

    def _prepare_handshakes(self) -> None:
        """Create what decides about connections before a session opens."""
        loop = asyncio.get_running_loop()
        self._join_rate_limiter = JoinRateLimiter(loop)
        proxies = TrustedProxies(self._settings.trusted_proxies)
        # TLS begins there, so that half-open connections are counted.
        self._handshakes = Handshakes(self._settings.tls, self._settings.handshake_timeout_s)
        self._make_connection = partial(
            AcceptedConnection,
            quotas=self.admission.quotas,
            proxies=proxies,
            descriptors=DescriptorReserve(self.admission.refused, time.monotonic),
            memory=UnreadMemory(loop, self._settings.max_waiting_bytes),
            handshakes=self._handshakes,
        )
        make_metrics = partial(_make_metrics, self.hub, self.admission, self.node)
        self._endpoints = HttpEndpoints(
            self.admission, make_metrics if self._settings.metrics else None, self.node
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._server is None:
            raise RuntimeError("the server is not started")
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL that participants connect to."""
        return self._settings.url(self.port)

    def trust(self, keys: KeyRing) -> None:
        """Accept tokens of these keys only, from now on.

        Open connections stay: a token is checked when a client connects or refreshes it.
        Raises ValueError if there is no key, or one of several issuers has no alias of its own.
        """
        former = self._settings.keys.aliases()
        self._settings = _checked(replace(self._settings, keys=keys))
        if self._server is not None:
            self.admission.keys = keys
            # It looks at every participant and toolkit, and a key set comes every few minutes.
            if (aliases := keys.aliases()) != former:
                self.hub.set_issuers(aliases)

    def stop_listening(self) -> None:
        """Close the listening sockets, so that other processes get the new connections.

        Open connections stay until `stop`.
        """
        if self._server is not None:
            self._server.server.close()

    async def stop(self) -> None:
        """Drain the server, then close the remaining connections with 1012.

        New connections are refused. Calls in flight, and calls within them, may take `drain_s` to
        finish; new calls are `unavailable`.
        """
        if self._server is None:
            return
        self.admission.draining = True
        self._relocation.set_active(False)
        if self.node is not None:
            await self.node.drain()
        await drain(self.hub, self._settings.drain_s)
        await stop_accepting(self._server)
        await self._handshakes.abort()
        # Not by `Server.close`, which before websockets 16 has no code but 1001.
        await asyncio.gather(
            *(
                connection.close(_SERVICE_RESTART, _LEAVING)
                for connection in self._server.connections
            )
        )
        self._server.close()
        await self._server.wait_closed()
        if self.node is not None:
            await self.node.stop()
        await self._close_state()
        self.admission.log_left_out()
        self._server = None

    def _process_request(
        self, connection: ServerConnection, request: Request
    ) -> Response | Awaitable[Response | None] | None:
        assert isinstance(connection, AcceptedConnection)
        if connection.protocol.eof_sent:
            return connection.drop()
        connection.request_arrived(request.headers)
        assert isinstance(request, ReceivedRequest)
        answer = self._endpoints.answer(request) or _refuse_method(connection, request)
        if answer is not None:
            return answer
        if self._join_rate_limiter.is_full:
            self.admission.refused["too_many_at_once"] += 1
            refusal = connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, _TOO_MANY_AT_ONCE)
            refusal.headers["Retry-After"] = _RETRY_AFTER_S
            return refusal
        permit = self._join_rate_limiter.acquire()
        if permit is None:
            return self._admit(connection, request)
        return self._admit_later(permit, connection, request)

    async def _admit_later(
        self, permit: asyncio.Future[None], connection: AcceptedConnection, request: Request
    ) -> Response | None:
        await permit
        if connection.transport.is_closing() or connection.protocol.eof_sent:  # closed meanwhile
            await connection.drop()
        answer = self._admit(connection, request)
        return await answer if isawaitable(answer) else answer

    def _admit(
        self, connection: AcceptedConnection, request: Request
    ) -> Response | Awaitable[Response | None] | None:
        decision = self.admission.decide(request.path, request.headers, connection.address)
        if isinstance(decision, Unread):
            return self._admit_once_read(decision, connection, request)
        return self._decided(decision, connection, request)

    async def _admit_once_read(
        self, unread: Unread, connection: AcceptedConnection, request: Request
    ) -> Response | None:
        decision: Admitted | Refusal | Unread | None = await self.admission.read_state(unread)
        if connection.transport.is_closing() or connection.protocol.eof_sent:  # closed meanwhile
            await connection.drop()
        if decision is None:
            decision = self.admission.decide(
                request.path, request.headers, connection.address, is_read=True
            )
        assert not isinstance(decision, Unread)
        return self._decided(decision, connection, request)

    def _decided(
        self, decision: Admitted | Refusal, connection: AcceptedConnection, request: Request
    ) -> Response | None:
        connection.decision = decision
        if isinstance(decision, Admitted):
            identity = decision.participant.identity
            connection.count(identity)
            connection.count(decision.room)
            connection.join(self.hub.usages.of(identity), self.admission.quotas.count_of(identity))
            return None
        if decision.close_code is not None and offered_bearer(request.headers):
            return None
        response = connection.respond(HTTPStatus(decision.status), decision.text)
        if decision.limit:
            response.headers[LIMIT_HEADER] = decision.limit
        if decision.status in _TEMPORARY:
            response.headers["Retry-After"] = _RETRY_AFTER_S
        return response

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, AcceptedConnection)
        decision = connection.decision
        if isinstance(decision, Admitted):
            await self._open_session(connection, decision)
        elif decision is not None and decision.close_code is not None:
            connection.close_with(decision.close_code, decision.text.strip())
        await connection.wait_closed()

    async def _open_session(self, connection: AcceptedConnection, decision: Admitted) -> None:
        """Run the session of an admitted participant until its connection closes."""
        if self.node is not None and not self.admission.draining:
            await self.node.enter(decision.room)
        close = self._close_after_admission(decision)
        if close is not None:
            connection.close_with(*close)
            self.hub.drop(decision.room)
            return
        session = Session(connection, decision, self.hub, self._services)
        connection.request, connection.response, connection.decision = _EMPTY_REQUEST, None, None
        session.open(decision)
        await connection.wait_closed()
        # A no-op, unless the connection was lost before its session could be notified.
        session.on_close()

    def _close_after_admission(self, decision: Admitted) -> tuple[int, str] | None:
        """Return why a connection must close that was admitted before something changed."""
        participant = decision.participant
        if self.admission.draining:  # the notice has been sent already
            return _SERVICE_RESTART, _LEAVING
        if self.admission.revocations.is_revoked(
            participant.identity, participant.jti, participant.issued_at
        ):
            return _EVICTED, "the token was revoked"
        current = self.hub.epoch_of(decision.room, participant.identity, participant.instance)
        if current is not None and participant.epoch <= current:  # the newer connection was faster
            return _REPLACED, "replaced by a newer connection"
        return None


def _checked(settings: ServerSettings) -> ServerSettings:
    if not len(settings.keys) and not settings.keys.issuers:
        raise ValueError("a server needs at least one key to check tokens with")
    settings.keys.aliases()  # raises ValueError
    TrustedProxies(settings.trusted_proxies)
    return settings


def _node_of(settings: ServerSettings, hub: Hub, actions: AdminActions) -> Node | None:
    if settings.redis is None:
        return None
    # The Redis client is not installed everywhere.
    from toolbus_server.cluster.node import Node
    from toolbus_server.cluster.redis.url import pool_of

    pool = pool_of(settings.redis)
    return Node(hub, pool, actions, settings.node, settings.node_family)


def _make_metrics(hub: Hub, admission: Admission, node: Node | None) -> ServerMetrics:
    # Loading prometheus_client takes long, and not every server is scraped.
    from toolbus_server.websocket.metrics import ServerMetrics

    return ServerMetrics(hub, admission, node)


def _name_protocol(_connection: Any, _request: Request, response: Response) -> None:
    """Mark the response as one of a toolbus server (CONN-17)."""
    response.headers[PROTOCOL_HEADER] = SUBPROTOCOL


def _refuse_method(connection: ServerConnection, request: ReceivedRequest) -> Response | None:
    """Refuse what is not a request for a websocket; before version 17, websockets does not."""
    if request.method != "GET":
        response = connection.respond(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET.\n")
        response.headers["Allow"] = "GET"
        return response
    if request.protocol != "HTTP/1.1":
        return connection.respond(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1.1.\n")
    return None
