"""The bus as its users have it: server, hosted toolkit and caller, with grants and validation on.

Whether spans are recorded is what the `OTEL_*` variables say that the harness sets.
"""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from bench.role import Where, measure_when_told, run_role, say, serve_until_told
from toolbus import ApiScope, RemoteToolkit, RoomClient, tool
from toolbus.telemetry import configure
from toolbus_server.testing import running_server

ROOM = "bench"


@tool
async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


async def route(_where: Where) -> None:
    set_up_tracing("server")
    async with running_server() as server:
        await serve_until_told(
            send_spans,
            url=server.url,
            host_token=server.token("host", room=ROOM, api=ApiScope.host_default()),
            caller_token=server.token("caller", room=ROOM, api=ApiScope.agent_default()),
            neighbour_token=server.token("neighbour", room=ROOM, api=ApiScope.host_default()),
        )


async def host(where: Where) -> None:
    set_up_tracing("host")
    demo = RemoteToolkit("demo", [add])
    async with RoomClient(where["url"], room=ROOM, token=where["host_token"]) as room:
        await demo.start(room)
        await serve_until_told(send_spans, ready=True)
        await demo.stop()


async def caller(where: Where) -> None:
    set_up_tracing("caller")
    async with RoomClient(where["url"], room=ROOM, token=where["caller_token"]) as room:
        await measure_when_told(lambda a, b: room.call("demo.add", a=a, b=b))


def set_up_tracing(service_name: str) -> None:
    """Do what a program does; a leg that asks for tracing and gets none would measure nothing."""
    is_on = configure(service_name) is not None
    if is_on is (os.environ["OTEL_SDK_DISABLED"] == "true"):
        raise RuntimeError("tracing is not set up as this leg says")


def send_spans() -> None:
    """Send the spans that wait, and say so; only where tracing is set up."""
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    say(sent=provider.force_flush())


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
