"""`toolbus call` against a server and a host that are processes of their own."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine
from toolbus.chunks import Chunk, EmptyChunk, FileChunk, JsonChunk, LinkChunk, TextChunk
from toolbus.commands.call import read_arguments
from toolbus.commands.parameters import read_parameters
from toolbus.commands.value_output import ValueOutput
from toolbus.errors import ERRORS, RoomException, TooLarge
from toolbus.exit_codes import UsageMistake, exit_code, printable

LAB = '''
import asyncio
from toolbus import FileChunk, ToolFailed, Toolkit, tool

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
    return Toolkit("lab", [echo, text, nothing, file, fail, wait])
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


# Values


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
def test_every_chunk_has_one_way_to_be_printed(
    chunk: Chunk, as_json: bool, printed: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ValueOutput(as_json=as_json).write(chunk)
    assert capfdbinary.readouterr().out.decode() == printed


def test_value_is_written_where_out_says(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ValueOutput(as_json=False, path=tmp_path / "all.bin").write(FileChunk(bytes(range(256))))
    assert (tmp_path / "all.bin").read_bytes() == bytes(range(256))
    assert capfdbinary.readouterr() == (b"", f"wrote 256 bytes to {tmp_path}/all.bin\n".encode())


def test_file_goes_raw_into_a_pipe(toolbus: CommandLine) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolbus", "call", "lab.file"],
        cwd=toolbus.folder,
        env=toolbus.environment(),
        capture_output=True,
        check=True,
    )
    assert done.stdout == bytes(range(256))


def test_file_is_kept_off_a_terminal(toolbus: CommandLine) -> None:
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


def test_unwritable_place_is_refused_before_the_call(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.file", "--out", "no/such/folder/x")
    assert outcome.code == 2
    assert "executed: no" in outcome.err


# Errors


def test_failed_tool_ends_with_1_and_its_words_on_stderr(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.fail", "words=no such account")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("toolbus: tool_failed: no such account (executed: yes)\n")


def test_bad_argument_ends_with_2_and_names_its_place(toolbus: CommandLine) -> None:
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


def test_text_that_is_no_integer_is_refused_before_the_call(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.echo", "count=many")
    assert outcome.code == 2
    assert "count: 'many' is not integer" in outcome.err
    assert outcome.out == ""


def test_keys_without_a_name_lead_to_the_flag_and_the_variable(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.nothing", TOOLBUS_KEYS="keys.toml")
    assert outcome.code == 2
    assert "say for whom: set TOOLBUS_NAME, --name of a command, or name=" in outcome.err


def test_missing_grant_ends_with_3(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "other.*")
    outcome = toolbus.run_here("call", "lab.nothing", "--token", made.out.strip())
    assert outcome.code == 3
    assert "permission_denied" in outcome.err
    assert "next: " in outcome.err


def test_changed_definition_ends_with_3(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.nothing", "--pin", "0" * 64, "--json")
    assert outcome.code == 3
    assert outcome.error["code"] == "definition_changed"


def test_passed_deadline_ends_with_5(toolbus: CommandLine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with toolbus.start("call", "lab.wait", f"path={pipe}", "--timeout", "1", "--json") as running:
        assert pipe.read_text() == "entered\ncancelled\n"
        outcome = running.ended()
    assert outcome.code == 5
    assert outcome.error["executed"] == "maybe"


def test_ctrl_c_cancels_the_tool_and_ends_with_5(toolbus: CommandLine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with toolbus.start("call", "lab.wait", f"path={pipe}", "--json") as running:
        with pipe.open() as said:
            assert said.readline() == "entered\n"
            running.process.send_signal(signal.SIGINT)
            assert said.readline() == "cancelled\n"
        outcome = running.ended()
    assert (outcome.code, outcome.error["code"]) == (5, "cancelled")


def test_no_server_ends_with_6(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "lab.nothing", "--url", "ws://127.0.0.1:1")
    assert outcome.code == 6
    assert "toolbus doctor" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "write toolkit.tool"),
        (["nothing", "a=b"], "write toolkit.tool"),
        (["shop", "find"], "'shop' names no tool: did you mean shop.find?"),
        (["shop", "find", "a=b"], "did you mean shop.find?"),
        (["lab.nothing", "--url", "http://x"], "'http://x' is no server address"),
        (["lab.nothing", "--url", "ws://x:99999"], "is no server address"),
        (["lab.nothing", "--url", "ws://[::1"], "is no server address"),
        (["lab.nothing", "--url", "ws://x?a=b"], "is no server address"),
        (["lab.nothing", "--url", "ws://me:secret@x"], "this is no server address"),
        (
            ["lab.nothing", "--token", "@nowhere"],
            "cannot read the token (--token): nowhere: No such file or directory",
        ),
        (["lab.nothing", "--token", "not a token"], "this is no token"),
        (["lab.nothing", "--token", __file__], f"is a file: write --token @{__file__}"),
        (["lab.nothing", "--timeout", "0"], "--timeout"),
    ],
)
def test_mistakes_end_with_2_and_words(
    toolbus: CommandLine, arguments: list[str], words: str
) -> None:
    outcome = toolbus.run_here("call", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.out == ""


# Reading arguments

SCHEMA = read_parameters(
    {
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
)


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
def test_typed_argument_becomes_the_value_its_schema_wants(typed: str, value: object) -> None:
    name = typed.partition("=")[0].rstrip(":")
    read = read_arguments((typed,), SCHEMA)[name]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("count=1.5",), "count: '1.5' is not integer: write a whole number, as in count=3"),
        (("count=1_000",), "count: '1_000' is not integer"),
        (("loud=yes",), "loud: 'yes' is not boolean: write true or false, as in loud=true"),
        (
            ("several=a",),
            """is not array of string: write a JSON array, as in several='["a", "b"]'""",
        ),
        (("shape=a",), """write a JSON object, as in shape='{"key": 1}'"""),
        (("ratio=NaN",), "ratio: 'NaN' is not number"),
        (("ratio=abc",), "ratio: 'abc' is not number: write a number, as in ratio=0.5"),
        (("top=many",), "as in top=7"),
        (("level=high",), "level: 'high' is not 1 | 2: write a whole number, as in level=1"),
        (("limit=none",), "write a whole number or null, as in limit=3"),
        (("words:=x",), "words:= is not followed by JSON"),
        (("count=1", "count=2"), "count is given twice"),
        (("count",), "'count' is no argument"),
        (("{broken",), "no JSON object"),
        (('{"count":1}', "ratio=1"), "one JSON object alone, or name=value"),
        (("ratio=1", "{}"), "one JSON object alone, or name=value"),
        (("true",), "a switch, as --no-retry is, takes no value"),
        (("pair=one",), "pair: 'one' is not integer >= 2: write a whole number, as in pair=2"),
        (("names=a",), """as in names='["a", "b"]'"""),
    ],
)
def test_argument_that_cannot_be_read_is_named(typed: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageMistake, match=re.escape(words)):
        read_arguments(typed, SCHEMA)


def test_one_object_is_sent_as_it_is() -> None:
    assert read_arguments(('{"count": "2"}',), SCHEMA) == {"count": "2"}


def test_schema_that_refers_to_itself_is_read_to_an_end() -> None:
    schema = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert read_parameters(schema)["a"].read("1") == 1


# The table


def test_every_error_has_an_exit_code() -> None:
    codes = {code: int(exit_code(error())) for code, error in ERRORS.items()}
    assert set(codes.values()) == {1, 2, 3, 4, 5, 6}
    assert codes["not_found"] == 4
    assert codes["host_lost"] == 6


def test_too_large_is_a_mistake_of_the_caller_or_of_the_tool() -> None:
    assert exit_code(TooLarge(executed="no")) == 2
    assert exit_code(TooLarge(executed="yes")) == 1


def test_error_of_a_newer_release_ends_with_1() -> None:
    assert exit_code(RoomException()) == 1


def test_control_characters_of_strangers_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[2Jb\u202ec\n") == "a\\x1b[2Jb\\u202ec\n"
