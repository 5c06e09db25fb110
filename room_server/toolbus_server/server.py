"""The room server: listens, lets participants in, and leaves well.

It holds everything that one process serves. Without a second node it needs nothing but itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from toolbus.tokens import KeyRing
from toolbus.transport import (
    CLOSE_TIMEOUT_S,
    WRITE_LIMIT_BYTES,
)
from toolbus.transport_log import TransportLog
from toolbus.wire import SUBPROTOCOL
from toolbus_server.administration import Administration
from toolbus_server.admission import Admission, Admitted, offered_bearer
from toolbus_server.counted_connection import CountedConnection
from toolbus_server.crowd import LineCounts
from toolbus_server.farewell import close_door, take_leave
from toolbus_server.forwarding import TrustedProxies
from toolbus_server.http_endpoints import AskWorkers, HttpEndpoints
from toolbus_server.hub import Hub
from toolbus_server.session import Desk, Session
from toolbus_server.settings import ServerSettings
from toolbus_server.telemetry import ServerTelemetry
from toolbus_server.turnstile import Turnstile

if TYPE_CHECKING:
    from toolbus_server.metrics import Numbers, ServerMetrics
    from toolbus_server.nodes.node import Node

__all__ = ["RoomServer"]

_logger = logging.getLogger(__name__)
_RETRY_AFTER_S = "1"
# Refusals that another attempt may not meet.
_PASSING = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_TOO_MANY_AT_ONCE = "Too many come in at once: try again in a moment.\n"
_SERVICE_RESTART = 1012
_REPLACED = 4409
_SENT_AWAY = 4440
_LEAVING = "the server is leaving"
# Stands for the request of whoever is in: its headers take room, and the token is among them.
_FORGOTTEN = Request("", Headers())


class RoomServer:
    """A server of rooms; `async with RoomServer(settings) as server:` runs it.

    Args:
        settings: Where to listen, whom to trust, what to grant.
        telemetry: Where spans go; the process's own OpenTelemetry set-up unless given.
        random: Draws hosts; hand in a seeded one to repeat a run.

    Raises:
        ValueError: There is no key to trust, or a trusted proxy is no network.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        telemetry: ServerTelemetry | None = None,
        random: Random | None = None,
    ) -> None:
        self._settings = _checked(settings)
        self._telemetry = telemetry or ServerTelemetry()
        self._random = random
        self._server: Server | None = None
        self.node: Node | None = None
        """What makes it one of many; None where it is all there is."""
        self.ask_workers: AskWorkers | None = None
        """What asks all servers of its address for their numbers; to be set before it starts."""
        self.hub: Hub
        """Rooms and routing; set once the server is started."""
        self.admission: Admission
        """Decisions at the door; set once the server is started."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, listener: socket.socket | None = None) -> None:
        """Join the other nodes, if it is to be one of many, and listen.

        Args:
            listener: Where to accept connections, in place of an address of the server's own. It
                is the server's from now on.

        Raises:
            OSError: The address cannot be had.
            AlreadyExists: Another node, which lives, has its name.
            ValueError: `redis` is no URL of one, or `node` no name.
        """
        loop = asyncio.get_running_loop()
        self.hub = Hub(loop, self._settings.limits, self._telemetry, self._random)
        self.admission = Admission(self._settings, self.hub.epoch_of, time.time)
        administration = Administration(self.hub, self.admission.revocations, time.time)
        self.node = _node_of(self._settings, self.hub, administration)
        self._desk = Desk(self.admission, administration, loop, time.time)
        self._prepare_door()
        if self.node is not None:
            self.admission.elsewhere = self.hub.elsewhere
            await self.node.start()
        try:
            await self._listen(listener)
        except BaseException:
            if self.node is not None:  # nobody can come in: the others must not count on it
                await self.node.stop()
            raise

    async def _listen(self, listener: socket.socket | None) -> None:
        self._server = await serve(
            self._handle,
            **_where(self._settings, listener),
            process_request=self._process_request,
            create_connection=self._make_connection,  # type: ignore[arg-type]  # a factory, as its documentation allows
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            select_subprotocol=_select_subprotocol,
            compression=None,
            max_size=self._settings.limits.max_frame_bytes,
            write_limit=WRITE_LIMIT_BYTES,
            open_timeout=self._settings.handshake_timeout_s,
            server_header=None,
            logger=TransportLog(logging.getLogger("websockets.server")),
            ping_interval=self._settings.ping_interval_s,
            ping_timeout=self._settings.ping_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            ssl=self._settings.tls,
        )

    def _prepare_door(self) -> None:
        """Make what is asked before anybody is let in."""
        lines = LineCounts()
        self._turnstile = Turnstile(asyncio.get_running_loop())
        proxies = TrustedProxies(self._settings.trusted_proxies)
        crowd = self.admission.crowd
        self._make_connection = partial(
            CountedConnection, crowd=crowd, lines=lines, proxies=proxies
        )
        make_metrics = partial(_metrics, self.hub, self.admission, lines)
        self._endpoints = HttpEndpoints(
            self.admission, make_metrics if self._settings.metrics else None, self.ask_workers
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
        """Where participants connect to."""
        return self._settings.url(self.port)

    def numbers(self) -> Numbers:
        """Give what `/metrics` tells of this server, as JSON can carry it."""
        return self._endpoints.numbers()

    def trust(self, keys: KeyRing) -> None:
        """Accept the tokens of these keys from now on, and of no others.

        Who is connected stays: a key counts when a token is shown, at the door or to refresh.
        Raises ValueError if there is no key.
        """
        self._settings = _checked(replace(self._settings, keys=keys))
        if self._server is not None:
            self.admission.keys = keys

    def stop_listening(self) -> None:
        """Accept no more connections, not even to refuse them, where others listen too.

        Who is there stays until `stop`.
        """
        if self._server is not None:
            self._server.server.close()

    async def stop(self) -> None:
        """Leave: let nobody in any more, tell everybody, and close who is left with 1012.

        Calls in flight, and those within them, may end for as long as `drain_s` says; new ones are
        `unavailable`.
        """
        if self._server is None:
            return
        self.admission.draining = True
        if self.node is not None:
            await self.node.part()
        await take_leave(self.hub, self._settings.drain_s)
        await close_door(self._server)
        self._server.close(code=_SERVICE_RESTART, reason=_LEAVING)
        await self._server.wait_closed()
        if self.node is not None:
            await self.node.stop()
        self._server = None

    def _process_request(
        self, connection: ServerConnection, request: Request
    ) -> Response | Awaitable[Response | None] | None:
        assert isinstance(connection, CountedConnection)
        if connection.protocol.eof_sent:
            return connection.drop()
        connection.find_address(request.headers)
        answer = self._endpoints.answer(request)
        if answer is not None:
            return answer
        if self._turnstile.is_full:
            self.admission.refused["too_many_at_once"] += 1
            return _passing(connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, _TOO_MANY_AT_ONCE))
        turn = self._turnstile.turn()
        if turn is None:
            return self._admit(connection, request)
        return self._admit_later(turn, connection, request)

    async def _admit_later(
        self, turn: asyncio.Future[None], connection: CountedConnection, request: Request
    ) -> Response | None:
        await turn
        if connection.transport.is_closing() or connection.protocol.eof_sent:  # gone meanwhile
            await connection.drop()
            return None
        return self._admit(connection, request)

    def _admit(self, connection: CountedConnection, request: Request) -> Response | None:
        decision = self.admission.decide(request.path, request.headers, connection.address)
        connection.decision = decision
        if isinstance(decision, Admitted):
            connection.count(decision.member.identity)
            connection.count(decision.room)
            return None
        if decision.close_code is not None and offered_bearer(request.headers):
            return None
        response = connection.respond(HTTPStatus(decision.status), decision.text)
        return _passing(response) if decision.status in _PASSING else response

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, CountedConnection)
        decision = connection.decision
        if isinstance(decision, Admitted):
            await self._seat(connection, decision)
        elif decision is not None and decision.close_code is not None:
            connection.close_with(decision.close_code, decision.text.strip())
        await connection.wait_closed()

    async def _seat(self, connection: CountedConnection, decision: Admitted) -> None:
        """Seat somebody who was let in, for as long as the connection lasts."""
        if self.node is not None and not self.admission.draining:
            await self.node.enter(decision.room)
        second_thought = self._second_thought(decision)
        if second_thought is not None:
            connection.close_with(*second_thought)
            self.hub.drop(decision.room)
            return
        session = Session(connection, decision, self.hub, self._desk)
        connection.request, connection.response, connection.decision = _FORGOTTEN, None, None
        session.open(decision)
        await connection.wait_closed()
        # Again for one that was lost before it had a session to tell.
        session.on_close()

    def _second_thought(self, decision: Admitted) -> tuple[int, str] | None:
        """Say why somebody who was let in a moment ago cannot stay: meanwhile others came."""
        member = decision.member
        if self.admission.draining:  # it would not be told any more
            return _SERVICE_RESTART, _LEAVING
        if self.admission.revocations.cover(member.identity, member.jti, member.issued_at):
            return _SENT_AWAY, "the token was revoked"
        current = self.hub.epoch_of(decision.room, member.identity, member.instance)
        if current is not None and member.epoch <= current:  # the newer one was the quicker
            return _REPLACED, "replaced by a newer connection"
        return None


def _passing(response: Response) -> Response:
    response.headers["Retry-After"] = _RETRY_AFTER_S
    return response


def _checked(settings: ServerSettings) -> ServerSettings:
    if not len(settings.keys):
        raise ValueError("a server needs at least one key to tell whose tokens are good")
    TrustedProxies(settings.trusted_proxies)
    return settings


def _where(settings: ServerSettings, listener: socket.socket | None) -> dict[str, Any]:
    if listener is None:
        return {"host": settings.host, "port": settings.port}
    return {"sock": listener}


def _node_of(settings: ServerSettings, hub: Hub, administration: Administration) -> Node | None:
    if settings.redis is None:
        return None
    # What speaks with Redis is not needed, nor installed, everywhere.
    from toolbus_server.nodes.node import Node
    from toolbus_server.nodes.redis_url import pool_of

    pool = pool_of(settings.redis)
    return Node(hub, pool, administration, settings.node, settings.node_family)


def _metrics(hub: Hub, admission: Admission, lines: LineCounts) -> ServerMetrics:
    # What writes them takes long to load, and is not asked for everywhere.
    from toolbus_server.metrics import ServerMetrics

    return ServerMetrics(hub, admission, lines)


def _select_subprotocol(_connection: Any, offered: Any) -> Subprotocol | None:
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None
