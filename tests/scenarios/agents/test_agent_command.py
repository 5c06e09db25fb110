"""`toolbus agent` in a process of its own, with a server, hosts and askers in theirs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel
from support.processes.command_line import CommandLine, Outcome, Running
from toolbus import Agent, NotFound, RequiredToolkit, RoomClient, Toolkit, ToolkitProxy
from toolbus.cli.commands.agent import AgentRoom
from toolbus_server.testing import TestServer

KITS = """
from toolbus import Toolkit, tool

@tool
def slow(said: str, gate: str) -> str:
    '''Say that it was entered, then wait for the gate.'''
    with open(said, "w") as pipe:
        pipe.write("entered")
    with open(gate) as waiting:
        return waiting.read()

@tool(read_only=True)
def read() -> str:
    '''Read.'''
    return "read"

doors = Toolkit("doors", [slow])
reader = Toolkit("reader", [read])
archive = Toolkit("archive", [read])
"""
ASK = ("call", "helper.ask", "--participant", "helper", "--stream", "--json")
CLOCK = 'tools:=[{"name": "clock"}]'


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        yield here.at(url)


@contextmanager
def agent(toolbus: CommandLine, *flags: str) -> Iterator[Running]:
    """Run the agent `helper`, and yield it as soon as it can be asked."""
    with toolbus.start("agent", "--name", "helper", *flags) as running:
        line = running.line()
        assert line == "hosting helper in room main as helper\n", running.ended().err
        yield running


def scripted(folder: Path, *replies: dict[str, Any]) -> tuple[str, str]:
    """Write the replies of a model, and return the flag."""
    script = folder / "replies.jsonl"
    script.write_text("\n".join(map(json.dumps, replies)), encoding="utf-8")
    return "--model", f"scripted:{script}"


def events(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_agent_waits_for_its_tools_answers_and_goes_on_after_a_restart(
    toolbus: CommandLine, tmp_path: Path
) -> None:
    wait = {"name": "doors.slow", "arguments": {"said": "none", "gate": "none"}}
    model = scripted(
        tmp_path, {"uses": [{"name": "clock.now"}, wait]}, {"text": "Noon."}, {"text": "Later."}
    )
    keeping = (*model, "--state", str(tmp_path / "states.db"), "--mode", "dont_ask")
    flags = ("--name", "helper", *keeping, "--require", "doors", "--offer", "clock", "--json")
    with toolbus.start("agent", *flags) as helper:
        assert helper.process.stderr is not None
        assert "toolkit doors does not exist" in helper.process.stderr.readline()
        with toolbus.hosting("kits:doors", "--name", "bob"):
            assert json.loads(helper.line())["toolkit"] == "helper"
            answer = events(toolbus.run(*ASK, "text=When?", CLOCK, "--name", "ann"))
            token = toolbus.run_here("token", "create", "--name", "eve", "--preset", "agent").out
            refused = toolbus.run_here(*ASK, "text=When?", CLOCK, "--token", token.strip())
            ended = helper.end(signal.SIGTERM)
    results = [(each["tool"], each["state"]) for each in answer if each["type"] == "tool_result"]
    # Of somebody else's toolkit nothing counts as read-only, and nobody is asked.
    assert sorted(results) == [("clock.now", "ok"), ("doors.slow", "denied")]
    assert (answer[-1]["type"], answer[-1]["text"]) == ("end", "Noon.")
    assert (refused.code, refused.error["code"]) == (3, "permission_denied")
    assert refused.error["executed"] == "no"
    assert refused.error["details"]["grant"] == "agents.builders=clock"
    assert ended.code == 0
    with agent(toolbus, *keeping) as helper:
        again = events(toolbus.run_here(*ASK, "text=And now?", "--name", "ann"))
        assert helper.end(signal.SIGINT) == Outcome(0, "", "")
    assert again[-1]["text"] == "Later."


@pytest.mark.parametrize(
    ("kit", "is_own_key", "trusted", "state"),
    [
        ("reader", True, (), "ok"),  # its owner has the name that programs of this user have
        ("reader", False, (), "denied"),
        ("archive", True, (), "denied"),
        ("archive", True, ("bob", "eve"), "ok"),
    ],
)
def test_agent_believes_tools_of_its_user_and_of_owners_that_it_trusts(
    toolbus: CommandLine,
    tmp_path: Path,
    kit: str,
    is_own_key: bool,
    trusted: Sequence[str],
    state: str,
) -> None:
    owner = ("--name", "eve") if kit == "archive" else ()
    model = scripted(tmp_path, {"uses": [{"name": f"{kit}.read"}]}, {"text": "Done."})
    token = toolbus.run_here("token", "create", "--name", "helper", "--preset", "agent").out
    flags = [part for name in trusted for part in ("--trust", name)]
    helper_line = toolbus
    if not is_own_key:  # its home has no key, so that nobody knows who signed the token
        flags += ["--token", token.strip()]
        home = {"TOOLBUS_HOME": str(tmp_path)}
        helper_line = replace(toolbus, variables={**toolbus.variables, **home})
    with (
        toolbus.hosting(f"kits:{kit}", *owner),
        agent(helper_line, *model, "--mode", "dont_ask", "--require", kit, *flags),
    ):
        answer = events(toolbus.run_here(*ASK, "text=Read.", "--name", "ann"))
    (result,) = (event for event in answer if event["type"] == "tool_result")
    assert result["state"] == state
    assert state == "ok" or "is not in trusted_owners (flag --trust)" in result["text"]


@contextmanager
def waiting_answer(toolbus: CommandLine, folder: Path) -> Iterator[tuple[Running, Running, Path]]:
    """Run agent and asker; yield both, and the gate of the tool that the answer waits for."""
    said, gate = folder / "said", folder / "gate"
    os.mkfifo(said)
    os.mkfifo(gate)
    use = {"name": "doors.slow", "arguments": {"said": str(said), "gate": str(gate)}}
    model = scripted(folder, {"uses": [use]}, {"uses": [{"name": "clock.now"}]}, {"text": "Done."})
    with (
        toolbus.hosting("kits:doors", "--name", "bob"),
        agent(toolbus, *model, "--mode", "bypass", "--offer", "clock") as helper,
        toolbus.start(*ASK, "text=Go.", CLOCK, "--name", "ann") as asker,
    ):
        assert said.read_text(encoding="utf-8") == "entered"
        helper.process.send_signal(signal.SIGTERM)
        assert helper.process.stderr is not None
        told = helper.process.stderr.readline()
        assert "stopping: waiting up to 60 s for 1 call (helper.ask)" in told
        yield helper, asker, gate


def test_sigterm_lets_an_answer_run_to_its_end(toolbus: CommandLine, tmp_path: Path) -> None:
    with waiting_answer(toolbus, tmp_path) as (helper, asker, gate):
        gate.write_text("open", encoding="utf-8")
        answer = events(asker.ended())
        assert helper.ended() == Outcome(0, "", "")
    assert [each["state"] for each in answer if each["type"] == "tool_result"] == ["ok", "ok"]
    assert (answer[-1]["reason"], answer[-1]["text"]) == ("done", "Done.")


def test_second_signal_ends_an_agent_at_once(toolbus: CommandLine, tmp_path: Path) -> None:
    with waiting_answer(toolbus, tmp_path) as (helper, asker, gate):
        ended = helper.end(signal.SIGTERM)
        lost = asker.ended()
        gate.write_text("too late", encoding="utf-8")
    assert ended.code == 5
    assert "stopped by a second signal, 1 call (helper.ask) lost" in ended.err
    assert lost.code == 6
    assert json.loads(lost.err.splitlines()[-1])["code"] == "host_lost"


def test_signal_ends_the_wait_for_a_required_toolkit(toolbus: CommandLine, tmp_path: Path) -> None:
    flags = ("--name", "helper", *scripted(tmp_path, {"text": "?"}), "--require", "nowhere")
    with toolbus.start("agent", *flags) as helper:
        assert helper.process.stderr is not None
        assert "without --permissions FILE or --mode" in helper.process.stderr.readline()
        assert "toolkit nowhere does not exist" in helper.process.stderr.readline()
        ended = helper.end(signal.SIGTERM)
    assert ended.code == 5
    assert "stopped by a signal before anything was hosted" in ended.err


PRIVATE, LIST, CALL = "agents.register_private_toolkit", "agents.use_tools", "agents.call"


@pytest.mark.parametrize(
    ("grants", "flags", "code", "words"),
    [
        ((PRIVATE, CALL), (), 3, f"the token of this agent lacks {LIST}"),
        ((PRIVATE, LIST), (), 3, f"the token of this agent lacks {CALL}"),
        ((LIST, CALL), (), 3, f"the token of this agent lacks {PRIVATE}"),
        ((PRIVATE,), ("--no-available", "--require", "nowhere"), 3, f"lacks {LIST} and {CALL}"),
        ((PRIVATE, LIST, CALL), ("--require", "nowhere"), 4, "toolkit nowhere does not exist"),
    ],
)
def test_agent_without_what_it_needs_ends_with_the_reason(
    toolbus: CommandLine,
    tmp_path: Path,
    grants: Sequence[str],
    flags: Sequence[str],
    code: int,
    words: str,
) -> None:
    chosen = [part for grant in grants for part in ("--grant", grant)]
    token = toolbus.run_here("token", "create", "--name", "helper", *chosen).out.strip()
    model = scripted(tmp_path, {"text": "?"})
    ended = toolbus.run_here("agent", *model, "--token", token, "--no-wait", *flags)
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err


async def test_required_toolkit_is_waited_for_longer_than_one_wait(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    helper = Agent(None, PreparedModel("hi"), name="helper", required=["sums"])
    tried = asyncio.Event()
    find = RequiredToolkit.find

    async def late(required: RequiredToolkit, room: RoomClient, rights: Any = None) -> ToolkitProxy:
        if not tried.is_set():
            tried.set()
            raise NotFound("toolkit sums does not exist (waited 60 s)")
        return await find(required, room, rights)

    monkeypatch.setattr(RequiredToolkit, "find", late)
    token = server.token("helper")
    room = AgentRoom(helper, waits=True, as_json=False, url=server.url, room="lab", token=token)
    async with room, server.room("bob") as bob, AsyncExitStack() as stack:
        hosting = asyncio.create_task(stack.enter_async_context(room.host(helper.toolkit)))
        await tried.wait()
        assert capsys.readouterr().out == ""
        async with bob.host(Toolkit("sums", [])):
            await hosting
            assert capsys.readouterr().out == "hosting helper in room lab as helper\n"
