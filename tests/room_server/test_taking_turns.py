"""What one participant may do to the time of all others."""

from __future__ import annotations

import asyncio

import pytest

from support.bystanders import unharmed_server
from support.raw_client import raw_participant, websocket_frame
from toolbus import InvalidArguments, RoomClient, Tool, Toolkit
from toolbus.wire import Cancel, RequestId, encode
from toolbus_server.testing import running_server

FLOOD = 60_000
"""Frames; a loop reads up to 256 KiB, about 16,000 of them, before anybody else's turn."""


@pytest.mark.row(30)
async def test_flood_of_tiny_frames_does_not_make_others_wait_for_all_of_them() -> None:
    async with unharmed_server() as server, server.room("carol") as carol:
        router = server.server.hub.router
        async with raw_participant(server) as mallory:
            tiny = websocket_frame(encode(Cancel(RequestId(1), "")))
            mallory.send(tiny * FLOOD)
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                assert await carol.call("echo.say", text="still here")
                assert router.dropped < FLOOD
                await mallory.flush()


class Checked(Tool):
    """A tool whose schema has a pattern."""

    def __init__(self, pattern: str) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
        super().__init__("checked", schema)

    async def execute(self, context: object, /, *_: object, **arguments: object) -> None:
        """Do nothing."""


@pytest.mark.row(38)
async def test_pattern_that_is_costly_to_compile_is_refused_with_its_path() -> None:
    async with running_server() as server, server.room("host") as host:
        with pytest.raises(InvalidArguments) as refused:
            await registered(host, Checked("(?:a{1,1000}){1,50}"))
        assert refused.value.details["path"] == "/tools/0/input_schema"
        await registered(host, Checked(r"^\d{4}-\d{2}-\d{2}$"))


async def registered(host: RoomClient, tool: Tool) -> None:
    async with host.host(Toolkit("forms", [tool])):
        pass
