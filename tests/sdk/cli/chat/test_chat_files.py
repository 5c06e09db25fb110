"""Names of files of others, and the history of what was typed."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from toolbus import FileChunk, StreamBroken
from toolbus.cli.chat.commands import run_command
from toolbus.cli.chat.files import checked_folder, safe_name, save_bytes, save_file
from toolbus.cli.chat.line_input import History, LineInput
from toolbus.cli.chat.screens import PipeScreen
from toolbus.cli.chat.session import Session
from toolbus.diagnostics.exit_codes import UsageError


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("report.pdf", "report.pdf"),
        ("Bericht (für Ärzte) - 漢字.txt", "Bericht (für Ärzte) - 漢字.txt"),
        ("हिन्दी.txt", "हिन्दी.txt"),
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd/", "passwd"),
        ("C:\\windows\\x.dll", "x.dll"),
        ("a:b*c?.txt", "a_b_c_.txt"),
        (".bashrc", "bashrc"),
        ("..", "file"),
        ("-rf", "rf"),
        ("", "file"),
        ("\x00\x1b[2J\n", "___2J_"),
        ("a\u202egnp.exe", "a_gnp.exe"),
        ("\u3164.txt", "file.txt"),
        ("con", "filecon"),
        ("NUL.tar.gz", "fileNUL.tar.gz"),
        ("x" * 500 + ".png", "x" * 116 + ".png"),
        ("漢" * 100 + ".png", "漢" * 38 + ".png"),
        ("x." + "y" * 200, "x." + "y" * 118),
        ("name. ", "name"),
    ],
)
def test_name_of_others_is_one_visible_name(name: str, safe: str) -> None:
    assert safe_name(name) == safe
    assert len(safe.encode()) <= 124


async def test_files_replace_nothing_and_follow_no_link(tmp_path: Path) -> None:
    folder = checked_folder(tmp_path / "new" / "folder")
    (folder / "a.txt").symlink_to(tmp_path / "target")
    (folder / "a-2.txt").write_text("mine")
    assert await save_file(FileChunk(b"1", "../a.txt"), folder) == folder / "a-3.txt"
    assert save_bytes(b"2", folder, "x/a.txt") == folder / "a-4.txt"
    for path in (folder / "a.txt", folder / "a-2.txt", tmp_path / "none" / "x", Path("a\0b")):
        with pytest.raises(UsageError, match="cannot write"):
            save_bytes(b"3", path, "a.txt")
    assert not (tmp_path / "target").exists()
    assert (folder / "a-2.txt").read_text() == "mine"
    with pytest.raises(UsageError):
        checked_folder(folder / "a-2.txt")


async def test_file_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"half"
        raise StreamBroken("gone")

    with pytest.raises(StreamBroken):
        await save_file(FileChunk.from_pieces(pieces(), "a.txt"), tmp_path)
    assert os.listdir(tmp_path) == []


def test_history_keeps_whole_questions_and_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "home" / "chat_history"
    history = History(path)
    assert history.load() == []
    history.add("two\nlines")
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b'not json\n["a list"]\n"\\u0000"\n"\\ud800"\n\xff\n')
    assert history.load() == ["two\nlines"]
    with path.open("ab") as file:
        file.write(b"".join(b'"%d"\n' % number for number in range(3_000)))
    assert history.load() == [str(number) for number in range(2_000, 3_000)]
    assert len(path.read_bytes().splitlines()) == 1_000
    assert path.stat().st_mode & 0o777 == 0o600


def test_history_that_cannot_be_kept_is_none(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    history = History(tmp_path / "home" / "chat_history")
    history.add("text")
    assert history.load() == []
    target = tmp_path / "target"
    link = tmp_path / "link"
    link.symlink_to(target)
    History(link).add("text")
    assert not target.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_history_that_is_a_fifo_is_none_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    os.mkfifo(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    for history in (History(path), History(link)):
        assert history.load() == []
        history.add("text")


class Editor:
    """A line editor in a locale that has ASCII alone."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def add_history(self, line: str) -> None:
        self.lines.append(line.encode("ascii").decode())


def test_history_that_a_locale_does_not_have_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "history").write_text('"one"\n"\\u6f22"\n"two"\n')
    editor = Editor()
    LineInput(History(tmp_path / "history"), ())._prepare(editor)
    assert editor.lines == ["one", "two"]


@pytest.mark.parametrize("typed", ["/save ~nobody-of-this-name/x", "/save 1 ~nobody-of-this-name"])
def test_folder_of_a_user_that_is_not_there_is_refused(typed: str) -> None:
    session = Session(PipeScreen(), None)
    with pytest.raises(UsageError, match="cannot write ~nobody-of-this-name"):
        run_command(session, typed)


class Agent:
    """Sends events as those that a chat makes of files and errors."""

    async def ask(self, text: str) -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "file", "name": "x", "size": 1, "path": "/etc/passwd"}
        yield {"type": "error", "code": "failed", "executed": "no"}
        yield {"type": ["text"]}
        yield {"type": "text", "text": text}


async def test_agent_cannot_say_that_a_file_is_saved() -> None:
    session = Session(PipeScreen(), None)
    session.agent = cast("Any", Agent())
    events = [event async for event in session._events("hi", 0)]
    assert events == [{"type": ["text"]}, {"type": "text", "text": "hi"}]
