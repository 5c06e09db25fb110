"""The HTTP client, against servers on loopback."""

from __future__ import annotations

import asyncio
import gzip
import socket
from typing import Any

import httpx2
import pytest

from support.web.scripted_server import Answer, Seen, web_server
from toolbus_toolkits.network import (
    FINAL_URL,
    WAIT_UNTIL,
    AddressPolicy,
    AddressRefused,
    ResponseTooLarge,
    http_client,
    read_body,
)
from toolbus_toolkits.network.client import retry_after_s
from toolbus_toolkits.network.transport import bounded_headers

LOCAL = AddressPolicy(allow_private=True)


def _resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Let every name resolve to these addresses, one for each question; return the names."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (left.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_that_resolves_to_a_private_address_is_refused_before_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with web_server(lambda _: Answer()) as server:
        asked = _resolve_to(monkeypatch, "127.0.0.1")
        async with http_client(AddressPolicy()) as client:
            with pytest.raises(AddressRefused, match="is private"):
                await client.get(f"http://api.example.org:{server.port}/")
    assert (asked, server.seen) == (["api.example.org"], [])


async def test_the_checked_address_is_connected_to_and_the_host_header_keeps_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with web_server(lambda _: Answer(body=b"hello")) as server:
        asked = _resolve_to(monkeypatch, "127.0.0.1", "127.0.0.1")
        async with http_client(LOCAL) as client:
            response = await client.get(f"http://api.example.org:{server.port}/")
    assert response.text == "hello"
    assert server.seen[0].headers["host"] == f"api.example.org:{server.port}"
    assert asked[0] == "api.example.org"
    assert set(asked[1:]) <= {"127.0.0.1"}  # the name is not resolved a second time


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://169.254.169.254/latest", "not allowed"),
        ("http://127.0.0.1:1/", "not allowed"),
        ("file:///etc/passwd", "must begin with http"),
        ("http://me:secret@127.0.0.1/", "contains a user"),
    ],
)
async def test_a_redirect_to_what_is_not_allowed_is_refused(location: str, words: str) -> None:
    async with web_server(lambda _: Answer(302, headers={"location": location})) as server:
        policy = AddressPolicy((f"127.0.0.1:{server.port}",), allow_private=True)
        async with http_client(policy) as client:
            with pytest.raises(AddressRefused, match=words):
                await client.get(server.url)


async def test_credentials_do_not_follow_a_redirect_to_another_origin() -> None:
    async with web_server(lambda _: Answer(body=b"there")) as other:
        location = {"location": f"{other.url}/next"}
        async with web_server(lambda _: Answer(307, headers=location)) as server:
            secrets = {"authorization": "Bearer s", "x-api-key": "s", "cookie": "session=s"}
            async with http_client(LOCAL, headers={"x-org": "s"}) as client:
                response = await client.get(server.url, headers=secrets)
                unfollowed = await client.post(server.url, headers=secrets, content=b"s")
    assert (response.text, response.extensions[FINAL_URL]) == ("there", f"{other.url}/next")
    assert len(other.seen) == 1
    assert set(other.seen[0].headers) <= {"host", "accept", "accept-encoding", "user-agent"}
    assert unfollowed.status_code == 307


async def test_redirects_in_one_origin_keep_headers_and_body_and_end() -> None:
    def answer(seen: Seen) -> Answer:
        if seen.target == "/again":
            return Answer(302, headers={"location": "/again"})
        if seen.target == "/end":
            return Answer(body=seen.body)
        return Answer(307, headers={"location": "/end"})

    async with web_server(answer) as server, http_client(LOCAL) as client:
        response = await client.put(server.url, headers={"x-api-key": "k"}, content=b"row")
        with pytest.raises(httpx2.TooManyRedirects):
            await client.get(f"{server.url}/again")
    assert response.content == b"row"
    assert server.seen[1].headers["x-api-key"] == "k"


async def test_a_response_is_bounded_as_sent_and_unpacked() -> None:
    packed = gzip.compress(b"0" * 100_000)

    def answer(seen: Seen) -> Answer:
        if seen.target == "/packed":
            return Answer(body=packed, headers={"content-encoding": "gzip"})
        return Answer(body=b"0" * 2_000)

    async with web_server(answer) as server:
        async with http_client(LOCAL, max_response_bytes=1_000) as client:
            with pytest.raises(ResponseTooLarge, match="1,000 bytes"):
                await client.get(server.url)
            async with client.stream("GET", f"{server.url}/packed") as response:
                with pytest.raises(ResponseTooLarge):
                    await read_body(response, 1_000)


@pytest.mark.parametrize(
    ("method", "seconds_left", "sent"),
    [("GET", 60, 2), ("PUT", 60, 2), ("POST", 60, 1), ("GET", -1, 1)],
)
async def test_an_idempotent_request_is_sent_again_after_retry_after_within_its_time(
    method: str, seconds_left: float, sent: int
) -> None:
    statuses = [429, 200]

    async with web_server(
        lambda _: Answer(statuses.pop(0), headers={"retry-after": "0"})
    ) as server:
        until = asyncio.get_running_loop().time() + seconds_left
        async with http_client(LOCAL) as client:
            await client.request(method, server.url, extensions={WAIT_UNTIL: until})
    assert len(server.seen) == sent


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (" 7 ", 7.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("9" * 10, None),
    ],
)
def test_a_time_to_wait_is_whole_seconds_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after_s(text) == seconds


async def test_a_server_that_postpones_for_ever_gets_five_requests() -> None:
    async with web_server(lambda _: Answer(503, headers={"retry-after": "0"})) as server:
        until = asyncio.get_running_loop().time() + 600
        async with http_client(LOCAL) as client:
            response = await client.get(server.url, extensions={WAIT_UNTIL: until})
    assert (response.status_code, len(server.seen)) == (503, 5)


async def test_cookies_are_not_kept() -> None:
    async with web_server(lambda _: Answer(headers={"set-cookie": "a=b"})) as server:
        async with http_client(LOCAL) as client:
            await client.get(server.url)
            await client.get(server.url)
    assert "cookie" not in server.seen[1].headers


async def test_a_name_that_cannot_be_resolved_is_a_connect_error() -> None:
    async with http_client(LOCAL) as client:
        with pytest.raises(httpx2.ConnectError, match="cannot be resolved"):
            await client.get("http://no-such-host.invalid/")


@pytest.mark.parametrize("flood", [";", ';";;;;', ';a="', ";filename*=x'y'%", "; a*0=", "a"])
async def test_headers_with_parameters_are_bounded_before_they_are_parsed(flood: str) -> None:
    long = (flood * 90_000)[:90_000]
    headers = {
        "content-type": f"text/plain; charset=latin-1{long}",
        "x-session": "s" * 5_000,
    }
    async with (
        web_server(lambda _: Answer(headers=headers)) as server,
        http_client(LOCAL) as client,
    ):
        response = await client.get(server.url)
        server.answer = lambda _: Answer(headers={"content-disposition": f"inline{long}"})
        further = await client.get(server.url)
    kept = [response.headers["content-type"], further.headers["content-disposition"]]
    assert all(len(each) <= 4_096 and each.count(";") <= 32 for each in kept)
    assert (kept[0][:27], kept[1][:6]) == ("text/plain; charset=latin-1", "inline")
    assert response.headers["x-session"] == "s" * 5_000


def test_repeated_headers_with_parameters_are_not_joined_and_cookies_are_dropped() -> None:
    sent = [(b"Content-Type", b"a/b"), (b"content-type", b";" * 4_000), (b"Set-Cookie", b"a=b")]
    assert bounded_headers([*sent, (b"x", b"1"), (b"x", b"2")]) == [
        (b"Content-Type", b"a/b"),
        (b"x", b"1"),
        (b"x", b"2"),
    ]


async def test_a_redirect_to_a_long_address_is_refused() -> None:
    long = Answer(302, headers={"location": "/a" * 20_000})
    async with web_server(lambda _: long) as server, http_client(LOCAL) as client:
        with pytest.raises(AddressRefused, match="too long") as refused:
            await client.get(server.url)
    assert refused.value.executed == "yes"
