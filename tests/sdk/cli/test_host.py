"""`toolbus host` and `toolbus tools` in separate processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine
from toolbus.cli.suggestions import suggest_references
from toolbus.cli.toolkit_options import find_toolkit
from toolbus.hosting.hosted_toolkit import InvalidOffer, check_shared_with

KITS = '''
from typing import Annotated
from pydantic import Field
from toolbus import RemoteToolkit, Toolkit, tool

@tool(read_only=True, idempotent=True, timeout_s=5)
def measure(size: Annotated[int, Field(description="How many.")], unit: str = "mm") -> dict:
    """Measure \x1b[31mit."""
    return {"size": size, "unit": unit}

@tool
def slow(pipe: str, gate: str) -> str:
    """Say that it was entered, then wait for the gate."""
    with open(pipe, "w") as said:
        said.write("entered")
    with open(gate) as waiting:
        return waiting.read()

ruler = RemoteToolkit("ruler", [measure, slow], rules=["Measure twice."], description="Sizes.")
plain = Toolkit("plain", [measure])

class Kits:
    secret = Toolkit("secret", [measure])

def broken():
    return 1 / 0

def number():
    return 7

@tool
def ready() -> str:
    raise AssertionError("a tool was run to host it")

async def later() -> str:
    raise AssertionError("a function was run to host it")

def sized(size: int) -> Toolkit:
    return Toolkit("sized", [measure])

def misnamed():
    return Toolkit("Bad Name", [measure])

class Meter:
    pass
'''

COLLECTOR = """
import gc
from toolbus import Toolkit, tool

@tool
def state() -> dict:
    return {"skipped": gc.get_freeze_count(), "threshold": gc.get_threshold()[2]}

collector = Toolkit("collector", [state])
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("host")
    (folder / "kits.py").write_text(KITS, encoding="utf-8")
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    (folder / "collectors.py").write_text(COLLECTOR, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("kits:ruler", "kits:plain", "--name", "bob"):
            yield there


# Hosting


def test_sigterm_lets_running_calls_finish_and_exits_with_0(
    toolbus: CommandLine, tmp_path: Path
) -> None:
    pipe, gate = tmp_path / "pipe", tmp_path / "gate"
    os.mkfifo(pipe)
    os.mkfifo(gate)
    with (
        toolbus.hosting("kits:ruler", "--name", "eve", "--private", "--share", "*") as host,
        toolbus.start(
            "call", "ruler.slow", f"pipe={pipe}", f"gate={gate}", "--participant", "eve"
        ) as caller,
    ):
        assert pipe.read_text() == "entered"
        host.process.send_signal(signal.SIGTERM)
        assert host.process.stderr is not None
        received = host.process.stderr.readline()
        gate.write_text("done")
        called, hosted = caller.ended(), host.ended()
    assert (called.code, called.out) == (0, "done\n")
    assert (hosted.code, hosted.err) == (0, "")
    assert "stopping: waiting up to 10 s for 1 call (ruler.slow)" in received


def test_policy_file_binds_the_callers_of_a_host(toolbus: CommandLine, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('mode = "bypass"\nmoed = 1\n', encoding="utf-8")
    options = ("kits:ruler", "--name", "eve", "--private", "--share", "*", "--policy", str(rules))
    refused = toolbus.run("host", *options)
    assert (refused.code, refused.out) == (2, "")
    assert f"{rules}:2" in refused.err
    rules.write_text('mode = "bypass"\n[[rule]]\nbehavior = "deny"\n', encoding="utf-8")
    with toolbus.hosting(*options) as host:
        call = ("call", "ruler.measure", "size=1", "--participant", "eve")
        assert f"{rules}:2" in toolbus.run(*call).err
        explained = toolbus.run(*call, "--explain", "--json").value
        assert (explained["would_run"], explained["code"]) == (False, "permission_denied")
        rules.write_text('mode = "bypass"\n', encoding="utf-8")
        assert host.process.stderr is not None
        assert f"the policy was read again: {rules}" in host.process.stderr.readline()
        assert toolbus.run(*call).code == 0


def test_host_prints_nothing_before_all_its_toolkits_are_hosted(toolbus: CommandLine) -> None:
    outcome = toolbus.run("host", "kits:ruler", "kits:ruler", "--private", "--name", "eve")
    assert (outcome.code, outcome.out) == (2, "")
    assert "this connection already hosts a toolkit ruler" in outcome.err


def test_idle_host_exits_without_output(toolbus: CommandLine) -> None:
    with toolbus.hosting("kits:ruler", "--name", "eve", "--private") as host:
        hosted = host.end(signal.SIGINT)
    assert (hosted.code, hosted.err) == (0, "")


def test_host_tunes_the_garbage_collector(toolbus: CommandLine) -> None:
    with toolbus.hosting("collectors:collector", "--name", "eve", "--private"):
        state = toolbus.run("call", "collector.state", "--name", "eve").value
    assert state["skipped"] > 0
    assert state["threshold"] == 30


def test_call_longer_than_the_drain_time_is_cancelled(toolbus: CommandLine, tmp_path: Path) -> None:
    pipe, gate = tmp_path / "pipe", tmp_path / "gate"
    os.mkfifo(pipe)
    os.mkfifo(gate)
    name = ("--name", "eve", "--private", "--share", "*")
    with (
        toolbus.hosting("kits:ruler", *name, "--drain", "0.1") as host,
        toolbus.start(
            "call", "ruler.slow", f"pipe={pipe}", f"gate={gate}", "--participant", "eve"
        ) as caller,
    ):
        assert pipe.read_text() == "entered"
        host.process.send_signal(signal.SIGTERM)
        called = caller.ended()
        hosted = host.ended()  # nothing can stop a thread
    assert hosted.code == 0
    assert "exiting without 1 call (ruler.slow)" in hosted.err
    assert called.code == 6
    assert "host_lost" in called.err
    assert "(executed: maybe)" in called.err


def test_each_toolkit_is_printed_as_soon_as_it_can_be_called(toolbus: CommandLine) -> None:
    with toolbus.start("host", "kits:Kits.secret", "--private", "--name", "ann", "--json") as host:
        assert json.loads(host.line()) == {"toolkit": "secret", "room": "main", "name": "ann"}
        own = toolbus.run_here("call", "secret.measure", "size=2", "--name", "ann")
        others = toolbus.run_here("call", "secret.measure", "size=2", "--name", "zoe")
    assert own.value == {"size": 2, "unit": "mm"}
    assert others.code == 4


def test_installed_toolkit_is_found_by_its_name() -> None:
    assert find_toolkit("clock").name == "clock"


def test_name_of_another_owner_exits_with_3(toolbus: CommandLine) -> None:
    outcome = toolbus.run("host", "kits:ruler", "--name", "eve", "--json")
    assert outcome.code == 3
    assert outcome.error["code"] == "already_exists"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["kits:broken"], "ZeroDivisionError"),
        (["kits:nothing"], "no attribute 'nothing': did you mean kits:ruler or kits:plain?"),
        (
            ["kits:number"],
            "kits:number returned an object of type int, not a toolkit or a function",
        ),
        (["kits:number"], "returns one; did you mean kits:ruler or kits:plain?"),
        (["kits:Meter"], "kits:Meter returned an object of type Meter, not a toolkit"),
        (["kits:broken"], "ZeroDivisionError: division by zero (kits.py:26)"),
        (["kits:sized"], "kits:sized requires size: a factory has one parameter"),
        (["nokits:x"], "No module named 'nokits': modules are searched in the current folder ("),
        (["../kits:ruler"], "'../kits' is not the name of a module: name a module of the current"),
        (["exits:kit"], "cannot load exits:kit: SystemExit: 3 (exits.py:2)"),
        (["nobody"], "no installed toolkit is named 'nobody'"),
        (["kits:"], "write module:attribute"),
        (["kits:plain", "--share", "*"], "add --private"),
        (["kits:plain", "--drain", "1e10"], "is not a number of seconds from 0 to 2592000"),
        (["kits:plain", "--instance", "\x1b"], "'--instance'"),
        (["kits.py"], "did you mean kits:ruler or kits:plain?"),
        (["./kits.py"], "did you mean kits:ruler or kits:plain?"),
        (["kits"], "did you mean kits:ruler or kits:plain?"),
        (["kits.ruler"], "did you mean kits:ruler?"),
        (["kits.py:plain"], "did you mean kits:plain?"),
        (["kits.nothing"], "write module:attribute, or one of clock"),
        (["nokits.py"], "write module:attribute, or one of clock"),
    ],
)
def test_invalid_toolkit_exits_with_2_and_the_reason(
    toolbus: CommandLine, arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toolbus.folder)
    monkeypatch.syspath_prepend(str(toolbus.folder))
    outcome = toolbus.run_here("host", *arguments)
    assert outcome.code == 2
    assert text in outcome.err


def test_token_for_private_toolkits_points_to_the_flag(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toolbus.folder)
    monkeypatch.syspath_prepend(str(toolbus.folder))
    made = toolbus.run_here("token", "create", "--name", "eve", "--preset", "agent")
    outcome = toolbus.run_here("host", "kits:plain", "--token", made.out.strip())
    assert outcome.code == 3
    assert "no grant to register the public toolkit plain" in outcome.err
    assert "add --private" in outcome.err


@pytest.mark.parametrize("name", ["measure", "ready", "later"])
def test_tool_in_place_of_a_toolkit_is_not_run_and_points_to_one(
    toolbus: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toolbus.folder)
    monkeypatch.syspath_prepend(str(toolbus.folder))
    outcome = toolbus.run_here("host", f"kits:{name}")
    assert outcome.code == 2
    assert f"{name} is a tool, not a toolkit: write kits:NAME of a Toolkit" in outcome.err
    assert f'`tools = Toolkit("kits", [{name}])`' in outcome.err
    assert "did you mean kits:ruler or kits:plain" in outcome.err


def test_toolkit_that_cannot_be_created_is_reported_with_its_line(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toolbus.folder)
    monkeypatch.syspath_prepend(str(toolbus.folder))
    outcome = toolbus.run_here("host", "kits:misnamed")
    assert outcome.code == 2
    assert "kits:misnamed: ValueError: 'Bad Name' is not a toolkit name" in outcome.err
    assert "(kits.py:42)" in outcome.err
    assert "pydantic" not in outcome.err


PATTERNS = ["name:part/*", "name:*", "part/*", "role:*"]


@pytest.mark.parametrize("share", PATTERNS)
def test_share_with_a_pattern_is_refused_and_no_pattern_proposed(
    tmp_path: Path, share: str
) -> None:
    nowhere = CommandLine(tmp_path, {"TOOLBUS_URL": "ws://127.0.0.1:1"})
    outcome = nowhere.run_here("host", "clock", "--private", "--share", share)
    assert outcome.code == 2
    assert f"--share {share!r} is not valid: a name or a role is no pattern" in outcome.err
    with pytest.raises(InvalidOffer, match="'\\*' alone for all participants"):
        check_shared_with("kit", [share])


SHARES = [("bob", "bob"), ("name:", "X"), ("nme:bob", "bob"), ("", "X"), ("name:a\nb", "a\nb")]


@pytest.mark.parametrize(("share", "who"), SHARES)
def test_invalid_share_is_refused_before_connecting(tmp_path: Path, share: str, who: str) -> None:
    nowhere = CommandLine(tmp_path, {"TOOLBUS_URL": "ws://127.0.0.1:1"})
    outcome = nowhere.run_here("host", "clock", "--private", "--share", "*", "--share", share)
    assert outcome.code == 2
    received = outcome.err.replace("\n    ", "\n")
    assert f"is not valid: write name:{who}, role:{who} or '*'" in received


# Invalid references


def meant(folder: Path, reference: str) -> list[str]:
    return suggest_references(reference, folder)


def test_toolkits_of_a_module_are_found_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from elsewhere import Toolkit\n1 / 0\n")
    (tmp_path / "pack" / "kits.py").write_text(
        "import toolbus\n"
        "one = toolbus.RemoteToolkit('one')\n"
        "two: Toolkit = make()\n"
        "def three() -> 'toolbus.Toolkit': ...\n"
        "def kits(): ...\n"
        "def other(size, *, unit='mm') -> Toolkit: ...\n"
        "def another(*, unit) -> Toolkit: ...\n"
        "def helper(): ...\n"
        "size = 7\n"
        "1 / 0\n"
    )
    three = ["pack.kits:one", "pack.kits:two", "pack.kits:three"]
    assert meant(tmp_path, "pack/kits.py") == three
    assert meant(tmp_path, "pack.kits") == three
    assert meant(tmp_path, "pack.kits.size") == ["pack.kits:size"]
    assert meant(tmp_path, "pack.kits.helpers") == []


@pytest.mark.parametrize("text", ["def broken(:", "\0", "(" * 10_000])
def test_file_that_is_not_python_gives_no_suggestion(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    assert meant(tmp_path, "odd.py") == []


@pytest.mark.parametrize("reference", ["", ":", "..", "../x.py", "/etc/passwd", "a b", "a\0b"])
def test_invalid_module_name_gives_no_suggestion(tmp_path: Path, reference: str) -> None:
    assert meant(tmp_path, reference) == []


# Listing


def test_piped_list_is_plain_columns(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("tools")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].split() == [
        *("toolkit", "tools", "owner", "hosts", "visible", "to", "description")
    ]
    assert lines[1].split() == ["plain", "measure", "bob", "1", "all"]
    assert lines[2].split() == ["ruler", "measure,", "slow", "bob", "1", "all", "Sizes."]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--room", "empty"], "no visible toolkit in room empty: `toolbus host` hosts one"),
        (["--search", "nothing like it"], "in room main matches: `toolbus tools` lists all"),
    ],
)
def test_empty_list_names_the_room(toolbus: CommandLine, arguments: list[str], text: str) -> None:
    outcome = toolbus.run_here("tools", *arguments)
    assert (outcome.code, outcome.out) == (0, "")
    assert text in outcome.err


def test_search_lists_matching_toolkits(toolbus: CommandLine) -> None:
    found = toolbus.run_here("tools", "--search", "Sizes", "--json").value
    # A host that is stopped keeps its names reserved for a while for its replacement.
    assert [each["name"] for each in found if each["hosts"]] == ["ruler"]


def test_one_toolkit_shows_parameters_rules_and_digest(toolbus: CommandLine) -> None:
    digest = toolbus.run_here("tools", "ruler", "--json").value["digest"]
    shown = toolbus.run_here("tools", "ruler").out
    assert f"digest {digest}" in shown
    assert "rule: Measure twice." in shown
    assert "ruler.measure" in shown
    assert "read-only, idempotent, time limit 5 s" in shown
    assert "size  integer        How many." in shown
    assert 'unit  string = "mm"' in shown


def test_untrusted_text_cannot_control_the_terminal(toolbus: CommandLine) -> None:
    shown = toolbus.run_here("tools", "ruler.measure").out
    assert "\x1b" not in shown
    assert "ruler.slow" not in shown


def test_unknown_tool_exits_with_4(toolbus: CommandLine) -> None:
    assert toolbus.run_here("tools", "ruler.nope").code == 4
