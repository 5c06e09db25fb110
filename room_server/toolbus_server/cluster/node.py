"""One node of a cluster: it keeps its lease, tracks the other nodes, and dispatches messages."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any

import msgspec
from redis.asyncio.connection import ConnectionPool

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import NoHost, Unavailable
from toolbus.wire import AssessDispatch, Dispatch, unpack_body
from toolbus_server.calls.call_state import Connection, InFlightCall, RoutedRoom
from toolbus_server.calls.call_statistics import NodeCallReport
from toolbus_server.calls.delegation import CallContext
from toolbus_server.cluster.isolation import (
    ALONE_TEXT,
    ISOLATED_TEXT,
    NODE_HEADER,
    READY_TEXT,
    Isolation,
    RedisOutage,
)
from toolbus_server.cluster.lease import (
    ExchangeDiffers,
    Lease,
    LeaseExpired,
    NameClaim,
    NameHeld,
    RefusalLog,
    check_node_name,
)
from toolbus_server.cluster.peer import (
    ADMIN_ACTION,
    HOLD,
    HOLD_REQUEST,
    MESSAGE,
    OPEN_HOLDS,
    Peer,
    RelayedCall,
    inbox_of,
)
from toolbus_server.cluster.peer_link import BATCH_PREFIX, decode_batch
from toolbus_server.cluster.redis.client import INBOX_WINDOW_BYTES, RedisClient, RedisUnavailable
from toolbus_server.cluster.remote_admin import RemoteAdmin
from toolbus_server.cluster.replicated_rooms import ReplicatedRooms, rooms_key
from toolbus_server.cluster.replication_codec import unpack_delta
from toolbus_server.cluster.standby import RETRY_S, STANDBY_TEXT, Standby
from toolbus_server.cluster.token_state import RedisTokenState
from toolbus_server.registry.call_checks import STREAM_OPTION_TYPES, check_pin
from toolbus_server.registry.models import Participant, RegisteredToolkit
from toolbus_server.rooms.administration import AdminActions, RoomsElsewhere
from toolbus_server.rooms.hub import Hub

__all__ = ["HEARTBEAT_S", "LEASE_S", "Node"]


HEARTBEAT_S = 3.0
"""Seconds between two renewals of the lease."""
LEASE_S = 10.0
"""Seconds until a lease that is not renewed expires; until then a dead node counts as alive."""
_MIN_WINDOW_BYTES = 64 * 1024
"""However many nodes a bus has: with less, small messages too would wait for confirmations."""
_STOP_S = 1.0
"""Seconds that a stopping node waits for its last changes to be published, at drain and at stop."""
_MAX_ENDED = 1_000
"""Each deployment ends nodes: without it a node would remember all that there ever were."""
_START_S = 2.0
"""Seconds that the start waits for Redis."""
_RECONNECT_GRACE_S = 1.0
"""Seconds after a lost connection in which the node expects to be connected again."""
_SETTLE_S = 5.0
"""Seconds after an outage in which other nodes may not have published their participants again."""
_BUG_BACKOFF_S = 1.0
_EXPIRY_MARGIN_S = 0.02
_ECHO_PREFIX = b"B"
"""The first byte of the echo of a renewal: the inbox is subscribed at the Redis with the lease."""
_logger = bounded_logger(__name__)


class Node:
    """Makes this server one of several.

    Args:
        hub: The rooms of this server.
        pool: Makes connections to Redis.
        actions: Carries out the actions of other nodes' administrators.
        name: The node's name, which must be unique; "" chooses one.
        family: The prefix of the incarnations of former nodes of this name that are known to have
            ended, or "".

    Raises:
        ValueError: The name is invalid.
    """

    def __init__(
        self,
        hub: Hub,
        pool: ConnectionPool,
        actions: AdminActions,
        name: str = "",
        family: str = "",
    ) -> None:
        check_node_name(name)
        self._hub = hub
        self._family = family
        self._pool = pool
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._claim = NameClaim(self.name)
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, Peer] = {}
        self._ended: dict[str, None] = {}
        """The last nodes whose lease expired; their messages are ignored."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sessions: Iterator[int] = count(1)
        """Numbers for sessions with other nodes."""
        self._run_task: asyncio.Task[None] | None = None
        self.outage: RedisOutage = RedisOutage(self._loop.time)
        """The time without Redis."""
        self.isolation: Isolation = Isolation(self.name)
        """Whether other nodes have Redis meanwhile."""
        self.standby: Standby = Standby(self.name)
        """Whether nodes of another release keep this one from joining."""
        self.probe_headers: dict[str, str] = {NODE_HEADER: self.name}
        """Headers of the answer to a readiness probe."""
        self._settling: asyncio.TimerHandle | None = None
        self._listens_at: tuple[str, str, int] | None = None
        self._next_expiry_s = 0.0
        self._grace_ends_at = 0.0
        self._refusals = RefusalLog(self._loop.time)
        self.is_joined = asyncio.Event()
        """Set while this node has a lease."""
        self._start_incarnation()
        self._rooms = ReplicatedRooms(
            self.name,
            hub,
            lambda: self.lease,
            self._live_peer,
            self._start_task,
            self._is_rejoining,
        )
        self._admin = RemoteAdmin(actions, lambda: self._redis, self._send_action)
        self.tokens: RedisTokenState = RedisTokenState(
            lambda: self._redis, actions, self._admin.revoke
        )
        """The state of tokens, which the nodes share."""

    def _start_incarnation(self) -> None:
        """Start a new incarnation; state published earlier is void."""
        self.node_id = f"{self.name} {self._family}{secrets.token_hex(8)}"
        self._redis = RedisClient(self._pool, inbox_of(self.node_id), self)
        self.lease: Lease = Lease(self.node_id, self._redis, self._family, self._refusals)
        self._live_nodes: set[str] = set()

    async def start(self) -> None:
        """Join the cluster and stay in it; if Redis is unavailable, join when it is back.

        If a node of this name was killed a moment ago, this waits until its lease has expired.

        Raises:
            NameTaken: A node of this name is alive.
        """
        self._run_task = self._loop.create_task(self._run())
        self._start_task(self._rooms.check_repeatedly())
        try:
            await self._claim.wait_until_decided(_START_S)
        except TimeoutError:
            _logger.warning("node %s works without the other nodes until Redis answers", self.name)
        except BaseException:
            await self.stop()
            raise

    def listen(self, host: str, port: int, *, is_tls: bool) -> None:
        """Publish where this server listens, with the next heartbeat.

        Other nodes that lose Redis ask there whether this one has it. If the server listens on all
        addresses, the one towards Redis is published.
        """
        self._listens_at = ("https" if is_tls else "http", host, port)

    def _address(self) -> str:
        if self._listens_at is None:
            return ""
        scheme, host, port = self._listens_at
        if not _is_own_address(host):
            host = self._redis.local_host
        if ":" in host:
            host = f"[{host}]"
        return host and f"{scheme}://{host}:{port}"

    def readiness(self) -> tuple[bool, str]:
        """Return whether participants should connect here, and why not as a constant text."""
        if self.has_lease():
            return True, READY_TEXT
        if self.standby.is_active:
            return False, STANDBY_TEXT
        if self.isolation.is_isolated:
            return False, ISOLATED_TEXT
        return True, ALONE_TEXT

    async def drain(self) -> None:
        """Publish that this node is draining.

        From now on its participants may connect to another node too; hosts of this node get calls
        only if no other node has one.
        """
        await self._rooms.drain(_STOP_S)

    async def stop(self) -> None:
        """Leave the cluster: other nodes withdraw at once what this one published."""
        self.isolation.end()
        self.standby.end()
        if self._settling is not None:
            self._settling.cancel()
        await self._rooms.wait_for_exits(_STOP_S)
        await self.tokens.writer.aclose(_STOP_S)
        with suppress(RedisUnavailable, TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self.lease.release(rooms_key(self.node_id))
        for task in (self._run_task, *self._tasks):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._redis.run()
            except NameHeld as held:
                await asyncio.sleep(self._claim.refused(held))
            except ExchangeDiffers as found:
                await self._stand_by(found)
            except LeaseExpired:
                _logger.warning(
                    "the lease of node %s has expired: it starts a new incarnation", self.name
                )
                for node_id in list(self._peers):
                    self._remove_peer(node_id)
                self._start_incarnation()
            except Exception:  # the node has to rejoin in any case
                _logger.exception("the Redis connection of node %s failed with a bug", self.name)
                await asyncio.sleep(_BUG_BACKOFF_S)

    async def _stand_by(self, found: ExchangeDiffers) -> None:
        """Leave the bus to live nodes of another release, until the next attempt to join."""
        self._claim.postponed()
        self.isolation.end()  # what other nodes of this release answered counts no longer
        self.standby.begin(found, LEASE_S)
        await asyncio.sleep(RETRY_S)

    # Rooms and other nodes

    async def enter(self, room: str) -> None:
        """Load a room from Redis, before a participant joins it here."""
        await self._rooms.enter(room)

    def on_entry(self, node: str, entry: list[Any]) -> None:
        """Handle a message, an administrator's action or a report of calls of another node."""
        kind, *rest = entry
        if kind == ADMIN_ACTION:
            self._admin.execute_action(*rest)
        elif (replica := self._rooms.replica_of(rest[0])) is None:
            return
        elif kind == MESSAGE:
            replica.subscribers.deliver(*rest[1:])
        elif kind == HOLD:
            replica.holds.receive(node, rest[1])
        elif kind == OPEN_HOLDS:
            replica.holds.receive_open(node, rest[1])
        elif kind == HOLD_REQUEST:
            self._start_task(self._rooms.answer_hold_request(node, *rest))
        else:
            replica.monitor.receive_report(node, NodeCallReport(*rest[1]))

    def on_held(self, call: InFlightCall, data: dict[str, Any]) -> None:
        """Let a call stand still, as its node, or one behind it, waits for a person."""
        replica = self._rooms.replica_of(data["room"])
        hold = None if replica is None else replica.holds.read(data["node"], data["packed"])
        open_room = self._hub.rooms.get(data["room"])
        if hold is not None and open_room is not None:
            open_room.hold_requests.held_elsewhere(call, hold, data)

    def resend_reports(self, node: str) -> None:
        """Send the reports of calls, and all holds, to another node again."""
        self._rooms.resend_reports(node)

    def kick_elsewhere(self, options: dict[str, Any]) -> None:
        """Send an administrator's kick to all other nodes; returns at once."""
        self._start_task(self._admin.kick(options))

    async def rooms_elsewhere(self, after: str, limit: int) -> RoomsElsewhere:
        """List at most `limit` rooms of all nodes, after a name."""
        return await self._rooms.elsewhere(after, limit)

    def _peer(self, node_id: str) -> Peer:
        peer = self._peers.get(node_id)
        if peer is None:
            peer = Peer(node_id, self._redis, self._hub.router, self)
            self._peers[node_id] = peer
        return peer

    def _live_peer(self, node_id: str) -> Peer | None:
        return None if node_id in self._ended else self._peer(node_id)

    def relay(self, peer: Peer, call: RelayedCall) -> None:
        """Dispatch a call of a remote participant to its host.

        The caller's node has authorized it; this node checks that the host is still connected.

        Raises:
            NoHost: The host has left this node, or accepts no more calls; the caller's node may
                know another one by now.
            DefinitionChanged: The call is pinned, and the host has replaced its definition.
            Unavailable: This node does not know the caller or its principal, not yet or no longer.
            RoomException: The call cannot be sent to the host.
        """
        if not self._hub.accepts_remote_calls:
            raise NoHost("the host's server has left", retry_after_s=0.05)
        room_name, host_id, caller_id, principal_id, hops, is_named, waits, dispatch = call
        open_room = self._hub.rooms.get(room_name)
        host = None if open_room is None else open_room.routed.connections.get(host_id)
        if (
            open_room is None
            or host is None
            or host.participant.is_draining
            or host.participant.is_remote
        ):
            raise NoHost("the host has moved", retry_after_s=0.05)
        room = open_room.routed
        caller = room.connections.get(caller_id)
        principal = None if principal_id is None else room.connections.get(principal_id)
        if caller is None or (principal_id is not None and principal is None):
            raise _unknown_caller_error()
        header = dict(dispatch.header)
        forwarded_for = _forwarded_for(room, header)
        pin = header.pop("pin", None)
        toolkit = _toolkit_of(host, dispatch, header)
        if pin is not None:  # it may be pinned to another definition than the host has now
            for generation in toolkit.generations:
                if host.participant in generation.hosts:
                    check_pin(toolkit, pin, generation)
        tool = toolkit.serving.definition.tools[dispatch.tool]
        acted_for = None if principal is None else principal.participant
        context = CallContext(acted_for, hops, None, is_named, None, forwarded_for)
        timeout_s = inf if dispatch.remaining_ms is None else dispatch.remaining_ms / 1000
        router = self._hub.router
        opened = router.open_call(caller, dispatch, (toolkit, tool, context, host), timeout_s)
        if waits is not None:
            opened.purpose, opened.approval_s = waits
        if isinstance(dispatch, AssessDispatch):
            router.dispatch(opened, dispatch, header, None)
            return
        options = {name: header[name] for name in STREAM_OPTION_TYPES.keys() & header.keys()}
        if options:
            router.streams.open(opened, options | {"idle_ms": 0}, header)
        router.dispatch_relayed(room, opened, dispatch, header)

    def _send_action(self, node_id: str, action: str, options: dict[str, Any]) -> None:
        if node_id != self.node_id:
            self._peer(node_id).send_admin_action(action, options)

    def window(self) -> int:
        """Return how many bytes may be in flight to one node."""
        return max(_MIN_WINDOW_BYTES, INBOX_WINDOW_BYTES // max(1, len(self._peers)))

    # Events of the connection to Redis

    async def on_connected(self) -> None:
        """Acquire or renew the lease, read all rooms, and keep the lease renewed."""
        async with asyncio.timeout(_heartbeat_timeout_s()):
            await self.lease.load_scripts()
            await self._heartbeat()
            await self.tokens.synchronize()
        self.is_joined.set()
        self._claim.granted()
        self.outage.ended()
        self.isolation.end()
        self.standby.joined()
        self._settling = self._loop.call_later(_SETTLE_S, self._settled)
        self._rooms.reload_all()
        self._rooms.clean_up(self.node_id)
        while True:
            for peer in list(self._peers.values()):
                peer.probe()
            # Live nodes have renewed by the next expiry, so a dead one is noticed as it expires.
            await asyncio.sleep(min(HEARTBEAT_S, self._next_expiry_s + _EXPIRY_MARGIN_S))
            async with asyncio.timeout(_heartbeat_timeout_s()):
                await self._heartbeat()

    def _settled(self) -> None:
        self._hub.router.view_is_partial = False

    def has_lease(self) -> bool:
        """Whether this node is connected to Redis, and its lease has not expired."""
        return self._redis.is_connected and self._loop.time() < self.lease.ends_at

    def _is_rejoining(self) -> bool:
        """Whether this node has no lease now and expects one soon."""
        is_soon = self._redis.is_connected or self._loop.time() < self._grace_ends_at
        return is_soon and not self.has_lease()

    def on_disconnected(self) -> None:
        """End all calls with other nodes: no message of them can arrive any more."""
        if self.is_joined.is_set():
            self._grace_ends_at = self._loop.time() + _RECONNECT_GRACE_S
            self.isolation.begin()
            self._hub.router.view_is_partial = True
        if self._settling is not None:
            self._settling.cancel()
        self.is_joined.clear()
        self.lease.on_disconnected()
        for peer in self._peers.values():
            peer.on_disconnected()
        self._rooms.invalidate()

    def on_unavailable(self, reason: str) -> None:
        """Record that there is no Redis."""
        self.outage.failed(reason)

    def on_inbox(self, data: bytes) -> None:
        """Handle a delta of a room, a batch of another node, or the echo of a renewal."""
        try:
            if data.startswith(BATCH_PREFIX):
                batch = decode_batch(data)
                sender = self._live_peer(batch.sender)
                if sender is not None:  # an ended node has ended its calls, as has this node
                    sender.on_batch(batch, len(data))
                return
            if data.startswith(_ECHO_PREFIX):
                self.lease.echo.set()
                return
            delta = unpack_delta(data[1:])
        except (msgspec.MsgspecError, ValueError) as error:
            _logger.error("a message in the inbox cannot be read: %s", error)
            return
        self._rooms.apply_delta(*delta)

    # Leases

    async def _heartbeat(self) -> None:
        """Renew the lease, and wait for the echo. Raises what closes the connection."""
        known = self._live_nodes | self._peers.keys()
        self.lease.address = self._address()
        renewal = await self.lease.renew(LEASE_S)
        self._next_expiry_s = renewal.next_expiry_s
        if renewal.live_nodes is not None:
            self._live_nodes = renewal.live_nodes
            # A node whose lease reappeared missed the answer to its first renewal, and asked again
            # after that lease had expired; it had published and sent nothing before.
            reinstated = self._ended.keys() & renewal.live_nodes
            for node_id in reinstated:
                del self._ended[node_id]
            if reinstated:
                self._rooms.reload_all()  # what they published since then was ignored
        if renewal.addresses is not None:
            renewal.addresses.pop(self.node_id, None)
            self.isolation.addresses = renewal.addresses
        self._mark_ended(known - self._live_nodes)
        for ended in renewal.ended_nodes:
            self._rooms.clean_up(ended)
        await self.lease.echo.wait()

    def _mark_ended(self, ended: set[str]) -> None:
        """Record known nodes whose lease has expired."""
        self._ended |= dict.fromkeys(ended)
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        for node_id in ended & self._peers.keys():
            self._remove_peer(node_id)

    def _remove_peer(self, node_id: str) -> None:
        """End the participants at a node, and the calls from and to it."""
        self._rooms.remove_node(node_id)
        self._peers.pop(node_id).on_ended()

    def _start_task(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a task of node %s failed with a bug", self.name, exc_info=error)


def _is_own_address(host: str) -> bool:
    """Whether a server that listens on `host` is reached there, not at each of its addresses."""
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name, which other nodes may not know
        return False


def _heartbeat_timeout_s() -> float:
    """Return the time limit of a heartbeat: a node considers itself cut off before others do."""
    return LEASE_S * 2 / 3 - HEARTBEAT_S


def _toolkit_of(
    host: Connection, dispatch: Dispatch | AssessDispatch, header: dict[str, Any]
) -> RegisteredToolkit:
    is_public = header.get("private") is not True
    for toolkit in host.participant.toolkits:
        if toolkit.name == dispatch.toolkit and toolkit.public == is_public:
            if dispatch.tool in toolkit.serving.definition.tools:
                return toolkit
    raise NoHost(f"the host of {dispatch.toolkit} has moved", retry_after_s=0.05)


def _forwarded_for(room: RoutedRoom, header: dict[str, Any]) -> tuple[Participant, ...]:
    """Return those that a call was forwarded for: the calls that its host forwards are theirs."""
    packed = header.get("forwarded_for")
    if packed is None:
        return ()
    ids = [unpack_body(info)[0] for info in unpack_body(packed, binary=True)]
    known = [room.connections[caller] for caller in ids if caller in room.connections]
    if len(known) != len(ids):
        raise _unknown_caller_error()
    return tuple(connection.participant for connection in known)


def _unknown_caller_error() -> Unavailable:
    message = "the host's server does not know the caller yet"
    return Unavailable(message, executed="no", retry_after_s=0.05)
