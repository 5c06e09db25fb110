"""Explaining calls, newer tokens, and administrators, with raw frames."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from support.clients.raw_client import RawClient, bearer, details_of, raw_participant
from support.clients.raw_requests import ask, call_of, offer, refusal, toolkit_of
from support.rooms.events import until_hosts
from toolbus import AgentsGrant, ApiScope, Key, ParticipantToken, RoomClient, Toolkit, tool
from toolbus.auth.tokens import VerifiedToken
from toolbus.errors import PermissionDenied
from toolbus.wire import Admin, Explain, Refresh, RequestId
from toolbus_server.access.revocations import Revocation, Revocations, revoked_until
from toolbus_server.registry.models import Identity
from toolbus_server.testing import TestServer, running_server


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(seed=3) as server:
        yield server


def number() -> RequestId:
    return RequestId(time.perf_counter_ns() % 2**50)


async def explained(client: RawClient, tool: str, **options: Any) -> dict[str, Any]:
    toolkit, _, name = tool.partition(".")
    answer: dict[str, Any] = await ask(client, Explain(number(), toolkit, name, options))
    return answer


# Explaining


async def test_explain_names_the_host_and_runs_nothing(server: TestServer) -> None:
    """EXPLAIN-1."""
    async with raw_participant(server, "host") as host, raw_participant(server, "bob") as bob:
        await ask(host, offer())
        answer = await explained(bob, "echo.say")
        assert (answer["would_run"], answer["hosts"], answer["generation"]) == (True, 1, 1)
        assert answer["host"]["name"] == "host"
        assert host.welcome is not None
        assert answer["host"]["id"] == host.welcome.participant
        assert server.server.hub.router.in_flight == 0


@pytest.mark.parametrize(
    ("tool", "options", "code"),
    [
        ("echo.sing", {}, "not_found"),
        ("nobody.say", {}, "not_found"),
        ("vault.open", {}, "not_found"),
        ("closed.say", {}, "permission_denied"),
        ("echo.say", {"pin": "0" * 64}, "definition_changed"),
        ("echo.say", {"participant": 7}, "invalid_arguments"),
        ("echo.say", {"parent": 9}, "permission_denied"),
        ("echo.say", {"on_behalf_of": "host"}, "permission_denied"),
        ("lost.say", {}, "no_host"),
        ("affine.say", {}, "invalid_arguments"),
    ],
)
async def test_explain_predicts_how_the_call_would_end(
    server: TestServer, tool: str, options: dict[str, Any], code: str
) -> None:
    """EXPLAIN-1: by the same rules, with the same messages."""
    grants = AgentsGrant(call=True, deny=["closed"])
    token = server.token("bob", api=ApiScope(agents=grants))
    async with raw_participant(server, "host") as host, raw_participant(server, token=token) as bob:
        affine = toolkit_of("affine", "say")
        affine["tools"][0]["affinity"] = "customer"
        for at, offered in enumerate([offer(), offer(toolkit_of("closed", "say")), offer(affine)]):
            await ask(host, replace_id(offered, at + 1))
        await ask(host, replace_id(offer(toolkit_of("vault", "open"), public=False), 9))
        async with raw_participant(server, "gone") as gone:
            await ask(gone, offer(toolkit_of("lost", "say")))
        async with server.room("watcher") as watcher:
            await until_hosts(watcher, "lost", 0)
        answer = await explained(bob, tool, **options)
        failed = await refusal(bob, call_of(tool, **options))
    assert answer["would_run"] is False
    assert answer["code"] == failed.code == code
    assert answer["message"] == failed.message
    assert answer["details"] == (details_of(failed) if failed.details else {})


def replace_id(request: Any, request_id: int) -> Any:
    return type(request)(request_id, *[getattr(request, f) for f in request.__struct_fields__[1:]])


# Newer tokens


async def test_a_wider_token_of_the_same_identity_counts_at_once(server: TestServer) -> None:
    """REFRESH-1."""
    narrow = server.token("host", api=ApiScope())
    async with raw_participant(server, token=narrow) as host:
        assert (await refusal(host, offer())).code == "permission_denied"
        facts = await ask(host, Refresh(number(), server.token("host", role="service")))
        assert facts["role"] == "service"
        assert facts["api"]["agents"]["register_public_toolkit"] is True
        await ask(host, offer())


async def test_a_token_of_another_identity_is_refused_and_the_old_one_stays(
    server: TestServer,
) -> None:
    """REFRESH-1."""
    stranger = Key.generate(kid="other", iss="other")
    async with raw_participant(server, "host") as host:
        for token in (
            server.token("eve"),
            server.token("host", room="elsewhere"),
            "no.token.at-all",
            ParticipantToken(name="host", room=["lab"]).to_jwt(stranger),
            "x" * 20_000,
        ):
            refused = await refusal(host, Refresh(number(), token))
            assert (refused.code, refused.executed) == ("permission_denied", "no")
        await ask(host, offer())


async def test_a_narrower_token_withdraws_toolkits_that_it_does_not_allow(
    server: TestServer,
) -> None:
    """REFRESH-1."""
    async with raw_participant(server, "host") as host, raw_participant(server, "bob") as bob:
        await ask(host, offer())
        narrow = ApiScope(agents=AgentsGrant(register_private_toolkit=True))
        await ask(host, Refresh(number(), server.token("host", api=narrow)))
        assert (await refusal(bob, call_of())).code == "not_found"
        assert (await refusal(host, call_of())).code == "not_found"


# Administrators


async def admin(client: RawClient, action: str, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await ask(client, Admin(number(), action, options))
    return answer


async def test_administering_needs_its_grant(server: TestServer) -> None:
    """ADMIN-1."""
    token = server.token("bob", api=ApiScope.user_default())
    async with raw_participant(server, token=token) as bob:
        for action in ("rooms", "kick", "revoke", "nothing"):
            assert (await refusal(bob, Admin(number(), action, {}))).code == "permission_denied"


async def test_rooms_are_those_that_the_administrators_token_names(server: TestServer) -> None:
    """ADMIN-1, ADMIN-2."""
    async with (
        raw_participant(server, "root") as root,
        raw_participant(server, "host") as host,
        server.room("else", room="elsewhere"),
    ):
        await ask(host, offer())
        [lab] = (await admin(root, "rooms"))["rooms"]
        assert lab == {"name": "lab", "participants": 2, "toolkits": 1, "calls": 0}
        refused = Admin(number(), "kick", {"room": "elsewhere", "participant": "else"})
        assert (await refusal(root, refused)).code == "permission_denied"
        mine = {"issuer": "x", "name": "y"}
        assert (await refusal(root, Admin(number(), "revoke", mine))).code == "permission_denied"


async def test_kicked_participant_is_removed_at_once_with_its_toolkits(server: TestServer) -> None:
    """ADMIN-3."""
    async with raw_participant(server, "root") as root, raw_participant(server, "host") as host:
        await ask(host, offer())
        assert await admin(root, "kick", room="lab", participant="host") == {"closed": 1}
        assert await host.close_code() == 4440
        assert (await refusal(root, call_of())).code == "not_found"
        assert await admin(root, "kick", room="lab", participant="host") == {"closed": 0}


async def test_a_connection_with_a_token_of_a_fast_clock_is_revoked(server: TestServer) -> None:
    """ADMIN-4, TOKEN-3."""
    (key,) = server.server._settings.keys
    ahead = ParticipantToken(name="eve", room=["lab"]).to_jwt(key, now=time.time() + 50)
    everywhere = server.token("root", room="*")
    async with (
        raw_participant(server, token=everywhere) as root,
        raw_participant(server, token=ahead) as eve,
    ):
        assert await admin(root, "revoke", issuer=key.iss, name="eve") == {"closed": 1}
        assert await eve.close_code() == 4440


@pytest.mark.parametrize("how", ["identity", "name", "jti"])
async def test_a_revoked_token_is_refused_and_its_connections_end(
    server: TestServer, how: str
) -> None:
    """ADMIN-4, LEAVE-4."""
    everywhere = server.token("root", room="*")
    token = server.token("eve")
    verified = ParticipantToken.from_jwt(token, server.server._settings.keys)
    options = {"issuer": verified.issuer, "name": "eve"}
    if how != "identity":
        options = {"jti": verified.jti} if how == "jti" else {"name": "eve"}
    async with raw_participant(server, token=everywhere) as root:
        async with raw_participant(server, token=token) as eve:
            assert await admin(root, "revoke", **options) == {"closed": 1}
            assert await eve.close_code() == 4440
        async with server.room("bob"):
            pass  # others join as before
        client = await RawClient.connect(server.url)
        assert (await client.upgrade("/rooms/lab", bearer(token))).status == 401
        client.abort()


@pytest.mark.parametrize(
    ("action", "options", "path"),
    [
        ("rewind", {}, "/action"),
        ("kick", {"room": "lab"}, "/participant"),
        ("kick", {"room": 7, "participant": "x"}, "/room"),
        ("revoke", {"issuer": "x"}, "/name"),
        ("revoke", {"jti": ""}, "/jti"),
        ("revoke", {"jti": "x" * 641}, "/jti"),
    ],
)
async def test_a_malformed_action_is_refused_with_its_path(
    server: TestServer, action: str, options: dict[str, Any], path: str
) -> None:
    token = server.token("root", room="*")
    async with raw_participant(server, token=token) as root:
        refused = await refusal(root, Admin(number(), action, options))
        assert (refused.code, details_of(refused)["path"]) == ("invalid_arguments", path)


def a_token(issued_at: float, name: str = "eve", jti: str = "j") -> VerifiedToken:
    return VerifiedToken(
        name=name,
        room=["lab"],
        issuer="acme",
        key_id="k",
        issued_at=issued_at,
        expires_at=issued_at + 60,
        jti=jti,
    )


_RETENTION_S = revoked_until(0.0, None, extends=False)


def _revoke(revocations: Revocations, target: Identity | str, at: float) -> None:
    revocations.add(Revocation(target, at, at + _RETENTION_S), at)


def test_a_revocation_is_stored_as_long_as_a_token_may_live() -> None:
    """ADMIN-4: with further lives for 400 days, or as long as the administrator says."""
    day = 86_400.0
    stored = {
        (None, False): day + 120,
        (90 * day, False): day + 120,
        (None, True): 400 * day + 120,
        (90 * day, True): 90 * day + 60,
        (1.0, True): 2 * day + 120,  # its next life may be given already
        (9_999 * day, True): 400 * day + 120,
    }
    for (until, extends), ends_at in stored.items():
        assert revoked_until(0.0, until, extends=extends) == ends_at


def test_a_revocation_covers_tokens_issued_before_and_none_later() -> None:
    """ADMIN-4, TOKEN-3: the issuer's clock may be 60 s ahead."""
    revocations = Revocations()
    _revoke(revocations, Identity("acme", "eve"), 1_000.0)

    assert revocations.covers(a_token(999.0))
    assert revocations.covers(a_token(1_060.0))
    assert not revocations.covers(a_token(1_061.0))
    assert not revocations.covers(a_token(999.0, name="bob"))


def test_a_revocation_is_forgotten_when_nothing_is_left_to_be_shown() -> None:
    revocations = Revocations()
    for at in range(10):
        _revoke(revocations, f"t{at}", float(at))
    assert len(revocations) == 10
    _revoke(revocations, "later", _RETENTION_S + 5.5)
    assert len(revocations) == 5
    assert revocations.covers(replace(a_token(0.0), jti="t9"))
    assert not revocations.covers(replace(a_token(0.0), jti="t1"))


def test_the_oldest_of_too_many_revocations_is_dropped_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ADMIN-4: identities and tokens are counted apart."""
    monkeypatch.setattr("toolbus_server.access.revocations.MAX_REVOCATIONS", 3)
    revocations = Revocations()
    for number in range(3):
        _revoke(revocations, Identity("acme", f"n{number}"), 1_000.0 + number)
        _revoke(revocations, f"t{number}", 1_000.0 + number)
    _revoke(revocations, Identity("acme", "n0"), 1_003.0)  # the latest now
    assert (len(revocations), caplog.messages) == (6, [])

    _revoke(revocations, Identity("acme", "n3"), 1_009.0)
    _revoke(revocations, "t3", 1_010.0)
    covered = [revocations.covers(a_token(0.0, name=f"n{number}", jti="")) for number in range(4)]
    assert covered == [True, False, True, True]
    covered = [revocations.covers(a_token(0.0, name="bob", jti=f"t{n}")) for n in range(4)]
    assert covered == [False, True, True, True]
    identity, token = caplog.messages
    assert "name='n1'), revoked 8 s ago, is valid again" in identity
    assert "'t0', revoked 10 s ago, is valid again" in token

    caplog.clear()
    # None of the tokens could be shown any more.
    _revoke(revocations, "later", 1_010.5 + _RETENTION_S)
    assert caplog.messages == []
    assert revocations.covers(a_token(0.0, name="bob", jti="later"))


# Through the SDK


@tool(affinity="customer")
async def add(customer: str) -> str:
    return customer


async def test_a_room_explains_its_calls(server: TestServer) -> None:
    async with server.room("host") as host, host.host(Toolkit("carts", [add])):
        async with server.room("bob") as bob:
            assert (await bob.explain("carts.add")).would_run
            explained = await bob.explain("carts.add", {"customer": "c"})
            assert explained.would_run
            assert explained.affinity
            assert explained.host is not None
            assert explained.host.name == "host"
            assert explained.node == ""
            pinned = await bob.explain("carts.add", {"customer": "c"}, pin="0" * 64)
            assert pinned.code == "definition_changed"
            assert pinned.details["digest"] == explained.digest


async def test_a_participant_refreshes_its_token_from_its_source(server: TestServer) -> None:
    grants = [ApiScope(), ApiScope.host_default()]

    async def source() -> str:
        return server.token("host", api=grants.pop(0))

    async with RoomClient(server.url, room="lab", token=source) as host:
        with pytest.raises(PermissionDenied):
            async with host.host(Toolkit("carts", [add])):
                pass
        await host.refresh()
        async with host.host(Toolkit("carts", [add])):
            assert await host.call("carts.add", customer="c") == "c"
