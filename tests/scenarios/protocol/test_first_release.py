"""Clients of the first release, as they were recorded then, with the current server.

`tests/wire_vectors/record_first_release.py` documents what was recorded and how.
"""

from __future__ import annotations

import copy
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import answer, call_of, call_through
from support.clients.recorded_conversation import (
    Choices,
    ConversationDiffers,
    Replay,
    conversations,
    packed,
    read_conversation,
    same_frame,
)
from toolbus import Key
from toolbus.wire import Result, unpack_body
from toolbus_server.testing import TestServer, running_server

FOLDER = Path(__file__).parents[2] / "wire_vectors" / "first_release"
CONVERSATIONS = list(conversations(FOLDER))
KEY = Key.generate(kid="test", iss="toolbus-test")  # the name of its issuer there


async def replay(server: TestServer, conversation: list[dict[str, Any]]) -> Replay:
    """Replay all recordings, as callers, hosts and subscribers."""
    async with AsyncExitStack() as stack:
        again = Replay(server, stack)
        await again.run(conversation)
        return again


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
async def test_client_of_the_first_release_is_served_as_it_was(path: Path) -> None:
    """GROW-1, GROW-2: callers, hosts and subscribers; nothing they read is missing or different."""
    conversation = read_conversation(path)
    async with running_server(key=KEY) as server:
        again = await replay(server, conversation)
        assert again.received == sum("to" in step for step in conversation)


async def test_stream_of_a_newer_caller_is_a_plain_call_to_a_host_of_the_first_release() -> None:
    """STREAM-1, INPUT-3, GROW-1: it reads what it knows, and its reply is the last chunk."""
    register = read_conversation(FOLDER / "calls.json")[2]["frame"]
    credit = {"credit_chunks": 8, "credit_bytes": 1000, "input": True, "progress": True}
    async with (
        running_server(key=KEY) as server,
        raw_participant(server, "station") as host,
        raw_participant(server, "alice") as alice,
    ):
        host.send_message(packed(register))
        assert isinstance(await host.reply_to(1), Result)
        dispatch = await call_through(alice, host, call_of("weather.picture", 7, **credit))
        answer(host, dispatch, [2, "Oslo"])
        reply = await alice.reply_to(7)
        assert isinstance(reply, Result)
        assert unpack_body(reply.body) == [2, "Oslo"]
        assert server.server.hub.router.in_flight == 0


def test_recordings_of_the_first_release_cover_its_sdk() -> None:
    """GROW-1: every kind of version 1 that its SDK sends and every one that it reads."""
    steps = [step for path in CONVERSATIONS for step in read_conversation(path)]
    output = {step["frame"][0] for step in steps if "by" in step}
    received = {step["frame"][0] for step in steps if "to" in step}
    assert output == {2, 3, 16, 18, *range(32, 37), 38, 39, *range(48, 53)}
    assert received == {1, 2, 3, 4, 17, 18}
    ends = {step["frame"][2] for step in steps if "to" in step and step["frame"][0] == 18}
    assert ends == {"cancelled", "deadline", "caller_gone"}
    assert {step["frame"][1] for step in steps if "to" in step and step["frame"][0] == 1} == {1}


WELCOME = [1, 1, "p1", "lab", "s1", {"name": "ann", "limits": {"max_calls": 9}, "heartbeat_ms": 1}]
DISPATCH = [17, 2**40, "c", "t", "run", 1000, {"$packed": {}}, {"caller": {"$packed": ["p1"]}}, ""]


@pytest.mark.parametrize(
    ("then", "change"),
    [
        (WELCOME, lambda now: now.append("more")),
        (WELCOME, lambda now: now[5].update(new=[1])),
        (WELCOME, lambda now: now[5]["limits"].update(max_calls=7, new=1)),
        (WELCOME, lambda now: now.__setitem__(1, 2)),
        (WELCOME, lambda now: now.__setitem__(2, "p7")),
        (DISPATCH, lambda now: now.__setitem__(1, 2**41)),
        (DISPATCH, lambda now: now.__setitem__(5, 990)),
        (DISPATCH, lambda now: now[7].update(whole=True)),
    ],
)
def test_additions_and_free_choices_of_the_server_are_accepted(then: Any, change: Any) -> None:
    now = said_now(then)
    change(now)
    same_frame(then, now, Choices())


@pytest.mark.parametrize(
    ("then", "change"),
    [
        (WELCOME, lambda now: now.pop()),
        (WELCOME, lambda now: now[5].pop("name")),
        (WELCOME, lambda now: now[5]["limits"].pop("max_calls")),
        (WELCOME, lambda now: now[5].update(name="bob")),
        (WELCOME, lambda now: now[5].update(heartbeat_ms="1")),
        (WELCOME, lambda now: now.__setitem__(3, "den")),
        (WELCOME, lambda now: now.__setitem__(2, 7)),
        (DISPATCH, lambda now: now.__setitem__(0, 18)),
        (DISPATCH, lambda now: now.__setitem__(5, None)),
        (DISPATCH, lambda now: now.__setitem__(6, b"\x90")),
        (DISPATCH, lambda now: now[7].pop("caller")),
        (DISPATCH, lambda now: now.__setitem__(8, None)),
    ],
)
def test_missing_or_different_values_are_reported(then: Any, change: Any) -> None:
    now = said_now(then)
    change(now)
    with pytest.raises(ConversationDiffers):
        same_frame(then, now, Choices())


def said_now(then: Any) -> Any:
    """Return the same frame, as it is decoded."""
    now = copy.deepcopy(then)
    if now[0] == DISPATCH[0]:
        now[6], now[7]["caller"] = b"\x80", b"\x91\xa2p1"
    return now


async def test_replay_stops_at_an_answer_that_differs_from_the_recording() -> None:
    conversation = read_conversation(FOLDER / "calls.json")
    failed = next(step for step in conversation if "to" in step and step["frame"][0] == 3)
    failed["frame"][2] = "another_code"
    async with running_server(key=KEY) as server:
        with pytest.raises(ConversationDiffers, match="another_code"):
            await replay(server, conversation)
