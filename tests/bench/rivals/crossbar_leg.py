"""WAMP: a Crossbar router, and autobahn on asyncio at both ends, over websocket with msgpack.

Runs in a virtual environment of its own, without toolbus and websockets. The router's process only
starts and ends `crossbar`, with one worker and a realm with every permission.
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

from bench.role import Facts, run_role, serve_calls, serve_orders

REALM = "bench"
READY = b"NODE_BOOT_COMPLETE"
END_TIMEOUT_S = 4.0
JOIN_TIMEOUT_S = 10.0


async def route(_facts: Facts) -> None:
    """Run the router until the harness ends this process."""
    with tempfile.TemporaryDirectory() as folder:
        port, log = _free_port(), Path(folder) / "log"
        (Path(folder) / "config.json").write_text(json.dumps(_config(port)), encoding="utf-8")
        command = (str(Path(sys.executable).with_name("crossbar")), "start", "--cbdir", folder)
        with log.open("wb") as output:
            router = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
        try:
            while READY not in log.read_bytes():
                if router.returncode is not None:
                    raise RuntimeError(f"crossbar ended early: {log.read_text()[-1000:]}")
                await asyncio.sleep(0.1)
            await serve_orders(url=f"ws://127.0.0.1:{port}")
        finally:
            await _end(router)


def _free_port() -> int:
    """Return a free port: crossbar does not accept 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _config(port: int) -> dict[str, Any]:
    """Configure one worker, one realm and one websocket, with every permission."""
    allowed = {"call": True, "register": True, "publish": False, "subscribe": False}
    everything = {"uri": "", "match": "prefix", "allow": allowed}
    realm = {"name": REALM, "roles": [{"name": "anonymous", "permissions": [everything]}]}
    endpoint = {"type": "tcp", "interface": "127.0.0.1", "port": port}
    transport = {"type": "websocket", "endpoint": endpoint, "serializers": ["msgpack"]}
    worker = {"type": "router", "realms": [realm], "transports": [transport]}
    return {"version": 2, "workers": [worker]}


async def _end(router: asyncio.subprocess.Process) -> None:
    """Terminate it, which ends its worker too."""
    with contextlib.suppress(ProcessLookupError):
        router.terminate()
    try:
        await asyncio.wait_for(router.wait(), END_TIMEOUT_S)
    except TimeoutError:
        router.kill()
        await router.wait()


async def host(facts: Facts) -> None:
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async with _joined(facts["url"]) as session:
        await session.register(add, "demo.add")
        await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    async def call(a: int, b: int) -> dict[str, Any]:
        result: dict[str, Any] = await session.call("demo.add", a=a, b=b)
        return result

    async with _joined(facts["url"]) as session:
        await serve_calls(call)


@contextlib.asynccontextmanager
async def _joined(url: str) -> AsyncIterator[Any]:
    """Join the realm."""
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
    """Make a session that resolves `joining` once it has joined."""
    session = _module("autobahn.asyncio.wamp").ApplicationSession(
        _module("autobahn.wamp.types").ComponentConfig(REALM)
    )
    session.on("join", lambda session, _details: joining.set_result(session))
    return session


def _module(name: str) -> Any:
    # By name, because type checkers look at our environment and autobahn is in another.
    return importlib.import_module(name)


async def versions(_facts: Facts) -> None:
    names = ("crossbar", "autobahn")
    await serve_orders(**{name: version(name) for name in names})


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller, "versions": versions})
