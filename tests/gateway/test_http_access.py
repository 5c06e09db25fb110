"""Who may send a request over HTTP: hosts, origins, tokens, and how many at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from gateway.conftest import Door, running_gateway
from support.clients.ending_tokens import ends_in
from toolbus import Toolkit, tool
from toolbus_gateway.http_access import METADATA_PATH, AccessSettings, RefusalLog, read_host
from toolbus_gateway.limits import MAX_REFUSAL_LINES

LAB = "/rooms/lab/mcp"
ISSUER = "https://login.example.org"
JSON = {"Accept": "application/json, text/event-stream"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
TRUSTING = AccessSettings(
    trusted_hosts=("tools.example.org", "other.example.org:8443"),
    trusted_origins=("https://app.example.org",),
    trusted_proxies=("127.0.0.1/32",),
    authorization_servers=(ISSUER,),
    max_per_address=1,
)


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=60) as client:
        yield client


@pytest.fixture
async def trusting() -> AsyncIterator[Door]:
    """A gateway behind a proxy on this machine, with an authorization server."""
    async with running_gateway(access=TRUSTING) as opened:
        yield opened


def call(tool_name: str, method: str = "tools/call") -> dict[str, Any]:
    params = {"name": tool_name, "arguments": {}}
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


ALLOWED = 401
"""What a request gets that has no token, and that nothing else is wrong with."""


async def test_host_and_origin_are_those_of_lists(http: httpx2.AsyncClient, trusting: Door) -> None:
    app = "https://app.example.org"
    table: list[tuple[dict[str, str], int]] = [
        ({}, ALLOWED),
        ({"Host": "localhost:1"}, ALLOWED),
        ({"Host": "LOCALHOST"}, ALLOWED),
        ({"Host": "[::1]:7718"}, ALLOWED),
        ({"Host": "127.8.8.8"}, ALLOWED),
        ({"Host": "tools.example.org"}, ALLOWED),
        ({"Host": "Tools.example.org:99"}, ALLOWED),
        ({"Host": "other.example.org:8443"}, ALLOWED),
        ({"Host": "other.example.org"}, 421),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "localhost:1@evil.example"}, 421),
        ({"Host": "10.0.0.1"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": app}, ALLOWED),
        ({"Origin": "http://localhost:6274"}, ALLOWED),
        ({"Origin": "https://[::1]"}, ALLOWED),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://app.example.org"}, 403),
        ({"Origin": "https://app.example.org.evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://localhost:6274/"}, 403),
    ]
    for headers, expected in table:
        response = await http.post(trusting.address(), headers=headers)
        assert (headers, response.status_code) == (headers, expected)
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == (headers.get("Origin") if expected == ALLOWED else None)


async def test_pages_of_other_machines_are_refused_by_default(
    http: httpx2.AsyncClient, door: Door
) -> None:
    for headers, expected in (
        ({"Origin": "https://app.example.org"}, 403),
        ({"Host": "tools.example.org"}, 421),
        ({"Origin": "http://127.0.0.1:6274"}, ALLOWED),
    ):
        response = await http.post(door.address(), headers=headers)
        assert (headers, response.status_code) == (headers, expected)


async def test_a_trusted_page_may_send_any_argument_and_read_the_session(
    http: httpx2.AsyncClient, trusting: Door
) -> None:
    origin = {"Origin": "https://app.example.org"}
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, mcp-param-region",
    }
    preflight = await http.options(trusting.address(), headers=origin | wanted)
    assert preflight.status_code == 200
    assert "mcp-param-region" in preflight.headers["access-control-allow-headers"]
    response = await http.post(trusting.address(), headers=origin)
    assert "Mcp-Session-Id" in response.headers["access-control-expose-headers"]
    foreign = await http.options(trusting.address(), headers={"Origin": "null", **wanted})
    assert foreign.status_code == 403


async def test_without_an_authorization_server_nothing_is_said_about_one(
    http: httpx2.AsyncClient, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients with a fixed header begin to register themselves at any other answer."""
    caplog.set_level(logging.INFO, "toolbus_gateway.http_access")
    foreign, expired = ends_in("alice", 3_600), ends_in("alice", -3_600)
    for given, reason in (
        (None, "no bearer token"),
        ("Bearer", "no bearer token"),
        ("Basic YTpi", "no bearer token"),
        ("Bearer no.such.token", "this is not a token"),
        (f"Bearer {foreign}", "the server refuses the token"),
        (f"Bearer {expired}", "the server refuses the token: it expired "),
    ):
        headers = {} if given is None else {"Authorization": given}
        refused = await http.post(door.address(), headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert reason in refused.text
        last = caplog.records[-1].getMessage()
        assert last == f"request refused: {refused.text.strip()} (room lab, from 127.0.0.1)"
    for path in (
        METADATA_PATH,
        METADATA_PATH + LAB,
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
        "/register",
        "/",
        LAB + "/",
        "/rooms/no room/mcp",
        LAB + "/a/b",
        LAB + "?" + "a=1&" * 20,
    ):
        missing = await http.get(door.service.url + path)
        assert (path, missing.status_code, missing.content) == (path, 404, b"")


async def test_metadata_names_the_resource_as_the_client_reaches_it(
    http: httpx2.AsyncClient, trusting: Door
) -> None:
    outside = {"Host": "tools.example.org", "X-Forwarded-Proto": "https"}
    for path, name in (
        ("", "toolbus"),
        (LAB, "toolbus, room lab"),
        (LAB + "/sums", "toolbus, room lab, toolkit sums"),
    ):
        found = await http.get(trusting.service.url + METADATA_PATH + path, headers=outside)
        assert found.json() == {
            "resource": f"https://tools.example.org{path}",
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
            "resource_name": name,
        }
    elsewhere = await http.get(f"{trusting.service.url}{METADATA_PATH}/rooms/a b/mcp")
    assert elsewhere.status_code == 404
    place = f'resource_metadata="https://tools.example.org{METADATA_PATH}{LAB}/sums"'
    address = trusting.address("sums")
    missing = await http.post(address, headers=outside)
    assert missing.headers["www-authenticate"] == f"Bearer {place}"
    bad = outside | {"Authorization": "Bearer no.such.token"}
    refused = await http.post(address, headers=bad)
    assert refused.headers["www-authenticate"] == f'Bearer error="invalid_token", {place}'


def test_refusals_are_logged_a_limited_number_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    log = RefusalLog(lambda: now)
    for _ in range(MAX_REFUSAL_LINES + 5):
        log.add("no\nreason", "lab", "192.0.2.1")
    assert len(caplog.records) == MAX_REFUSAL_LINES
    now = 60.0
    log.add("no reason", "lab", "192.0.2.1")
    assert [record.getMessage() for record in caplog.records][-3:] == [
        "request refused: no\\nreason (room lab, from 192.0.2.1)",
        "further requests were refused: 5",
        "request refused: no reason (room lab, from 192.0.2.1)",
    ]


@pytest.mark.parametrize(
    ("settings", "others", "limited"),
    [
        pytest.param({"max_per_token": 1}, {}, "alice", id="token"),
        pytest.param({"max_per_address": 1}, {}, "bob", id="address"),
        pytest.param(
            {"max_per_address": 1, "trusted_proxies": ("127.0.0.1/32",)},
            {"X-Forwarded-For": "192.0.2.1"},
            "bob",
            id="address behind a proxy",
        ),
    ],
)
async def test_one_client_has_so_many_requests_at_a_time(
    http: httpx2.AsyncClient, settings: dict[str, Any], others: dict[str, str], limited: str
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await release.wait()
        return "done"

    async with (
        running_gateway(access=AccessSettings(**settings)) as door,
        door.server.room("host") as host,
        host.host(Toolkit("words", [wait])),
        asyncio.timeout(60),
    ):

        def post(name: str, body: Any, further: dict[str, str]) -> asyncio.Task[httpx2.Response]:
            headers = JSON | {"Authorization": f"Bearer {tokens[name]}"} | further
            return asyncio.create_task(http.post(door.address(), json=body, headers=headers))

        tokens = {name: door.server.token(name) for name in ("alice", "bob", "carol")}
        running = post("alice", call("words__wait"), others)
        await started.wait()
        refused = await post(limited, PING, others)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        if "trusted_proxies" in settings:
            other = await post("carol", PING, {"X-Forwarded-For": "192.0.2.2"})
            assert other.status_code == 200
        release.set()
        assert "done" in (await running).text
        assert (await post(limited, PING, others)).status_code == 200


@pytest.mark.parametrize("text", ["", "a b", "http://a", "a:b", "a/b", "ä.example", "a:123456"])
def test_what_is_not_a_host_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        read_host(text)
