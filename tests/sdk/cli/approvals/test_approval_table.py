"""The live table of `toolbus approvals`, at a terminal of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.clients.cuttable_relay import CuttableRelay
from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from support.processes.held_files import Callers, hosted_files
from support.processes.terminal_person import ALWAYS, KEYS, REASON, Person

PROGRAM = "import runpy; runpy.run_module('toolbus', run_name='__main__', alter_sys=True)"
ROW, EDITOR, DONE = "files.write", "Ctrl-C: as before", "\x13"
LEAVING = "[Esc/q] back, "


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with hosted_files(tmp_path_factory.mktemp("table")) as toolbus:
        yield toolbus


@pytest.fixture
def callers(toolbus: CommandLine) -> Iterator[Callers]:
    with Callers(toolbus) as callers:
        yield callers


class Reader(Person):
    """A person who sees spaces where the cursor moves on over an empty place."""

    def _read(self, end: float) -> bool:
        is_open = super()._read(end)
        self.screen = self.screen.replace("\x1b[C", " ")
        return is_open


@contextmanager
def table(toolbus: CommandLine, *options: str, columns: int = 100) -> Iterator[Reader]:
    # Without an answer to where its cursor is, as from this terminal, the editor would warn.
    variables = toolbus.environment({"PROMPT_TOOLKIT_NO_CPR": "1"})
    typed = ("approvals", "--name", "ann", *options)
    with Reader(
        PROGRAM, *typed, variables=variables, folder=toolbus.folder, columns=columns
    ) as person:
        person.reads("0 calls waiting in room main")
        yield person


def test_person_sees_all_of_a_call_and_answers_by_keys(
    toolbus: CommandLine, callers: Callers
) -> None:
    with table(toolbus) as person:
        approved, _ = callers.held("a", "--purpose", "\x1b[2Jtidy \u202eup")
        assert "\x07" not in person.reads(ROW)  # no bell
        person.type("a")  # shows it: nobody approves what was not shown
        shown = person.reads(KEYS).replace("\r", "")
        for line in (
            "tool:\n    | files.write (of bob)\n",
            "for:\n    | ann\n",
            "words:\n    | \\x1b[2Jtidy \\u202eup\n",
            'arguments:\n    | {\n    |   "path": "a"\n    | }\n',
            "its owner says:\n    | it writes\\u202e\n",
            "    | \x1b[31m-old\\x1b[2J\x1b[0m\n    | \x1b[32m+new\\u202e\x1b[0m\n",
            "expires at:\n    | ",
        ):
            assert line in shown
        person.type("a")
        person.reads("approved: files.write (ann)")
        assert approved.ended().value == ["a", "b", 1]

        changed, _ = callers.held("b")
        person.reads(ROW)
        person.type("e")
        person.reads(EDITOR)
        person.type(f"x{DONE}")
        person.reads("this is not JSON")
        person.type(f'\x0b\x7f, "times": 7}}{DONE}')  # without the x, and without the last brace
        assert '"times": 7' in person.reads(KEYS)
        person.type("a")
        person.reads("approved: files.write (ann)")
        assert changed.ended().value == ["b", "b", 7]

        always, _ = callers.held("c")
        person.reads(ROW)
        person.type("A")
        assert 'calls that match "c*"' in person.reads(ALWAYS)
        person.type("1")
        person.reads("approved: files.write (ann)")
        assert always.ended().value == ["c", "b", 1]
        assert toolbus.run_here("call", "files.write", "path=cc", "--name", "ann").err == ""

        denied, _ = callers.held("d")
        person.reads(ROW)
        person.type("d")
        person.reads(REASON)
        person.type("not now\n")
        person.reads("denied: files.write (ann)")
        assert '"not now"' in denied.ended().err
        person.type("q")
        assert person.ended() == 0


def test_person_answers_questions_in_the_table(toolbus: CommandLine, callers: Callers) -> None:
    with table(toolbus) as person:
        chosen, _ = callers.asking("choice")
        person.reads("files.ask (answer)")
        person.type("a")  # shows it: nobody answers what was not shown
        shown = person.reads("[1-2] choose, [d]eny, [v]iew all: ").replace("\r", "")
        assert "question:\n    | How much\\x1b[2J?\n" in shown
        assert "choices:\n    | 1: red\\x1b[2J\n    | 2: blue\n" in shown
        person.type("2")
        person.reads("answered: files.ask (ann)")
        assert chosen.ended().value == ["blue"]

        typed, _ = callers.asking("number")
        person.reads("files.ask (answer)")
        person.type("\r")
        person.reads("[a]nswer, [d]eny, [v]iew all: ")
        person.type("a")
        person.reads("answer; Esc: back, text, or JSON as the schema asks: ")
        person.type("1\n")
        person.reads("the answer does not fit: ")
        person.reads("[v]iew all: ")
        person.type("a")
        person.reads("schema asks: ")
        person.type("12\n")
        person.reads("answered: files.ask (ann)")
        assert typed.ended().value == [12]

        denied, _ = callers.asking("a", "files.review")
        person.reads("files.review (answer)")
        person.type("d")
        assert '"path": "a"' in person.reads(REASON)
        person.type("not mine\n")
        person.reads("denied: files.review (ann)")
        assert '"not mine"' in denied.ended().err
        person.type("q")
        assert person.ended() == 0


def test_row_that_is_chosen_stays_so_while_others_come_and_go(
    toolbus: CommandLine, callers: Callers
) -> None:
    with table(toolbus) as person:
        ids = [callers.held(path)[1] for path in ("a", "b", "d")]
        for _ in ids:
            person.reads(ROW)
        person.type("\x1b[B")  # down
        toolbus.run_here("approvals", "deny", ids[0], "--name", "ann")
        person.reads("2")  # of "2 calls waiting"
        person.type("\r")
        shown = person.reads(KEYS)
        assert '"path": "b"' in shown
        assert LEAVING in shown
        person.type("d")
        person.reads(REASON)
        person.type("\n")
        person.reads("denied: files.write")


@pytest.mark.parametrize(
    "typed",
    [
        *([("\r", KEYS), (key, "")] for key in ("\x1b", "q", "\x04")),
        *([("d", REASON), (key, "")] for key in ("not\x1b", "not\x1b[A", "q\n", "not\x04\x04")),
        *([("A", ALWAYS), (key, "")] for key in ("\x1b", "q")),
        [("e", EDITOR), ("\x1b", "")],
        [("e", EDITOR), ("\x03", KEYS), ("q", "")],
    ],
    ids=str,
)
def test_person_goes_back_to_the_table_without_an_answer(
    toolbus: CommandLine, callers: Callers, typed: list[tuple[str, str]]
) -> None:
    with table(toolbus) as person:
        _, hold_id = callers.held("a")
        person.reads(ROW)
        for keys, prompt in typed:
            person.type(keys)
            if prompt:
                person.reads(prompt)
        person.reads("Enter open")  # the keys of the table
        assert [hold["id"] for hold in callers.lists()] == [hold_id]
        person.type("q")
        assert person.ended() == 0


@pytest.mark.parametrize("columns", [40, 100])
def test_call_that_was_settled_elsewhere_ends_its_dialog(
    toolbus: CommandLine, callers: Callers, columns: int
) -> None:
    with table(toolbus, columns=columns) as person:
        running, hold_id = callers.held("a")
        person.reads(ROW)
        person.type("\r")
        person.reads("[e]dit")
        toolbus.run_here("approvals", "deny", hold_id, "elsewhere", "--name", "ann")
        person.reads("Meanwhile: denied by ann: elsewhere")  # in the dialog
        person.reads("files.write, meanwhile: denied by ann:")  # in the table
        assert running.ended().code == 3
        person.type("q")
        assert person.ended() == 0


class Gate(CuttableRelay):
    """A relay that accepts connections again only where it is told so."""

    is_open = True

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_open:
            await super().join(reader, writer)
        else:
            writer.transport.abort()

    def close(self) -> None:
        self.is_open = False
        self.cut()


@contextmanager
def relayed(toolbus: CommandLine) -> Iterator[tuple[CommandLine, Gate, AbstractEventLoop]]:
    """Relay to the server on the loop of a thread."""
    gate = Gate(toolbus.variables["TOOLBUS_URL"])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)

    async def end(listener: asyncio.Server) -> None:
        listener.close()
        await gate.end()
        await asyncio.sleep(0)  # what was aborted closes in the next round of the loop

    thread.start()
    try:
        starting = asyncio.start_server(gate.join, "127.0.0.1", 0)
        listener = asyncio.run_coroutine_threadsafe(starting, loop).result(PATIENCE_S)
        port = listener.sockets[0].getsockname()[1]
        yield toolbus.at(f"ws://127.0.0.1:{port}"), gate, loop
        asyncio.run_coroutine_threadsafe(end(listener), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def test_lost_connection_loses_no_call_and_no_answer(
    toolbus: CommandLine, callers: Callers
) -> None:
    with relayed(toolbus) as (there, gate, loop), table(there) as person:
        callers.held("a")
        person.reads(ROW)
        loop.call_soon_threadsafe(gate.close)
        person.reads("connection lost: ")
        assert person.reads("lost the connection").endswith("33m")  # the log has its own line
        shown, _ = callers.held("b")  # no event of it reaches the table
        gate.is_open = True
        person.reads(ROW)
        person.type("\x1b[B\r")
        assert '"path": "b"' in person.reads(KEYS)
        loop.call_soon_threadsafe(gate.close)
        person.type("a")
        person.reads("connection lost: ")
        gate.is_open = True
        person.reads("approved: files.write")
        assert shown.ended().value == ["b", "b", 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_table_and_an_open_dialog(
    toolbus: CommandLine, callers: Callers, number: signal.Signals
) -> None:
    with table(toolbus) as person:
        _, hold_id = callers.held("a")
        person.reads(ROW)
        person.type("\r")
        person.reads(KEYS)
        os.kill(person.pid, number)
        assert person.ended() == 0
        assert [hold["id"] for hold in callers.lists()] == [hold_id]


def test_bell_and_title_only_where_asked(toolbus: CommandLine, callers: Callers) -> None:
    with table(toolbus, "--bell") as person:
        callers.held("a")
        person.reads("\x07")
        person.reads("1 approval - toolbus")
        person.type("q")
        assert person.ended() == 0


def test_table_needs_the_grant_to_approve(toolbus: CommandLine) -> None:
    token = toolbus.run_here("token", "create", "--name", "eve", "--allow", "files.*").out.strip()
    variables = toolbus.environment({"TOOLBUS_TOKEN": token})
    with Person(PROGRAM, "approvals", variables=variables, folder=toolbus.folder) as person:
        assert person.ended() == 3
        assert "permission_denied" in person.screen
        assert "--grant 'approve=*'" in person.screen
