"""Which errors a service waits for, how often it tries, and what it logs; on a virtual clock."""

from __future__ import annotations

import asyncio
import logging
import re
from itertools import pairwise
from typing import Any

import pytest

from support.parts.virtual_clock import on_virtual_clock
from toolbus.errors import (
    AlreadyExists,
    ConnectionLost,
    PermissionDenied,
    QuotaExceeded,
    RoomException,
    Unavailable,
)
from toolbus.room.waiting_start import join, keep_trying, may_end_by_itself
from toolbus.service.remote_toolkit import serve_toolkits
from toolbus.settings import RoomSettings

URL = "ws://127.0.0.1:7"


def away(*, retryable: bool = True, **details: Any) -> Unavailable:
    return Unavailable("away", executed="no", retryable=retryable, details=details)


WAITED_FOR = {
    "no connection": away(url=URL),
    "server drains, or is isolated": away(status=503),
    "proxy without its server": away(status=502),
    "too many connections": away(status=429),
    "handshake timeout of a proxy": away(status=408),
    "registration while Redis is away": Unavailable(executed="no"),
    "connection lost during the registration": ConnectionLost(executed="maybe"),
}
FINAL = {
    "another service": away(retryable=False, url=URL),
    "certificate": away(url=URL, certificate="expired"),
    "token file": away(token_from="the token"),
    "newer connection of this instance": away(status=409),
    "header too large": away(status=431),
    "token": PermissionDenied(details={"status": 401}),
    "name": AlreadyExists(),
    "quota": QuotaExceeded(),
}


@pytest.mark.parametrize("name", [*WAITED_FOR, *FINAL])
def test_errors_that_end_by_themselves_are_waited_for(name: str) -> None:
    assert may_end_by_itself({**WAITED_FOR, **FINAL}[name]) is (name in WAITED_FOR)


class Started:
    """Fails with the given errors, then hosts."""

    def __init__(self, *errors: RoomException, wait: str = "on") -> None:
        environ = {"TOOLBUS_URL": URL, "TOOLBUS_TOKEN": "e30.e30.t", "TOOLBUS_WAIT": wait}
        self._settings = RoomSettings.resolve(environ={**environ, "TOOLBUS_ROOM": "lab"})
        self.errors = list(errors)
        self.at: list[float] = []

    async def start(self) -> str:
        self.at.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)
        return "started"

    async def started(self) -> None:
        await self.start()

    def settings(self) -> RoomSettings:
        return self._settings

    def tried(self, wait: bool | None = None) -> str:
        return on_virtual_clock(keep_trying(self.start, self.settings, wait))


def test_start_is_repeated_with_growing_pauses_and_logged_once_and_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "toolbus")
    made = Started(*[away(url=URL) for _ in range(40)])
    assert made.tried() == "started"
    pauses = [later - earlier for earlier, later in pairwise(made.at)]
    assert pauses[0] <= 0.1
    assert max(pauses) <= 5.0 < sum(pauses)
    first, *repeated, last = caplog.messages
    assert first == f"cannot host at {URL} yet, trying again until it succeeds (away)"
    assert last == "hosting in room lab now"
    assert len(repeated) == (made.at[-2] - made.at[0]) // 60
    assert all(
        re.search(r" after \d+ attempts in \d+ s \(away\)$", message) for message in repeated
    )


@pytest.mark.parametrize(
    ("setting", "wait", "attempts"), [("on", False, 1), ("off", None, 1), ("off", True, 3)]
)
def test_argument_wins_over_the_setting(setting: str, wait: bool | None, attempts: int) -> None:
    made = Started(away(), away(), wait=setting)
    if attempts == 1:
        with pytest.raises(Unavailable):
            made.tried(wait)
    else:
        assert made.tried(wait) == "started"
    assert len(made.at) == attempts


async def test_wait_that_is_no_bool_is_refused() -> None:
    wrong: Any = "off"
    with pytest.raises(TypeError, match="wait must be True, False or None, not str"):
        await serve_toolkits([], wait=wrong)


@pytest.mark.parametrize("hangs", [False, True])
def test_number_limits_the_wait_and_names_the_last_reason(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = Started(*[away(url=URL) for _ in range(100)], wait="off")

    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Unavailable) as refused:
        on_virtual_clock(join(hang if hangs else made.started, made.settings, 1))
    reason = "the server did not answer" if hangs else "away"
    assert refused.value.message == f"{reason}; waited for 1 s"
    assert refused.value.details == ({} if hangs else {"url": URL})
    assert hangs or 0 < made.at[-1] - made.at[0] <= 1
    once = [] if hangs else [f"cannot join at {URL} yet, trying again for 1 s (away)"]
    assert caplog.messages == once
