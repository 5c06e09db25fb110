"""Conversations beyond the share of an asker: only its own are forgotten, and it learns of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel
from toolbus import Agent, JsonChunk, ModelError, RoomClient, SqliteStateStore
from toolbus_server.testing import room_of

FORGOTTEN = "was forgotten to make room"


async def asked(asker: RoomClient, name: str) -> str:
    """Ask in a conversation, and return why it was dropped."""
    arguments = {"text": "hi", "conversation": name}
    dropped = ""
    async with asker.stream("helper.ask", arguments, participant="helper") as chunks:
        async for chunk in chunks:
            assert isinstance(chunk, JsonChunk)
            match chunk.json:
                case {"type": "dropped", "reason": str(dropped)}:
                    pass
    return dropped


async def about(asker: RoomClient, name: str) -> Any:
    told = await asker.invoke("helper.about", {"conversation": name}, participant="helper")
    return told.value["conversation"]


async def test_thousand_conversations_of_one_asker_cost_nobody_else_theirs() -> None:
    async with (
        room_of("ann", "mallory", "helper") as (ann, mallory, helper),
        Agent(helper, PreparedModel("hello"), name="helper", available=False),
    ):
        for name in ("trip", "work", "trip"):
            assert not await asked(ann, name)
        names = [f"{number}".rjust(200, "😀") for number in range(1_010)]
        for start in range(0, len(names), 20):
            pages = await asyncio.gather(*(asked(mallory, n) for n in names[start : start + 20]))
            assert not any(pages)
        assert not await asked(ann, "work")
        assert (await about(ann, "trip"))["messages"] == 4
        assert (await about(mallory, names[-1]))["messages"] == 2
        first, second, *_ = names
        for _ in range(2):  # to look at it changes nothing
            empty = await about(mallory, first)
            assert (empty["messages"], empty["bytes"]) == (0, 0)
            assert FORGOTTEN in empty["dropped"]
        assert FORGOTTEN in await asked(mallory, first)
        assert not await asked(mallory, first)
        await mallory.invoke("helper.forget", {"conversation": second}, participant="helper")
        assert not await asked(mallory, second)
        assert not await asked(ann, "trip")


async def test_conversation_that_its_store_forgot_begins_anew_and_says_so_after_a_restart(
    tmp_path: Path,
) -> None:
    model = PreparedModel(*["hello"] * 5, ModelError("broken"), "hello")

    def agent() -> Agent:
        store = SqliteStateStore(tmp_path / "states.db", max_states=3)
        return Agent(None, model, store=store, available=False)

    async with agent() as helper:
        for name in "abcd":
            assert (await helper.run("hi", conversation=name)).text == "hello"
        # It is in memory. To be stored it takes the place of an older one.
        assert "dropped" not in (await helper.about(conversation="a"))["conversation"]
        assert (await helper.run("hi", conversation="a")).text == "hello"
    async with agent() as helper:
        assert (await helper.about(conversation="a"))["conversation"]["messages"] == 4
        with pytest.raises(ModelError):  # this question is not asked, so the next one says it too
            await helper.run("hi", conversation="b")
        assert FORGOTTEN in (await helper.about(conversation="b"))["conversation"]["dropped"]
    async with agent() as helper:
        events = [event async for event in helper.run_stream_events("hi", conversation="b")]
        assert events[0]["type"] == "dropped"  # type: ignore[index]
        await helper.forget("c")
        events = [event async for event in helper.run_stream_events("hi", conversation="c")]
        assert events[0]["type"] == "text"  # type: ignore[index]
