"""`room.assess`: what a tool elsewhere says about one input, without running it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.rooms.events import until
from toolbus import (
    AgentsGrant,
    ApiScope,
    Cancelled,
    InvalidArguments,
    InvalidResult,
    NotFound,
    PermissionDenied,
    RoomClient,
    RoomException,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.permissions.assessment import Assessment
from toolbus_server.testing import TestServer

RAN: list[str] = []
"""The commands that were run, not only asked about."""


@tool(destructive=True)
async def run(command: str) -> str:
    RAN.append(command)
    return command


class Shell(Toolkit):
    """Assesses the input of each call; `answers` has what it says about some of them."""

    def __init__(self, name: str = "shell", **options: Any) -> None:
        super().__init__(name, [run], **options)
        self.asked: list[tuple[Any, ...]] = []
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def assess(
        self,
        context: ToolContext,
        name: str,
        arguments: dict[str, Any],
        patterns: tuple[str, ...] = (),
    ) -> Assessment:
        principal = context.on_behalf_of
        self.asked.append((name, context.caller.name, principal and principal.name, arguments))
        command = arguments["command"]
        if command == "wait":
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
        if command == "call":
            await context.room.call("shell.run", command="from within")
        if command == "ask":
            return await context.room.assess("shell.run", {"command": "ls"}, patterns=patterns)
        if command == "large":
            return Assessment("pass", preview="x" * 2**20)
        matches = [each for each in patterns if command.startswith(each.removesuffix(":*"))]
        return Assessment(
            "pass",
            read_only=command == "ls",
            matches=tuple(matches),
            refusal="rule deny shell.run" if command == "rm" else "",
        )


@asynccontextmanager
async def shell(
    server: TestServer, **options: Any
) -> AsyncIterator[tuple[RoomClient, RoomClient, Shell]]:
    """Host `shell`; yield the room of its host, that of ann, and the toolkit."""
    RAN.clear()
    toolkit = Shell()
    async with server.room("ops") as ops, server.room("ann", **options) as ann:
        async with ops.host(toolkit):
            yield ops, ann, toolkit
        assert RAN == []


async def test_a_remote_tool_says_what_one_input_would_do_and_nothing_runs(server: TestServer):
    async with shell(server) as (_, ann, toolkit):
        patterns = ["ls:*", "rm:*"]
        reads = await ann.assess("shell.run", {"command": "ls"}, patterns=patterns)
        assert (reads.read_only, reads.matches, reads.source) == (True, ("ls:*",), "tool")
        removes = await ann.assess("shell.run", {"command": "rm"}, patterns=patterns)
        assert (removes.read_only, removes.matches) == (False, ("rm:*",))
        assert toolkit.asked[0] == ("run", "ann", None, {"command": "ls"})
        assert [info.assesses async for info in ann.toolkits()] == [True]
