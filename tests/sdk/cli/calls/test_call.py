"""`toolbus call` against a server and a host in separate processes."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine, without_warnings_of_slow_work
from toolbus.chunks.chunk_types import Chunk, EmptyChunk, FileChunk, JsonChunk, LinkChunk, TextChunk
from toolbus.cli.arguments import read_arguments
from toolbus.cli.output import ValueOutput
from toolbus.errors import InvalidArguments

PACKED = Path(__file__).parents[3] / "wire_vectors/bodies/answer_of_describe.msgpack"
LAB = '''
import asyncio
from toolbus import (
    FileChunk, JsonChunk, MixedChunk, TextChunk, ToolContext, ToolFailed, Toolkit, tool
)

@tool
def echo(count: int = 0, ratio: float = 0.5, loud: bool = False, words: str = "",
         several: list[int] | None = None, either: int | str = 0) -> dict:
    return {"count": count, "ratio": ratio, "loud": loud, "words": words,
            "several": several, "either": either}

@tool
def text() -> str:
    return "grüß\\tdich"

@tool
def nothing() -> None:
    pass

@tool
def file() -> FileChunk:
    return FileChunk(bytes(range(256)), "all.bin")

@tool
async def size(attachment: FileChunk) -> int:
    return len(await attachment.read())

@tool
def told(context: ToolContext) -> dict:
    return dict(context.caller_context or {})

@tool
def amounts() -> dict:
    return {"wei": 10**23, "ratio": float("inf")}

@tool
def drawing(size: int = 1) -> MixedChunk:
    return MixedChunk((JsonChunk({"zoom": 3}), TextChunk("a map"), FileChunk(bytes(size), "m")))

@tool
async def drawn(attachment: FileChunk) -> MixedChunk:
    return MixedChunk((TextChunk("a map"), FileChunk(await attachment.read(), "m")))

@tool
def fail(words: str) -> None:
    raise ToolFailed(words)

@tool
async def wait(path: str) -> str:
    """Say in a named pipe that it was entered, and that it was cancelled."""
    with open(path, "w", buffering=1) as pipe:
        print("entered", file=pipe)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("cancelled", file=pipe)
            raise
    return "done"

def lab():
    mixed = [drawing, drawn]
    return Toolkit("lab", [echo, text, nothing, file, size, told, amounts, *mixed, fail, wait])
'''


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("call")
    (folder / "lab_tools.py").write_text(LAB, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("lab_tools:lab", "--name", "bob"):
            yield there


# Standard streams

FULL = "No space left on device"
MEMORY = (
    "toolbus: invalid_arguments: cannot read /proc/self/mem: Input/output error (executed: maybe)\n"
)
REFUSED = "toolbus: invalid_arguments: cannot write"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("typed", "code", "err"),
    [
        ("call lab.text 2>&- >/dev/null", 0, ""),
        ("call lab.text <&- >&- 2>&-", 0, ""),
        ("call lab.file >&-", 0, ""),
        ("call lab.text --stream >&-", 0, ""),
        ("tools >&-", 0, ""),
        ("token create --name eve --preset user >&-", 0, ""),
        ("--version >/dev/full", 2, f"toolbus: cannot write to stdout: {FULL}\n"),
        ("call lab.text >/dev/full", 2, f"{REFUSED} to stdout: {FULL} (executed: yes)\n"),
        (
            "call lab.text --stream >/dev/full",
            2,
            f"{REFUSED} to stdout: {FULL} (executed: maybe)\n",
        ),
        (
            "call lab.text --stream --out /dev/full",
            2,
            f"{REFUSED} /dev/full: {FULL} (executed: maybe)\n",
        ),
        ("call lab.size --attach /proc/self/mem", 2, MEMORY),
        ("--help", 141, ""),
        ("tools", 141, ""),
        ("call lab.text", 141, ""),
        ("call lab.text --stream", 141, ""),
    ],
)
def test_stream_or_file_that_fails_has_one_exit_code(
    toolbus: CommandLine, typed: str, code: int, err: str, unbuffered: str
) -> None:
    """Without a redirection stdout is a pipe whose reader has closed it."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -m toolbus {typed}', sys.executable],
            cwd=toolbus.folder,
            env=toolbus.environment({"PYTHONUNBUFFERED": unbuffered}),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, without_warnings_of_slow_work(done.stderr)) == (code, err)


# Results


def test_arguments_are_read_by_the_types_of_the_schema(toolbus: CommandLine) -> None:
    value = toolbus.value_here(
        "call", "lab.echo", "count=2", "ratio=2", "loud=true", "words=7", "several=[1,2]"
    )
    assert value == {
        "count": 2,
        "ratio": 2.0,
        "loud": True,
        "words": "7",
        "several": [1, 2],
        "either": 0,
    }


@pytest.mark.parametrize("typed", ['{"locale": "de"}', "@context.json"])
def test_tool_reads_the_context_of_the_flag(toolbus: CommandLine, typed: str) -> None:
    (toolbus.folder / "context.json").write_text('{"locale": "de"}', encoding="utf-8")
    outcome = toolbus.run("call", "lab.told", "--caller-context", typed)
    assert outcome.value == {"locale": "de"}


def test_text_goes_to_stdout_as_it_is(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.text")
    assert (outcome.code, outcome.out, outcome.err) == (0, "grüß\tdich\n", "")


@pytest.mark.parametrize(
    ("chunk", "as_json", "printed"),
    [
        (TextChunk("grüß\tdich"), True, '"grüß\\tdich"\n'),
        (TextChunk("two\n"), False, "two\n"),
        (EmptyChunk(), False, "null\n"),
        (JsonChunk({"a": [1]}), False, '{"a": [1]}\n'),
        (LinkChunk("https://example.org/a", "a"), False, "https://example.org/a\n"),
        (LinkChunk("https://a", "a"), True, '{"url": "https://a", "name": "a"}\n'),
        (
            FileChunk(b"\0", "a", "x/y"),
            True,
            '{"name": "a", "mime_type": "x/y", "size_bytes": 1, "base64": "AA=="}\n',
        ),
    ],
)
def test_each_chunk_type_is_printed_in_its_form(
    chunk: Chunk, as_json: bool, printed: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ValueOutput(as_json=as_json).write(chunk)
    assert capfdbinary.readouterr().out.decode() == printed


NOTE = "note: text in place of what JSON cannot carry: /wei, /ratio\n"
MAP = '{"name": "m", "mime_type": "application/octet-stream", "size_bytes": 1, "base64": "AA=="}'


def test_what_json_cannot_carry_is_noted(toolbus: CommandLine) -> None:
    printed = '{"wei": "100000000000000000000000", "ratio": "Infinity"}\n'
    for flags in ((), ("--stream",), ("--json",)):
        outcome = toolbus.run_here("call", "lab.amounts", *flags)
        assert (outcome.code, outcome.out, outcome.err) == (0, printed, NOTE)


def test_every_chunk_of_a_result_is_printed(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.drawing")
    assert (outcome.code, outcome.out) == (0, f'[{{"zoom": 3}}, "a map", {MAP}]\n')
    outcome = toolbus.run_here("call", "lab.drawn", "--attach", "/dev/null", "--json")
    assert outcome.out == f'["a map", {MAP.replace("AA==", "").replace(": 1,", ": 0,")}]\n'
    outcome = toolbus.run_here("call", "lab.drawing", "--stream", "--json")
    assert outcome.out == f'{{"zoom": 3}}\n"a map"\n{MAP}\n'
    outcome = toolbus.run_here("call", "lab.drawing", "size=3000000")
    assert (outcome.code, len(outcome.out) > 4_000_000) == (0, True)


def test_value_is_written_to_the_file_of_out(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ValueOutput(as_json=False, path=tmp_path / "all.bin").write(FileChunk(bytes(range(256))))
    assert (tmp_path / "all.bin").read_bytes() == bytes(range(256))
    assert capfdbinary.readouterr() == (b"", f"wrote 256 bytes to {tmp_path}/all.bin\n".encode())


def test_file_is_written_unchanged_into_a_pipe(toolbus: CommandLine) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolbus", "call", "lab.file"],
        cwd=toolbus.folder,
        env=toolbus.environment(),
        capture_output=True,
        check=True,
    )
    assert done.stdout == bytes(range(256))


def test_file_is_not_printed_to_a_terminal(toolbus: CommandLine) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "toolbus", "call", "lab.file"],
            cwd=toolbus.folder,
            env=toolbus.environment(),
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.returncode == 2
    assert "--out FILE" in done.stderr
    assert "(executed: yes)" in done.stderr


def test_unwritable_file_is_refused_before_the_call(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.file", "--out", "no/such/folder/x")
    assert outcome.code == 2
    assert "executed: no" in outcome.err


# Errors


def test_failed_tool_exits_with_1_and_its_message_on_stderr(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.fail", "words=no such account")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("toolbus: tool_failed: no such account (executed: yes)\n")


def test_invalid_argument_exits_with_2_and_its_path(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.echo", 'count:="two"', "--json")
    assert outcome.code == 2
    assert outcome.error["code"] == "invalid_arguments"
    assert outcome.error["executed"] == "no"
    assert outcome.error["details"]["path"] == "/count"


def test_errors_in_json_have_exactly_five_fields(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.nope", "--json")
    assert outcome.code == 4
    assert outcome.out == ""
    assert list(outcome.error) == ["code", "message", "executed", "retryable", "details"]
    assert outcome.error["code"] == "not_found"


def test_text_for_an_integer_is_refused_before_the_call(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.echo", "count=many")
    assert outcome.code == 2
    assert "count: 'many' does not match integer" in outcome.err
    assert outcome.out == ""


def test_missing_name_points_to_the_flag_and_the_variable(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.nothing", TOOLBUS_KEYS="keys.toml")
    assert outcome.code == 2
    assert (
        "needs a participant name: set TOOLBUS_NAME, --name of a command, or name=" in outcome.err
    )


def test_missing_grant_exits_with_3(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "other.*")
    outcome = toolbus.run_here("call", "lab.nothing", "--token", made.out.strip())
    assert outcome.code == 3
    assert "permission_denied" in outcome.err
    assert "next: " in outcome.err


def test_changed_definition_exits_with_3(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.nothing", "--pin", "0" * 64, "--json")
    assert outcome.code == 3
    assert outcome.error["code"] == "definition_changed"


def test_passed_deadline_exits_with_5(toolbus: CommandLine, tmp_path: Path) -> None:
    # How long a command needs to reach the tool is the machine's: what passes before that is 5 too.
    for seconds in (1, 5, 25):
        pipe = tmp_path / f"pipe{seconds}"
        os.mkfifo(pipe)
        with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as result:
            arguments = ("lab.wait", f"path={pipe}", "--timeout", str(seconds), "--json")
            outcome = toolbus.run("call", *arguments)
            assert outcome.code == 5
            toolbus.value_here("call", "lab.nothing")  # the host has read what came before
            if result.read(1):
                os.set_blocking(result.fileno(), True)
                assert result.read() == "ntered\ncancelled\n"
                assert outcome.error["executed"] == "maybe"
                return
    pytest.fail("no call reached the tool")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 5), (signal.SIGTERM, 143)])
def test_signal_cancels_the_tool_and_reports_the_call(
    toolbus: CommandLine, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with toolbus.start("call", "lab.wait", f"path={pipe}", "--json") as running:
        with pipe.open() as result:
            assert result.readline() == "entered\n"
            running.process.send_signal(number)
            assert result.readline() == "cancelled\n"
        outcome = running.ended()
    assert (outcome.code, outcome.error["code"]) == (code, "cancelled")
    assert outcome.error["executed"] == "maybe"


def test_connecting_counts_towards_the_timeout(toolbus: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        outcome = toolbus.run_here("call", "lab.nothing", "--url", url, "--timeout", "1")
    assert outcome.code == 5
    assert f"the deadline passed before {url} accepted the connection" in outcome.err


@pytest.mark.parametrize("command", [("call", "lab.nothing"), ("host", "clock", "--no-wait")])
def test_missing_server_exits_with_6(toolbus: CommandLine, command: tuple[str, ...]) -> None:
    outcome = toolbus.run_here(*command, "--url", "ws://127.0.0.1:1")
    assert outcome.code == 6
    assert "toolbus doctor" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "write toolkit.tool"),
        (["nothing", "a=b"], "write toolkit.tool"),
        (["shop", "find"], "'shop' is not a tool name: did you mean shop.find?"),
        (["shop", "find", "a=b"], "did you mean shop.find?"),
        (["lab.nothing", "--url", "http://x"], "'http://x' is not a server address"),
        (
            ["lab.nothing", "--url", "ws://x:99999"],
            "address (a port is a number from 1 to 65535): ",
        ),
        (["lab.nothing", "--url", "ws://[::1"], "is not a server address"),
        (
            ["lab.nothing", "--url", "ws://x:7717/foo"],
            "address (nothing may follow the port): write",
        ),
        (["lab.nothing", "--url", "ws://no such host"], "is not a server address: write ws://"),
        (
            ["lab.nothing", "--url", "ws://0.0.0.0:7717"],
            "no token: the development key is only for a server on this machine: use "
            "ws://127.0.0.1:7717, or set TOOLBUS_TOKEN",
        ),
        (["lab.nothing", "--url", "ws://me:secret@x"], "this is not a server address"),
        (
            ["lab.nothing", "--token", "@nowhere"],
            "cannot read the token (--token): nowhere: No such file or directory",
        ),
        (["lab.nothing", "--token", "not a token"], "the token is neither a signed token nor the"),
        (
            ["lab.nothing", "--token", os.devnull],
            "the token (--token) is not in the form of a signed token: create one with `toolbus",
        ),
        (["lab.nothing", "--caller-context", ""], "--caller-context is not JSON"),
        (["lab.nothing", "--caller-context", "[1]"], "--caller-context must be one JSON object"),
        (["lab.nothing", "--caller-context", "@nowhere"], "cannot read nowhere: No such file"),
        (["lab.nothing", "--caller-context", f"@{PACKED}"], "is not text in UTF-8"),
        (["lab.nothing", "--caller-context", "@/dev/zero"], "/dev/zero is larger than 1,048,576 "),
        (["lab.nothing", "--timeout", "0"], "--timeout"),
        (
            ["lab.nothing", "--wait-for-host", "-1"],
            "--wait-for-host must be a number of seconds, 0",
        ),
        (["lab.nothing", "--timeout", "inf"], "--timeout must be a number of seconds above 0 and"),
        (["lab.nothing", "--url", f"ws://{'a' * 64}:1"], "is not a server address"),
        (["n" * 100_000], "nn' is not a tool name"),
        (["lab.nothing", *[f"{'n' * 100_000}:=1"] * 2], "nn is given twice"),
        (["lab.nothing", f"{'n' * 100_000}:=x"], "nn:= is not JSON"),
    ],
)
def test_usage_errors_exit_with_2_and_a_message(
    toolbus: CommandLine, arguments: list[str], message: str
) -> None:
    outcome = toolbus.run_here("call", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err) < 1_000
    assert outcome.out == ""


# Reading arguments

SCHEMA: dict[str, object] = {
    "properties": {
        "count": {"type": "integer"},
        "top": {"type": "integer", "default": 7},
        "ratio": {"type": "number"},
        "loud": {"type": "boolean"},
        "words": {"type": "string"},
        "several": {"type": "array", "items": {"type": "string"}},
        "shape": {"$ref": "#/$defs/Shape"},
        "level": {"enum": [1, 2]},
        "mode": {"enum": ["1", "2"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": {},
        "pair": {"type": "integer", "minimum": 2},
        "names": {"type": "array", "maxItems": 3, "items": {"type": ["string", "null"]}},
    },
    "$defs": {"Shape": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}},
}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("count=-3", -3),
        ("ratio=1e3", 1000.0),
        ("ratio=2", 2),
        ("loud=false", False),
        ("words=2", "2"),
        ("words=", ""),
        ("words=a=b", "a=b"),
        ('several=["a"]', ["a"]),
        ('shape={"x":1}', {"x": 1}),
        ("level=2", 2),
        ("mode=2", "2"),
        ("either=2", 2),
        ("either=two", "two"),
        ("maybe=null", "null"),
        ("limit=null", None),
        ("any=[1]", [1]),
        ("any=a b", "a b"),
        ("unknown=7", 7),
        ("words:=null", None),
    ],
)
def test_typed_argument_is_parsed_by_its_schema(typed: str, value: object) -> None:
    name = typed.partition("=")[0].rstrip(":")
    read = read_arguments((typed,), SCHEMA)[name]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ("count=1.5",),
            "count: '1.5' does not match integer: write a whole number, for example count=3",
        ),
        (("count=1_000",), "count: '1_000' does not match integer"),
        (
            ("loud=yes",),
            "loud: 'yes' does not match boolean: write true or false, for example loud=true",
        ),
        (
            ("several=a",),
            """match array of string: write a JSON array, for example several='["a", "b"]'""",
        ),
        (
            ("shape=a",),
            """write shape.key=..., or the whole object: shape:='{"key": ...}'""",
        ),
        (("ratio=NaN",), "ratio: 'NaN' does not match number"),
        (
            ("ratio=abc",),
            "ratio: 'abc' does not match number: write a number, for example ratio=0.5",
        ),
        (("top=many",), "for example top=7"),
        (
            ("level=high",),
            "level: 'high' does not match 1 | 2: write a whole number, for example level=1",
        ),
        (("limit=none",), "write a whole number or null, for example limit=3"),
        (("words:=x",), "the value of words:= is not JSON"),
        (("count=1", "count=2"), "count is given twice"),
        (("count",), "'count' is not an argument"),
        (("{broken",), "not a JSON object"),
        (('{"count":1}', "ratio=1"), "a JSON object cannot be combined with other arguments"),
        (("ratio=1", "{}"), "a JSON object cannot be combined with other arguments"),
        (("true",), "a switch such as --no-retry takes no value"),
        (
            ("pair=one",),
            "pair: 'one' does not match integer >= 2: write a whole number, for example pair=2",
        ),
        (("names=a",), """for example names='["a", "b"]'"""),
    ],
)
def test_invalid_argument_is_named(typed: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArguments, match=re.escape(message)):
        read_arguments(typed, SCHEMA)


def test_single_json_object_is_sent_unchanged() -> None:
    assert read_arguments(('{"count": "2"}',), SCHEMA) == {"count": "2"}


def test_recursive_schema_terminates() -> None:
    schema = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert read_arguments(("a=1",), schema) == {"a": 1}
