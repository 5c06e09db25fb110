"""Mistakes in people's first programs get errors that name the right form."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.clients.ending_tokens import ends_in
from support.clients.forged_tokens import KEY
from toolbus import (
    AgentsGrant,
    ApiScope,
    FileChunk,
    InputStream,
    InvalidArguments,
    PermissionDenied,
    RemoteToolkit,
    RoomClient,
    RoomException,
    TooLarge,
    Toolkit,
    Unavailable,
    tool,
)
from toolbus.diagnostics.exit_codes import failure_lines
from toolbus.room.room import Room
from toolbus.wire import MAX_FRAME_BYTES
from toolbus_server.testing import TestServer, room_of, running_server


@tool
async def echo(text: str = "") -> str:
    """Return the text."""
    return text


@tool
async def large(count: int) -> str:
    """Return a text of this many letters."""
    return "x" * count


@tool
async def size(attachment: FileChunk) -> int:
    """Return the length of a file."""
    return len(await attachment.read())


@tool
async def total(numbers: InputStream[int]) -> int:
    """Add numbers."""
    return sum([each async for each in numbers])


@tool
async def count(start: int) -> AsyncIterator[int]:
    """Count."""
    yield start


KIT = Toolkit("kit", [echo, large, size, total, count])


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as running, asyncio.timeout(60):
        yield running


async def first_event(room: RoomClient) -> None:
    async with room.events():
        pass


async def entered(room: Room) -> None:
    async with room.stream("kit.count", {"start": 1}):
        pass


WAYS: list[Callable[[RoomClient], Awaitable[Any]]] = [
    lambda room: room.call("kit.echo", text="a"),
    lambda room: room.toolkit("kit"),
    lambda room: room.participants(),
    lambda room: room.send("bob", "note"),
    lambda room: room.list_builders("bob"),
    lambda room: room.explain("kit.echo"),
    lambda room: room.set_attributes(status="busy"),
    lambda room: room.drain(),
    entered,
    first_event,
]


@pytest.mark.parametrize("way", WAYS)
async def test_room_that_was_not_entered_and_room_that_was_left_raise_their_own_errors(
    server: TestServer, way: Callable[[RoomClient], Awaitable[Any]]
) -> None:
    room = server.room("ann")
    with pytest.raises(Unavailable, match=r"not entered: async with RoomClient\(...\) as room"):
        await way(room)
    with pytest.raises(Unavailable, match="not entered"):
        _ = room.me
    async with room:
        pass
    with pytest.raises(Unavailable, match=r"the room is closed(\n|$)") as closed:
        await way(room)
    assert closed.value.executed == "no"
    with pytest.raises(Unavailable, match=r"the room is closed$"):
        _ = room.grants


async def test_room_that_could_not_be_entered_is_none_that_was_left() -> None:
    room = RoomClient("ws://127.0.0.1:9", room="lab", token="e30.e30.t")
    with pytest.raises(Unavailable, match="cannot connect"):
        await room.__aenter__()
    with pytest.raises(Unavailable, match="not entered"):
        await room.call("kit.echo")


async def test_attributes_beyond_their_limit_are_refused_with_it() -> None:
    """PEOPLE-2."""
    async with room_of("ann") as (ann,):
        for letters in (20_000, 70_000, 2_000_000):
            with pytest.raises(InvalidArguments, match="at most 16384 bytes together"):
                await ann.set_attributes(text="x" * letters)
        await ann.set_attributes(text="x" * 16_000)
        [me] = await ann.participants()
        assert me.attributes == {"text": "x" * 16_000}


async def test_error_for_a_too_large_value_names_its_size_and_the_limit() -> None:
    async with room_of("host", "ann") as (host, ann), host.host(KIT):
        size, most = r"has 20000\d\d bytes", MAX_FRAME_BYTES
        with pytest.raises(TooLarge, match=rf"the request {size}, at most {most} can"):
            await ann.call("kit.echo", text="x" * 2_000_000)
        with pytest.raises(TooLarge, match=rf"the result {size}, at most {most - 32} can"):
            await ann.call("kit.large", count=2_000_000)
        with pytest.raises(TooLarge, match="or body a request has at most 65536 bytes"):
            await ann.send("b" * 70_000, "note")


@pytest.mark.parametrize(
    ("option", "value"),
    [("timeout_s", 1), ("attachment", b"a"), ("on_progress", print), ("retry", False)],
)
async def test_option_among_the_arguments_is_refused_with_the_right_form(
    option: str, value: Any
) -> None:
    async with room_of("host", "ann") as (host, ann), host.host(KIT):
        proxy = await ann.toolkit("kit")
        for call in (partial(ann.call, "kit.echo"), proxy.echo):
            with pytest.raises(InvalidArguments) as refused:
                await call(**{option: value})
            assert f"proxy.with_options({option}=)" in refused.value.message
            assert refused.value.details["path"] == f"/{option}"


async def test_argument_that_only_looks_like_an_option_is_an_argument() -> None:
    @tool
    async def wait(timeout_s: int) -> int:
        return timeout_s

    async with room_of("host", "ann") as (host, ann), host.host(Toolkit("kit", [wait])):
        assert await ann.call("kit.wait", timeout_s=3) == 3
        with pytest.raises(InvalidArguments) as refused:
            await ann.call("kit.wait", timeout_s="soon")
        assert "with_options" not in refused.value.message


async def test_arguments_of_a_proxy_go_by_name() -> None:
    async with room_of("host", "ann") as (host, ann), host.host(KIT):
        proxy = await ann.toolkit("kit")
        with pytest.raises(TypeError, match=r"did you mean echo\(text=...\) or"):
            await proxy.echo("a")
        with pytest.raises(TypeError, match=r"did you mean count\(start=...\) or"):
            proxy.count(1)


async def test_tool_without_its_upload_or_input_names_what_sends_them() -> None:
    async with room_of("host", "ann") as (host, ann), host.host(KIT):
        with pytest.raises(InvalidArguments, match=r"an attachment: attachment= .* --attach"):
            await ann.call("kit.size")
        with pytest.raises(InvalidArguments, match=r"an input: input= .* --input"):
            await ann.call("kit.total")


async def test_description_lists_uploads_and_inputs_of_a_tool() -> None:
    @tool
    async def maybe(attachment: FileChunk | None = None) -> None: ...

    async with (
        room_of("host", "ann") as (host, ann),
        host.host(KIT),
        host.host(Toolkit("other", [maybe])),
    ):
        kit, other = await ann.toolkit("kit"), await ann.toolkit("other")
        found = {
            each.name: (each.takes, each.takes_required)
            for each in (*kit.manifest.tools, *other.manifest.tools)
        }
        nothing = ("", False)
        assert found == {
            "echo": nothing,
            "large": nothing,
            "count": nothing,
            "size": ("attachment", True),
            "total": ("input", True),
            "maybe": ("attachment", False),
        }


# Tokens and participants


def scope(*act_for: str, **more: Any) -> ApiScope:
    agents = AgentsGrant(use_tools=True, call=True, act_for=act_for, **more)
    return ApiScope(agents=agents)


async def test_absence_of_a_principal_is_shown_only_to_callers_that_may_act_for_it(
    server: TestServer,
) -> None:
    """CALL-17."""
    async with (
        server.room("host") as host,
        host.host(KIT),
        server.room("zoe"),
        server.room("agent", api=scope("bob")) as agent,
    ):
        with pytest.raises(PermissionDenied, match="no participant here is named 'bob'"):
            await agent.invoke("kit.echo", on_behalf_of="bob")
        received = []
        for name in ("zoe", "nobody"):
            with pytest.raises(PermissionDenied, match="no grant to act for") as refused:
                await agent.invoke("kit.echo", on_behalf_of=name)
            received.append(refused.value.message.replace(name, "X"))
        assert received[0] == received[1]


async def test_missing_grant_is_named(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    async with server.room("zoe", api=ApiScope()) as zoe:
        with pytest.raises(PermissionDenied, match=r"subscribe to calls \(observe\)"):
            async with zoe.watch_calls():
                pass
        caplog.set_level(logging.WARNING)
        with pytest.raises(PermissionDenied, match=r"toolkit kit \(agents.register_public_tool"):
            async with zoe.host(KIT):
                pass
    assert "'zoe' may not register the public toolkit kit" in caplog.text


async def test_calls_after_the_end_of_a_text_token_say_that_it_expired(
    server: TestServer,
) -> None:
    async with RoomClient(server.url, room="lab", token=ends_in("ann", 1)) as ann:
        async with asyncio.timeout(60):
            with pytest.raises(PermissionDenied, match="the token has expired"):
                await ann.closed()
        text = "the room is closed: the token has expired"
        with pytest.raises(PermissionDenied, match=text) as late:
            await ann.call("kit.echo")
        assert late.value.executed == "no"
        assert "token create" in failure_lines(late.value)[1]


async def test_connection_that_another_of_its_instance_replaced_gets_an_error(
    server: TestServer,
) -> None:
    async with server.room("ann", instance="a") as first, server.room("ann", instance="a"):
        with pytest.raises(RoomException) as end:
            await first.closed()
        with pytest.raises(Unavailable, match="replaced this one") as late:
            await first.call("kit.echo")
    for error in (end.value, late.value):
        assert "TOOLBUS_INSTANCE" in failure_lines(error)[1]


async def test_file_of_a_token_is_named_the_same_way_everywhere(
    server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ann.jwt"
    path.write_text(server.token("ann"), encoding="ascii")
    for token in (path, str(path), f"@{path}"):
        async with RoomClient(server.url, room="lab", token=token) as ann:
            assert ann.name == "ann"
    monkeypatch.chdir(tmp_path)
    for variable in ("ann.jwt", " @ann.jwt\n"):
        monkeypatch.setenv("TOOLBUS_TOKEN", variable)
        async with RoomClient(server.url, room="lab") as ann:
            assert ann.name == "ann"


async def test_missing_token_file_and_refused_token_have_different_errors(
    server: TestServer, tmp_path: Path
) -> None:
    with pytest.raises(PermissionDenied, match=r"refuses the token$"):
        await RoomClient(server.url, room="lab", token="e30.e30.t").__aenter__()
    missing = tmp_path / "nofile"
    for token in (missing, f"@{missing}"):
        with pytest.raises(Unavailable, match=rf"cannot read the token file: {missing}: No such"):
            await RoomClient(server.url, room="lab", token=token).__aenter__()
    path = tmp_path / "wrong"
    path.write_text("ann", encoding="ascii")
    with pytest.raises(PermissionDenied, match="token: it is not a signed token"):
        await RoomClient(server.url, room="lab", token=path).__aenter__()


# Definitions


async def test_invalid_upload_annotation_is_refused_at_definition() -> None:
    async def raw(attachment: bytes) -> None: ...
    async def perhaps(attachment: bytes | None = None) -> None: ...
    async def renamed(file: FileChunk) -> None: ...

    for function in (raw, perhaps, renamed):
        with pytest.raises(TypeError, match="a file must be the parameter `attachment: FileCh"):
            Toolkit("kit", [function])


def test_invalid_tools_or_name_of_a_toolkit_are_refused_with_a_message() -> None:
    with pytest.raises(TypeError, match="a lambda has no name"):
        Toolkit("kit", [lambda x: x])
    with pytest.raises(TypeError, match="'kit': tools must be a list"):
        Toolkit("kit", echo)  # type: ignore[arg-type]  # the mistake
    assert Toolkit("kit", [tool(name="same")(lambda x: x)]).tools[0].name == "same"


def test_whom_a_toolkit_is_shared_with_is_checked_where_it_is_made() -> None:
    for wrong in ("bob", "name:", "user:bob"):
        with pytest.raises(ValueError, match="shared_with has an invalid entry"):
            RemoteToolkit("kit", [echo], public=False, shared_with=[wrong])
    with pytest.raises(TypeError, match="a list of strings"):
        RemoteToolkit("kit", [echo], public=False, shared_with="*")
    RemoteToolkit("kit", [echo], public=False, shared_with=["name:bob", "role:user", "*"])


async def test_share_without_names_is_refused_before_it_is_sent() -> None:
    async with room_of("ann") as (ann,):
        with pytest.raises(ValueError, match="write name:bob, role:bob or"):
            async with ann.host(KIT, public=False, shared_with=["bob"]):
                pass


@pytest.mark.parametrize("made_of", ["bytes", "pieces"])
async def test_file_is_written_into_a_special_file_without_replacing_it(
    tmp_path: Path, made_of: str
) -> None:
    data = b"a" * 200_000
    (tmp_path / "file").write_bytes(data)
    file = FileChunk(data) if made_of == "bytes" else FileChunk.from_path(tmp_path / "file")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = asyncio.get_running_loop().run_in_executor(None, pipe.read_bytes)
    async with asyncio.timeout(60):
        await file.save(pipe)
        assert await reading == data
    assert pipe.is_fifo()


async def test_file_that_cannot_be_saved_is_named_as_in_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        await FileChunk(b"a").save(tmp_path / "none" / "b1")
    assert missing.value.filename == str(tmp_path / "none" / "b1")
