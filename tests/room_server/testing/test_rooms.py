"""A server with participants for a test: on the loop of the test, and on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.parts.isolated_host import echo
from toolbus import ApiScope, PermissionDenied, RoomException, Toolkit
from toolbus_server.testing import room_of, server_on_thread


async def test_a_room_of_participants_has_the_server_and_each_by_name() -> None:
    async with room_of("host", "ann", "ann", room="hall") as hall:
        host, ann, other = hall
        assert (hall["host"], hall["ann"]) == (host, ann)
        assert [one.name for one in hall] == ["host", "ann", "ann"]
        assert ann.me.id != other.me.id
        with pytest.raises(KeyError, match="bob"):
            hall["bob"]
        async with hall.server.room("bob", room="hall") as bob, host.host(Toolkit("t", [echo])):
            assert await bob.call("t.echo", text="a") == "a"


def test_a_test_without_a_loop_hosts_a_toolkit_and_calls_it() -> None:
    with server_on_thread() as server:
        server.host(Toolkit("t", [echo]))
        server.host(Toolkit("other", [echo]), name="ben", room="hall")
        ann = server.connect("ann")
        assert (ann.call("t.echo", text="a"), ann.me.role) == ("a", "user")
        guest = server.connect("guest", room="hall", role="guest", api=ApiScope())
        assert guest.me.role == "guest"
        with pytest.raises(PermissionDenied):
            guest.call("other.echo", text="a")


async def test_a_test_with_a_loop_has_participants_on_its_own_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    with server_on_thread() as server:
        server.host(Toolkit("there", [note]))
        async with server.room("host") as host, host.host(Toolkit("here", [note])):
            await host.call("here.note")
            await host.call("there.note")
        with pytest.raises(RuntimeError, match=r"async with toolbus_room\.room\('ann'\) as ann"):
            server.connect("ann")
    here, there = loops
    assert here is asyncio.get_running_loop() is not there


def test_all_that_a_test_has_opened_is_closed_at_its_end() -> None:
    stopped: list[str] = []

    class Kit(Toolkit):
        @asynccontextmanager
        async def hosting(self, room: Any) -> AsyncIterator[None]:
            yield
            stopped.append(self.name)

    with server_on_thread() as server:
        server.host(Kit("t", [echo]))
        ann = server.connect("ann")
    assert stopped == ["t"]
    with pytest.raises(RoomException):
        ann.call("t.echo", text="a")
    assert not [one for one in threading.enumerate() if one.name == "toolbus-test-server"]


def test_an_error_of_hosting_is_raised_in_the_test() -> None:
    not_a_toolkit: Any = [echo]
    with server_on_thread() as server:
        with pytest.raises(TypeError, match="host takes one Toolkit"):
            server.host(not_a_toolkit)
        server.host(Toolkit("t", [echo]))
        assert server.connect("ann").call("t.echo", text="a") == "a"
