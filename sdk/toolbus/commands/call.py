"""`toolbus call`: one call, its value or values on stdout, its error on stderr.

Arguments are read by the schema of the tool, where that may be read; whether they fit is the
host's to say.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from toolbus.calls import DEFAULT_TIMEOUT_S
from toolbus.chunk_stream import ChunkStream
from toolbus.chunks import FILE_PIECE_BYTES, Chunk, EmptyChunk, FileChunk
from toolbus.commands.completion import complete_owner, complete_tool
from toolbus.commands.explanation_output import show_explanation
from toolbus.commands.json_lines import json_lines
from toolbus.commands.near_names import near_name, near_tool
from toolbus.commands.outcome import reporting
from toolbus.commands.parameters import Parameter, read_any_text, read_json, read_parameters
from toolbus.commands.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.commands.stream_output import StreamOutput, progress_lines
from toolbus.commands.value_output import ValueOutput
from toolbus.errors import DeadlineExceeded, NotFound, RoomException
from toolbus.exit_codes import Subject, UsageMistake
from toolbus.explanation import Explanation
from toolbus.grants import is_tool_name, is_toolkit_name
from toolbus.thread_items import ThreadItems
from toolbus.toolkit_proxy import ToolkitProxy

__all__ = ["call", "read_arguments"]

_STDIN = Path("-")

_ToolName = Annotated[
    str, typer.Argument(help="toolkit.tool", autocompletion=complete_tool, show_default=False)
]
_Arguments = Annotated[
    list[str] | None, typer.Argument(help="k=v by the tool's schema, k:=JSON, or one JSON object.")
]
_Timeout = Annotated[
    float | None,
    typer.Option(help="Seconds that the call may take: 60 unless said, a stream any number."),
]
_Participant = Annotated[
    str | None,
    typer.Option(
        help="Whose toolkit, where it is private and shared with me.", autocompletion=complete_owner
    ),
]
_Pin = Annotated[str | None, typer.Option(help="The digest that the toolkit must have.")]
_NoRetry = Annotated[
    bool, typer.Option("--no-retry", help="Try once, even where again would be safe.")
]
_OnBehalfOf = Annotated[str | None, typer.Option(help="For whom the call is made.")]
_Explain = Annotated[
    bool,
    typer.Option("--explain", help="Say who would run it, or what stops it; run nothing."),
]
_Out = Annotated[
    Path | None,
    typer.Option(help="Write the value to this file instead of stdout; - is stdout."),
]
_Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Write each value as it comes, as for a tool that streams: texts without line ends.",
    ),
]
_Attach = Annotated[
    Path | None, typer.Option(help="Send this file along, piece by piece; - is stdin.")
]
_Input = Annotated[
    Path | None,
    typer.Option(
        "--input", help="Send the lines of this file, JSON each, as the tool asks; - is stdin."
    ),
]


@joins_a_room
def call(  # noqa: PLR0913 - a parameter for each flag
    options: RoomOptions,
    tool: _ToolName,
    arguments: _Arguments = None,
    timeout: _Timeout = None,
    participant: _Participant = None,
    pin: _Pin = None,
    no_retry: _NoRetry = False,
    on_behalf_of: _OnBehalfOf = None,
    out: _Out = None,
    explain: _Explain = False,
    stream: _Stream = False,
    attach: _Attach = None,
    values: _Input = None,
) -> None:
    """Call a tool and print its value, or its values as they come.

    Exit codes: 0 ok, 1 the tool failed, 2 usage or arguments, 3 refused,
    4 not found, 5 deadline or cancelled, 6 no host, unavailable or lost.
    """
    toolkit, _, name = tool.partition(".")
    if not toolkit or not name:
        raise UsageMistake(_no_tool(tool, arguments or []))
    if timeout is not None and not timeout > 0:
        raise UsageMistake("--timeout is a number of seconds above 0")
    output = ValueOutput(as_json=options.as_json, path=out)
    call_options = {
        "participant": participant,
        "pin": pin,
        "retry": not no_retry,
        "on_behalf_of": on_behalf_of,
        "attachment": _attachment(attach),
        "on_progress": progress_lines(),
    }
    asked = Subject(toolkit, name, participant, on_behalf_of, timeout)
    typed = tuple(arguments or ())
    sent = None if values is None else json_lines(values)
    plan = _Plan(asked, typed, call_options, output, is_stream=stream, input=sent)
    with reporting(as_json=options.as_json, subject=asked):
        if explain:
            show_explanation(in_room(options, plan.explain), as_json=options.as_json)
        else:
            value = in_room(options, plan.carry_out)
            if value is not None:
                output.write(value)


def _attachment(path: Path | None) -> Path | FileChunk | None:
    """Find what is sent along. Raises UsageMistake where it cannot be read."""
    if path == _STDIN:
        # A thread that nothing waits for: whoever types may never end the line.
        return FileChunk.from_pieces(ThreadItems(lambda: iter(_read_stdin, b"")))
    if path is not None:
        try:
            path.open("rb").close()
        except OSError as error:
            raise UsageMistake(f"cannot read {path}: {error.strerror}") from error
    return path


def _read_stdin() -> bytes:
    return os.read(sys.stdin.fileno(), FILE_PIECE_BYTES)


def _no_tool(typed: str, arguments: Sequence[str]) -> str:
    words = f"{typed!r} names no tool"
    if is_toolkit_name(typed) and arguments and is_tool_name(arguments[0]):
        return f"{words}: did you mean {typed}.{arguments[0]}?"
    return f"{words}: write toolkit.tool, as in clock.now"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A call as it was typed."""

    asked: Subject
    arguments: tuple[str, ...]
    options: Mapping[str, Any]
    output: ValueOutput
    is_stream: bool = False
    input: Iterator[Any] | None = None
    """What the tool takes in while it runs."""

    async def explain(self, room: CommandRoom) -> Explanation:
        """Ask what would become of the call."""
        proxy = await self._described(room) if _needs_schema(self.arguments) else None
        arguments = read_arguments(self.arguments, self._parameters(proxy))
        named = {name: self.options[name] for name in ("participant", "on_behalf_of", "pin")}
        return await room.explain(self.asked.toolkit, self.asked.tool, arguments, **named)

    async def carry_out(self, room: CommandRoom) -> Chunk | None:
        """Make the call; reading the schema first counts against its time too.

        What comes in pieces is written as it comes; a value that is whole is returned.
        """
        ends_at = asyncio.get_running_loop().time() + (self.asked.timeout_s or DEFAULT_TIMEOUT_S)
        proxy: ToolkitProxy | None = None
        if not self.is_stream or _needs_schema(self.arguments):
            try:
                async with asyncio.timeout_at(ends_at):
                    proxy = await self._described(room)
            except TimeoutError:
                raise DeadlineExceeded("no time was left for the call", executed="no") from None
        arguments = read_arguments(self.arguments, self._parameters(proxy))
        left_s = ends_at - asyncio.get_running_loop().time()
        try:
            is_unknown = proxy is None and self.input is not None
            if self.is_stream or is_unknown or self._streams(proxy):
                limit_s = None if self.asked.timeout_s is None else left_s
                await self._write_stream(room, arguments, limit_s)
                return None
            return await self._value(room, arguments, left_s)
        except NotFound as error:
            if proxy is None:
                raise await near_name(error, room, self.asked) from None
            names = (each.name for each in proxy.manifest.tools)
            raise near_tool(error, self.asked, names) from None

    async def _value(
        self, room: CommandRoom, arguments: dict[str, Any], left_s: float
    ) -> Chunk | None:
        if self.input is not None:
            return await self._value_of_input(room, arguments, left_s)
        names = self.asked.toolkit, self.asked.tool
        chunk: Chunk = await room.invoke(*names, arguments, timeout_s=left_s, **self.options)
        return await self._whole(chunk)

    async def _value_of_input(
        self, room: CommandRoom, arguments: dict[str, Any], left_s: float
    ) -> Chunk | None:
        """Call a tool that streams nothing with what it takes in: its value is the one chunk."""
        async with self._stream(room, arguments, left_s) as chunks:
            async for chunk in chunks:
                return await self._whole(chunk)
        return EmptyChunk()

    async def _whole(self, chunk: Chunk) -> Chunk | None:
        """Return a value, or write it now where it is a file that is still coming."""
        if not isinstance(chunk, FileChunk) or chunk.is_whole:
            return chunk
        await self.output.write_pieces(chunk)
        return None

    async def _write_stream(
        self, room: CommandRoom, arguments: dict[str, Any], limit_s: float | None
    ) -> None:
        async with self._stream(room, arguments, limit_s) as chunks:
            await StreamOutput(self.output).write_all(chunks)

    def _stream(
        self, room: CommandRoom, arguments: dict[str, Any], limit_s: float | None
    ) -> ChunkStream:
        names = self.asked.toolkit, self.asked.tool
        options = {**self.options, "timeout_s": limit_s, "input": self.input}
        return room.stream(*names, arguments, **options)

    def _streams(self, proxy: ToolkitProxy | None) -> bool:
        try:
            return proxy is not None and proxy.tool(self.asked.tool).streaming
        except NotFound:
            return False

    async def _described(self, room: CommandRoom) -> ToolkitProxy | None:
        try:
            return await room.toolkit(self.asked.toolkit, self.options["participant"])
        except RoomException:
            return None  # if it cannot be called either, the call will say why

    def _parameters(self, proxy: ToolkitProxy | None) -> dict[str, Parameter]:
        try:
            return read_parameters(proxy.tool(self.asked.tool).input_schema) if proxy else {}
        except NotFound:
            return {}


def _needs_schema(arguments: tuple[str, ...]) -> bool:
    return any(not _is_object(each) and _split(each)[1] == "=" for each in arguments)


def _is_object(argument: str) -> bool:
    return argument.lstrip().startswith("{")


def _split(argument: str) -> tuple[str, str, str]:
    """Split `k=v` or `k:=json` at its first `=`. Raises UsageMistake."""
    name, equals, value = argument.partition("=")
    if argument in {"true", "false"}:
        raise UsageMistake(
            f"{argument!r} is no argument: a switch, as --no-retry is, takes no value, and an "
            f"argument has a name: NAME={argument}"
        )
    if not equals or name in {"", ":"}:
        raise UsageMistake(
            f"{argument[:64]!r} is no argument: write name=value, name:=JSON, or one JSON object"
        )
    return (name[:-1], ":=", value) if name.endswith(":") else (name, "=", value)


def read_arguments(typed: tuple[str, ...], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Read the arguments of a call as they were typed.

    Args:
        typed: `k=v`, `k:=json`, or one JSON object alone.
        parameters: What the tool takes, as far as that is known.

    Raises:
        UsageMistake: One of them cannot be read; the message names it.
    """
    if len(typed) == 1 and _is_object(typed[0]):
        return _read_object(typed[0])
    if any(_is_object(each) for each in typed):
        raise UsageMistake(
            "a JSON object is given beside others: one JSON object alone, or name=value"
        )
    arguments: dict[str, Any] = {}
    for each in typed:
        name, sign, text = _split(each)
        if name in arguments:
            raise UsageMistake(f"{name} is given twice")
        arguments[name] = (
            _read_json(name, text) if sign == ":=" else _read_text(name, text, parameters)
        )
    return arguments


def _read_text(name: str, text: str, parameters: Mapping[str, Parameter]) -> Any:
    parameter = parameters.get(name)
    if parameter is None:
        return read_any_text(text)
    try:
        return parameter.read(text)
    except (ValueError, RecursionError) as error:
        raise UsageMistake(f"{error}; {name}:=JSON sends exactly what you write") from error


def _read_json(name: str, text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageMistake(f"{name}:= is not followed by JSON: {error}") from error


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageMistake(f"the arguments are no JSON object: {error}") from error
    assert isinstance(value, dict)
    return value
