"""`toolbus host --records` and `toolbus records`: from a call to the table."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from toolbus.records.call_record import CallRecord
from toolbus.records.records import Records

KITS = """
import time
from toolbus import Records, Toolkit, ToolContext, tool

@tool
def echo(text: str) -> str:
    return text

@tool
def hold(pipe: str) -> None:
    with open(pipe, "w") as said:
        said.write("entered")
    time.sleep(600)

kit = Toolkit("kit", [echo, hold])
own = Toolkit("own", [echo], records=Records.sqlite("own.db"))
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("calls")
    (folder / "recorded_kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        yield here.at(url)


def test_calls_of_a_host_are_listed_also_those_that_end_with_its_process(
    toolbus: CommandLine, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = toolbus.run("records")
    assert before.code == 4
    assert "there are no records of calls at" in before.err
    assert "toolbus host --records" in before.err
    with toolbus.hosting(
        "recorded_kits:kit", "--name", "bob", "--records", "--records-arguments", "--drain", "0.1"
    ) as host:
        assert toolbus.run_here("call", "kit.echo", "text=hi", "--name", "ann").code == 0
        assert toolbus.run_here("call", "kit.echo", "wrong=1", "--name", "ann").code == 2
        with toolbus.start("call", "kit.hold", f"pipe={pipe}", "--name", "eve"):
            assert pipe.read_text() == "entered"
            host.process.send_signal(signal.SIGTERM)
            assert host.ended().code == 0
    lost, refused, done = toolbus.value_here("records", "--json")
    assert (done["tool"], done["caller"], done["owner"]) == ("kit.echo", "ann", "bob")
    assert (done["outcome"], done["executed"], done["arguments"]) == ("ok", "yes", '{"text": "hi"}')
    assert len(done["digest"]) == 64
    assert (refused["outcome"], refused["decided_by"]) == ("invalid_arguments", "schema")
    assert (lost["tool"], lost["caller"], lost["executed"]) == ("kit.hold", "eve", "maybe")
    assert lost["outcome"] in {"host_lost", "unavailable"}

    table = toolbus.run_here("records", "--who", "ann", "--outcome", "ok", "--since", "1h")
    header, row = table.out.splitlines()
    assert header.split()[:6] == ["when", "tool", "who", "for", "decision", "outcome"]
    assert " ago  kit.echo  ann  -    allowed   ok       yes " in row
    assert [
        each["tool"] for each in toolbus.value_here("records", "--tool", "*.hold", "--json")
    ] == ["kit.hold"]
    assert len(toolbus.value_here("records", "--limit", "2", "--json")) == 2
    none = toolbus.run_here("records", "--who", "zoe")
    assert (none.code, none.out, none.err) == (0, "", "no recorded call matches\n")


@pytest.mark.parametrize(
    ("flags", "own", "other"),
    [((), 1, None), (("--records-file", "other.db"), 0, 1), (("--no-records",), 0, None)],
)
def test_flags_of_the_host_override_the_records_of_the_toolkit(
    toolbus: CommandLine, flags: tuple[str, ...], own: int, other: int | None
) -> None:
    for name in ("own.db", "other.db"):
        (toolbus.folder / name).unlink(missing_ok=True)
    with toolbus.hosting("recorded_kits:own", "--name", "bob", *flags) as host:
        assert toolbus.run_here("call", "own.echo", "text=hi").code == 0
        assert host.end().code == 0
    assert len(toolbus.value_here("records", "--path", "own.db", "--json")) == own
    there = toolbus.run_here("records", "--path", "other.db", "--json")
    assert (len(there.value) if there.code == 0 else None) == other


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--records-file", "none/x.db"], "none/x.db cannot be used: No such file or directory"),
        (
            ["--records-file", "recorded_kits.py"],
            "recorded_kits.py cannot be used: file is not a database",
        ),
        (["--no-records", "--records-file", "x.db"], "--no-records records nothing"),
        (["--records-arguments"], "--records-arguments is for recorded calls: add --records"),
        (["--records-days", "3"], "--records-days is for recorded calls: add --records"),
    ],
)
def test_records_that_cannot_be_kept_stop_the_host_before_it_starts(
    toolbus: CommandLine, flags: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(toolbus.folder))
    outcome = toolbus.run_here("host", "recorded_kits:kit", *flags)
    assert outcome.code == 2
    assert text in outcome.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--since", "soon"], "--since 'soon' is no time: write for example 15m, 1h, 2d"),
        (["--outcome", "fine"], "'fine' is no outcome: write ok, or the code of an error"),
        (["--tool", "a b"], "is not a tool pattern"),
    ],
)
def test_invalid_choice_exits_with_2(toolbus: CommandLine, flags: list[str], text: str) -> None:
    outcome = toolbus.run_here("records", *flags)
    assert outcome.code == 2
    assert text in outcome.err


def test_file_of_something_else_exits_with_6_and_the_next_step(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("records", "--path", "recorded_kits.py")
    assert outcome.code == 6
    assert "recorded_kits.py cannot be used: file is not a database" in outcome.err
    assert "next: name a file" in outcome.err


def test_column_of_persons_is_there_if_a_call_waited_for_one(toolbus: CommandLine) -> None:
    shown: list[tuple[dict[str, Any], str]] = [
        ({}, "-"),
        (
            {"settled": "approved", "settled_by": "ann", "granted": "allow kit.a"},
            "approved by ann after 61.2 s, and always: allow kit.a",
        ),
        (
            {"settled": "changed", "settled_by": "work/ann"},
            "approved with other arguments by work/ann after 61.2 s",
        ),
        (
            {"settled": "denied", "settled_by": "ann", "settled_reason": "no\n\x1b"},
            r"denied by ann after 61.2 s: no\n\x1b",
        ),
        ({"settled": ""}, "no answer after 61.2 s"),
    ]
    with Records.sqlite(toolbus.folder / "persons.db", days=99_999) as records:
        for settled, _ in shown:
            waited_s = 61.24 if settled else 0.0
            records.record(CallRecord("kit.a", 1, 70, "ok", "yes", waited_s=waited_s, **settled))
    header, *rows = toolbus.run_here("records", "--path", "persons.db").out.splitlines()
    assert header.split()[-2:] == ["trace", "person"]
    for row, (_, text) in zip(reversed(rows), shown, strict=True):
        assert row.endswith(f"  {text}")


def test_names_of_others_are_escaped_cut_and_completed(toolbus: CommandLine) -> None:
    evil = "\x1b[31mred\nline" + "x" * 300
    with Records.sqlite(toolbus.folder / "evil.db") as records:
        for tool, caller, at in ((f"kit.{evil}", evil, 0.0), ("kit.echo", "ann", 60.0)):
            records.record(CallRecord(tool, time.time() - at, 2.5, "ok", "yes", caller=caller))
    shown = toolbus.run_here("records", "--path", "evil.db").out
    assert "\x1b" not in shown
    assert "x" * 200 not in shown
    assert len(shown.splitlines()) == 3
    assert "2.5 s" in shown
    assert "1 min ago" in shown
    printed = toolbus.run_here("records", "--path", "evil.db", "--json").out
    assert "\x1b" not in printed
    assert json.loads(printed)[0]["caller"] == evil
    for typed, found in (
        ("records --path evil.db --tool k", ["kit.echo"]),
        ("records --path evil.db --who ", ["ann"]),
        ("records --path none.db --who ", []),
        ("records --outcome perm", ["permission_denied"]),
    ):
        pressed = {
            "_TOOLBUS_COMPLETE": "complete_bash",
            "COMP_WORDS": f"toolbus {typed}",
            "COMP_CWORD": str(typed.count(" ") + 1),
        }
        assert toolbus.run_here(**pressed).out.split() == found
