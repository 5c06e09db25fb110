"""Guests are participants like any others, as far as a server can tell."""

import asyncio
from pathlib import Path

import pytest

from bench import rivals
from bench.gathering_leg import people_in, until_there
from bench.guest import Guest, Invitation, take_frame
from bench.neighbours_leg import manifest
from support.raw_client import PING, websocket_frame
from toolbus_server.testing import TestServer, running_server

INSTANCES = ("one", "two", "three")


def invitation(server: TestServer, instance: str = "") -> Invitation:
    return Invitation.to(server.url, "lab", server.token("guest"), instance)


async def test_guests_sit_in_the_room_until_they_leave() -> None:
    async with running_server() as server:
        guests = [await Guest.join(invitation(server, each)) for each in INSTANCES]
        assert people_in(server) == len(INSTANCES)
        for guest in guests:
            guest.leave()
        await until_there(server, 0)


async def test_a_guest_without_a_good_token_is_turned_away() -> None:
    async with running_server() as server:
        uninvited = Invitation.to(server.url, "lab", "no.good.token")
        with pytest.raises(ConnectionError, match="401"):
            await Guest.join(uninvited)


async def test_a_neighbours_toolkits_are_in_the_room() -> None:
    async with running_server() as server, server.room("caller") as caller:
        guest = await Guest.join(invitation(server))
        alike = manifest()
        await guest.register([{**alike, "name": f"idle{n}"} for n in range(20)], timeout_s=10)
        assert len([toolkit async for toolkit in caller.toolkits()]) == 20
        with pytest.raises(ConnectionError, match="refused"):
            await guest.register([{**alike, "name": "Not A Name"}], timeout_s=10)


async def test_a_guest_answers_pings() -> None:
    async with running_server() as server:
        guest = await Guest.join(invitation(server))
        (room,) = server.server.hub.rooms.values()
        (seat,) = room.room.seats.values()
        async with asyncio.timeout(5):
            await (await seat.port.ping())  # type: ignore[attr-defined]  # websockets' own
        assert guest.pings == 1


async def test_a_guest_that_the_server_drops_knows_that_it_is_lost() -> None:
    async with running_server() as server:
        guest = await Guest.join(invitation(server))
    assert guest.is_lost


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_is_taken_whole_or_not_at_all(size: int) -> None:
    frame = websocket_frame(b"x" * size, opcode=PING, masked=False)
    assert take_frame(frame + b"rest") == (PING, b"x" * size, b"rest")
    assert take_frame(frame[:-1]) is None


def test_a_rival_that_pip_cannot_install_is_missing_with_pips_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "HERE", tmp_path)
    monkeypatch.setattr(rivals, "ENVIRONMENTS", tmp_path / "environments")
    (tmp_path / "requirements-nobody.txt").write_text("./missing-1.0-py3-none-any.whl\n")
    with pytest.raises(rivals.RivalMissing, match=r"pip: .*missing-1\.0"):
        rivals.rival_python("nobody")
