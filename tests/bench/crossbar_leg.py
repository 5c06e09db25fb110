"""WAMP: a Crossbar router, and autobahn on asyncio at both ends, over websocket with msgpack.

Runs in an environment of its own: imports neither toolbus nor websockets. The router's process only
starts `crossbar`, with one worker and a realm in which everybody may do everything, and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.role import Where, measure_when_told, run_role, serve_until_told

REALM = "bench"
READY = b"NODE_BOOT_COMPLETE"
START_TIMEOUT_S = 50.0
END_TIMEOUT_S = 4.0
JOIN_TIMEOUT_S = 10.0


async def route(_where: Where) -> None:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        (Path(folder) / "config.json").write_text(json.dumps(config(port)), encoding="utf-8")
        command = (str(Path(sys.executable).with_name("crossbar")), "start", "--cbdir", folder)
        router = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            reading = asyncio.create_task(await_ready(router))
            await asyncio.wait_for(reading, START_TIMEOUT_S)
            draining = asyncio.create_task(drain(router))
            await serve_until_told(url=f"ws://127.0.0.1:{port}")
            draining.cancel()
        finally:
            await end(router)


def free_port() -> int:
    """A port that nobody has now: crossbar's own check refuses 0, which would let it choose."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def config(port: int) -> dict[str, Any]:
    """The node: one worker, one realm, one websocket, no permission withheld."""
    allowed = {"call": True, "register": True, "publish": False, "subscribe": False}
    everything = {"uri": "", "match": "prefix", "allow": allowed}
    realm = {"name": REALM, "roles": [{"name": "anonymous", "permissions": [everything]}]}
    endpoint = {"type": "tcp", "interface": "127.0.0.1", "port": port}
    transport = {"type": "websocket", "endpoint": endpoint, "serializers": ["msgpack"]}
    worker = {"type": "router", "realms": [realm], "transports": [transport]}
    return {"version": 2, "workers": [worker]}


async def await_ready(router: asyncio.subprocess.Process) -> None:
    assert router.stdout is not None
    said = []
    async for line in router.stdout:
        said.append(line.decode(errors="replace"))
        if READY in line:
            return
    raise RuntimeError("crossbar ended before it was ready: " + "".join(said[-5:]))


async def drain(router: asyncio.subprocess.Process) -> None:
    """Read on, lest its pipe fill up and hold it."""
    assert router.stdout is not None
    while await router.stdout.read(2**16):
        pass


async def end(router: asyncio.subprocess.Process) -> None:
    """Ask it to leave, which takes its worker along; a worker whose controller is gone leaves."""
    with contextlib.suppress(ProcessLookupError):
        router.terminate()
    try:
        await asyncio.wait_for(router.wait(), END_TIMEOUT_S)
    except TimeoutError:
        router.kill()
        await router.wait()


async def host(where: Where) -> None:
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async with joined(where["url"]) as session:
        await session.register(add, "demo.add")
        await serve_until_told(ready=True)


async def caller(where: Where) -> None:
    async def call(a: int, b: int) -> dict[str, Any]:
        result: dict[str, Any] = await session.call("demo.add", a=a, b=b)
        return result

    async with joined(where["url"]) as session:
        await measure_when_told(call)


@contextlib.asynccontextmanager
async def joined(url: str) -> AsyncIterator[Any]:
    """A WAMP session in the realm."""
    loop = asyncio.get_running_loop()
    txaio = _module("txaio")
    txaio.use_asyncio()
    txaio.config.loop = loop
    joining: asyncio.Future[Any] = loop.create_future()
    factory = _module("autobahn.asyncio.websocket").WampWebSocketClientFactory(
        lambda: _session(joining),
        url=url,
        serializers=[_module("autobahn.wamp.serializer").MsgPackSerializer()],
        loop=loop,
    )
    place = urlsplit(url)
    transport, _ = await loop.create_connection(factory, str(place.hostname), place.port or 80)
    try:
        session = await asyncio.wait_for(joining, JOIN_TIMEOUT_S)
        yield session
        await session.leave()
    finally:
        transport.abort()


def _session(joining: asyncio.Future[Any]) -> Any:
    """A session that tells when it has joined."""
    session = _module("autobahn.asyncio.wamp").ApplicationSession(
        _module("autobahn.wamp.types").ComponentConfig(REALM)
    )
    session.on("join", lambda session, _details: joining.set_result(session))
    return session


def _module(name: str) -> Any:
    # By name, because type checkers look at our environment and autobahn lives in another.
    return importlib.import_module(name)


async def versions(_where: Where) -> None:
    names = ("crossbar", "autobahn")
    await serve_until_told(**{name: version(name) for name in names})


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller, "versions": versions})
