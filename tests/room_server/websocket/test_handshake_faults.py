"""Refused handshakes: bad tokens, wrong rooms, broken requests.

Each refusal is tested as a program gets it, an HTTP response before the upgrade, and as a browser
does, a close code. The server is a real one, and its participants must not be affected.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from support.clients.forged_tokens import ABSENT, CLAIMS, HEADER, KEY, SECRET, segment, signed
from support.clients.handshakes import ask, claims, code_for_browser, handshake_server
from support.clients.raw_client import (
    BINARY,
    bearer,
    browser_bearer,
    raw_connection,
    raw_participant,
    upgrade_request,
)
from support.rooms.unharmed_server import no_logged_errors, unharmed_server
from toolbus import Key, KeyRing, ParticipantToken
from toolbus.auth.tokens import MAX_JWT_BYTES
from toolbus.wire import SUBPROTOCOL
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.testing import running_server

BAD_TOKEN = "The token is missing, malformed, expired or from an unknown key.\n"
OTHER_KEY = Key(kid="k1", alg="HS256", iss="acme", secret="another-" + "y" * 32)


def with_claims(**changes: Any) -> Callable[[], str]:
    return lambda: signed(HEADER, claims(**changes))


def with_header(**header: Any) -> Callable[[], str]:
    return lambda: signed({**HEADER, **header}, claims())


def aged(issued_ago_s: float, life_s: float, **changes: Any) -> Callable[[], str]:
    def make() -> str:
        iat = time.time() - issued_ago_s
        return signed(HEADER, claims(iat=iat, exp=iat + life_s, **changes))

    return make


def refused(name: str, make: Callable[[], str], reason: str) -> Any:
    return pytest.param(make, reason, id=name)


def _unsigned(alg: str) -> Callable[[], str]:
    return lambda: f"{segment({'alg': alg, 'kid': 'k1'})}.{segment(claims())}."


def _of_another_key() -> str:
    return ParticipantToken(name="eve", room=["lab"]).to_jwt(OTHER_KEY)


def _nested(depth: int) -> str:
    body = json.dumps(claims(api=0)).replace('"api": 0', f'"api": {"[" * depth}{"]" * depth}')
    return signed(HEADER, body.encode())


REFUSED = [
    refused("empty", lambda: "", "malformed"),
    refused("garbage", lambda: "garbage", "malformed"),
    refused("signed-by-another-key", _of_another_key, "bad_signature"),
    refused("none", _unsigned("none"), "alg_none"),
    refused("kid-path", with_header(kid="../../etc/passwd"), "unknown_kid"),
    refused("unknown-kid", with_header(kid="k2"), "unknown_kid"),
    refused("no-kid", lambda: signed({"alg": "HS256"}, claims()), "no_kid"),
    refused("crit", with_header(crit=["exp"]), "bad_header"),
    refused("crit-b64", with_header(crit=["b64"], b64=True), "bad_header"),
    refused("wrong-aud", with_claims(aud="other"), "wrong_audience"),
    refused("iss-longer", with_claims(iss="acme2"), "wrong_issuer"),
    refused("name-with-a-space", with_claims(sub="alice "), "bad_name"),
    refused("name-of-two-scripts", with_claims(sub="\u0430lice"), "bad_name"),
    refused("role-of-a-space", with_claims(role=" "), "bad_role"),
    refused("expired", aged(3600, 3600 - 61), "expired"),
    refused("not-yet", lambda: with_claims(nbf=time.time() + 120)(), "not_yet_valid"),
    refused("issued-in-future", aged(-120, 3600), "issued_in_future"),
    refused("no-exp", with_claims(exp=ABSENT), "bad_time"),
    refused("longer-than-a-day", aged(0, 24 * 3600 + 1), "life_too_long"),
    refused("nested-claims", lambda: _nested(200), "bad_grants"),
    refused("too-long-to-decode", lambda: "a" * (MAX_JWT_BYTES + 1), "too_long"),
    refused("just-below-8-KiB", lambda: with_claims(pad="x" * 5700)(), "too_long"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
async def test_bad_token_is_refused_with_a_constant_text_and_counted(
    make: Callable[[], str], reason: str
) -> None:
    """CONN-5, TOKEN-7."""
    async with handshake_server() as server:
        head = await ask(server, "/rooms/den", bearer(make()))
        code = await code_for_browser(server, "/rooms/den", make())

        assert (head.status, head.body, code) == (401, BAD_TOKEN, 4401)
        assert server.server.admission.refused == {reason: 2}


@pytest.mark.parametrize("depth", [1_000, 2_500])
async def test_claims_nested_deeply_are_refused(depth: int) -> None:
    async with handshake_server() as server:
        # Some Python versions decode them; all refuse them.
        assert (await ask(server, "/rooms/den", bearer(_nested(depth)))).status == 401


async def test_request_without_token_is_refused() -> None:
    only_protocol = [("Sec-WebSocket-Protocol", SUBPROTOCOL)]
    async with handshake_server() as server:
        for extra in ([], [("Authorization", "Basic YTpi")], [("Authorization", "Bearer")]):
            head = await ask(server, "/rooms/den", [*only_protocol, *extra])

            assert (head.status, head.body) == (401, BAD_TOKEN)
        assert await code_for_browser(server, "/rooms/den", "") == 4401
        assert server.server.admission.refused.total() == 4


async def test_two_authorization_headers_count_as_none() -> None:
    async with handshake_server() as server:
        good = ("Authorization", f"Bearer {server.token('mallory', room='*')}")
        headers = [("Sec-WebSocket-Protocol", SUBPROTOCOL), good, good]

        assert (await ask(server, "/rooms/den", headers)).status == 401


async def test_token_signed_with_a_public_key_is_refused() -> None:
    pair = Key.generate(kid="k1", iss="acme", alg="RS256")
    public = pair.public_half().public
    assert public is not None
    for alg, reason in (("HS256", "wrong_alg"), ("RS256", "bad_signature")):
        forged = signed({"alg": alg, "kid": "k1"}, claims(), public.encode())
        async with handshake_server(pair) as server:
            head = await ask(server, "/rooms/den", bearer(forged))

            assert (head.status, head.body) == (401, BAD_TOKEN)
            assert await code_for_browser(server, "/rooms/den", forged) == 4401
            assert server.server.admission.refused == {reason: 2}


async def test_nothing_that_a_token_names_is_fetched() -> None:
    visits = 0

    def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/keys"
        jwk = {"kty": "oct", "k": segment(b"m1ne" * 10), "kid": "k1"}
        async with handshake_server() as server:
            for header in (
                {"kid": url},
                {"jku": url},
                {"x5u": url},
                {"jwk": jwk},
                {"kid": "k2", "jku": url},
            ):
                forged = signed({**HEADER, **header}, claims(), b"m1ne" * 10)

                assert (await ask(server, "/rooms/den", bearer(forged))).status == 401
    assert visits == 0


GOOD = [
    pytest.param(with_claims(), id="as-it-is"),
    pytest.param(with_claims(aud=["other", "toolbus"]), id="aud-list"),
    pytest.param(aged(3600, 3600 - 30), id="expired-30-s-ago"),
    pytest.param(aged(-30, 3600), id="issued-in-30-s"),
    pytest.param(
        lambda: with_claims(nbf=time.time() + 30)(),
        id="valid-in-30-s",
    ),
    pytest.param(aged(0, 24 * 3600), id="one-day"),
    pytest.param(with_header(jku="http://127.0.0.1:1"), id="jku-ignored"),
]


@pytest.mark.parametrize("make", GOOD)
async def test_good_token_is_accepted_in_the_header_and_in_the_subprotocol(
    make: Callable[[], str],
) -> None:
    """CONN-1."""
    async with handshake_server() as server:
        for headers in (bearer(make()), browser_bearer(make())):
            async with raw_connection(server.url) as client:
                assert (await client.upgrade("/rooms/lab", headers)).status == 101
                assert (await client.read_raw()).opcode == BINARY


async def test_token_for_another_room_is_refused() -> None:
    """CONN-5, CONN-6."""
    async with handshake_server() as server:
        token = server.token("mallory", room="lab")
        head = await ask(server, "/rooms/den", bearer(token))

        assert (head.status, head.body) == (403, "The token is not for this room.\n")
        assert await code_for_browser(server, "/rooms/den", token) == 4403
        assert server.server.admission.refused == {"wrong_room": 2}


async def test_old_and_new_key_are_trusted_until_the_old_one_is_removed() -> None:
    new = Key.generate(kid="k2", iss="acme")
    both = ServerSettings(keys=KeyRing([new]), port=0, drain_s=1.0)
    minted = {key: ParticipantToken(name="bob", room=["lab"]).to_jwt(key) for key in (KEY, new)}
    async with unharmed_server(settings=both, key=KEY) as server:
        async with (
            raw_participant(server, token=minted[KEY]),
            raw_participant(server, token=minted[new]),
        ):
            pass
    async with running_server(key=new) as later, raw_participant(later, token=minted[new]):
        assert (await ask(later, "/rooms/lab", bearer(minted[KEY]))).status == 401


@pytest.mark.parametrize("size", [8_192, 10 * 1024 * 1024])
async def test_token_beyond_the_header_limit_is_refused_while_it_arrives(size: int) -> None:
    async with handshake_server() as server:
        for headers in (bearer("a" * size), browser_bearer("a" * size)):
            async with raw_connection(server.url) as client:
                assert (await client.upgrade("/rooms/den", headers)).status == 431
        assert server.server.admission.refused.total() == 0


async def test_thousands_of_headers_are_refused() -> None:
    async with handshake_server() as server:
        headers = [*bearer(server.token("mallory", room="*")), *[("X-A", "b")] * 5_000]

        assert (await ask(server, "/rooms/den", headers)).status == 431


@pytest.mark.parametrize(
    ("count", "size", "status"),
    [(58, 1, 401), (59, 1, 431), (2, 7_500, 401), (3, 7_500, 431)],
)
async def test_headers_are_refused_by_their_number_and_their_size_in_all(
    count: int, size: int, status: int
) -> None:
    """CONN-5: with those of the handshake, which are six and small."""
    async with handshake_server() as server:
        headers = bearer("x")[:1] + [("X-A", "b" * size)] * count

        head = await ask(server, "/rooms/den", headers)

        assert head.status == status
        assert ("toolbus-protocol" in head.headers) is (status != 431)


async def test_request_that_is_too_large_is_refused_before_it_is_complete() -> None:
    async with handshake_server() as server, raw_connection(server.url) as client:
        client.send(upgrade_request("/rooms/den", [("X-A", "b" * 7_500)] * 4)[:-2])

        assert (await client.read_head()).status == 431


@pytest.mark.parametrize("secret", ["", "s3cret-" + "x" * 24])
def test_server_with_a_weak_secret_or_no_key_does_not_start(secret: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nkid = "k1"\nalg = "HS256"\niss = "acme"\nsecret = "{secret}"\n')

    with pytest.raises(ValueError, match="secret"):
        KeyRing.load(keys)
    with pytest.raises(ValueError, match="at least one key"):
        RoomServer(ServerSettings(keys=KeyRing([])))


async def test_no_token_reaches_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("websockets", "websockets.server", "websockets.client", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    async with handshake_server(query_token=True) as server:
        token = server.token("mallory")
        only_protocol = [("Sec-WebSocket-Protocol", SUBPROTOCOL)]
        for path, headers in (
            (f"/rooms/lab?token={token}", only_protocol),
            (f"/rooms/den?token={token}", only_protocol),
            (f"//[{token}", bearer(token)),
            ("/rooms/lab", bearer(token)),
            ("/rooms/den", bearer(token)),
            ("/rooms/lab", browser_bearer(token)),
            ("/rooms/lab", [*browser_bearer(token), ("Sec-WebSocket-Protocol", f"@ {token}")]),
            ("/rooms/lab", [*bearer(token), ("Sec-WebSocket-Version", token)]),
        ):
            await ask(server, path, headers)
        async with raw_connection(server.url) as client:
            client.send(upgrade_request(f"/?token={token}").replace(b"HTTP/1.1", b"HTTP/9", 1))
            await client.reader.read()
        async with server.room("bob") as bob:
            assert await bob.call("echo.say", text="not for the log") == "not for the log"

    assert caplog.records
    for record in caplog.records:
        text = f"{record.getMessage()} {record.exc_text} {record.exc_info} {record.__dict__}"
        assert "not for the log" not in text
        assert "eyJ" not in text, f"{record.name} logged a token"  # every JWT starts like this


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@example_settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from([*HEADER, "crit", "jku"]), JSON, max_size=3),
            st.dictionaries(st.sampled_from([*CLAIMS, "nbf"]), JSON, min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=20,
    )
)
async def test_no_claims_break_the_handshake(
    tokens: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    with no_logged_errors():
        async with running_server(key=KEY) as server:
            for header, changes in tokens:
                for head in (header, {}):
                    forged = signed({**HEADER, **head}, claims(**changes), SECRET.encode())
                    answer = await ask(server, "/rooms/den", bearer(forged))

                    assert answer.status in {101, 401, 403, 431}
