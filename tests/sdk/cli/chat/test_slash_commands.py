"""The commands of a chat, with an agent that says what it likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from toolbus.cli.chat.agents import ChatAgent
from toolbus.cli.chat.commands import COMMANDS, Quit, run_command
from toolbus.cli.chat.session import Session
from toolbus.cli.chat.transcript import ReceivedFile
from toolbus.diagnostics.exit_codes import UsageError


class Notices:
    """A screen that keeps what is said."""

    def __init__(self) -> None:
        self.said = ""

    def notice(self, text: str) -> None:
        self.said += f"{text}\n"


class Agent:
    """An agent that says of itself what it is told."""

    def __init__(self, about: Any) -> None:
        self.about = about
        self.forget = None

    def set_mode(self, mode: str) -> None:
        if mode != "explore":
            raise UsageError("there is no such mode")


ABOUT = {
    "mode": "explore",
    "tools": [{"name": "sql.query", "description": "Ask.\nMore."}, 7, {"name": "\x1b"}],
    "builders": ["clock"],
}


def session_of(about: Any = ABOUT) -> tuple[Session, Notices]:
    screen = Notices()
    session = Session(cast(Any, screen), None)
    session.agent = cast(ChatAgent, Agent(about))
    cast(Any, session).run = lambda work: work  # no loop is needed
    session.transcript.begin(0)
    event = {"type": "tool_result", "tool": "eyes.look", "state": "ok", "text": "seen\x1b\nall"}
    session.transcript.add(event, 0)
    session.transcript.add(event, 0)
    session.transcript.add_file(ReceivedFile("../a.png", 3, b"abc"))
    session.transcript.add({"type": "text", "text": "the answer"}, 0)
    return session, screen


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/help", "/save [N] [PATH]  write the answer"),
        ("/tools", "sql.query  Ask.\n\\x1b  \nbuilt on request (--tools): clock\n"),
        ("/mode", "mode explore\n"),
        ("/mode explore", "mode explore, from the next question on\n"),
        ("/new", "the conversation begins anew\n"),
        ("/trace", "question "),
        ("/show 1", "1 eyes.look ok\nseen\\x1b\nall\n"),
        ("/show 2", "file ../a.png, 3 bytes: /save writes it\n"),
    ],
)
def test_command_says(line: str, words: str) -> None:
    session, screen = session_of()
    run_command(session, line)
    assert words in screen.said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/tool", "did you mean /tools?"),
        ("/\x1b", r"there is no command /\x1b: /help lists the commands"),
        ("/etc/passwd please", "//text sends"),
        ("/mode nope", "no such mode"),
        ("/show", "name its number"),
        ("/show 3", "there is no result 3: 1 to 2"),
        ("/show ٣", "there is no result"),
        ("/show 99999999999999999999", "there is no result"),
        ("/save 7", "there is no result 7"),
        ("/save /nowhere/at/all", "cannot write /nowhere/at/all"),
    ],
)
def test_command_is_refused(line: str, words: str) -> None:
    session, _ = session_of()
    with pytest.raises(UsageError) as refused:
        run_command(session, line)
    assert words in refused.value.message


def test_files_and_answers_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session, _ = session_of()
    for line in ("/save", "/save my answer.md", "/save 1", "/save 2", f"/save 2 {tmp_path}/b.png"):
        run_command(session, line)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "answer.txt": b"the answer",
        "my answer.md": b"the answer",
        "eyes.look.txt": b"seen\x1b\nall",
        "a.png": b"abc",
        "b.png": b"abc",
    }


@pytest.mark.parametrize("about", [{}, {"tools": 7, "mode": 3, "builders": None}])
def test_agent_may_say_nothing_of_itself(about: dict[str, Any]) -> None:
    session, screen = session_of(about)
    run_command(session, "/tools")
    run_command(session, "/mode")
    assert screen.said == "no tools\nno permissions: nothing is asked or denied here\n"


def test_quit_ends_the_chat_and_each_command_has_help() -> None:
    session, _ = session_of()
    with pytest.raises(Quit):
        run_command(session, "/quit")
    assert all(command.help for command in COMMANDS.values())
