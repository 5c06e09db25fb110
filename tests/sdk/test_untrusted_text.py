"""Text of another participant, in the output of every command that shows it."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes.command_line import CommandLine, Outcome
from support.processes.pseudo_terminal import in_terminal
from toolbus.diagnostics.exit_codes import failure_lines
from toolbus.untrusted_text import json_text, one_line, printable
from toolbus.wire.error_frames import UnknownError

HOSTILE = "\x1b[2J\x07\x7f\x9b31m\u200e\u061c\u202e\u2066\u200b\ufeff\u2028 caf\u00e9"
HOST = f"""
import asyncio
from toolbus.turns.builders import builder_infos
from toolbus import LinkChunk, RoomClient, Toolkit, ToolkitBuilder, ToolkitConfig
from toolbus import ToolContext, ToolFailed, tool

EVIL = {HOSTILE!r}

class Config(ToolkitConfig):
    __doc__ = EVIL

class Builder(ToolkitBuilder[Config]):
    async def make(self, room, model, config):
        return Toolkit(config.name)

def described(function):
    function.__doc__ = EVIL
    return tool(function)

@described
async def text() -> str:
    return EVIL

@described
async def link():
    return LinkChunk("http://a/" + EVIL, EVIL)

@described
async def value(to: str = EVIL) -> dict[str, str]:
    return {{EVIL: EVIL}}

@described
async def stream():
    yield LinkChunk(EVIL)
    yield EVIL + "\\n"
    yield {{"a": EVIL}}

@described
async def refuse(context: ToolContext) -> int:
    context.emit(EVIL)
    raise ToolFailed(EVIL, details={{EVIL: EVIL}})

@described
async def crash() -> int:
    raise ValueError(EVIL + "\\n2026-01-01 00:00:00,000 INFO toolbus: forged")

kit = Toolkit("kit", [text, link, value, stream, refuse, crash], title=EVIL, description=EVIL)

async def main():
    async with RoomClient(name="bob") as room, room.host(kit):
        await room.set_attributes(note=EVIL)
        await room.offer_builders(builder_infos([Builder("shop", Config)]))
        print("ready", flush=True)
        await room.closed()

asyncio.run(main())
"""
CLAIMS = base64.urlsafe_b64encode(json.dumps({"name": HOSTILE}).encode()).decode().rstrip("=")
TEXT_COMMANDS = [
    ["tools"],
    ["tools", "kit"],
    ["tools", "kit.value"],
    ["tools", "none", "--participant", HOSTILE],
    ["room", "participants"],
    ["builders", "bob"],
    ["lock", "kit", "--file", "other.lock", "--check"],
    ["lock", "kit", "--file", "other.lock", "--check", "--json"],
    ["stubs", "kit"],
    ["stubs", "kit", "--json"],
    ["call", "kit.refuse"],
    ["call", f"kit.{HOSTILE}"],
    ["room", "send", HOSTILE, "note"],
    ["call", "kit.text", "--out", f"{HOSTILE}.txt"],
]
JSON_COMMANDS = [
    ["tools", "--json"],
    ["tools", "kit", "--json"],
    ["room", "participants", "--json"],
    ["builders", "bob", "--json"],
    ["call", "kit.text", "--json"],
    ["call", "kit.link", "--json"],
    ["call", "kit.value"],
    ["call", "kit.refuse", "--json"],
    ["token", "inspect", f"e30.{CLAIMS}.e30"],
]


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    here = CommandLine(tmp_path_factory.mktemp("untrusted"))
    with here.serving() as (_, url):
        there = here.at(url)
        (here.folder / "hostile_host.py").write_text(HOST, encoding="utf-8")
        yield there


@pytest.fixture(scope="module")
def hosted(toolbus: CommandLine) -> Iterator[CommandLine]:
    with toolbus.running("hostile_host.py") as host:
        assert host.line() == "ready\n"
        assert toolbus.run_here("lock", "kit", "--file", "kit.lock").code == 0
        lock = (toolbus.folder / "kit.lock").read_text(encoding="utf-8")
        assert "\\u202e" in lock
        different = re.sub(r'"digest": "\w+', f'"digest": "{"0" * 64}', lock.replace("caf", "CAF"))
        (toolbus.folder / "other.lock").write_text(different, encoding="utf-8")
        yield toolbus
        logged = host.end().err
    lines = logged.splitlines()
    assert not raw(logged)
    assert [line for line in lines if "forged" in line and not line.startswith(" ")] == []


def raw(shown: str) -> set[str]:
    """Return the characters that a terminal would interpret or not show."""
    return {each for each in shown if not each.isprintable() and each not in "\n\t"}


def shown_by(outcome: Outcome) -> str:
    assert not raw(outcome.out + outcome.err)
    return outcome.out + outcome.err


@pytest.mark.parametrize("arguments", TEXT_COMMANDS, ids=" ".join)
def test_text_output_is_escaped(hosted: CommandLine, arguments: list[str]) -> None:
    shown = shown_by(hosted.run_here(*arguments))
    assert "\\u202e" in shown


@pytest.mark.parametrize("arguments", JSON_COMMANDS, ids=" ".join)
def test_json_output_is_escaped_and_keeps_its_value(
    hosted: CommandLine, arguments: list[str]
) -> None:
    outcome = hosted.run_here(*arguments)
    shown_by(outcome)
    assert HOSTILE in "".join(strings(json.loads(outcome.out or outcome.err)))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def test_text_of_a_result_reaches_a_pipe_unchanged(hosted: CommandLine) -> None:
    assert hosted.run_here("call", "kit.text").out == f"{HOSTILE}\n"
    assert hosted.run_here("call", "kit.link").out == f"http://a/{HOSTILE}\n"


def test_messages_are_escaped(hosted: CommandLine) -> None:
    with hosted.start("room", "listen", "--name", "liz") as text:
        with hosted.start("room", "listen", "--name", "max", "--json") as as_json:
            for each in (text, as_json):
                assert each.process.stderr is not None
                assert each.process.stderr.readline()
            body = json.dumps({"text": HOSTILE})
            assert hosted.run_here("room", "send", "--all", "note", body).code == 0
            assert "\\u202e" in text.line()
            line = as_json.line()
            assert not raw(line)
            assert json.loads(line)["body"] == {"text": HOSTILE}
            for each in (text, as_json):
                assert not raw(each.end(signal.SIGINT).out)


@pytest.mark.parametrize("tool", ["text", "link", "value", "stream", "refuse", "crash"])
def test_terminal_gets_no_raw_character(hosted: CommandLine, tool: str) -> None:
    with in_terminal(hosted, "call", f"kit.{tool}") as terminal:
        terminal.wait_for(r"\\u202e" if tool != "crash" else "next: ")
        assert terminal.process.wait(60) == (1 if tool in {"refuse", "crash"} else 0)
        assert not raw(terminal.drawn) - {"\r"}


def test_code_and_message_of_an_error_are_escaped_and_cut() -> None:
    error = UnknownError(HOSTILE * 10, f"a\n{HOSTILE}" * 10_000)
    lines = "\n".join(failure_lines(error)).split("\n")
    assert not raw("\n".join(lines))
    assert sum(map(len, lines)) < 20_000
    assert all(line.startswith("  ") for line in lines[1:])


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("\x1b[2J\r\x9b", "\\x1b[2J\\r\\x9b"),
        ("a\u202eb\U000e0001", "a\\u202eb\\U000e0001"),
        ("lone \ud800", "lone \\ud800"),
        ("Wetter für Øslo 天気 🌧", "Wetter für Øslo 天気 🌧"),
    ],
)
def test_only_characters_that_are_not_printable_are_escaped(text: str, visible: str) -> None:
    assert printable(text) == one_line(text) == visible
    assert printable("\n\t") == "\n\t"
    assert one_line("\n\t") == "\\n\\t"
    for shown in (printable(text, 5), one_line(text * 1_000, 5)):
        assert len(shown) == 5
        assert shown.endswith("…")
    assert json.loads(json_text({"a": [text]}, indent=2)) == {"a": [text]}
