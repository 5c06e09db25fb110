"""Refused tokens in the server's log: the reason and the key id, within a budget."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest
from websockets.datastructures import Headers

from toolbus import ApiScope, Key, KeyRing, ParticipantToken
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.access.admission import Admission, Admitted, RefusedConnections

KEY = Key.generate(kid="k1", iss="toolbus")
NOW = 1_800_000_000.0


def forged(key_id: object) -> str:
    header = json.dumps({"alg": "HS256", "kid": key_id}).encode()
    return f"{urlsafe_b64encode(header).rstrip(b'=').decode()}.e30.c2VjcmV0"


def minted(room: str = "lab", now: float = NOW, key: Key = KEY) -> str:
    token = ParticipantToken(name="ann", room=room, api=ApiScope.user_default())
    return token.to_jwt(key, ttl_s=60, now=now)


@pytest.mark.parametrize(
    ("token", "line"),
    [
        (minted(now=NOW - 3_600), "connection refused: expired (kid 'k1', from 192.0.2.1)"),
        (minted(room="den"), "connection refused: wrong_room (kid 'k1', from 192.0.2.1)"),
        (
            minted(key=Key.generate(kid="k1", iss="toolbus")),
            "connection refused: bad_signature (kid 'k1', from 192.0.2.1)",
        ),
        (forged("k9"), "connection refused: unknown_kid (kid 'k9', from 192.0.2.1)"),
        (forged(7), "connection refused: bad_header (from 192.0.2.1)"),
        ("x.y.z", "connection refused: malformed (from 192.0.2.1)"),
        ("", "connection refused: malformed (from 192.0.2.1)"),
        (None, "connection refused: no_token (from 192.0.2.1)"),
    ],
)
def test_refused_token_is_one_warning_without_the_token(
    token: str | None, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(keys=KeyRing([KEY]))
    admission = Admission(settings, lambda *_: None, lambda *_: 0, lambda: NOW)
    headers = Headers({"Sec-WebSocket-Protocol": "toolbus.v1"})
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    for _ in range(3):
        assert not isinstance(admission.decide("/rooms/lab", headers, "192.0.2.1"), Admitted)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [("WARNING", line)]
    assert not token or token not in caplog.text


def test_key_id_is_escaped_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    RefusedConnections(lambda: 0.0).refused(
        "unknown_kid", forged("\n\x1b[2J\u202e" + "k" * 5_000), "::"
    )
    [line] = caplog.messages
    assert line.isprintable()
    assert len(line) < SHOWN_CHARS + 100


def test_flood_is_twenty_lines_a_minute_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RefusedConnections(lambda: now)
    for number in range(10_000):
        log.refused("unknown_kid", forged(f"k{number}"), f"192.0.2.{number % 256}")
    log.refused("expired", minted(), "192.0.2.1")
    assert len(caplog.records) == 20
    now = 60.0
    log.refused("expired", minted(), "192.0.2.1")
    assert caplog.messages[20:] == [
        "further connections were refused, not logged one by one: unknown_kid 9980, expired 1",
        "connection refused: expired (kid 'k1', from 192.0.2.1)",
    ]


async def test_server_that_stops_logs_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = RoomServer(ServerSettings(keys=KeyRing([KEY]), port=0))
    await server.start()
    headers = Headers({"Sec-WebSocket-Protocol": "toolbus.v1", "Authorization": "Bearer x.y.z"})
    for _ in range(3):
        server.admission.decide("/rooms/lab", headers, "192.0.2.1")
    await server.stop()
    assert caplog.messages[1:] == [
        "further connections were refused, not logged one by one: malformed 2"
    ]
