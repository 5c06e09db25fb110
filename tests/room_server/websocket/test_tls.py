"""A server with TLS, and clients that trust its authority by `SSL_CERT_FILE`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from support.clients.certificates import Pki, make_pki
from support.clients.server_tls import tls_settings
from support.processes.command_line import CommandLine
from toolbus import RoomException, Toolkit, tool
from toolbus_server.testing import running_server


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return make_pki(tmp_path / "pki")


@tool
async def say(text: str) -> str:
    """Return the text."""
    return text


async def test_calls_and_large_ones_work_over_wss(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pki.authority))
    async with (
        running_server(settings=tls_settings(pki)) as server,
        server.room("host") as host,
        host.host(Toolkit("echo", [say])),
        server.room("bob") as bob,
    ):
        assert server.url.startswith("wss://127.0.0.1:")
        assert await bob.call("echo.say", text="hello") == "hello"
        texts = ["x" * 900_000, *map(str, range(50))]
        results = await asyncio.gather(*(bob.call("echo.say", text=text) for text in texts))
        assert results == texts


async def test_client_that_does_not_trust_the_authority_does_not_connect(pki: Pki) -> None:
    async with running_server(settings=tls_settings(pki)) as server:
        with pytest.raises(RoomException, match="its certificate is not trusted"):
            async with server.room("bob"):
                pass
        assert server.server.hub.rooms == {}


async def test_probes_are_answered_over_https(pki: Pki) -> None:
    trusting = ssl.create_default_context(cafile=str(pki.authority))
    async with running_server(settings=tls_settings(pki)) as server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.server.port, ssl=trusting
        )
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_client_without_tls_is_dropped_and_others_are_served(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pki.authority))
    settings = tls_settings(pki, handshake_timeout_s=0.5)
    async with running_server(settings=settings) as server, asyncio.timeout(60):
        for sent in (b"GET /healthz HTTP/1.1\r\n\r\n", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
            writer.write(sent)
            async with server.room("bob") as bob:
                assert [each async for each in bob.toolkits()] == []
            try:
                assert b"HTTP" not in await reader.read()
            except ConnectionError:
                pass
            writer.close()
        assert server.server.admission.quotas.is_over_limit("127.0.0.1") is False


# Half-open connections


on_each_loop = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@on_each_loop
def test_half_open_handshakes_count_for_their_address_and_others_come_in(
    make_loop: Callable[[], asyncio.AbstractEventLoop], pki: Pki
) -> None:
    """The newest of the address are closed, without an answer; one that ended is not counted."""
    trusting = ssl.create_default_context(cafile=str(pki.authority))
    settings = replace(tls_settings(pki, handshake_timeout_s=60.0), max_per_address=2)

    async def flood() -> None:
        async with running_server(settings=settings) as server, asyncio.timeout(60):
            quotas, port = server.server.admission.quotas, server.server.port
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(264)]
            for reader, _ in silent[2 + 256 :]:
                assert await reader.read() == b""
            assert quotas.dropped == 264 - 256 - 2
            other, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting, local_addr=("127.0.0.2", 0)
            )
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await other.readline()).startswith(b"HTTP/1.1 200 ")
            for _, each in (*silent, (other, writer)):
                each.close()
            while quotas.is_over_limit("127.0.0.1"):  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(flood())


@on_each_loop
@pytest.mark.parametrize("is_tls", [True, False])
def test_half_open_connections_do_not_delay_the_end_of_a_server(
    make_loop: Callable[[], asyncio.AbstractEventLoop], is_tls: bool, pki: Pki
) -> None:
    settings = replace(tls_settings(pki, handshake_timeout_s=3_600.0), drain_s=0.0)
    settings = settings if is_tls else replace(settings, tls=None)

    async def stop() -> None:
        async with asyncio.timeout(60):
            async with running_server(settings=settings) as server:
                port = server.server.port
                silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
                silent[0][1].write(b"\x16\x03\x01" if is_tls else b"GET /rooms/lab HTT")
            for reader, writer in silent:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(stop())


# From the command line


@contextmanager
def serving(toolbus: CommandLine, pki: Pki) -> Iterator[str]:
    with toolbus.serving("--dev", *pki.flags) as (_, url):
        yield url


def test_commands_and_the_doctor_work_with_the_authority_in_a_file(
    tmp_path: Path, pki: Pki
) -> None:
    toolbus = CommandLine(tmp_path, {"SSL_CERT_FILE": str(pki.authority)})
    with serving(toolbus, pki) as url:
        assert url.startswith("wss://127.0.0.1:")
        here = toolbus.at(url)
        with here.hosting("clock"):
            called = here.run("call", "clock.now", "--json")
            doctor = here.run("doctor", "--json")
    assert called.code == 0, called.err
    assert {each["status"] for each in doctor.value} == {"ok"}, doctor.out


def test_doctor_reports_that_a_certificate_is_not_trusted(tmp_path: Path, pki: Pki) -> None:
    toolbus = CommandLine(tmp_path)
    with serving(toolbus, pki) as url:
        doctor = toolbus.at(url).run("doctor", "--json")
    (port,) = (each for each in doctor.value if each["check"] == "port")
    assert port["status"] == "fail"
    assert "not trusted" in port["found"]
    assert "SSL_CERT_FILE" in port["repair"]


def test_variables_can_name_the_files(tmp_path: Path, pki: Pki) -> None:
    variables = {"TOOLBUS_TLS_CERT": str(pki.cert), "TOOLBUS_TLS_KEY": str(pki.key)}
    with CommandLine(tmp_path, variables).serving("--dev") as (_, url):
        assert url.startswith("wss://")


@pytest.mark.parametrize("alone", [0, 2])
def test_certificate_or_key_alone_is_refused(tmp_path: Path, pki: Pki, alone: int) -> None:
    outcome = CommandLine(tmp_path).run_here("serve", "--dev", *pki.flags[alone : alone + 2])
    assert outcome.code == 2
    assert "needs both" in outcome.err


def test_unusable_files_end_with_2_and_are_named(tmp_path: Path, pki: Pki) -> None:
    other = make_pki(tmp_path / "other")
    locked = make_pki(tmp_path / "locked", b"secret")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    missing = tmp_path / "missing.pem"
    for cert, key, message in (
        (missing, pki.key, f"cannot read {missing}"),
        (pki.cert, missing, f"cannot read {missing}"),
        (tmp_path, pki.key, f"cannot read {tmp_path}"),
        (pki.cert, other.key, "the key is not the certificate's"),
        (locked.cert, locked.key, "not encrypted"),
        (text, pki.key, "PEM files"),
        (pki.cert, text, "PEM files"),
    ):
        outcome = CommandLine(tmp_path).run_here(
            *("serve", "--dev", "--tls-cert", str(cert), "--tls-key", str(key))
        )
        assert outcome.code == 2, outcome
        assert message in outcome.err, (message, outcome.err)
