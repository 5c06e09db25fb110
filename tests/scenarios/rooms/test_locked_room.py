"""A room with a lock file: only toolkits with the locked owner and definition are called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.rooms.events import until_hosts
from toolbus import (
    ApiScope,
    DefinitionChanged,
    Key,
    KeyRing,
    LockedToolkit,
    LockFile,
    ParticipantToken,
    RequiredToolkit,
    RoomClient,
    ToolContext,
    ToolFailed,
    Toolkit,
    Turn,
    tool,
)
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

OTHER = Key.generate(kid="other", iss="other", alias="other")


@tool
def count(text: str) -> int:
    """Count words."""
    return len(text.split())


@tool
async def split(text: str) -> AsyncIterator[str]:
    """Split words."""
    for word in text.split():
        yield word


@tool
async def relay(context: ToolContext, tool: str) -> Any:
    """Call a tool."""
    return await context.room.call(tool, text="a b")


WORDS = Toolkit("words", [count, split])
CHANGED = Toolkit("words", [count])


@asynccontextmanager
async def server() -> AsyncIterator[TestServer]:
    settings = ServerSettings(keys=KeyRing([OTHER]), port=0, drain_s=1.0)
    async with running_server(settings=settings) as running:
        yield running


async def lock_of(room: RoomClient, *names: str) -> LockFile:
    proxies = [await room.toolkit(name) for name in names]
    return LockFile().updated(LockedToolkit.of(proxy.info, proxy.manifest) for proxy in proxies)


def locked(here: TestServer, lock: LockFile | str | Path, name: str = "agent") -> RoomClient:
    return RoomClient(here.url, room="lab", token=here.token(name), locked=lock)


@asynccontextmanager
async def hosted(room: RoomClient, *toolkits: Toolkit) -> AsyncIterator[None]:
    """Host toolkits in a room that is entered here."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(room)
        for toolkit in toolkits:
            await stack.enter_async_context(room.host(toolkit))
        yield


async def every_way(agent: RoomClient) -> list[str]:
    """Try to use `words` in every way; return the refusals: message and `executed`."""

    async def stream() -> None:
        async with agent.stream("words.split", {"text": "a b"}) as chunks:
            async for _ in chunks:
                pass

    async def turn() -> None:
        async with Turn(agent, required=[RequiredToolkit("words", timeout_s=0)]) as entered:
            await entered.call("words.count", text="a")

    refusals: list[str] = []
    ways = [
        agent.call("words.count", text="a"),
        agent.invoke("words.count", {"text": "a"}),
        agent.toolkit("words"),
        agent.explain("words.count", {"text": "a"}),
        agent.assess("words.count", {"text": "a"}),
        stream(),
        turn(),
    ]
    for way in ways:
        try:
            await way
        except DefinitionChanged as error:
            refusals.append(f"{error.message}\n{error.executed}")
    return refusals


async def test_locked_toolkit_is_used_in_every_way() -> None:
    async with server() as here, hosted(here.room("ann"), WORDS):
        async with here.room("writer") as room:
            lock = await lock_of(room, "words")
        async with locked(here, lock) as agent:
            assert await every_way(agent) == []


async def test_a_lock_file_from_before_the_second_issuer_still_names_the_owner() -> None:
    token = ParticipantToken(name="ann", room=["lab"], api=ApiScope.full())
    async with server() as here, here.room("writer") as room:
        async with RoomClient(here.url, room="lab", token=token.to_jwt(OTHER)) as owner:
            async with owner.host(WORDS):
                lock = await lock_of(room, "words")
                former = LockFile().updated(toolkit.with_alias("") for toolkit in lock.toolkits)
                async with locked(here, former) as agent:
                    assert await every_way(agent) == []
    assert '"alias": "other"' in lock.to_text()
    assert "alias" not in former.to_text()


@pytest.mark.parametrize(
    ("toolkit", "owner", "key", "difference"),
    [
        (CHANGED, "ann", None, "- tool split"),
        (
            WORDS,
            "eve",
            None,
            "owner: test/ann (issuer toolbus-test) -> test/eve (issuer toolbus-test)",
        ),
        (WORDS, "ann", OTHER, "owner: test/ann (issuer toolbus-test) -> other/ann (issuer other)"),
    ],
    ids=["definition", "owner", "issuer"],
)
async def test_toolkit_that_differs_is_refused_in_every_way(
    toolkit: Toolkit, owner: str, key: Key | None, difference: str
) -> None:
    async with server() as here:
        async with hosted(here.room("ann"), WORDS), here.room("writer") as room:
            lock = await lock_of(room, "words")
        token = ParticipantToken(name=owner, room=["lab"], api=ApiScope.full())
        host = RoomClient(here.url, room="lab", token=token.to_jwt(key or here.key))
        async with hosted(host, toolkit), locked(here, lock) as agent:
            refusals = await every_way(agent)
            assert len(refusals) == 7
            assert all({difference, "no"} <= {*refusal.splitlines()} for refusal in refusals)


async def test_toolkit_outside_the_lock_file_is_refused_in_every_way() -> None:
    async with server() as here, hosted(here.room("ann"), WORDS), locked(here, LockFile()) as agent:
        text = "public toolkit words of test/ann (issuer toolbus-test) is not in toolbus.lock"
        assert await every_way(agent) == [f"{text}\nno"] * 7


@pytest.mark.parametrize(
    ("toolkit", "owner", "difference"), [(CHANGED, "ann", "- tool split"), (WORDS, "eve", "owner:")]
)
async def test_toolkit_that_changes_after_the_first_call_is_refused(
    toolkit: Toolkit, owner: str, difference: str
) -> None:
    async with server() as here, here.room("writer") as room:
        async with hosted(here.room("ann"), WORDS):
            lock = await lock_of(room, "words")
            agent = locked(here, lock)
            await agent.__aenter__()
            assert await agent.call("words.count", text="a b") == 2
            async with agent.stream("words.split", {"text": "a b"}) as chunks:
                assert [chunk.value async for chunk in chunks] == ["a", "b"]
        await until_hosts(room, "words", 0)
        async with hosted(here.room(owner), toolkit):
            for _ in range(2):
                with pytest.raises(DefinitionChanged, match=difference):
                    await agent.call("words.count", text="a b")
            await agent.__aexit__(None, None, None)


async def test_pin_of_another_definition_is_refused() -> None:
    async with server() as here, hosted(here.room("ann"), WORDS), here.room("writer") as room:
        lock = await lock_of(room, "words")
        async with locked(here, lock) as agent:
            with pytest.raises(DefinitionChanged, match="pinned to the digest beef"):
                await agent.invoke("words.count", {"text": "a"}, pin="beef")


async def test_own_private_toolkit_does_not_replace_a_locked_public_one() -> None:
    async with server() as here, hosted(here.room("ann"), WORDS), here.room("writer") as room:
        lock = await lock_of(room, "words")
        async with locked(here, lock) as agent, agent.host(WORDS, public=False):
            with pytest.raises(DefinitionChanged, match="private toolkit words of test/agent"):
                await agent.call("words.count", text="a")
            chunk = await agent.invoke("words.count", {"text": "a"}, participant="ann")
            assert chunk.value == 1


async def test_nested_calls_of_a_locked_host_are_checked() -> None:
    async with server() as here, hosted(here.room("ann"), WORDS), here.room("ann2") as room:
        lock = await lock_of(room, "words")
        for file, expected in ((lock, 2), (LockFile(), "definition_changed")):
            async with hosted(locked(here, file, "host"), Toolkit("relay", [relay])):
                result: Any
                try:
                    result = await room.call("relay.relay", tool="words.count")
                except ToolFailed as error:
                    result = error.details["code"]
                assert result == expected


async def test_lock_file_of_the_settings_applies_unless_it_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toolbus.lock"
    monkeypatch.setenv("TOOLBUS_LOCK", str(path))
    async with server() as here:
        with pytest.raises(ValueError, match="does not exist: `toolbus lock` writes it"):
            await here.room("agent").__aenter__()
        LockFile(path=path).save()
        async with (
            RoomClient(here.url, room="lab", token=here.token("ann"), locked=False) as ann,
            ann.host(WORDS),
        ):
            assert await ann.call("words.count", text="a") == 1
            async with here.room("agent") as agent:
                with pytest.raises(DefinitionChanged, match=r"is not in .*toolbus\.lock"):
                    await agent.call("words.count", text="a")


async def test_first_calls_at_a_time_are_all_checked() -> None:
    async with server() as here, hosted(here.room("ann"), WORDS), here.room("writer") as room:
        lock = await lock_of(room, "words")
        async with locked(here, lock) as agent:
            calls = [agent.call("words.count", text="a b") for _ in range(20)]
            assert await asyncio.gather(*calls) == [2] * 20
