"""Connections through proxies: the address they count for, and the headers that are trusted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.clients.handshakes import ask
from support.clients.raw_client import RawClient, bearer, raw_connection
from support.processes.command_line import CommandLine
from support.rooms.unharmed_server import unharmed_server
from toolbus.auth.keys import KeyRing
from toolbus.transport.client_addresses import TrustedProxies
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server

LOOPBACK = ("127.0.0.1/32",)


def settings(*proxies: str, most: int = 2) -> ServerSettings:
    return ServerSettings(KeyRing([]), port=0, max_per_address=most, trusted_proxies=proxies)


async def enter(
    stack: AsyncExitStack, server: TestServer, *forwarded: str, instance: str = ""
) -> int:
    """Connect with these headers, and stay; return the status."""
    client = await stack.enter_async_context(raw_connection(server.url))
    headers = [("X-Forwarded-For", value) for value in forwarded]
    path = f"/rooms/lab?instance={instance}"
    return (await client.upgrade(path, [*bearer(server.token("bob")), *headers])).status


async def test_behind_a_trusted_proxy_each_client_counts_for_its_own_address() -> None:
    """CONN-5, CONN-15."""
    async with (
        unharmed_server(settings=settings(*LOOPBACK)) as server,
        AsyncExitStack() as stack,
    ):
        for client in ("192.0.2.1", "192.0.2.2", "2001:db8:1:1::1"):
            seen = [await enter(stack, server, client) for _ in range(3)]
            assert seen == [101, 101, 429]
        # Addresses of one /64 network count as one.
        assert await enter(stack, server, "2001:db8:1:1:ffff::2") == 429
        assert await enter(stack, server, "2001:db8:1:2::1") == 101
        assert server.server.admission.refused == {"address_full": 4}


async def test_entries_left_of_the_clients_address_are_untrusted_and_ignored() -> None:
    """CONN-15: naming other addresses gives no larger quota."""
    proxies = (*LOOPBACK, "10.0.0.0/8")
    async with (
        unharmed_server(settings=settings(*proxies)) as server,
        AsyncExitStack() as stack,
    ):
        seen = [
            await enter(stack, server, f"198.51.100.{number}, 192.0.2.1, 10.1.2.3")
            for number in range(3)
        ]
        assert seen == [101, 101, 429]
        # Several headers are read as one, in their order.
        assert await enter(stack, server, "198.51.100.9", "192.0.2.1", "10.1.2.3") == 429


async def test_from_others_the_header_is_ignored() -> None:
    """CONN-15."""
    for proxies in ((), ("10.0.0.0/8",)):
        async with (
            unharmed_server(settings=settings(*proxies, most=3)) as server,
            AsyncExitStack() as stack,
        ):
            # One of the three belongs to the test server.
            seen = {await enter(stack, server, f"192.0.2.{number}") for number in range(6)}
            assert 429 in seen


async def test_a_closed_connection_is_no_longer_counted() -> None:
    async with running_server(settings=settings(*LOOPBACK)) as server:
        quotas = server.server.admission.quotas
        async with AsyncExitStack() as stack:
            for _ in range(2):
                assert await enter(stack, server, "192.0.2.1") == 101
            assert quotas._counts["192.0.2.1"] == 2
            assert "127.0.0.1" not in quotas._counts
        async with asyncio.timeout(60):
            while quotas._counts:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)


HOSTILE = [
    [],
    [""],
    [","],
    ["unknown"],
    ["_hidden"],
    ["192.0.2.1, garbage"],
    ["192.0.2.1, "],
    ["192.0.2.1:port"],
    ["192.0.2.1:"],
    ["192.0.2.1:65536"],
    ["192.0.2.1:99999999999999999999"],
    ["192.0.2.256"],
    ["192.0.2"],
    ["0x7f.1"],
    ["fe80::1%eth0"],
    ["[fe80::1%eth0]:1"],
    ["[2001:db8::1"],
    ["[2001:db8::1]x"],
    ["[2001:db8::1]:"],
    ["[192.0.2.1]"],
    ["2001:db8::1::2"],
    ["\x00"],
    ["1.2.3.4\x0b5"],
    ["\u0661.2.3.4"],
    ["127.0.0.1"],
    ["127.0.0.1, " * 700 + "127.0.0.1"],
    ["192.0.2.1" + ", 127.0.0.1" * 32],
    ["x" * 8_000],
    [","] * 100,
]


@pytest.mark.parametrize("headers", HOSTILE)
def test_a_header_without_a_client_leaves_the_proxys_own_address(headers: list[str]) -> None:
    """CONN-15."""
    assert TrustedProxies(LOOPBACK).client_of("127.0.0.1", headers) == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        ([" 192.0.2.1 "], "192.0.2.1"),
        (["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        (["[2001:db8:1:2:3::4]"], "2001:db8:1:2::/64"),
        (["[2001:db8:1:2:3::4]:443"], "2001:db8:1:2::/64"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1, ::ffff:127.0.0.1"], "192.0.2.1"),
        (["garbage, 192.0.2.1, 127.0.0.1"], "192.0.2.1"),
        (["192.0.2.1" + ", 127.0.0.1" * 31], "192.0.2.1"),
    ],
)
def test_the_client_is_the_rightmost_address_that_is_not_trusted(
    headers: list[str], client: str
) -> None:
    """CONN-15."""
    assert TrustedProxies(LOOPBACK).client_of("127.0.0.1", headers) == client


@pytest.mark.parametrize(
    ("address", "is_trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("fd00::7", True),
        ("fd00::7%eth0", True),
        ("fe80::7", False),
        ("", False),
        ("/run/socket", False),
    ],
)
def test_an_address_is_trusted_if_a_network_contains_it(address: str, is_trusted: bool) -> None:
    assert TrustedProxies(["10.0.0.0/8", "fd00::/8"]).include(address) is is_trusted


@pytest.mark.parametrize("size", [7_000, 10_240, 100_000])
async def test_a_header_of_any_size_is_harmless(size: int) -> None:
    async with unharmed_server(settings=settings(*LOOPBACK, most=9)) as server:
        headers = [*bearer(server.token("bob")), ("X-Forwarded-For", "9" * size)]
        async with raw_connection(server.url) as client:
            status = (await client.upgrade("/rooms/lab", headers)).status
        assert status == (101 if size < 8_192 else 431)
        assert (await ask(server, "/healthz", [("X-Forwarded-For", "\xff")])).status == 200


@pytest.mark.parametrize("network", ["10.0.0.0/33", "10.0.0.1/8", "proxy", "", "10.0.0.0/8,"])
def test_a_server_with_an_invalid_network_is_refused(network: str) -> None:
    with pytest.raises(ValueError, match=r"network|host bits"):
        TrustedProxies([network])


# From the command line


@pytest.mark.parametrize("says", ["flag", "variable", "file"])
def test_trusted_proxies_reach_the_server(tmp_path: Path, says: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text('trusted_proxies = ["10.0.0.0/8", "127.0.0.1"]\n')
    networks = "10.0.0.0/8,127.0.0.1"
    flags = {"flag": ("--trusted-proxies", networks), "file": ("--config", str(config))}
    variables = {"TOOLBUS_TRUSTED_PROXIES": networks} if says == "variable" else {}
    toolbus = CommandLine(tmp_path, variables)
    with toolbus.serving("--dev", "--max-per-address", "1", *flags.get(says, ())) as (_, url):
        asyncio.run(_check_two_clients(url))


async def _check_two_clients(url: str) -> None:
    async with raw_connection(url) as one, raw_connection(url) as other:
        assert await _asked(one, "192.0.2.1") == 401  # both get a response: they have no token
        assert await _asked(other, "192.0.2.2") == 401


async def _asked(client: RawClient, address: str) -> int:
    return (await client.upgrade("/rooms/lab", [*bearer("x"), ("X-Forwarded-For", address)])).status


@pytest.mark.parametrize("networks", ["10.0.0.1/8", "proxy.example", "10.0.0.0/8,x"])
def test_invalid_networks_end_serve_with_exit_code_2(tmp_path: Path, networks: str) -> None:
    arguments = ("serve", "--dev", "--port", "0", "--trusted-proxies", networks)
    ended = CommandLine(tmp_path).run_here(*arguments)
    assert ended.code == 2
    assert "is not a network of proxies" in ended.err
