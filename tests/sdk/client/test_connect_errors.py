"""What a participant reads when no connection can be made: the address, the reason, the remedy."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import serve

from support.clients.certificates import make_pki
from support.clients.other_services import other_service
from support.clients.server_tls import tls_settings
from support.parts.scripted_server import scripted_server
from toolbus import RoomClient, RoomException, Unavailable
from toolbus.diagnostics.exit_codes import ExitCode, certificate_step, exit_code, failure_lines
from toolbus.errors import PermissionDenied
from toolbus_server.testing import running_server

HTML = b"Content-Type: text/html\r\nContent-Length: 12\r\n\r\n<html></html>"


async def join_error(url: str) -> RoomException:
    with pytest.raises(RoomException) as caught:
        async with RoomClient(url, room="lab", token="e30.e30.t"):
            pass
    return caught.value


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return f"ws://127.0.0.1:{unused.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "found", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n" + HTML, "HTTP 200", 200),
        (b"HTTP/1.1 301 Moved\r\nLocation: https://x.test/\r\n" + HTML, "HTTP 301", 301),
        (b"HTTP/1.1 301 Moved\r\nLocation: /login\r\n" + HTML, "more than 10 redirects", None),
        (b"HTTP/1.1 301 Moved\r\nLocation: ws://[x/\r\n" + HTML, "HTTP 301", 301),
        (b"HTTP/1.1 301 Moved\r\nLocation: /a\r\nLocation: /b\r\n" + HTML, "HTTP 301", 301),
        (b"HTTP/1.1 401 Unauthorized\r\n" + HTML, "HTTP 401", 401),
        (b"HTTP/1.1 403 Forbidden\r\n" + HTML, "HTTP 403", 403),
        (b"HTTP/1.1 404 Not Found\r\n" + HTML, "HTTP 404", 404),
        (b"HTTP/1.1 409 Conflict\r\n" + HTML, "HTTP 409", 409),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "missing Connection header", None),
        (b"HTTP/1.0 200 OK\r\n" + HTML, "it does not speak HTTP/1.1", None),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it does not speak HTTP/1.1", None),
    ],
)
async def test_another_service_at_the_url_is_not_reported_as_a_refusal(
    answer: bytes, found: str, status: int | None
) -> None:
    """CONN-17."""
    async with other_service(answer) as url:
        error = await join_error(url)
    assert type(error) is Unavailable
    assert error.message == (
        f"not a toolbus server at {url}: another service answers there ({found})"
    )
    assert (error.executed, error.retryable, exit_code(error)) == (
        "no",
        False,
        ExitCode.UNAVAILABLE,
    )
    assert error.details == {"url": url} | ({} if status is None else {"http_status": status})
    assert failure_lines(error)[1].startswith("  next: set --url (TOOLBUS_URL) to a toolbus server")


@pytest.mark.parametrize("token", ["a\nb.SECRET.c", "SECRET" * 1_200, "SECRET.\xe9.c"])
async def test_malformed_token_is_refused_without_being_shown(token: str) -> None:
    async def read() -> str:
        return token

    with pytest.raises(PermissionDenied, match="the token is malformed") as caught:
        async with RoomClient(unused_url(), room="lab", token=read):
            pass
    assert "SECRET" not in str(caught.value)


async def test_a_websocket_of_another_protocol_is_not_a_toolbus_server() -> None:
    async with serve(lambda client: client.wait_closed(), "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        error = await join_error(f"ws://127.0.0.1:{port}")
    assert "(a websocket of another protocol)" in error.message


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_proxy_without_a_server_is_retryable(status: int) -> None:
    async with other_service(b"HTTP/1.1 %d Busy\r\n" % status + HTML) as url:
        error = await join_error(url)
    assert (error.code, error.retryable) == ("unavailable", True)
    assert f"(HTTP {status})" in error.message


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("identity", "raise --max-per-identity"),
        ("room", "raise --max-per-room"),
        ("address", "raise --max-per-address"),
        ("moon", "(HTTP 429)"),
    ],
)
async def test_refusal_at_a_limit_names_it_and_the_remedy(limit: str, text: str) -> None:
    head = f"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nToolbus-Limit: {limit}\r\n".encode()
    async with other_service(head + HTML) as url:
        error = await join_error(url)
    assert text in error.message
    assert (error.details.get("limit", "moon"), error.retry_after_s) == (limit, 7.0)


async def test_certificate_of_an_unknown_authority_is_in_the_details(tmp_path: Path) -> None:
    async with running_server(settings=tls_settings(make_pki(tmp_path))) as server:
        error = await join_error(server.url)
    assert "certificate" in error.message
    assert error.details["certificate"].startswith("unable to get local issuer certificate")
    step = failure_lines(error)[1]
    assert step.startswith("  next: set SSL_CERT_FILE to a file")
    assert "let the server send its chain: in the file of --tls-cert" in step


@pytest.mark.parametrize(
    ("reason", "is_of_chain"),
    [
        ("unable to get local issuer certificate", True),
        ("unable to get issuer certificate", True),
        ("unable to verify the first certificate", True),
        ("self-signed certificate", False),
        ("certificate has expired", False),
        ("Hostname mismatch, certificate is not valid for 'bus.example'.", False),
    ],
)
def test_a_chain_that_may_be_missing_is_named_in_the_step(reason: str, is_of_chain: bool) -> None:
    assert ("chain" in certificate_step(reason)) == is_of_chain


@pytest.mark.parametrize("is_secure", [False, True])
async def test_wrong_scheme_is_reported_with_the_right_url(tmp_path: Path, is_secure: bool) -> None:
    settings = tls_settings(make_pki(tmp_path)) if is_secure else None
    async with running_server(settings=settings) as server:
        right = server.url
        wrong = right.replace("wss:", "ws:") if is_secure else right.replace("ws:", "wss:")
        error = await join_error(wrong)
    uses = "uses TLS" if is_secure else "does not use TLS"
    assert (
        error.message == f"cannot connect to {wrong}: the server there {uses}: its URL is {right}"
    )
    assert (error.code, error.executed, error.retryable) == ("unavailable", "no", False)
    assert failure_lines(error)[1] == f"  next: use --url {right} (TOOLBUS_URL)"


async def test_untrusted_certificate_is_reported_with_the_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "nope.pem")
    async with running_server(settings=tls_settings(make_pki(tmp_path))) as server:
        error = await join_error(server.url)
    assert "its certificate is not trusted: " in error.message
    assert error.message.endswith("; SSL_CERT_FILE: nope.pem does not exist")
    assert failure_lines(error)[1].startswith("  next: set SSL_CERT_FILE to a file")


def test_program_without_a_server_ends_with_a_short_traceback_that_names_the_remedy(
    tmp_path: Path,
) -> None:
    url = unused_url()
    program = (
        "import asyncio, toolbus\n"
        "async def main():\n"
        f"    async with toolbus.RoomClient({url!r}, token='e30.e30.t'): pass\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.splitlines()[-1] == (
        f"toolbus.errors.Unavailable: cannot connect to {url}: connection refused, so no server "
        f"runs there; `toolbus serve --dev --port {url.rpartition(':')[2]}` starts one"
    )


@pytest.fixture
def context_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put the context `lab`, for this URL and with a token, into use."""
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    (tmp_path / "lab.jwt").write_text("a.b.c", encoding="ascii")

    def use(url: str) -> None:
        lab = f"url = '{url}'\nroom = 'lab'\ntoken_file = '{tmp_path / 'lab.jwt'}'\n"
        text = f"in_use = 'lab'\n[context.lab]\n{lab}"
        (tmp_path / "contexts.toml").write_text(text, encoding="utf-8")

    return use


async def test_program_that_cannot_join_reads_the_context_in_use(
    context_in_use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    context_in_use(url := unused_url())
    with pytest.raises(Unavailable, match=f"^context lab: cannot connect to {url}: connection"):
        await RoomClient().__aenter__()
    assert (await join_error(url)).message.startswith("cannot connect to")  # by its arguments
    async with running_server() as server:
        context_in_use(server.url)
        with pytest.raises(PermissionDenied, match=r"^context lab: the server refuses the token"):
            await RoomClient().__aenter__()
    async with other_service(b"SSH-2.0-OpenSSH_9.6\r\n") as url:
        context_in_use(url)
        with pytest.raises(Unavailable, match=r"^context lab: not a toolbus server"):
            await RoomClient().__aenter__()
        monkeypatch.setenv("TOOLBUS_URL", url := unused_url())
        with pytest.raises(Unavailable, match=f"^context lab: cannot connect to {url}"):
            await RoomClient().__aenter__()  # the room and the token are those of the context


async def test_program_whose_connection_ends_for_good_reads_the_context_in_use(
    context_in_use: Callable[[str], None],
) -> None:
    async with asyncio.timeout(60), scripted_server() as server:
        context_in_use(server.url)
        async with RoomClient() as room:
            await (await server.next_connection()).websocket.close(4440)
            for waiting in (room.closed(), room.call("kit.run")):
                with pytest.raises(RoomException, match=r"context lab: an administrator removed"):
                    await waiting


@pytest.mark.parametrize("facts", [{"name": 5}, {"issuer": None}, {"role": []}, {"api": [1]}])
async def test_a_welcome_without_an_identity_is_no_welcome(facts: dict[str, Any]) -> None:
    async with scripted_server() as server:
        server.facts = facts
        with pytest.raises(Unavailable, match="did not send a welcome"):
            async with RoomClient(server.url, room="lab", token="e30.e30.t"):
                pass


@pytest.mark.parametrize("by_proxy", [False, True])
async def test_redirect_to_another_origin_is_not_followed(
    by_proxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token would be sent there; before 16.1, websockets itself would do so."""
    requests: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            if (await reader.readuntil(b"\r\n\r\n")).startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 301 Moved\r\nLocation: {elsewhere}\r\n".encode() + HTML)
            await writer.drain()

    async with (
        await asyncio.start_server(record, "127.0.0.1", 0) as other,
        await asyncio.start_server(redirect, "127.0.0.1", 0) as moved,
    ):
        elsewhere = f"ws://127.0.0.1:{other.sockets[0].getsockname()[1]}/"
        url = f"ws://127.0.0.1:{moved.sockets[0].getsockname()[1]}"
        if by_proxy:
            monkeypatch.setenv("http_proxy", url.replace("ws", "http"))
            url = "ws://toolbus.test:7717"
        error = await join_error(url)
    assert error.message.endswith("another service answers there (HTTP 301)")
    assert requests == []
