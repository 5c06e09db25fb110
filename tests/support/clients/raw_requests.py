"""Short helpers for raw participants: request, be refused, host a toolkit, call it."""

from __future__ import annotations

from typing import Any, TypeVar

from support.clients.raw_client import RawClient
from toolbus.wire import (
    Call,
    Dispatch,
    Failed,
    Frame,
    ParticipantId,
    Register,
    RequestId,
    Result,
    pack_body,
    unpack_body,
)

ECHO: dict[str, Any] = {"name": "echo", "tools": [{"name": "say", "input_schema": {}}]}
T = TypeVar("T")


def id_of(client: RawClient) -> ParticipantId:
    """Return the participant's id from its welcome."""
    assert client.welcome is not None
    return ParticipantId(client.welcome.participant)


def stop_reading(client: RawClient) -> None:
    """Stop reading from the socket, as a process that hangs."""
    transport: Any = client.writer.transport
    transport.pause_reading()


async def next_of(client: RawClient, kind: type[T]) -> T:
    """Read on until a frame of this kind."""
    while True:
        frame = await client.read_frame()
        if isinstance(frame, kind):
            return frame


async def ask(client: RawClient, request: Any) -> Any:
    """Send a request and return the body of its result."""
    client.send_frame(request)
    reply = await client.reply_to(request.id)
    assert isinstance(reply, Result), reply
    return unpack_body(reply.body, binary=True)


async def refusal(client: RawClient, request: Any) -> Failed:
    """Send a request that fails, and return the error."""
    client.send_frame(request)
    return await failure_of(client, request.id)


async def failure_of(client: RawClient, request_id: int) -> Failed:
    """Read on until a request has failed."""
    reply = await client.reply_to(request_id)
    assert isinstance(reply, Failed), reply
    return reply


def offer(manifest: Any = None, request_id: int = 1, **options: Any) -> Register:
    """Make a registration: of `echo.say` unless another manifest is given."""
    return Register(request_id, pack_body(ECHO if manifest is None else manifest), options)


def toolkit_of(name: str, *tools: str, **fields: Any) -> dict[str, Any]:
    """Make a manifest whose tools accept any arguments."""
    return {"name": name, "tools": [{"name": tool, "input_schema": {}} for tool in tools], **fields}


def call_of(tool: str = "echo.say", request_id: int = 7, **fields: Any) -> Call:
    """Make a call; keywords that are not fields of the frame become options."""
    toolkit, _, name = tool.partition(".")
    call_id = fields.pop("call_id", f"{request_id:032x}")
    timeout_ms = fields.pop("timeout_ms", None)
    arguments = fields.pop("arguments", pack_body({}))
    return Call(
        RequestId(request_id), call_id, toolkit, name, timeout_ms, arguments, fields or None
    )


async def call_through(caller: RawClient, host: RawClient, call: Call) -> Dispatch:
    """Send a call and return the dispatch that its host receives."""
    caller.send_frame(call)
    return await next_of(host, Dispatch)


def answer(host: RawClient, dispatch: Dispatch, chunk: Any = None) -> None:
    """Let a host complete a call with a result."""
    reply: Frame = Result(dispatch.id, pack_body([0] if chunk is None else [*chunk]))
    host.send_frame(reply)
