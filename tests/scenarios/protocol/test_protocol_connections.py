"""PROTOCOL.md, from the first byte to the last: connecting and leaving."""

from __future__ import annotations

from support.clients.raw_client import (
    CONT,
    bearer,
    browser_bearer,
    raw_connection,
    raw_participant,
    websocket_frame,
)
from support.clients.raw_requests import (
    ask,
    call_of,
    offer,
    refusal,
)
from toolbus import ApiScope, KeyRing
from toolbus.transport.websocket import PING_INTERVAL_S, PING_TIMEOUT_S
from toolbus.wire import (
    PROTOCOL_VERSION,
    Result,
    Subscribe,
    encode,
)
from toolbus_server import ServerSettings
from toolbus_server.limits import Limits
from toolbus_server.testing import TestServer, running_server


async def _status(server: TestServer, path: str, headers: list[tuple[str, str]]) -> int:
    async with raw_connection(server.url) as client:
        head = await client.upgrade(path, headers)
    if head.status not in (414, 431):
        assert head.headers["toolbus-protocol"] == "toolbus.v1"
    return head.status


async def test_each_refusal_is_the_http_answer_of_the_table() -> None:
    """CONN-1, CONN-2, CONN-4, CONN-5, CONN-17."""
    async with running_server() as server:
        good, elsewhere = bearer(server.token("alice")), bearer(server.token("a", room="other"))
        expected = {
            ("/rooms/lab?instance=%00", 0): 400,
            ("/rooms/lab?epoch=0", 0): 400,
            ("/rooms/lab?epoch=1e3", 0): 400,
            ("/rooms/lab", 1): 401,
            ("/rooms/lab", 2): 403,
            ("/rooms/-lab", 0): 404,
            ("/rooms/LAB", 0): 404,
            ("/rooms/" + "a" * 64, 0): 404,
            ("/rooms/lab/more", 0): 404,
            ("/", 0): 404,
            ("/rooms/lab?x=" + "a" * 8200, 0): 414,
            ("/rooms/lab", 3): 431,
            ("/rooms/lab", 4): 426,
            ("/rooms/lab", 0): 101,
            ("/rooms/" + "lab", 0): 101,
        }
        headers = [good, bearer("x"), elsewhere, bearer("a" * 9000), good[1:]]
        for (path, index), status in expected.items():
            assert await _status(server, path, headers[index]) == status, path
        assert await _status(server, "/rooms/lab?instance=a&epoch=9007199254740992", good) == 101


async def test_token_is_read_from_the_first_source_that_has_one() -> None:
    """CONN-3."""
    async with running_server() as server:
        token = server.token("alice")
        both = [*browser_bearer(token), ("Authorization", "Bearer x")]
        assert await _status(server, "/rooms/lab", both) == 101  # upgraded, then closed
        async with raw_connection(server.url) as client:
            await client.upgrade("/rooms/lab", both)
            assert await client.close_code() == 4401
        query = [("Sec-WebSocket-Protocol", "toolbus.v1")]
        assert await _status(server, f"/rooms/lab?token={token}", query) == 401
    settings = ServerSettings(keys=KeyRing([]), port=0, allow_query_token=True)
    async with running_server(settings=settings, key=server.key) as server:
        assert await _status(server, f"/rooms/lab?token={token}", query) == 101
        assert await _status(server, f"/rooms/lab?token={token}", bearer("x")) == 401


async def test_silent_peer_is_removed_and_one_that_answers_pings_stays() -> None:
    """CONN-7."""
    assert PING_INTERVAL_S + PING_TIMEOUT_S <= 15
    settings = ServerSettings(KeyRing([]), port=0, ping_interval_s=0.05, ping_timeout_s=2.0)
    async with (
        running_server(settings=settings) as server,
        raw_participant(server, "silent") as silent,
        raw_participant(server, "alice") as alice,
    ):
        assert alice.welcome is not None
        assert alice.welcome.facts["heartbeat_ms"] == 50
        await ask(alice, Subscribe(1, ["participants"]))
        event = await alice.next_event()  # which answers pings
        assert (event.name, event.data["participant"]["name"]) == ("participant_left", "silent")
        assert await silent.close_code() == 1011


async def test_peer_whose_pong_waits_behind_its_requests_stays() -> None:
    """CONN-7."""
    settings = ServerSettings(KeyRing([]), port=0, ping_interval_s=0.05, ping_timeout_s=0.1)
    async with running_server(settings=settings) as server, raw_participant(server) as host:
        for number in range(1_000):  # far more than is read within both times
            host.send_frame(offer({"name": f"t{number}"}, number))
        assert await ask(host, Subscribe(5_000, [])) == {"topics": []}


async def test_welcome_is_the_first_frame_and_has_identity_and_room() -> None:
    """CONN-10, GROW-2."""
    scope = ApiScope.agent_default()
    async with running_server() as server:
        token = server.token("alice", api=scope, role="agent")
        async with raw_participant(server, token=token) as alice:
            welcome = alice.welcome
            assert welcome is not None
            assert (welcome.version, welcome.room) == (PROTOCOL_VERSION, "lab")
            assert welcome.facts["name"] == "alice"
            assert welcome.facts["issuer"] == server.key.iss
            assert welcome.facts["role"] == "agent"
            assert welcome.facts["api"] == scope.to_claims()
            assert welcome.facts["limits"]["max_frame_bytes"] == 2**20


async def test_message_in_few_fragments_is_read_and_one_in_too_many_is_not() -> None:
    """CONN-13."""
    message = encode(Subscribe(1, []))
    async with running_server() as server, raw_participant(server) as client:
        client.send(websocket_frame(message[:2], fin=False))
        client.send(websocket_frame(message[2:], opcode=CONT))
        assert isinstance(await client.reply_to(1), Result)
        client.send(websocket_frame(b"", fin=False))
        client.send(b"".join(websocket_frame(b"", opcode=CONT, fin=False) for _ in range(1_024)))
        assert await client.close_code() == 1002


async def test_toolkits_and_rooms_are_removed_with_a_lost_participant() -> None:
    """LEAVE-3, CALL-13: its hosts at once, its name after a while."""
    settings = ServerSettings(keys=KeyRing([]), port=0, limits=Limits(reservation_ms=300))
    async with (
        running_server(settings=settings) as server,
        raw_participant(server, "alice") as alice,
    ):
        await ask(alice, Subscribe(1, ["toolkits"]))
        async with raw_participant(server, "host") as host:
            await ask(host, offer())
            assert (await alice.next_event()).name == "toolkit_added"
        lost = await alice.next_event()
        assert (lost.name, lost.data["toolkit"]["hosts"]) == ("toolkit_changed", 0)
        assert (await refusal(alice, call_of())).code == "no_host"
        assert (await alice.next_event()).name == "toolkit_removed"
        assert (await refusal(alice, call_of(request_id=8))).code == "not_found"
        assert server.server.hub.rooms.keys() == {"lab"}
    assert server.server.hub.rooms == {}
