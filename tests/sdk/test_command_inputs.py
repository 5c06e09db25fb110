"""`toolbus call --input`, and what becomes of a stream's values where it fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.command_line import PATIENCE_S, CommandLine
from toolbus import JsonChunk, ToolFailed
from toolbus.chunks import Chunk
from toolbus.commands.json_lines import json_lines
from toolbus.commands.stream_output import StreamOutput
from toolbus.commands.tools import _behaviour
from toolbus.commands.value_output import ValueOutput
from toolbus.exit_codes import UsageMistake
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
def test_lines_of_a_file_are_what_a_tool_takes_in(
    toolbus: CommandLine, arguments: list[str], printed: str
) -> None:
    """INPUT-1."""
    outcome = toolbus.run("call", *arguments, "--input", "numbers")
    assert (outcome.code, outcome.out, outcome.err) == (0, printed, "")


def test_file_that_a_tool_gives_for_its_input_is_whole(toolbus: CommandLine) -> None:
    outcome = toolbus.run("call", "sums.file", "--input", "numbers", "--out", "x.bin")
    assert outcome.code == 0, outcome.err
    assert (toolbus.folder / "x.bin").stat().st_size == 300_000


def test_lines_of_stdin_go_as_they_come(toolbus: CommandLine) -> None:
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


def test_stdin_that_never_ends_keeps_no_command(toolbus: CommandLine) -> None:
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
        assert "line 1 of stdin is no JSON" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "wrong"], "line 2 of wrong is no JSON"),
        (["--input", "none"], "cannot read none: No such file"),
        (["--input", "numbers", "--attach", "numbers"], "input or an attachment, not both"),
        ([], "sums.total` shows what it takes"),
    ],
)
def test_input_that_cannot_be_sent_is_a_mistake_of_whoever_typed(
    toolbus: CommandLine, arguments: list[str], words: str
) -> None:
    outcome = toolbus.run("call", "sums.total", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_line_without_an_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"1\n" + b"2" * (1024 * 1024 + 65_536))
    lines = json_lines(path)
    assert next(lines) == 1
    with pytest.raises(UsageMistake, match=r"a line of .* has more than 1048576 bytes"):
        next(lines)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"takes": "attachment", "takes_required": True}, ["needs an attachment (--attach FILE)"]),
        ({"takes": "attachment"}, ["may take an attachment (--attach FILE)"]),
        ({"takes": "input", "takes_required": True}, ["needs an input (--input FILE)"]),
        ({"takes": "thoughts", "takes_required": True}, []),
    ],
)
def test_list_of_tools_says_what_one_takes(fields: dict[str, object], words: list[str]) -> None:
    tool = ToolManifest.model_validate({"name": "t", "input_schema": {}, **fields})
    assert [*_behaviour(tool)] == words


# Streams that fail


async def chunks_that_end(end: BaseException | None, *chunks: Chunk) -> AsyncIterator[Chunk]:
    for each in chunks:
        yield each
    if end is not None:
        raise end


def output(path: Path | None = None) -> StreamOutput:
    return StreamOutput(ValueOutput(as_json=False, path=path))


async def test_stream_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
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


async def test_stream_that_is_given_up_leaves_what_came(tmp_path: Path) -> None:
    given_up = chunks_that_end(asyncio.CancelledError(), JsonChunk(1))
    with pytest.raises(asyncio.CancelledError):
        await output(tmp_path / "all").write_all(given_up)
    assert (tmp_path / "all").read_text() == "1\n"
    assert os.listdir(tmp_path) == ["all"]


async def test_stream_goes_through_a_link_and_into_what_is_no_plain_file(tmp_path: Path) -> None:
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


async def test_file_that_may_not_be_written_is_told_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    there = output(folder / "all")
    folder.rmdir()
    with pytest.raises(UsageMistake, match=f"cannot write {folder}/all: No such file"):
        await there.write_all(chunks_that_end(None))


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        (subprocess.STDOUT, (b"line 0\nerror\n", None)),
        (subprocess.PIPE, (b"line 0", b"error\n")),
    ],
)
def test_error_is_kept_off_the_text_before_it_where_both_go_to_one_place(
    stderr: int, told: tuple[bytes, bytes | None]
) -> None:
    program = """
import asyncio, sys
from toolbus import TextChunk, ToolFailed
from toolbus.commands.stream_output import StreamOutput
from toolbus.commands.value_output import ValueOutput

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
    assert (done.stdout, done.stderr) == told
