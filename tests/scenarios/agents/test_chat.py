"""`toolbus chat` as people and scripts use it: in a terminal of its own, and through pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, Running, heard_interrupts
from support.processes.terminal_person import KEYS, REASON, Person

PROGRAM = "import runpy; runpy.run_module('toolbus', run_name='__main__', alter_sys=True)"
PROMPT = "you> "
DISK = textwrap.dedent(
    """
    import asyncio
    from toolbus import Toolkit, tool

    @tool
    async def remove(path: str) -> str:
        return "removed"

    @tool(read_only=True)
    async def look() -> str:
        return "seen"

    @tool(read_only=True)
    async def hang() -> str:
        print("hanging", flush=True)
        await asyncio.Event().wait()

    disk = Toolkit("disk", [remove, look, hang])
    """
)
AGENT = textwrap.dedent(
    """
    import asyncio, sys
    from toolbus import Agent, FileChunk, Permissions, RoomClient, Toolkit, open_model, tool

    @tool(read_only=True)
    async def hang() -> str:
        "Never end."
        print("hanging", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("cancelled", flush=True)

    @tool(read_only=True)
    async def look() -> str:
        "Look."
        return "seen\\x1b[2J\\x9b31m\\u202e\\nall of it"

    @tool(read_only=True)
    async def draw() -> FileChunk:
        "Draw."
        return FileChunk(b"a picture", "../../drawn.png", "image/png")

    async def main():
        model = open_model(f"scripted:{sys.argv[1]}")
        tools = [Toolkit("eyes", [hang, look, draw])]
        async with (
            RoomClient(name="ann") as room,
            Agent(room, model, name=sys.argv[2], always=tools, permissions=Permissions("dont_ask")),
        ):
            print("ready", flush=True)
            await room.closed()

    asyncio.run(main())
    """
)
VAULT = textwrap.dedent(
    """
    from toolbus import Toolkit, tool

    @tool(approval=True)
    async def drop(name: str) -> str:
        return f"dropped {name}"

    vault = Toolkit("vault", [drop])
    """
)
APPROVE = textwrap.dedent(
    """
    import asyncio
    from toolbus import RoomClient

    async def main():
        async with RoomClient() as room:
            for hold in await room.holds():
                await room.approve(hold, {"name": "another"})

    asyncio.run(main())
    """
)
SHOP = textwrap.dedent(
    """
    from toolbus import ToolContext, Toolkit, tool

    @tool(read_only=True)
    async def order(context: ToolContext) -> str:
        size = await context.ask("Which size?", options=["small", "large"])
        return f"ordered {size}"

    shop = Toolkit("shop", [order])
    """
)
HANGS = {"text": "Wait.", "uses": [{"name": "eyes.hang"}]}
LOOKS = {
    "text": "Let me \x1b]0;look\x07.",
    "uses": [{"name": "eyes.look"}, {"name": "eyes.draw"}],
}
ANSWERS = {"text": "It is here, and this comes in several pieces."}


def write_replies(path: Path, *replies: object) -> str:
    path.write_text("".join(f"{json.dumps(reply)}\n" for reply in replies), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    write_replies(folder / "replies.jsonl", LOOKS, ANSWERS, HANGS, {"text": "Again."})
    here = CommandLine(folder, {"TOOLBUS_NAME": "joe"})
    with here.serving() as (_, url):
        yield here.at(url)


@contextmanager
def helping(toolbus: CommandLine, name: str = "helper") -> Iterator[Running]:
    """Run an agent of ann."""
    with toolbus.running("agent.py", "replies.jsonl", name) as agent:
        assert agent.line() == "ready\n", agent.ended().err
        yield agent


@pytest.fixture(scope="module")
def helper(toolbus: CommandLine) -> Iterator[Running]:
    with helping(toolbus) as agent:
        yield agent


@contextmanager
def chatting(toolbus: CommandLine, *arguments: str, plain: bool = True) -> Iterator[Person]:
    variables = toolbus.environment({"COLUMNS": "100"} | ({"NO_COLOR": "1"} if plain else {}))
    with Person(PROGRAM, "chat", *arguments, variables=variables, folder=toolbus.folder) as person:
        person.reads(PROMPT)
        yield person


def asked(person: Person, text: str) -> str:
    """Type a line; return what is drawn until the next prompt."""
    person.type(f"{text}\n")
    return person.reads(PROMPT)


def test_answer_comes_with_its_calls_and_commands_tell_of_them(
    toolbus: CommandLine, helper: Running, tmp_path: Path
) -> None:
    (tmp_path / "drawn.png").symlink_to(tmp_path / "elsewhere")
    with chatting(toolbus, "helper", "--save", str(tmp_path)) as person:
        shown = asked(person, "where is it?")
        assert "Let me \\x1b]0;look\\x07." in shown
        assert "> eyes.look {}\r\n" in shown
        assert "eyes.look ok, " in shown
        assert ": seen\\x1b[2J\\x9b31m\\u202e …\r\n" in shown
        assert f"file ../../drawn.png, 9 bytes: saved as {tmp_path}/drawn-2.png" in shown
        assert (tmp_path / "drawn-2.png").read_bytes() == b"a picture"
        assert not (tmp_path / "elsewhere").exists()
        assert "It is here, and this comes in several pieces.\r\n" in shown
        # Beside the line editor's own there is no control character on the screen.
        hostile = shown.replace("\x1b[?2004l", "").replace("\x1b[?2004h", "")
        assert not set(hostile) & {"\x1b", "\x07", "\x9b", "\u202e"}

        tree = asked(person, "/trace").replace("\r\n", "\n")
        lines = ("question ", "  step 1 ", "    eyes.look ", "    eyes.draw ", "  step 2 ")
        assert re.search(".*\n".join(lines), tree)
        assert "eyes.hang  Never end." in asked(person, "/tools")
        assert "mode dont_ask" in asked(person, "/mode")
        assert "decided by whoever runs it" in asked(person, "/mode bypass")
        assert "wrote 45 bytes" in asked(person, f"/save {tmp_path}/answer.txt")
        assert (tmp_path / "answer.txt").read_text() == ANSWERS["text"]
        assert "cannot write" in asked(person, f"/save {tmp_path}/answer.txt")
        assert "did you mean /tools?" in asked(person, "/tolls")

        person.type("wait for it\n")
        assert helper.line() == "hanging\n"
        person.reads("> eyes.hang")
        person.type("\x03")
        assert "(interrupted)" in person.reads(PROMPT)
        assert helper.line() == "cancelled\n"
        assert "Again." in asked(person, "and now?")

        person.type("/new\\\n")
        person.reads("...> ")
        assert "there is no command" in asked(person, "and more")
        person.type("half a question\x03")
        person.reads(PROMPT)
        person.type("\x03")
        assert "/quit or Ctrl-D" in person.reads(PROMPT)
        person.type("/quit\n")
        assert person.ended() == 0
    history = toolbus.folder / "home" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert '"/new\\nand more"' in history.read_text()


def test_agent_that_is_killed_in_mid_answer_is_waited_for(toolbus: CommandLine) -> None:
    with (
        toolbus.serving() as (server, url),
        helping(toolbus.at(url)) as agent,
        chatting(toolbus.at(url), "helper") as person,
    ):
        asked(person, "where is it?")
        person.type("wait for it\n")
        person.reads("> eyes.hang")
        agent.process.kill()
        assert "(executed: maybe)" in person.reads(PROMPT)
        person.type("are you there?\n")
        person.reads("(helper is not there: waiting for it; Ctrl-C gives up)")
        person.type("\x03")
        assert "(interrupted)" in person.reads(PROMPT)
        person.type("are you there?\n")
        person.reads("waiting for it")
        with helping(toolbus.at(url)):
            assert "is back" in person.reads("Let me ")
            person.reads(PROMPT)

            server.process.kill()
            server.process.wait(PATIENCE_S)
            person.type("wait for it\n")
            person.reads("waiting for it")
            with toolbus.serving("--dev", "--port", url.rpartition(":")[2]):
                assert "is back" in person.reads("> eyes.hang")
                person.type("\x03")
                person.reads(PROMPT)
                person.type("\x04")
                assert person.ended() == 0


def test_agent_of_this_process_asks_in_place(toolbus: CommandLine, tmp_path: Path) -> None:
    (toolbus.folder / "disk.py").write_text(
        "from toolbus import Toolkit, tool\n\n"
        "@tool\nasync def remove(path: str) -> str:\n    return f'removed {path}'\n\n"
        "disk = Toolkit('disk', [remove])\n",
        encoding="utf-8",
    )
    removes = {"uses": [{"name": "disk.remove", "arguments": {"path": "a"}}]}
    done = {"text": "Done."}
    replies = write_replies(tmp_path / "own.jsonl", removes, done, removes, done)
    own = ("--model", f"scripted:{replies}", "--offer", "disk:disk")
    with chatting(toolbus, *own, plain=False) as person:
        person.type("clean up\n")
        person.reads(KEYS)
        person.type("o")
        assert "disk.remove ok" in person.reads("Done.")
        person.reads(PROMPT)
        asked(person, "/mode explore")
        assert "disk.remove denied, executed: no" in asked(person, "clean up")
        os.kill(person.pid, signal.SIGTERM)
        assert person.ended() == 143


LOOK = {"uses": [{"name": "disk.look", "arguments": {}}]}
HANG = {"uses": [{"name": "disk.hang", "arguments": {}}]}
REMOVE = {"uses": [{"name": "disk.remove", "arguments": {"path": "a"}}]}


@pytest.mark.parametrize(
    ("number", "replies", "shown", "executed"),
    [
        (signal.SIGINT, [REMOVE], KEYS, "no"),
        (signal.SIGTERM, [REMOVE], KEYS, "no"),
        (signal.SIGINT, [{"uses": LOOK["uses"] + REMOVE["uses"]}], KEYS, "yes"),
        (signal.SIGINT, [LOOK, REMOVE], KEYS, "yes"),
        (signal.SIGTERM, [HANG], "hanging", "yes"),
    ],
    ids=["a question", "SIGTERM", "after a call", "in a later step", "SIGTERM in a call"],
)
def test_interrupted_answer_says_whether_any_tool_ran(
    toolbus: CommandLine, number: int, replies: Sequence[object], shown: str, executed: str
) -> None:
    (toolbus.folder / "disk.py").write_text(DISK, encoding="utf-8")
    model = write_replies(toolbus.folder / "own.jsonl", *replies)
    own = ("--model", f"scripted:{model}", "--offer", "disk:disk", "--once", "clean up")
    variables = toolbus.environment({"NO_COLOR": "1"})
    with Person(PROGRAM, "chat", *own, variables=variables, folder=toolbus.folder) as person:
        person.reads(shown)
        os.kill(person.pid, number)
        assert person.ended() == (5 if number == signal.SIGINT else 143)
        assert f"(executed: {executed})" in person.screen


@pytest.mark.parametrize("leaves", [False, True])
def test_what_an_agent_elsewhere_waits_for_is_answered_in_place(
    toolbus: CommandLine, tmp_path: Path, leaves: bool
) -> None:
    (toolbus.folder / "vault.py").write_text(VAULT, encoding="utf-8")
    (toolbus.folder / "approve.py").write_text(APPROVE, encoding="utf-8")
    use = {"name": "vault.drop", "arguments": {"name": "all"}}
    replies = write_replies(tmp_path / "guard.jsonl", {"uses": [use]}, {"text": "Done."})
    agent = ("agent", "--name", "guard", "--require", "vault", "--model", f"scripted:{replies}")
    with toolbus.hosting("vault:vault", "--name", "bob"), toolbus.start(*agent) as guard:
        assert "hosting guard" in guard.line()
        with chatting(toolbus, "guard") as person:
            person.type("drop it\n")
            shown = person.reads(KEYS)
            assert shown.count("waits for approval: vault.drop") == 1
            assert "the caller itself, before it makes the call" in shown  # bob is not trusted
            person.type("a")
            shown = person.reads(KEYS)
            assert "approval: approved" in shown
            assert shown.count("waits for approval: vault.drop, id ") == 1  # at its host
            assert '"name": "all"' in shown
            if leaves:  # which answers nothing
                person.type("\x04")
                person.reads("\n")
            with toolbus.running("approve.py") as other:  # the user, elsewhere
                assert other.ended().code == 0
            shown = person.reads(PROMPT)
            assert ("Meanwhile: approved by joe" in shown) is not leaves
            assert "approval: approved" in shown
            assert "vault.drop ok" in shown
            assert "dropped another" in shown
            assert "Done." in shown
        # The host of a trusted owner asks: the agent of this process leaves the question to it.
        own = ("--model", f"scripted:{replies}", "--require", "vault", "--trust", "bob")
        with chatting(toolbus, *own) as person:
            person.type("drop it\n")
            assert "called by" in person.reads(KEYS)
            person.type("d")
            person.reads(REASON)
            person.type("not today\n")
            shown = person.reads(PROMPT)
            assert "approval: denied" in shown
            assert "not today" in shown


def test_question_of_a_tool_is_answered_in_place(toolbus: CommandLine, tmp_path: Path) -> None:
    """Of a tool elsewhere that an agent elsewhere calls, and of one in the chat's own process."""
    (toolbus.folder / "shop.py").write_text(SHOP, encoding="utf-8")
    use = {"uses": [{"name": "shop.order", "arguments": {}}]}
    replies = write_replies(tmp_path / "clerk.jsonl", use, {"text": "Done."})
    model = ("--model", f"scripted:{replies}")
    agent = ("agent", "--name", "clerk", "--require", "shop", "--trust", "bob", *model)
    with toolbus.hosting("shop:shop", "--name", "bob"), toolbus.start(*agent) as clerk:
        assert "hosting clerk" in clerk.line()
        with chatting(toolbus, "clerk") as person:
            person.type("order it\n")
            shown = person.reads("[1-2] choose, [d]eny, [v]iew all: ")
            assert "waits for an answer: shop.order" in shown
            assert "Which size?" in shown
            person.type("2")
            shown = person.reads(PROMPT)
            assert "answer: answered" in shown
            assert "ordered large" in shown
    with chatting(toolbus, *model, "--offer", "shop:shop") as person:
        person.type("order it\n")
        person.reads("[1-2] choose, [d]eny, [v]iew all: ")
        person.type("d")
        person.reads(REASON)
        person.type("none of them\n")
        assert "the tool raised ApprovalDenied: " in person.reads(PROMPT)


def test_chat_with_its_own_agent_builds_what_it_offers(
    toolbus: CommandLine, tmp_path: Path
) -> None:
    uses = {"uses": [{"name": "clock.now", "arguments": {}}]}
    replies = write_replies(tmp_path / "own.jsonl", uses, {"text": "Done."})
    own = ("chat", "--model", f"scripted:{replies}", "--offer", "clock", "--once", "go")
    assert "clock.now ok" in toolbus.run(*own).err
    assert "clock.now failed" in toolbus.run(*own, "--tools", "[]").err


def ask_lines(
    toolbus: CommandLine, lines: Sequence[str], *arguments: str
) -> tuple[int, list[object]]:
    ended = subprocess.run(
        [sys.executable, "-m", "toolbus", "chat", *arguments],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        cwd=toolbus.folder,
        env=toolbus.environment(),
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


def test_scripts_get_the_answer_or_each_event(
    toolbus: CommandLine, helper: Running, tmp_path: Path
) -> None:
    outcome = toolbus.run_here("chat", "helper", "--conversation", "once", "--once", "where?")
    assert (outcome.code, outcome.out) == (0, f"{ANSWERS['text']}\n")
    assert "Let me \\x1b]0;look\\x07.\n> eyes.look {}\n" in outcome.err

    three = ({"text": "One."}, {"text": "Two."}, {"error": "the model is overloaded"})
    replies = write_replies(tmp_path / "three.jsonl", *three)
    code, events = ask_lines(
        toolbus, ["first", "", "second", "third"], "--json", "--model", f"scripted:{replies}"
    )
    kinds = [event["type"] for event in events if isinstance(event, dict)]
    assert (code, kinds) == (6, ["text", "end", "text", "end", "error"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nobody"], 4, "your token shows these in room main: "),
        (["helper", "--participant", "joe"], 4, "not_found"),
        (["helper", "--max-steps", "2"], 2, "no agent here for --max-steps: add --model"),
        (["helper", "--tools", "{}"], 2, "must be a list of objects"),
        (["helper", "--tools", "@/dev/zero"], 2, "/dev/zero is larger than 1,048,576 bytes"),
        (["helper", "--tools", '[{"name": "x"}]'], 4, "`toolbus builders OWNER` lists what"),
        (["--participant", "ann", "--model", "scripted:replies.jsonl"], 2, "without --model"),
        ([], 2, "toolbus chat NAME"),
    ],
)
def test_what_is_refused_is_told_with_the_exit_code_of_a_call(
    toolbus: CommandLine, helper: Running, arguments: list[str], code: int, words: str
) -> None:
    outcome = toolbus.run_here("chat", *arguments, "--once", "where?")
    assert outcome.code == code
    assert words in outcome.err


def test_token_without_the_grant_is_told_which_one(
    toolbus: CommandLine, helper: Running, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    made = toolbus.run_here("token", "create", "--name", "eve", "--grant", "agents.use_tools")
    token.write_text(made.out, encoding="utf-8")
    arguments = ("--participant", "ann", "--once", "hello", "--token", str(token))
    outcome = toolbus.run_here("chat", "helper", *arguments)
    assert outcome.code == 3
    assert "permission_denied" in outcome.err
    assert "grant" in outcome.err


def test_signals_end_a_chat_whose_stdout_nobody_reads(toolbus: CommandLine, tmp_path: Path) -> None:
    replies = write_replies(tmp_path / "long.jsonl", *({"text": "x" * 200_000} for _ in range(9)))
    command = [sys.executable, "-m", "toolbus", "chat", "--json", "--model", f"scripted:{replies}"]
    with heard_interrupts():
        process = subprocess.Popen(
            command,
            cwd=toolbus.folder,
            env=toolbus.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"again\n" * 9)
        process.stdin.close()
        process.stdout.read(1)
        time.sleep(1)  # until the pipe is full
        for _ in range(4):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(PATIENCE_S) == -signal.SIGINT
