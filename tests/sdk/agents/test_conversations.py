"""The conversations of an agent: kept, bounded, one question at a time, and never lost silently."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel
from toolbus import (
    Agent,
    AgentState,
    ConversationUnavailable,
    Overloaded,
    StateStoreUnavailable,
    Unavailable,
)
from toolbus.agents import conversation as conversations
from toolbus.agents.conversation import (
    MAX_WAITING,
    Conversation,
    Conversations,
    adapter_name,
    conversation_key,
)
from toolbus.models import openai_chat, scripted
from toolbus.tools.tool_run import LOCAL, Participant

KEY = conversation_key(LOCAL, None, "trip")


def key(name: object) -> str:
    return conversation_key(LOCAL, None, str(name))


class States:
    """A store in memory."""

    def __init__(self, **texts: str) -> None:
        self.texts = {key(name): text for name, text in texts.items()}
        self.error: Exception | None = None
        self.is_closed = False

    async def load(self, key: str) -> str | None:
        if self.error is not None:
            raise self.error
        return self.texts.get(key)

    async def save(self, key: str, text: str) -> None:
        if self.error is not None:
            raise self.error
        self.texts[key] = text

    async def delete(self, key: str) -> None:
        if self.error is not None:
            raise self.error
        self.texts.pop(key, None)

    async def aclose(self) -> None:
        self.is_closed = True


def said(conversation: Conversation) -> list[str]:
    return [message["text"] for message in conversation.state.conversation]


def exchange(conversation: Conversation, question: str, *answers: str) -> None:
    conversation.begin(scripted, {"text": question})
    conversation.state.conversation += [{"text": answer} for answer in answers]
    conversation.end()


async def asked(kept: Conversations, name: str, question: str, *answers: str) -> list[str]:
    async with kept.using(key(name)) as conversation:
        exchange(conversation, question, *answers)
        await kept.save(conversation)
        return said(conversation)


async def test_conversation_goes_on_after_a_restart_and_ends_when_it_is_forgotten() -> None:
    store = States()
    assert await asked(Conversations(store), "trip", "a", "b") == ["a", "b"]
    again = Conversations(store)
    assert await asked(again, "trip", "c", "d") == ["a", "b", "c", "d"]
    assert AgentState.from_json(store.texts[KEY]).questions == [0, 2]
    assert await asked(again, "other", "e", "f") == ["e", "f"]
    async with again.using(KEY, load=False) as conversation:
        await again.forget(conversation)
    assert KEY not in store.texts
    assert await asked(again, "trip", "g", "h") == ["g", "h"]


async def test_question_that_nothing_answers_is_not_kept() -> None:
    store = States()
    kept = Conversations(store, max_bytes=60)
    await asked(kept, "trip", "a", "b")
    before = store.texts[KEY]
    async with kept.using(KEY) as conversation:
        for adapter in (scripted, openai_chat):  # also where the former ones were left out for it
            conversation.begin(adapter, {"text": "c" * 100})
            kept.save_soon(conversation)
            assert said(conversation) == ["c" * 100]
            conversation.end()
            assert said(conversation) == ["a", "b"]
        await kept.save(conversation)
    assert store.texts[KEY] == before


async def test_oldest_questions_are_left_out_with_what_followed_them() -> None:
    async with Conversations(None, max_bytes=100).using(KEY) as conversation:
        exchange(conversation, "a" * 10, "result" * 3, "b" * 10)
        exchange(conversation, "c" * 10, "d" * 10)
        assert said(conversation)[0] == "c" * 10
        assert (conversation.state.questions, conversation.bytes) == ([0], 2 * 24 - 4)
        exchange(conversation, "x" * 200, "y" * 200)
        assert said(conversation) == ["x" * 200, "y" * 200]
        assert "the oldest 2 messages are left out" in conversation.dropped
        exchange(conversation, "e", "f")
        assert said(conversation) == ["e", "f"]
        exchange(conversation, "g", "h")
        assert conversation.dropped == ""


async def test_messages_are_measured_in_bytes_also_where_others_took_their_place() -> None:
    async with Conversations(None).using(KEY) as conversation:
        conversation.begin(scripted, {"text": "ä"})
        messages = conversation.state.conversation
        messages += [{"text": "b"}, {"text": "interrupted"}]
        conversation.text()
        messages[1:] = [{"text": "b"}, {"text": "😀"}]
        read = json.loads(conversation.text())
    assert read["conversation"] == messages
    stored = [json.dumps(message, ensure_ascii=False) for message in messages]
    assert conversation.bytes == sum(len(text.encode()) for text in stored)


async def test_conversation_of_another_adapter_begins_anew_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = AgentState({"notes": {"n": 1}}, conversation=[{"text": "old"}], adapter="anthropic")
    kept = Conversations(States(trip=state.to_json()))
    async with kept.using(KEY) as conversation:
        exchange(conversation, "a", "b")
        assert said(conversation) == ["a", "b"]
        assert (conversation.state.adapter, conversation.state.of("notes")) == (
            "scripted",
            {"n": 1},
        )
        assert "in the words of another model (anthropic, not scripted)" in conversation.dropped
        exchange(conversation, "c", "d")
        assert conversation.dropped == ""
    assert caplog.text.count("another model (anthropic, not scripted)") == 1


async def test_state_of_an_older_version_goes_on_and_is_cut() -> None:
    messages = [{"text": "m" * 1_000}] * 3
    older = json.dumps({"version": 3, "conversation": messages})
    assert await asked(Conversations(States(trip=older)), "trip", "a", "b") == [
        *("m" * 1_000 for _ in range(3)),
        *("a", "b"),
    ]
    kept = Conversations(States(trip=older), max_bytes=2_000)
    assert await asked(kept, "trip", "a", "b") == ["a", "b"]


async def test_state_of_10_mib_goes_on_with_what_fits() -> None:
    messages = [{"text": "m" * 1_000_000}] * 11
    state = AgentState(conversation=messages, questions=[0, 3, 6])
    left = await asked(Conversations(States(trip=state.to_json())), "trip", "a", "b")
    assert [len(text) for text in left] == [1_000_000] * 8 + [1, 1]


async def test_agent_tells_what_it_dropped_and_refuses_what_it_cannot_read() -> None:
    old = AgentState(conversation=[{"role": "user"}], adapter="anthropic").to_json()
    store = States(old=old, newer='{"version": 7}')
    model = PreparedModel("hello")
    agent = Agent(None, model, store=store, available=False, max_conversation_bytes=400)

    async def answered(name: str) -> list[Any]:
        return [event async for event in agent.run_stream_events("hi" * 40, conversation=name)]

    async with agent:
        assert "another model" in (await answered("old"))[0]["reason"]
        assert [event["type"] for event in await answered("old")] == ["text", "end"]
        dropped, *_, end = await answered("old")
        assert "the oldest 2 messages are left out" in dropped["reason"]
        assert (end["text"], len(model.requests)) == ("hello", 3)
        for _ in range(2):
            with pytest.raises(ConversationUnavailable, match="a newer toolbus"):
                await answered("newer")
        assert len(model.requests) == 3
        await agent.forget("newer")
        assert (await answered("newer"))[-1]["text"] == "hello"
    assert store.is_closed
    store.error = OSError("no store")
    with pytest.raises(OSError, match="no store"):
        await agent.start(None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"version": 7, "conversation": [], "more": 1}', "a newer toolbus wrote this state"),
        ('{"version": 4, "conversation": [', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"version": 4, "conversation": 7}', "must be a list, not 7"),
        ('{"version": 4, "conversation": [{}, 7]}', "/conversation/1: must be an object"),
        (" " * 101, "at most 100 characters"),
    ],
)
async def test_state_that_cannot_be_read_refuses_the_question_and_stays(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "100" in reason:
        monkeypatch.setattr(conversations, "MAX_STATE_CHARS", 100)
    store = States(trip=text)
    kept = Conversations(store)
    for _ in range(2):
        with pytest.raises(ConversationUnavailable, match=r"the conversation 'trip'.*") as refused:
            await asked(kept, "trip", "a", "b")
        assert (refused.value.executed, refused.value.retryable) == ("no", False)
        assert refused.value.details["conversation"] == "trip"
        assert reason in refused.value.details["reason"]
    assert store.texts == {KEY: text}
    async with kept.using(KEY, load=False) as conversation:
        await kept.forget(conversation)
    assert await asked(kept, "trip", "a", "b") == ["a", "b"]


async def test_store_that_fails_refuses_what_it_has_not_read_and_costs_no_answer_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = States()
    kept = Conversations(store)
    await asked(kept, "trip", "a", "b")
    details = {"path": "/secret", "reason": "disk I/O error"}
    for error, reason in (
        (StateStoreUnavailable("/secret: disk I/O error", details=details), "disk I/O error"),
        (OSError("/secret"), "the store of the agent failed"),
    ):
        store.error = error
        with pytest.raises(ConversationUnavailable) as refused:
            await asked(kept, "other", "a", "b")
        assert refused.value.retryable
        assert refused.value.details == {"conversation": "other", "reason": reason}
        assert "secret" not in str(refused.value)
        await asked(kept, "trip", "c", "d")
        async with kept.using(KEY) as conversation:
            with pytest.raises(Unavailable, match=f"^the conversation is not forgotten: {reason}$"):
                await kept.forget(conversation)
    assert caplog.text.count("is not stored: /secret: disk I/O error") == 1
    store.error = None
    assert await asked(Conversations(store), "trip", "x", "y") == ["a", "b", "x", "y"]
    await asked(kept, "trip", "e", "f")  # it has stayed in memory
    assert len(AgentState.from_json(store.texts[KEY]).conversation) == 8


async def test_answer_waits_for_the_store_at_its_end_alone_and_steps_share_a_state() -> None:
    class Slow(States):
        def __init__(self) -> None:
            super().__init__()
            self.began: list[int] = []
            self.may_end = asyncio.Event()

        async def save(self, key: str, text: str) -> None:
            self.began.append(len(json.loads(text)["conversation"]))
            await self.may_end.wait()
            await super().save(key, text)

    store = Slow()
    kept = Conversations(store)
    async with kept.using(KEY) as conversation:
        conversation.begin(scripted, {"text": "a"})
        for number in range(5):
            kept.save_soon(conversation)
            await asyncio.sleep(0)
            conversation.state.conversation.append({"text": f"{number}"})
        saving = asyncio.create_task(kept.save(conversation))
        await asyncio.sleep(0)
        assert not saving.done()
        store.may_end.set()
        await saving
    assert store.began == [2, 6, 6]
    assert len(AgentState.from_json(store.texts[KEY]).conversation) == 6


async def test_message_or_value_that_is_not_json_is_told_in_the_log_and_costs_no_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "_WARN_EVERY_S", 0.0)
    store = States()
    kept = Conversations(store)
    async with kept.using(KEY) as conversation:
        exchange(conversation, "a", "\ud800")
        await kept.save(conversation)
        conversation.state.conversation.pop()
        conversation.state.of("notes")["when"] = object()
        await kept.save(conversation)
    assert "is not JSON: /conversation/1" in caplog.text
    assert "/state/notes/when" in caplog.text
    assert not store.texts


async def test_questions_of_one_conversation_wait_for_each_other_up_to_a_limit() -> None:
    kept = Conversations(None)
    asking = 0

    async def ask(number: int) -> None:
        nonlocal asking
        async with kept.using(KEY) as conversation:
            asking += 1
            assert asking == 1
            await asyncio.sleep(0)
            exchange(conversation, f"{number}", "answer")
            asking -= 1

    waiting = [asyncio.create_task(ask(number)) for number in range(MAX_WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="ask in another one, or later") as refused:
        await ask(99)
    assert (refused.value.executed, refused.value.retryable) == ("no", True)
    await asked(kept, "other", "a", "b")
    waiting[3].cancel()
    await asyncio.wait(waiting)
    async with kept.using(KEY) as conversation:
        order = [int(text) for text in said(conversation) if text != "answer"]
    assert order == [number for number in range(MAX_WAITING + 1) if number != 3]


@pytest.mark.parametrize("limit", ["_MAX_CONVERSATIONS", "_MAX_TOTAL_BYTES"])
async def test_least_recently_used_idle_conversations_leave_the_memory(
    limit: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(conversations, limit, 2 if limit == "_MAX_CONVERSATIONS" else 2 * 26)
    for store in (None, States()):
        kept = Conversations(store)
        async with kept.using(key("busy")) as busy:
            for name in ("a", "b", "a", "c", "d"):
                await asked(kept, name, name, name)
            exchange(busy, "x", "y")
            await kept.save(busy)
        again = await asked(kept, "a", "a", "z")
        assert again == (["a", "z"] if store is None else ["a", "a", "a", "a", "a", "z"])
        assert await asked(kept, "busy", "1", "2") == ["x", "y", "1", "2"]
    assert caplog.text.count("is forgotten") == 1
    assert "with store= an agent reads such a conversation again" in caplog.text


async def test_conversation_that_left_the_memory_and_is_not_stored_begins_anew_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "_MAX_CONVERSATIONS", 1)
    store = States()
    kept = Conversations(store)
    await asked(kept, "stored", "a", "b")
    await asked(kept, "trip", "a", "b")
    store.error = OSError("disk full")
    await asked(kept, "trip", "c", "d")
    store.error = None
    assert await asked(kept, "stored", "c", "d") == ["a", "b", "c", "d"]
    async with kept.using(KEY) as conversation:
        exchange(conversation, "e")  # nothing answers it
        exchange(conversation, "e", "f")
        assert (said(conversation), conversation.dropped) == (["e", "f"], conversations.FORGOTTEN)
        await kept.save(conversation)
    assert await asked(kept, "stored", "e", "f") == ["a", "b", "c", "d", "e", "f"]
    async with kept.using(KEY) as conversation:
        exchange(conversation, "g", "h")
        assert (said(conversation), conversation.dropped) == (["e", "f", "g", "h"], "")


async def test_keys_of_forgotten_conversations_are_limited_and_shared_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "_MAX_CONVERSATIONS", 10)
    monkeypatch.setattr(conversations, "_MAX_FORGOTTEN", 100)
    kept = Conversations(None)

    async def dropped(asker: str, number: int) -> bool:
        key = conversation_key(Participant(asker, asker), None, f"{number}")
        async with kept.using(key) as conversation:
            exchange(conversation, "a", "b")
            return bool(conversation.dropped)

    for asker, count in (("ann", 20), ("mallory", 500)):
        for number in range(count):
            assert not await dropped(asker, number)
    for number in range(30):  # many askers, each with one conversation
        assert not await dropped(f"asker {number}", 0)
    assert await dropped("mallory", 499)
    assert [await dropped("ann", number) for number in (0, 19)] == [True, True]
    assert not await dropped("mallory", 0)


def test_adapter_is_named_by_its_module_or_its_class() -> None:
    class Words:
        pass

    named: list[tuple[Any, str]] = [
        (openai_chat, "openai_chat"),
        (ModuleType("mine.anthropic"), "mine.anthropic"),
        (Words(), f"{__name__}.{Words.__qualname__}"),
        (SimpleNamespace(), "types.SimpleNamespace"),
    ]
    assert [adapter_name(adapter) for adapter, _ in named] == [name for _, name in named]
