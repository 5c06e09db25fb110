"""Writes the result of a call to stdout or to a file, as it is or as JSON.

`ValueOutput` writes one value, `StreamOutput` the values of a stream. Texts, files and links are
written as they are; every other value, and with `--json` every value, is written as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from toolbus.atomic_file import AtomicFile
from toolbus.chunks.chunk_types import Chunk, FileChunk, LinkChunk, MixedChunk, TextChunk
from toolbus.cli.columns import counted
from toolbus.cli.error_report import StdoutError, stdout_error, writing
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.errors import Executed, RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.plain import assessment_to_plain
from toolbus.untrusted_text import SHOWN_CHARS, json_text, one_line, printable

if TYPE_CHECKING:  # few calls wait, or are explained
    from toolbus.client.held_calls import HeldCall
    from toolbus.room.calls import CallExplanation

__all__ = [
    "NonBlockingStdout",
    "StreamOutput",
    "ValueOutput",
    "held_printer",
    "held_text",
    "note_places",
    "progress_printer",
    "show_assessment",
    "show_explanation",
    "to_json_value",
    "write_stdout",
]

_STDOUT = Path("-")


# stdout


def write_stdout(data: bytes) -> None:
    """Write to stdout and flush it; blocks the event loop until the reader has taken the data.

    Raises:
        StdoutError: It cannot be written; the tool has run by then.
        ReaderClosed: The reader has closed the pipe.
    """
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except StdoutError as error:
        raise StdoutError(error.message, executed="yes") from error


class NonBlockingStdout:
    """Writes to stdout on a thread, so that a slow reader does not block the event loop."""

    def __init__(self) -> None:
        self._data = b""
        # A daemon thread, because the reader may never continue.
        self._writes = ThreadIterator(lambda: iter(self._write, None))

    async def write(self, data: bytes) -> None:
        """Write all data; only one task may write at a time.

        Raises:
            StdoutError: It cannot be written; the tool may have run.
            ReaderClosed: The reader has closed the pipe.
        """
        self._data = data
        await anext(self._writes)

    async def aclose(self) -> None:
        """Stop writing. Returns at once; a cancelled write may still be running."""
        self._writes.stop()

    def _write(self) -> int:
        try:
            stdout = sys.stdout.fileno()
        except io.UnsupportedOperation:  # replaced by something that is not a file
            write_stdout(self._data)
            return len(self._data)
        # Not through the buffer of `sys.stdout`: a thread that blocks in it keeps Python from
        # exiting.
        left = memoryview(self._data)
        try:
            while left:
                left = left[os.write(stdout, left) :]
        except OSError as error:
            raise stdout_error(error, "maybe") from error
        return len(self._data)


# One value


@dataclass(frozen=True, slots=True)
class ValueOutput:
    """Writes one value.

    Args:
        as_json: Write every value as JSON, texts too.
        path: The file to write; None and `-` are stdout. With `-` a file is written to stdout even
            if that is a terminal.

    Raises:
        UsageError: The file cannot be written, because its folder does not exist for example.
    """

    as_json: bool
    path: Path | None = None

    @property
    def file(self) -> Path | None:
        """The file to write; None is stdout."""
        if self.path == _STDOUT:
            return None
        return self.path

    def __post_init__(self) -> None:
        if self.file is not None and not _may_be_written(self.file):
            name = str(self.path)[:SHOWN_CHARS]
            raise UsageError(f"cannot write {name}: name a file in a folder that exists")

    def write(self, chunk: Chunk) -> None:
        """Write a value. Raises UsageError where that fails; the tool has run by then."""
        data = self._encode(chunk)
        if self.file is not None:
            with writing(self.file, "yes"):
                self.file.write_bytes(data)
            self.report_size(len(data))
            return
        if isinstance(chunk, FileChunk) and not self.as_json:
            self.refuse_terminal(f"a file of {len(data)} bytes", "yes")
        elif not data.endswith(b"\n"):
            data += b"\n"
        write_stdout(data)

    async def write_pieces(self, file: FileChunk) -> None:
        """Write a file piece by piece while it is received.

        Raises:
            UsageError: It cannot be written; the rest is not received.
            RoomException: The rest cannot be received.
        """
        target = self.file
        if target is None and self.as_json:
            self.write(FileChunk(await file.read(), file.name, file.mime_type))
        elif target is None:
            self.refuse_terminal("a file", "maybe")
            async with aclosing(NonBlockingStdout()) as stdout:
                async for piece in file.pieces():
                    await stdout.write(piece)
        else:
            with writing(target, "maybe"):
                await file.save(target)
            self.report_size(target.stat().st_size)

    def report_size(self, size: int) -> None:
        """Print on stderr how much was written to the file."""
        name = one_line(str(self.file))
        typer.echo(f"wrote {counted(size, 'byte')} to {name}", err=True)

    def refuse_terminal(self, what: str, executed: Executed) -> None:
        """Raise UsageError if binary data would be written to a terminal without `--out -`."""
        if self.path is None and sys.stdout.isatty():
            raise UsageError(
                f"the value is {what} and is not printed to a terminal: "
                "use --out FILE, or redirect stdout",
                executed=executed,
            )

    def _encode(self, chunk: Chunk) -> bytes:
        is_terminal = self.file is None and sys.stdout.isatty()
        if isinstance(chunk, FileChunk) and (not self.as_json or self.file is not None):
            return chunk.data
        if isinstance(chunk, TextChunk) and not self.as_json:
            return _encode_text(chunk.text, is_terminal=is_terminal)
        if isinstance(chunk, LinkChunk) and not self.as_json:
            return _encode_text(chunk.url, is_terminal=is_terminal)
        value = to_json_value(chunk)
        if is_terminal:
            return json_text(value, indent=2).encode()
        return json_text(value).encode()


def _may_be_written(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:  # the file system does not accept the name
        return False


def _encode_text(text: str, *, is_terminal: bool) -> bytes:
    if is_terminal:
        text = printable(text)
    return text.encode()


def to_json_value(chunk: Chunk) -> Any:
    """Return the JSON value of a chunk; a file must be complete."""
    match chunk:
        case FileChunk():
            data = chunk.data
            named = {"name": chunk.name, "mime_type": chunk.mime_type}
            return {**named, "size_bytes": len(data), "base64": base64.b64encode(data).decode()}
        case LinkChunk(url, name):
            return {"url": url, "name": name}
        case MixedChunk(chunks):
            return [to_json_value(part) for part in chunks]
        case _:
            return chunk.value


def note_places(chunk: Chunk) -> None:
    """Say on stderr which places of a value are text because JSON cannot carry what they were."""
    if not chunk.as_text:
        return
    named = ", ".join(one_line(place or "the value", SHOWN_CHARS) for place in chunk.as_text)
    if chunk.more_as_text:
        named += f" and {chunk.more_as_text} further places"
    typer.echo(f"note: text in place of what JSON cannot carry: {named}", err=True)


# A stream of values


@dataclass(slots=True)
class StreamOutput:
    """Writes the values of one stream as they arrive.

    Texts, files and links are written as they are, every other value as one line of JSON. With the
    output's `as_json` every value is one line of JSON.
    """

    output: ValueOutput
    _file: BinaryIO | None = field(default=None, init=False)
    _stdout: NonBlockingStdout = field(default_factory=NonBlockingStdout, init=False)
    _size: int = field(default=0, init=False)
    _is_mid_line: bool = field(default=False, init=False)

    async def write_all(self, chunks: AsyncIterator[Chunk]) -> None:
        """Write all values until the stream ends.

        Raises:
            UsageError: The output cannot be written.
            RoomException: The stream failed; values that arrived before are written.
        """
        path = self.output.file
        if path is None:
            await self._write_to_stdout(chunks)
            return
        with _stream_file(path) as self._file:
            async for chunk in chunks:
                await self._write(chunk)
        self.output.report_size(self._size)

    async def _write_to_stdout(self, chunks: AsyncIterator[Chunk]) -> None:
        try:
            async for chunk in chunks:
                await self._write(chunk)
        except RoomException:
            # Separates the error from the text before it; a pipe receives nothing more.
            if self._is_mid_line and not sys.stdout.isatty() and _share_one_target():
                typer.echo(err=True)
            raise
        finally:
            await self._stdout.aclose()
            if self._is_mid_line and sys.stdout.isatty():
                write_stdout(b"\n")

    async def _write(self, chunk: Chunk) -> None:
        note_places(chunk)
        if isinstance(chunk, FileChunk):
            if not self.output.as_json:
                self.output.refuse_terminal("a file", "maybe")
                async for piece in chunk.pieces():
                    await self._put(piece)
                return
            chunk = FileChunk(await chunk.read(), chunk.name, chunk.mime_type)
        if isinstance(chunk, TextChunk) and not self.output.as_json:
            await self._put(_encode_text(chunk.text, is_terminal=self._is_terminal()))
        elif isinstance(chunk, LinkChunk) and not self.output.as_json:
            await self._put_line(_encode_text(chunk.url, is_terminal=self._is_terminal()))
        else:
            await self._put_line(json_text(to_json_value(chunk)).encode())

    def _is_terminal(self) -> bool:
        return self._file is None and sys.stdout.isatty()

    async def _put_line(self, line: bytes) -> None:
        if self._is_mid_line:
            line = b"\n" + line
        await self._put(line + b"\n")

    async def _put(self, data: bytes) -> None:
        if data:
            self._is_mid_line = not data.endswith(b"\n")
        self._size += len(data)
        if self._file is None or self.output.file is None:
            await self._stdout.write(data)
            return
        with writing(self.output.file, "maybe"):
            self._file.write(data)
            self._file.flush()


@contextmanager
def _stream_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for a stream. If the user cancels, the file keeps what was received.

    Raises:
        UsageError: It cannot be written.
    """
    with writing(path, "maybe"):
        file = AtomicFile(path)
    try:
        yield file.file
    except (asyncio.CancelledError, KeyboardInterrupt):
        file.commit()
        raise
    except BaseException:
        file.discard()
        raise
    with writing(path, "maybe"):
        file.commit()


def _share_one_target() -> bool:
    """Whether stdout and stderr may be shown at the same place."""
    if sys.stderr.isatty():
        return True
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # replaced by something that is not a file
        return False


# Progress and explanations


def progress_printer() -> Callable[[Any], None] | None:
    """Return a function that prints a tool's progress on stderr; None if that is not a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(value: Any) -> None:
        if not isinstance(value, str):
            value = json_text(value)
        shown = one_line(value.replace("\n", " "), 2_000)
        typer.echo(f"... {shown}", err=True)

    return show


def held_printer(*, as_json: bool) -> Callable[[HeldCall], None]:
    """Return a function that prints on stderr what a call waits for, and when that has ended."""
    tools: dict[str, str] = {}  # what goes on is known by its id alone

    def show(held: HeldCall) -> None:
        tools.setdefault(held.id, held.tool)
        held = replace(held, tool=held.tool or tools[held.id])
        text = json_text({"held": asdict(held)}) if as_json else held_text(held)
        typer.echo(text, err=True)

    return show


def held_text(held: HeldCall) -> str:
    """Return what a call waits for, or how that has ended, in one line."""
    tool = one_line(held.tool, SHOWN_CHARS) or "a tool that is called meanwhile"
    if not held.is_open:
        changed = " with other arguments" if held.changed else ""
        return f"{one_line(held.outcome, SHOWN_CHARS)}{changed}: {tool}"
    hold_id = one_line(held.id, SHOWN_CHARS)
    verb = "answer" if held.kind == "answer" else "approve"
    if held.may_settle and verb == "answer":
        return f"waiting for an answer to {tool}: toolbus approvals answer {hold_id}"
    if held.may_settle:
        return f"waiting for a person to approve {tool}: toolbus approvals approve {hold_id}"
    which = f"{tool} (approval {hold_id})" if hold_id else tool
    if held.nobody:
        return f"nobody who is in the room now may {verb} {which}"
    return f"waiting for somebody else to {verb} {which}"


def show_explanation(explained: CallExplanation, *, as_json: bool) -> None:
    """Print which host would run the call.

    Raises:
        RoomException: The error that the call would end with; nothing was run.
    """
    if as_json:
        assessment = explained.assessment
        facts = asdict(replace(explained, assessment=None))
        typer.echo(
            json_text(
                facts
                | {
                    "asks": explained.asks,
                    "assessment": assessment and assessment_to_plain(assessment),
                }
            )
        )
    if not explained.would_run:
        raise explained.error()
    host = explained.host
    if as_json or host is None:
        return
    text = f"would run at {one_line(host.full_name)} ({one_line(host.id)})"
    if explained.node:
        text += f" on node {one_line(explained.node)}"
    text += f", one of {explained.hosts} hosts" if explained.hosts > 1 else ", the only host"
    if explained.affinity:
        text += ", and later calls of the same affinity go to it too"
    typer.echo(text)
    typer.echo(f"  generation {explained.generation}, digest {one_line(explained.digest)}")
    if explained.asks and (explained.assessment is None or not explained.assessment.asks):
        typer.echo(f"  a person would be asked first: {explained.asks}")
    if explained.assessment is not None:
        for line in _assessment_lines(explained.assessment):
            typer.echo(f"  {line}")


_BEHAVIORS = {
    "allow": "the tool itself allows it",
    "ask": "the tool wants a person to be asked",
    "deny": "the tool itself denies it",
}


def show_assessment(assessment: Assessment, *, as_json: bool) -> None:
    """Print what a tool says about one input."""
    if as_json:
        typer.echo(json_text(assessment_to_plain(assessment)))
        return
    for line in _assessment_lines(assessment):
        typer.echo(line)


def _assessment_lines(assessment: Assessment) -> Iterator[str]:
    """Yield what a tool says, as lines for a person; all texts in them may be of somebody else."""
    effect = "changes nothing" if assessment.read_only else "may change something"
    if assessment.within_workdir:
        effect += ", all of it within a working directory"
    yield f"with these arguments the call {effect}"
    if assessment.behavior in _BEHAVIORS:
        always = ", whatever rules allow" if assessment.immune else ""
        yield f"{_BEHAVIORS[assessment.behavior]}{always}"
    if assessment.message:
        yield f"it says: {one_line(assessment.message)}"
    if assessment.reaches:
        yield f"it passes the call on to {one_line(assessment.reaches)}"
    yield from _host_lines(assessment)
    for rule in assessment.suggestions:
        yield f"it suggests the rule: {one_line(str(rule))}"
    if assessment.source == "manifest":
        yield "its host cannot be asked: these are the flags of the tool"
    for line in printable(assessment.preview).splitlines():
        yield f"| {line}"


def _host_lines(assessment: Assessment) -> Iterator[str]:
    """Yield what the host itself would do about a call."""
    if assessment.refusal:
        yield f"the policy of its host refuses the call: {one_line(assessment.refusal)}"
        return
    if assessment.behavior == "deny":
        yield "no policy of its host enforces that: only callers with permissions are bound by it"
    if assessment.asks:
        yield f"its host would ask a person first: {one_line(assessment.asks)}"
