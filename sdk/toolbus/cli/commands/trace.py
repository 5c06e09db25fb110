"""`toolbus trace`: receives spans over OTLP/HTTP and prints every call as a tree.

The spans of one call are sent by several processes at different times. A trace that looks complete
is printed one second after its last span, an incomplete one after six seconds (the OpenTelemetry
SDKs send every five). If more spans arrive later, it is printed again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from toolbus.cli.options import check_listen_host
from toolbus.cli.own_commands import with_install_line
from toolbus.cli.signals import stop_on_signals
from toolbus.concurrency.tasks import wait_for_first
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.telemetry.viewer.receiver import MissingExtra, SpanReceiver
from toolbus.telemetry.viewer.trace_tree import TraceTree, as_json, build_tree, render_lines
from toolbus.untrusted_text import json_text

__all__ = ["trace"]


def trace(
    host: Annotated[
        str, typer.Option(help="Address to listen on.", callback=check_listen_host)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 selects a free port.", min=0, max=65535)
    ] = 4318,
    json: Annotated[
        bool, typer.Option("--json", help="Print each trace as one line of JSON.")
    ] = False,
    count: Annotated[
        int, typer.Option(min=0, help="Exit after this number of traces; 0: never.")
    ] = 0,
) -> None:
    """Receive spans over OTLP/HTTP and print each call as a tree.

    Start this first. Then start server, hosts and callers with OTEL_EXPORTER_OTLP_ENDPOINT set to
    the address that it prints. Ctrl-C prints all pending traces and exits.
    """
    view = _View(as_lines=not json, wanted=count)
    try:
        asyncio.run(_receive(SpanReceiver(host=host, port=port), view))
    except KeyboardInterrupt:
        raise typer.Exit from None
    except (MissingExtra, OSError) as error:
        text = with_install_line(str(error))
        if isinstance(error, OSError):
            text = f"cannot listen on {host}, port {port}: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                text = f"{text}; choose another with --port"
        typer.echo(f"toolbus trace: {text}", err=True)
        raise typer.Exit(ExitCode.USAGE) from error


@dataclass(slots=True)
class TraceSchedule:
    """Decides when a trace is printed. Pure: the caller passes the time."""

    quiet_s: float = 1.0
    """Seconds without new spans before a complete trace is printed."""
    incomplete_s: float = 6.0
    """The same for an incomplete trace."""
    _due_at: dict[str, float] = field(default_factory=dict)

    def add(self, trace_id: str, *, complete: bool, now: float) -> None:
        """Schedule a trace with new spans."""
        self._due_at[trace_id] = now + (self.quiet_s if complete else self.incomplete_s)

    def take_due(self, now: float) -> list[str]:
        """Return and remove the traces that are due."""
        due = [trace_id for trace_id, due_at in self._due_at.items() if due_at <= now]
        for trace_id in due:
            del self._due_at[trace_id]
        return due

    def take_all(self) -> list[str]:
        """Return and remove all traces."""
        return self.take_due(float("inf"))

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the next trace is due; None if there is none."""
        if not self._due_at:
            return None
        return max(0.0, min(self._due_at.values()) - now)


@dataclass(slots=True)
class _View:
    """Prints traces on stdout and notices on stderr."""

    as_lines: bool
    wanted: int
    shown: set[str] = field(default_factory=set)
    dropped: int = 0

    @property
    def done(self) -> bool:
        return 0 < self.wanted <= len(self.shown)

    def show(self, tree: TraceTree) -> None:
        if self.done or not tree.nodes:
            return
        if self.as_lines:
            typer.echo()
            if tree.trace_id in self.shown:
                typer.echo("more spans have arrived:")
            typer.echo("\n".join(render_lines(tree)))
        else:
            typer.echo(json_text(as_json(tree)))
        self.shown.add(tree.trace_id)

    def report_dropped(self, dropped: int) -> None:
        if dropped > self.dropped:
            self.dropped = dropped
            typer.echo(
                f"{dropped} spans were dropped because the memory limit was reached", err=True
            )


async def _receive(receiver: SpanReceiver, view: _View) -> None:
    schedule = TraceSchedule()
    loop = asyncio.get_running_loop()
    stop = stop_on_signals()
    async with receiver:
        typer.echo(
            f"listening: OTEL_EXPORTER_OTLP_ENDPOINT={receiver.endpoint}  (Ctrl-C to stop)",
            err=True,
        )
        try:
            while not stop.is_set() and not view.done:
                left_s = schedule.seconds_left(loop.time())
                await wait_for_first(receiver.wait_for_change(), stop.wait(), timeout_s=left_s)
                for trace_id in receiver.take_changed():
                    complete = build_tree(receiver.trace(trace_id)).whole
                    schedule.add(trace_id, complete=complete, now=loop.time())
                _show(receiver, view, schedule.take_due(loop.time()))
        finally:
            _show(receiver, view, schedule.take_all())


def _show(receiver: SpanReceiver, view: _View, trace_ids: Iterable[str]) -> None:
    for trace_id in trace_ids:
        view.show(build_tree(receiver.trace(trace_id)))
        receiver.mark_shown(trace_id)
    view.report_dropped(receiver.dropped)
