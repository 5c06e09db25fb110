"""MCP servers that have an address: streamable HTTP and SSE, and their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.mcp import scripted_server
from support.mcp.processes import listening
from support.patience import PATIENCE_S
from support.redis.server import free_port
from support.rooms.events import until
from support.web.scripted_server import Answer, web_server
from toolbus import JsonChunk, ToolContext, Unavailable
from toolbus_toolkits.mcp import McpServer, ServerAccess
from toolbus_toolkits.network import AddressPolicy

LOOPBACK = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))
PATHS = {"--http": "mcp", "--sse": "sse"}


async def add(server: McpServer) -> Any:
    return await server.toolkit().execute(ToolContext(), "add", {"a": 1, "b": 2})


@pytest.mark.parametrize("options", [{}, {"stateful": False}], ids=["stateful", "stateless"])
@pytest.mark.parametrize("kind", PATHS)
async def test_a_server_with_an_address_is_called_and_found_again_after_a_restart(
    kind: str, options: dict[str, Any]
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/{PATHS[kind]}"
    server = McpServer("web", url=url, access=LOOPBACK, timeout_s=20.0, **options)
    async with listening(scripted_server, kind, port):
        await server.start()
        await server.tried()
        received: list[Any] = []
        assert await add(server) == JsonChunk({"result": 3})
        context = ToolContext(on_progress=received.append)
        await server.toolkit().execute(context, "steps", {"count": 2})
        assert [each["message"] for each in received] == ["step 0", "step 1"]
    await until(lambda: server.state != "connected")  # without a call
    with pytest.raises(Unavailable) as refused:
        await add(server)
    assert (refused.value.executed, refused.value.retryable) == ("no", True)
    async with listening(scripted_server, kind, port):
        await until(lambda: server.state == "connected")
        assert await add(server) == JsonChunk({"result": 3})
    await server.stop()


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (ServerAccess(), "private|loopback|not allowed"),
        (ServerAccess(AddressPolicy(("example.org",), allow_private=True)), "not allowed|allow"),
    ],
)
async def test_an_address_that_is_not_allowed_is_never_reached(
    access: ServerAccess, words: str
) -> None:
    port = free_port()
    reached: list[int] = []
    listener = await asyncio.start_server(lambda *_: reached.append(1), "127.0.0.1", port)
    async with listener:
        with pytest.raises(Unavailable, match=words):
            async with McpServer("web", url=f"http://127.0.0.1:{port}/mcp?key=s", access=access):
                pass
    assert reached == []


@pytest.mark.parametrize("transport", ["sse", "streamable_http"])
async def test_a_failed_attempt_names_the_host_and_not_the_rest_of_the_address(
    transport: str,
) -> None:
    async with web_server(lambda _: Answer(400, b"no")) as web:
        url = f"{web.url}/hunter2?key=hunter2"
        server = McpServer("web", url=url, transport=transport, access=LOOPBACK)
        with pytest.raises(Unavailable) as failed:
            await server.__aenter__()
    assert web.url.removeprefix("http://") in failed.value.message
    assert "hunter2" not in failed.value.message


async def test_a_stop_at_any_moment_of_an_attempt_ends_the_connection() -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    for turns in range(80):
        server = McpServer("web", url=url, access=LOOPBACK)
        await server.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await server.stop()
        assert server.state == "closed"
