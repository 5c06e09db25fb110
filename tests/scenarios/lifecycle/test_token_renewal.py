"""A participant renews its token on its connection; if it cannot, the error tells it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.clients.ending_tokens import ends_in, lives_for
from support.clients.forged_tokens import KEY
from support.parts.isolated_host import echo
from support.rooms.events import until
from toolbus import RoomClient, Toolkit
from toolbus.errors import PermissionDenied
from toolbus.settings import Token
from toolbus_server.testing import TestServer, running_server


@pytest.fixture
async def server(caplog: pytest.LogCaptureFixture) -> AsyncIterator[TestServer]:
    caplog.set_level(logging.INFO, "toolbus.room.room_connection")
    async with running_server(key=KEY) as server, asyncio.timeout(60):
        yield server


class Source:
    """Returns tokens one after another, or raises the exception in the place of one."""

    def __init__(self, *tokens: Callable[[], str] | BaseException) -> None:
        self._left = list(tokens)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        found = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(found, BaseException):
            raise found
        return found()


def participant(server: TestServer, token: Token) -> RoomClient:
    return RoomClient(server.url, room="lab", token=token)


async def renewed_as(room: RoomClient, role: str) -> None:
    """Wait until a token with another role is in force, on the same connection."""
    before = room.me.id
    await until(lambda: room.me.role == role)
    assert room.me.id == before


async def test_a_token_from_a_function_is_renewed_before_it_expires_without_interruption(
    server: TestServer,
) -> None:
    """REFRESH-2, REFRESH-3: hosted toolkits stay, and calls continue."""
    source = Source(
        lambda: lives_for("ann", 1.0),
        lambda: lives_for("ann", 2.0, role="second"),
        lambda: lives_for("ann", 3_600, role="third"),
    )
    async with participant(server, source) as ann, ann.host(Toolkit("t", [echo])):
        running = asyncio.ensure_future(ann.call("t.echo", text="x"))
        await renewed_as(ann, "second")
        await renewed_as(ann, "third")  # one after the other
        assert await running == "x"
        assert await ann.call("t.echo", text="y") == "y"
        assert source.asked == 3


async def test_a_file_is_read_again_until_it_has_a_newer_token(
    server: TestServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """REFRESH-3."""
    path = tmp_path / "ann.jwt"
    path.write_text(ends_in("ann", 50))
    async with participant(server, path) as ann:
        await until(lambda: caplog.text.count("there is no newer one yet") >= 2)
        caplog.clear()
        path.write_text(ends_in("ann", 45, role="second"))  # it expires soon as well
        await renewed_as(ann, "second")
        await until(lambda: "there is no newer one yet" in caplog.text)
        path.write_text(lives_for("ann", 3_600, role="third"))
        await renewed_as(ann, "third")


@pytest.mark.parametrize(("left_s", "level"), [(600, logging.INFO), (300, logging.WARNING)])
async def test_a_file_that_is_written_a_little_later_is_no_warning(
    server: TestServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, left_s: int, level: int
) -> None:
    """The kubelet writes tokens of an hour 12 minutes before they expire, or somewhat later."""
    path = tmp_path / "ann.jwt"
    path.write_text(ends_in("ann", 60 + left_s))
    async with participant(server, path) as ann:
        await until(lambda: "there is no newer one yet" in caplog.text)
        assert {each.levelno for each in caplog.records} == {level}
        path.write_text(lives_for("ann", 3_600, role="second"))
        await renewed_as(ann, "second")


async def test_refusal_of_an_expired_token_is_logged_and_ends_calls_until_there_is_a_newer_one(
    server: TestServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LEAVE-4."""
    path = tmp_path / "ann.jwt"
    path.write_text(ends_in("ann", 1.5))
    async with participant(server, path) as ann:
        refusals = "the server refuses the token: it expired "
        await until(lambda: refusals in caplog.text)
        assert "the token file is read again for each attempt: renew it" in caplog.text
        for _ in range(2):  # at once, with an hour left
            with pytest.raises(PermissionDenied, match=refusals) as late:
                await ann.invoke("t.echo", {}, timeout_s=3_600)
            assert (late.value.executed, late.value.retryable) == ("no", False)
        path.write_text(lives_for("ann", 3_600, role="second"))
        await until(lambda: ann.me.role == "second")
    assert "eyJ" not in caplog.text


async def test_reader_of_events_gets_the_reason_when_a_token_given_as_a_string_expires(
    server: TestServer,
) -> None:
    async with (
        participant(server, ends_in("ann", 1.5)) as ann,
        ann.events(["messages"]) as events,
    ):
        with pytest.raises(PermissionDenied, match="a token given as a string cannot be renewed"):
            await anext(events)
        assert [event async for event in events] == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (OSError("no network"), "its source failed"),
        (PermissionDenied("not you"), "not renewed: not you"),
        (asyncio.CancelledError(), "its source was cancelled"),
        (lambda: None, "not renewed: the function of token= must return text, not NoneType"),
    ],
)
async def test_a_failing_token_source_is_retried_while_the_old_token_is_valid(
    server: TestServer, caplog: pytest.LogCaptureFixture, fault: Any, message: str
) -> None:
    """REFRESH-3."""
    source = Source(
        lambda: ends_in("ann", 50),
        fault,
        fault,
        lambda: lives_for("ann", 3_600, role="second"),
    )
    async with participant(server, source) as ann, ann.host(Toolkit("t", [echo])):
        await until(lambda: message in caplog.text)
        assert await ann.call("t.echo", text="x") == "x"
        await renewed_as(ann, "second")
        assert source.asked == 4
    assert "eyJ" not in caplog.text  # no token is ever logged


async def test_a_token_that_the_server_refuses_leaves_the_old_one_and_is_followed_by_others(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    """REFRESH-1, REFRESH-3."""
    source = Source(
        lambda: ends_in("ann", 50),
        lambda: lives_for("eve", 3_600),
        lambda: lives_for("ann", 3_600, role="second"),
    )
    async with participant(server, source) as ann:
        await until(lambda: "not renewed: the token is not valid" in caplog.text)
        assert ann.me.name == "ann"
        await renewed_as(ann, "second")


async def test_a_source_that_never_brings_another_lets_the_connection_end_and_come_back(
    server: TestServer,
) -> None:
    """LEAVE-4: after 4401, because the next token may be a better one."""
    ending, ends_at = ends_in("ann", 1.5), time.time() + 1.5

    async def source() -> str:
        if time.time() < ends_at and ann_is_in.is_set():
            raise OSError("no network")
        return lives_for("ann", 3_600) if ann_is_in.is_set() else ending

    ann_is_in = asyncio.Event()
    async with participant(server, source) as ann:
        ann_is_in.set()
        before = ann.me.id
        await until(lambda: ann.me.id != before)
        assert time.time() >= ends_at
        assert await ann.participants()


async def test_a_token_given_as_a_string_cannot_be_renewed_and_the_room_closes_with_the_reason(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    """LEAVE-4."""
    async with participant(server, ends_in("ann", 1.5)) as ann:
        await until(lambda: "a token given as a string cannot be renewed" in caplog.text)
        with pytest.raises(
            PermissionDenied, match="expired, and a token given as a string cannot be renewed"
        ) as end:
            await ann.closed()
        assert end.value.details == {"close_code": 4401}


async def test_leave_during_a_token_renewal_succeeds(server: TestServer) -> None:
    asked, never = asyncio.Event(), asyncio.Event()
    tokens = [ends_in("ann", 50)]

    async def source() -> str:
        if not tokens:
            asked.set()
            await never.wait()
        return tokens.pop()

    async with participant(server, source) as ann:
        await asked.wait()
        assert ann.me.name == "ann"
    assert not [task for task in asyncio.all_tasks() if "TokenRenewal." in repr(task.get_coro())]
