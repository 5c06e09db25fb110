"""`toolbus call --input`, and the output of a stream that fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from toolbus import JsonChunk, ToolFailed
from toolbus.chunks.chunk_types import Chunk
from toolbus.cli.arguments import json_lines
from toolbus.cli.commands.tools import _properties
from toolbus.cli.output import StreamOutput, ValueOutput
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.wire import ToolManifest

SUMS = """
from collections.abc import AsyncIterator
from toolbus import FileChunk, InputStream, Toolkit, tool

@tool
async def total(numbers: InputStream[int]) -> int:
    return sum([each async for each in numbers])

@tool
async def doubled(numbers: InputStream[int]) -> AsyncIterator[int]:
    async for each in numbers:
        yield 2 * each

@tool
async def nothing(numbers: InputStream[int]) -> None:
    async for _ in numbers:
        pass

@tool
async def file(numbers: InputStream[int]) -> FileChunk:
    return FileChunk(b"x" * 300_000)

sums = Toolkit("sums", [total, doubled, nothing, file])
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "sum_tools.py").write_text(SUMS, encoding="utf-8")
    (folder / "numbers").write_text("1\n\n2\n3", encoding="utf-8")
    (folder / "wrong").write_text("1\ntwo\n", encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("sum_tools:sums"):
            yield there


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["sums.total"], "6\n"),
        (["sums.total", "--stream"], "6\n"),
        (["sums.doubled"], "2\n4\n6\n"),
        (["sums.nothing"], "null\n"),
    ],
)
def test_lines_of_a_file_are_the_input_of_the_tool(
    toolbus: CommandLine, arguments: list[str], printed: str
) -> None:
    """INPUT-1."""
    outcome = toolbus.run("call", *arguments, "--input", "numbers")
    assert (outcome.code, outcome.out, outcome.err) == (0, printed, "")


def test_file_result_of_a_tool_with_input_is_complete(toolbus: CommandLine) -> None:
    outcome = toolbus.run("call", "sums.file", "--input", "numbers", "--out", "x.bin")
    assert outcome.code == 0, outcome.err
    assert (toolbus.folder / "x.bin").stat().st_size == 300_000


def test_lines_of_stdin_are_sent_at_once(toolbus: CommandLine) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "toolbus", "call", "sums.doubled", "--input", "-"],
        cwd=toolbus.folder,
        env=toolbus.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in (1, 2, 3):
            print(number, file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{2 * number}\n"
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_endless_stdin_does_not_keep_the_command_running(toolbus: CommandLine) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "toolbus", "call", "sums.total", "--input", "-"],
        cwd=toolbus.folder,
        env=toolbus.environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        print("two", file=process.stdin, flush=True)
        assert process.wait(PATIENCE_S) == 2
        assert "line 1 of stdin is not JSON" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "text", "executed"),
    [
        (["--input", "wrong"], "next: write each line as JSON, a text in quotes", "maybe"),
        (["--input", "none"], "cannot read none: No such file", "no"),
        (["--attach", "none"], "cannot read none: No such file", "no"),
        (["--input", "numbers", "--attach", "numbers"], "input or an attachment, not both", "no"),
        ([], "sums.total` shows its parameters", "no"),
    ],
)
def test_invalid_input_is_a_usage_error(
    toolbus: CommandLine, arguments: list[str], text: str, executed: str
) -> None:
    outcome = toolbus.run("call", "sums.total", *arguments)
    assert outcome.code == 2
    assert text in outcome.err
    assert f"(executed: {executed})" in outcome.err
    assert "Traceback" not in outcome.err


def test_byte_order_mark_is_left_out_and_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"\xef\xbb\xbf1\n" + b"2" * (1024 * 1024 + 65_536))
    lines = json_lines(path)
    assert next(lines) == 1
    with pytest.raises(UsageError, match=r"a line of .* is longer than 1048576 bytes") as raised:
        next(lines)
    assert raised.value.executed == "maybe"


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        (
            {"takes": "attachment", "takes_required": True},
            ["requires an attachment (--attach FILE)"],
        ),
        ({"takes": "attachment"}, ["accepts an attachment (--attach FILE)"]),
        ({"takes": "input", "takes_required": True}, ["requires an input (--input FILE)"]),
        ({"takes": "thoughts", "takes_required": True}, []),
        ({"supports_context": True}, ["reads the caller's context (--caller-context)"]),
        ({"idempotent": True, "destructive": True}, ["idempotent", "destructive"]),
        ({"approval": True}, ["a person should approve each call"]),
    ],
)
def test_tools_shows_what_a_caller_must_know_about_a_tool(
    fields: dict[str, object], texts: list[str]
) -> None:
    tool = ToolManifest.model_validate({"name": "t", "input_schema": {}, **fields})
    assert [*_properties(tool)] == texts


# Streams that fail


async def chunks_that_end(end: BaseException | None, *chunks: Chunk) -> AsyncIterator[Chunk]:
    for each in chunks:
        yield each
    if end is not None:
        raise end


def output(path: Path | None = None) -> StreamOutput:
    return StreamOutput(ValueOutput(as_json=False, path=path))


async def test_failed_stream_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "all"
    place.write_text("before")
    place.chmod(0o640)
    failing = chunks_that_end(ToolFailed("disk"), JsonChunk(1))
    with pytest.raises(ToolFailed):
        await output(place).write_all(failing)
    assert place.read_text() == "before"
    assert os.listdir(tmp_path) == ["all"]
    await output(place).write_all(chunks_that_end(None, JsonChunk(1)))
    assert place.read_text() == "1\n"
    assert place.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["all"]


async def test_cancelled_stream_keeps_what_was_received(tmp_path: Path) -> None:
    given_up = chunks_that_end(asyncio.CancelledError(), JsonChunk(1))
    with pytest.raises(asyncio.CancelledError):
        await output(tmp_path / "all").write_all(given_up)
    assert (tmp_path / "all").read_text() == "1\n"
    assert os.listdir(tmp_path) == ["all"]


async def test_stream_is_written_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    await output(tmp_path / "link").write_all(chunks_that_end(None, JsonChunk(1)))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "1\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Opening it waits for the other side: on a thread that begins now.
    reading = asyncio.get_running_loop().run_in_executor(None, pipe.read_text)
    await output(pipe).write_all(chunks_that_end(None, JsonChunk(2)))
    assert await asyncio.wait_for(reading, PATIENCE_S) == "2\n"
    assert pipe.is_fifo()


async def test_unwritable_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    there = output(folder / "all")
    folder.rmdir()
    with pytest.raises(UsageError, match=f"cannot write {folder}/all: No such file"):
        await there.write_all(chunks_that_end(None))


@pytest.mark.parametrize(
    ("stderr", "received"),
    [
        (subprocess.STDOUT, (b"line 0\nerror\n", None)),
        (subprocess.PIPE, (b"line 0", b"error\n")),
    ],
)
def test_error_starts_a_new_line_after_text_on_the_same_output(
    stderr: int, received: tuple[bytes, bytes | None]
) -> None:
    program = """
import asyncio, sys
from toolbus import TextChunk, ToolFailed
from toolbus.cli.output import StreamOutput
from toolbus.cli.output import ValueOutput

async def chunks():
    yield TextChunk("line 0")
    raise ToolFailed("disk")

try:
    asyncio.run(StreamOutput(ValueOutput(as_json=False)).write_all(chunks()))
except ToolFailed:
    print("error", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=stderr,
        timeout=PATIENCE_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == received
