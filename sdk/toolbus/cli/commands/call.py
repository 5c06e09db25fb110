"""`toolbus call`: calls a tool; prints its result on stdout and its error on stderr.

Arguments are parsed by the tool's schema if that is available; the host validates them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolbus.auth.grants import is_tool_name, is_toolkit_name
from toolbus.chunks.chunk_types import FILE_PIECE_BYTES, Chunk, FileChunk, one_chunk
from toolbus.chunks.json_values import shown
from toolbus.cli.arguments import (
    Arguments,
    json_lines,
    needs_schema,
    read_arguments,
    read_caller_context,
)
from toolbus.cli.completion import Owner, complete_tool
from toolbus.cli.error_report import reporting
from toolbus.cli.output import (
    StreamOutput,
    ValueOutput,
    held_printer,
    note_places,
    progress_printer,
    show_assessment,
    show_explanation,
)
from toolbus.cli.room_options import CommandRoom, Locked, RoomOptions, in_room, joins_a_room
from toolbus.cli.signals import cancel_on_sigterm
from toolbus.cli.suggestions import suggest_name, suggest_tool
from toolbus.client.call_options import MAX_TIMEOUT_S
from toolbus.client.caller import DEFAULT_TIMEOUT_S
from toolbus.client.streaming_call import ChunkStream
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.diagnostics.exit_codes import CallTarget, UsageError
from toolbus.errors import DeadlineExceeded, NotFound, RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.room.toolkit_proxy import ToolkitProxy
from toolbus.tools.approvers import DEFAULT_APPROVAL_S
from toolbus.wire import MAX_PURPOSE_CHARS, ToolManifest

if TYPE_CHECKING:  # few calls are traced or explained
    from toolbus.cli.call_trace import CallTrace
    from toolbus.room.calls import CallExplanation

__all__ = ["call"]

_STDIN = Path("-")

_ToolName = Annotated[
    str,
    typer.Argument(
        help="The tool to call: toolkit.tool", autocompletion=complete_tool, show_default=False
    ),
]
_Timeout = Annotated[
    float | None,
    typer.Option(help="Time limit of the call in seconds. Default: 60, for streams none."),
]
_Pin = Annotated[str | None, typer.Option(help="Call only if the toolkit has this digest.")]
_NoRetry = Annotated[
    bool,
    typer.Option(
        "--no-retry", help="Make one attempt and do not wait for a host, even if a retry is safe."
    ),
]
_WaitForHost = Annotated[
    float | None,
    typer.Option(
        "--wait-for-host",
        metavar="SECONDS",
        help="How long to wait if the toolkit has no host now; 0 does not wait. Default: 10.",
    ),
]
_OnBehalfOf = Annotated[str | None, typer.Option(help="Call on behalf of this participant.")]
_CallerContext = Annotated[
    str | None,
    typer.Option(
        "--caller-context",
        metavar="JSON|@FILE",
        help="Data of yours that the tool may read, as one JSON object, or the file that has it.",
    ),
]
_Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show which host would run the call, or why none would; with arguments also what the"
        " tool says about them. Run nothing.",
    ),
]
_Assess = Annotated[
    bool,
    typer.Option(
        "--assess", help="Show what the tool says about these arguments; run nothing else of it."
    ),
]
_Purpose = Annotated[
    str | None,
    typer.Option(
        help="What the call is for, for a person who has to approve it: 500 characters at most."
    ),
]
_ApprovalTimeout = Annotated[
    str | None,
    typer.Option(
        "--approval-timeout",
        metavar="SECONDS",
        help="How long the call may wait for a person who approves it: the smaller one of this and "
        "the tool's own counts. 0 never waits, none has no limit of its own. Default: 300. "
        "--timeout stands still meanwhile.",
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(help="Write the result to this file instead of stdout; - is stdout."),
]
_Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Print each value as it arrives, as for streaming tools: texts without line ends.",
    ),
]
_Attach = Annotated[Path | None, typer.Option(help="Send this file as the attachment; - is stdin.")]
_Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Print on stderr how the call went, as a tree: attempts, hosts, nested calls.",
    ),
]
_Input = Annotated[
    Path | None,
    typer.Option(
        "--input",
        help="Send the lines of this file as the input stream, each one a JSON value; - is stdin.",
    ),
]


@joins_a_room
def call(  # noqa: PLR0913 - a parameter for each flag
    options: RoomOptions,
    tool: _ToolName,
    arguments: Arguments = None,
    timeout: _Timeout = None,
    participant: Owner = None,
    pin: _Pin = None,
    no_retry: _NoRetry = False,
    wait_for_host: _WaitForHost = None,
    on_behalf_of: _OnBehalfOf = None,
    caller_context: _CallerContext = None,
    purpose: _Purpose = None,
    approval_timeout: _ApprovalTimeout = None,
    out: _Out = None,
    explain: _Explain = False,
    assess: _Assess = False,
    stream: _Stream = False,
    attach: _Attach = None,
    values: _Input = None,
    trace: _Trace = False,
    locked: Locked = None,
) -> None:
    """Call a tool and print its result as it arrives.

    What the call waits for, such as a person who has to approve it, is printed on stderr.

    Exit codes: 0 success, 1 tool failed, 2 wrong flag or argument, 3 refused,
    4 not found, 5 deadline passed or cancelled, 6 no host, unavailable or connection lost,
    143 SIGTERM.
    """
    toolkit, _, name = tool.partition(".")
    if not toolkit or not name:
        text = f"{shown(tool)} is not a tool name"
        if is_toolkit_name(tool) and arguments and is_tool_name(arguments[0]):
            raise UsageError(f"{text}: did you mean {tool}.{arguments[0]}?")
        raise UsageError(f"{text}: write toolkit.tool, for example clock.now")
    if timeout is not None and not 0 < timeout < MAX_TIMEOUT_S:
        raise UsageError(f"--timeout must be a number of seconds above 0 and below {MAX_TIMEOUT_S}")
    if wait_for_host is not None and not 0 <= wait_for_host < MAX_TIMEOUT_S:
        raise UsageError(
            f"--wait-for-host must be a number of seconds, 0 or more and below {MAX_TIMEOUT_S}"
        )
    if purpose is not None and len(purpose) > MAX_PURPOSE_CHARS:
        raise UsageError(f"--purpose must have at most {MAX_PURPOSE_CHARS} characters")
    output = ValueOutput(as_json=options.as_json, path=out)
    call_options = {
        "participant": participant,
        "pin": pin,
        "retry": not no_retry,
        "wait_for_host_s": wait_for_host,
        "on_behalf_of": on_behalf_of,
        "caller_context": read_caller_context(caller_context),
        "attachment": _attachment(attach),
        "on_progress": progress_printer(),
        "on_held": held_printer(as_json=options.as_json),
        "purpose": purpose,
        "approval_timeout_s": _approval_seconds(approval_timeout),
    }
    target = CallTarget(toolkit, name, participant, on_behalf_of, timeout)
    typed = tuple(arguments or ())
    sent = None if values is None else json_lines(values)
    followed: CallTrace | None = None
    if trace:
        if explain or assess:
            raise UsageError("--trace is for a call: --explain and --assess make none")
        from toolbus.cli.call_trace import CallTrace

        followed = CallTrace()
    plan = _Plan(target, typed, call_options, output, is_stream=stream, input=sent, trace=followed)
    with reporting(as_json=options.as_json, target=target), _reading(attach):
        if assess:
            assessment = in_room(options, plan.assess, join_timeout_s=timeout, locked=locked)
            show_assessment(assessment, as_json=options.as_json)
        elif explain:
            found = in_room(options, plan.explain, join_timeout_s=timeout, locked=locked)
            show_explanation(found, as_json=options.as_json)
        else:
            _run(plan, options, locked)


def _approval_seconds(typed: str | None) -> float | None:
    """Read `--approval-timeout`; None has no limit. Raises UsageError."""
    if typed is None:
        return DEFAULT_APPROVAL_S
    if typed in ("none", "inf"):
        return None
    with suppress(ValueError):
        if 0 <= (seconds := float(typed)) < MAX_TIMEOUT_S:
            return seconds
    raise UsageError("--approval-timeout must be a number of seconds, 0 or more, or none")


def _run(plan: _Plan, options: RoomOptions, locked: Path | None) -> None:
    """Make the call and write its value; then show its trace, also of a call that failed."""
    try:
        value = in_room(
            options,
            plan.run,
            join_timeout_s=plan.target.timeout_s,
            locked=locked,
            tracing=plan.trace,
        )
        if value is not None:
            plan.output.write(value)
            note_places(value)
    finally:
        if plan.trace is not None:
            plan.trace.show(as_json=options.as_json)


def _attachment(path: Path | None) -> Path | FileChunk | None:
    """Return the attachment. Raises UsageError if it cannot be read."""
    if path == _STDIN:
        # Read on a daemon thread, because stdin may never end.
        read = partial(os.read, sys.stdin.fileno(), FILE_PIECE_BYTES)
        return FileChunk.from_pieces(ThreadIterator(lambda: iter(read, b"")))
    if path is not None:
        try:
            path.open("rb").close()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return path


@contextmanager
def _reading(path: Path | None) -> Iterator[None]:
    """Raise UsageError if the attachment cannot be read during the call; the tool may have run."""
    try:
        yield
    except OSError as error:
        if path is None:
            raise
        name = "stdin" if path == _STDIN else path
        raise UsageError(f"cannot read {name}: {error.strerror}", executed="maybe") from error


@dataclass(frozen=True, slots=True)
class _Plan:
    """A call with its arguments and options."""

    target: CallTarget
    arguments: tuple[str, ...]
    options: Mapping[str, Any]
    output: ValueOutput
    is_stream: bool = False
    input: Iterator[Any] | None = None
    """The values of the tool's input stream."""
    trace: CallTrace | None = None
    """Follows the call, if that is to be shown."""
    started_at: float = field(default_factory=monotonic)
    """When the time limit began."""

    async def explain(self, room: CommandRoom) -> CallExplanation:
        """Ask the server which host would run the call, and the tool if there are arguments."""
        arguments: dict[str, Any] | None = None
        if self.arguments:
            arguments = await self._read_arguments(room)
        return await room.explain(self.target.full_name, arguments, **self._named)

    async def assess(self, room: CommandRoom) -> Assessment:
        """Ask the tool what the call would do."""
        arguments = await self._read_arguments(room)
        options = self._named
        if self.target.timeout_s is not None:
            options["timeout_s"] = self.target.timeout_s
        return await room.assess(self.target.full_name, arguments, **options)

    async def _read_arguments(self, room: CommandRoom) -> dict[str, Any]:
        proxy: ToolkitProxy | None = None
        if needs_schema(self.arguments):
            proxy = await self._toolkit(room)
        return self._arguments(proxy)

    @property
    def _named(self) -> dict[str, Any]:
        return {name: self.options[name] for name in ("participant", "on_behalf_of", "pin")}

    async def run(self, room: CommandRoom) -> Chunk | None:
        """Make the call; joining and requesting the schema count towards its time limit.

        Streams and files in pieces are written as they arrive; any other value is returned.

        Raises:
            Terminated: SIGTERM cancelled the call.
        """
        ends_at = self.started_at + (self.target.timeout_s or DEFAULT_TIMEOUT_S)
        with cancel_on_sigterm():
            if self.trace is None:
                return await self._call(room, ends_at)
            async with self.trace.following(room, ends_at - monotonic()):
                return await self._call(room, ends_at)

    async def _call(self, room: CommandRoom, ends_at: float) -> Chunk | None:
        proxy: ToolkitProxy | None = None
        if not self.is_stream or needs_schema(self.arguments):
            try:
                async with asyncio.timeout(ends_at - monotonic()):
                    proxy = await self._toolkit(room)
            except TimeoutError:
                raise DeadlineExceeded(
                    "the deadline passed before the call", executed="no"
                ) from None
        arguments = self._arguments(proxy)
        left_s = ends_at - monotonic()
        try:
            tool = self._tool(proxy)
            is_unknown = proxy is None and self.input is not None
            if self.is_stream or is_unknown or (tool is not None and tool.streaming):
                limit_s = self.target.timeout_s and left_s
                async with self._stream(room, arguments, limit_s) as chunks:
                    await StreamOutput(self.output).write_all(chunks)
                return None
            if self.input is not None:
                return await self._value_of_input(room, arguments, left_s)
            chunk: Chunk = await room.invoke(
                self.target.full_name, arguments, timeout_s=left_s, **self.options
            )
            return await self._complete_value(chunk)
        except NotFound as error:
            if proxy is None:
                raise await suggest_name(error, room, self.target) from None
            names = (tool.name for tool in proxy.manifest.tools)
            raise suggest_tool(error, self.target, names) from None

    async def _value_of_input(
        self, room: CommandRoom, arguments: dict[str, Any], left_s: float
    ) -> Chunk | None:
        """Call a tool that has an input stream and a single result."""
        found: list[Chunk] = []
        async with self._stream(room, arguments, left_s) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, FileChunk) and not chunk.is_whole:
                    if not found:
                        return await self._complete_value(chunk)
                    chunk = FileChunk(await chunk.read(), chunk.name, chunk.mime_type)
                found.append(chunk)
        return one_chunk(found)

    async def _complete_value(self, chunk: Chunk) -> Chunk | None:
        """Return a complete value; write a file that is still being received."""
        if not isinstance(chunk, FileChunk) or chunk.is_whole:
            return chunk
        await self.output.write_pieces(chunk)
        return None

    def _stream(
        self, room: CommandRoom, arguments: dict[str, Any], limit_s: float | None
    ) -> ChunkStream:
        options = {**self.options, "timeout_s": limit_s, "input": self.input}
        return room.stream(self.target.full_name, arguments, **options)

    async def _toolkit(self, room: CommandRoom) -> ToolkitProxy | None:
        try:
            return await room.toolkit(self.target.toolkit, self.options["participant"])
        except RoomException:
            return None  # if it cannot be called either, the call reports why

    def _tool(self, proxy: ToolkitProxy | None) -> ToolManifest | None:
        """Return what is known of the tool; a call that cannot be made reports why."""
        if proxy is None:
            return None
        try:
            return proxy.tool(self.target.tool)
        except NotFound:
            return None

    def _arguments(self, proxy: ToolkitProxy | None) -> dict[str, Any]:
        tool = self._tool(proxy)
        return read_arguments(self.arguments, {} if tool is None else tool.input_schema)
