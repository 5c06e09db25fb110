"""`toolbus trace`: receives spans over OTLP/HTTP and prints every call as a tree.

Spans of one call come from several processes at different times. A trace is printed when it has
been quiet for a second and looks whole, or after six seconds of quiet (the OpenTelemetry SDKs send
every five) as it is; spans that come later print it again.
"""

from __future__ import annotations

import asyncio
import json as json_codec
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from toolbus.commands.stop_signals import stop_on_signals
from toolbus.otlp_receiver import MissingExtra, SpanReceiver
from toolbus.trace_tree import TraceTree, as_json, build_tree, render_lines

__all__ = ["trace"]

_QUIET_S = 1.0
_PATIENCE_S = 6.0
_USAGE = 2


def trace(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 4318,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line per trace.")] = False,
    count: Annotated[int, typer.Option(min=0, help="End after so many traces; 0: never.")] = 0,
) -> None:
    """Receive spans over OTLP/HTTP and print each call as a tree.

    Start it, then start server, hosts and callers with OTEL_EXPORTER_OTLP_ENDPOINT set to the
    address it names. Ctrl-C prints what is pending and ends it.
    """
    view = _View(as_lines=not json, wanted=count)
    try:
        asyncio.run(_watch(SpanReceiver(host=host, port=port), view))
    except KeyboardInterrupt:
        raise typer.Exit from None
    except (MissingExtra, OSError) as error:
        typer.echo(f"toolbus trace: {_repair(error, port)}", err=True)
        raise typer.Exit(_USAGE) from error


def _repair(error: ImportError | OSError, port: int) -> str:
    if isinstance(error, ImportError):
        return str(error)
    return f"cannot listen on port {port}: {error.strerror}; choose another with --port"


@dataclass(slots=True)
class Settling:
    """Decides when a trace is ready to be shown. Knows no clock: times are given to it."""

    quiet_s: float = _QUIET_S
    """How long a trace that looks whole must have brought nothing new."""
    patience_s: float = _PATIENCE_S
    """The same for a trace that does not."""
    _due_at: dict[str, float] = field(default_factory=dict)

    def note(self, trace_id: str, *, whole: bool, now: float) -> None:
        """Take notice of new spans."""
        self._due_at[trace_id] = now + (self.quiet_s if whole else self.patience_s)

    def take_due(self, now: float) -> list[str]:
        """Give the traces whose time has come, and forget them."""
        due = [trace_id for trace_id, due_at in self._due_at.items() if due_at <= now]
        for trace_id in due:
            del self._due_at[trace_id]
        return due

    def take_all(self) -> list[str]:
        """Give all that are waiting, and forget them."""
        return self.take_due(float("inf"))

    def seconds_left(self, now: float) -> float | None:
        """Say when the next is due; None if none is waiting."""
        return max(0.0, min(self._due_at.values()) - now) if self._due_at else None


@dataclass(slots=True)
class _View:
    """What the person at the terminal sees: trees on stdout, remarks on stderr."""

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
            again = ["", "more spans have come:"] if tree.trace_id in self.shown else [""]
            typer.echo("\n".join([*again, *render_lines(tree)]))
        else:
            typer.echo(json_codec.dumps(as_json(tree)))
        self.shown.add(tree.trace_id)

    def report_dropped(self, dropped: int) -> None:
        if dropped > self.dropped:
            self.dropped = dropped
            typer.echo(f"{dropped} spans were dropped for lack of room", err=True)


async def _watch(receiver: SpanReceiver, view: _View) -> None:
    settling = Settling()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    stop_on_signals(loop, stop.set)
    async with receiver:
        typer.echo(
            f"listening: OTEL_EXPORTER_OTLP_ENDPOINT={receiver.endpoint}  (Ctrl-C ends)", err=True
        )
        try:
            while not stop.is_set() and not view.done:
                await _news(receiver, stop, settling.seconds_left(loop.time()))
                for trace_id in receiver.take_changed():
                    whole = build_tree(receiver.trace(trace_id)).whole
                    settling.note(trace_id, whole=whole, now=loop.time())
                _show(receiver, view, settling.take_due(loop.time()))
        finally:
            _show(receiver, view, settling.take_all())


async def _news(receiver: SpanReceiver, stop: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until spans come, the end is asked for, or the time is up."""
    waiting = [
        asyncio.ensure_future(receiver.wait_for_change()),
        asyncio.ensure_future(stop.wait()),
    ]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _show(receiver: SpanReceiver, view: _View, trace_ids: Iterable[str]) -> None:
    for trace_id in trace_ids:
        view.show(build_tree(receiver.trace(trace_id)))
        receiver.mark_shown(trace_id)
    view.report_dropped(receiver.dropped)
