"""What a raw client sends and receives in a room: a call of `echo.say`, refusals, a toolkit to
host.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from support.clients.raw_client import RawClient, details_of
from toolbus.wire import Call, Dispatch, Failed, Register, Result, pack_body, unpack_body

TEXT_ARGUMENT = pack_body({"text": "hello"})
SAY = Call(1, "c" * 32, "echo", "say", None, TEXT_ARGUMENT, None)
"""A valid call of the tool that `unharmed_server` hosts."""
WAIT = Call(1, "a" * 32, "slow", "wait", None, b"\x80", None)
"""A valid call of the tool of `host_slow`."""
DONE = pack_body([2, "done"])
"""A valid answer to it."""


async def check_still_served(client: RawClient) -> None:
    client.send_frame(replace(SAY, id=99, call_id="later"))
    reply = await client.reply_to(99)
    assert isinstance(reply, Result)
    assert unpack_body(reply.body) == [2, "hello"]


async def refused(client: RawClient, request_id: int) -> tuple[str, str, Any]:
    reply = await client.reply_to(request_id)
    assert isinstance(reply, Failed)
    return reply.code, reply.executed, details_of(reply)


async def host_slow(client: RawClient) -> None:
    """Let a raw client host `slow.wait`, which answers when the test tells it to."""
    tool = {"name": "wait", "input_schema": {"type": "object"}}
    client.send_frame(Register(50, pack_body({"name": "slow", "tools": [tool]}), {}))
    assert isinstance(await client.reply_to(50), Result)


async def dispatched(client: RawClient) -> Dispatch:
    while not isinstance(frame := await client.read_frame(), Dispatch):
        pass
    return frame
