"""The bus as its users run it: server, host and caller, with grants and validation on.

`OTEL_*` variables of the leg decide which spans are recorded. The host reads files from a file
system in memory, where there is one; receivers read a file's pieces and store nothing.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from bench.guest import Guest
from bench.legs import FILE_BYTES
from bench.role import Facts, Order, measured_calls, measured_transfer, run_role, serve_orders
from bench.span_receiver import receive
from toolbus import ApiScope, FileChunk, RemoteToolkit, RoomClient, Toolkit, tool
from toolbus.telemetry import configure
from toolbus_server.limits import Limits
from toolbus_server.testing import running_server

ROOM = "bench"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@tool
async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@tool(read_only=True)
async def take(attachment: FileChunk) -> dict[str, int]:
    """Count the bytes of an upload."""
    return {"bytes": await _size_of(attachment)}


async def route(facts: Facts) -> None:
    """Run the server."""
    set_up_tracing("server", facts)
    async with running_server() as server:
        scopes = {
            "host": ApiScope.host_default(),
            "caller": ApiScope.agent_default(),
            "unsampled": ApiScope.agent_default(),
        }
        scopes |= {f"neighbour{number}": scopes["host"] for number in range(_NEIGHBOURS)}
        tokens = {name: server.token(name, room=ROOM, api=api) for name, api in scopes.items()}
        await serve_orders({"flush": flush}, url=server.url, tokens=tokens)


async def host(facts: Facts) -> None:
    """Host the toolkit `demo`."""
    set_up_tracing("host", facts)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:

        @tool(read_only=True)
        async def give() -> FileChunk:
            """Give a file."""
            return FileChunk.from_path(_file_in(folder))

        demo = RemoteToolkit("demo", [add, give, take])
        async with RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["host"]) as room:
            await demo.start(room)
            await serve_orders({"flush": flush}, ready=True)
            await demo.stop()


async def caller(facts: Facts) -> None:
    """Call with the leg's own sampling."""
    await _call_as("caller", facts)


async def unsampled(facts: Facts) -> None:
    """Call without sampling a call."""
    os.environ["OTEL_TRACES_SAMPLER"] = "parentbased_always_off"
    await _call_as("unsampled", facts)


async def _call_as(name: str, facts: Facts) -> None:
    set_up_tracing(name, facts)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        async with RoomClient(facts["url"], room=ROOM, token=facts["tokens"][name]) as room:

            async def download() -> int:
                chunk = await room.invoke("demo.give", {})
                assert isinstance(chunk, FileChunk)
                return await _size_of(chunk)

            async def upload() -> int:
                chunk = await room.invoke("demo.take", {}, attachment=_file_in(folder))
                size: int = chunk.value["bytes"]
                return size

            orders = {
                "call": calls_in(room),
                "flush": flush,
                "download": measured_transfer(download),
                "upload": measured_transfer(upload),
            }
            await serve_orders(orders, ready=True)


def calls_in(room: RoomClient) -> Order:
    """Make the order to call `demo.add` in a room."""

    async def call(a: int, b: int) -> dict[str, Any]:
        result: dict[str, Any] = await room.call("demo.add", a=a, b=b)
        return result

    return measured_calls(call)


_NEIGHBOURS = 3
"""Identities whose toolkits are not called: one identity may have 5,000 toolkits in a room."""


async def neighbours(facts: Facts) -> None:
    """Register toolkits that nobody calls: as many as `BENCH_TOOLKITS` says, less one."""
    names = [f"idle{number}" for number in range(int(os.environ["BENCH_TOOLKITS"]) - 1)]
    manifest = Toolkit(ROOM, [add]).manifest().model_dump(mode="json", exclude_defaults=True)
    most = Limits().max_toolkits
    for_one = Limits().max_identity_toolkits // most  # connections of one identity
    guests = []
    for number, start in enumerate(range(0, len(names), most)):
        token = facts["tokens"][f"neighbour{number // for_one}"]
        guest = await Guest.join(facts["url"], ROOM, token, f"host{start}")
        await guest.register([{**manifest, "name": name} for name in names[start : start + most]])
        guests.append(guest)
    await serve_orders(ready=len(guests))


def set_up_tracing(service_name: str, facts: Facts) -> None:
    """Configure tracing as a program does; without a receiver no call may be sampled."""
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = facts.get("endpoint", "http://127.0.0.1:9")
    if configure(service_name) is None:
        raise RuntimeError("tracing is not set up")


async def flush() -> Facts:
    """Send the spans that wait."""
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    return {"sent": await asyncio.to_thread(provider.force_flush)}


async def _size_of(file: FileChunk) -> int:
    size = 0
    async for piece in file.pieces():
        size += len(piece)
    return size


def _file_in(folder: str) -> Path:
    file = Path(folder) / "file"
    if not file.exists():
        file.write_bytes(os.urandom(FILE_BYTES))
    return file


if __name__ == "__main__":
    run_role(
        {
            "receiver": receive,
            "router": route,
            "neighbours": neighbours,
            "host": host,
            "caller": caller,
            "unsampled": unsampled,
        }
    )
