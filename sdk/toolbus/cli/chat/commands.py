"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

from toolbus.cli.chat.files import save_bytes
from toolbus.cli.chat.render import text_in, whole_result
from toolbus.cli.chat.session import Session
from toolbus.cli.chat.transcript import NumberedResult
from toolbus.cli.suggestions import nearest
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.settings import expanded
from toolbus.untrusted_text import SHOWN_CHARS, one_line, visible

__all__ = ["COMMANDS", "Quit", "run_command"]

_LISTED = 500
"""An agent of others may have any number of tools, and a person reads the list."""


class Quit(Exception):
    """The user ends the chat."""


class Command(NamedTuple):
    """What a line that begins with a slash may run, and what `/help` shows of it."""

    usage: str
    """Its arguments, as `/help` shows them; may be empty."""
    help: str
    run: Callable[[Session, str], None]
    """Takes what follows the name. Raises UsageError and RoomException."""


def run_command(session: Session, line: str) -> None:
    """Run a line that begins with a slash.

    Raises:
        Quit: The user ends the chat.
        UsageError: There is no such command, or its arguments are wrong.
        RoomException: It failed.
    """
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        hint = "/help lists the commands"
        if near := nearest(name, COMMANDS, 3):
            hint = f"did you mean {' or '.join(near)}?"
        raise UsageError(
            f"there is no command {one_line(name, 64)}: {hint} (//text sends a text that begins "
            "with a slash)"
        )
    command.run(session, rest.strip())


def _help(session: Session, _: str) -> None:
    shown = [
        (f"{name} {command.usage}".rstrip(), command.help) for name, command in COMMANDS.items()
    ]
    width = max(len(typed) for typed, _ in shown)
    lines = [f"{typed.ljust(width)}  {text}" for typed, text in shown]
    lines.append(
        "Ctrl-C interrupts an answer, Ctrl-D ends the chat; a line that ends with \\ goes on"
    )
    session.screen.notice("\n".join(lines))


def _tools(session: Session, _: str) -> None:
    about = session.run(session.agent.about)
    tools = _listed(about, "tools")
    lines = [
        "  ".join(
            (
                one_line(text_in(tool, "name"), SHOWN_CHARS),
                one_line(text_in(tool, "description").strip().partition("\n")[0], 100),
            )
        )
        for tool in tools[:_LISTED]
        if isinstance(tool, Mapping)
    ]
    if len(tools) > _LISTED:
        lines.append(f"and {len(tools) - _LISTED:,} more")
    builders = [one_line(str(name), SHOWN_CHARS) for name in _listed(about, "builders")[:_LISTED]]
    if builders:
        lines.append(f"built on request (--tools): {', '.join(builders)}")
    session.screen.notice("\n".join(lines) or "no tools")


def _listed(about: Mapping[str, Any], key: str) -> list[Any]:
    found = about.get(key)
    return found if isinstance(found, list) else []


def _mode(session: Session, mode: str) -> None:
    if mode:
        session.agent.set_mode(mode)
        session.screen.notice(f"mode {mode}, from the next question on")
        return
    found = session.run(session.agent.about).get("mode")
    if isinstance(found, str):
        session.screen.notice(f"mode {one_line(found, 40)}")
    else:
        session.screen.notice("no permissions: nothing is asked or denied here")


def _new(session: Session, _: str) -> None:
    session.run(session.agent.forget)
    session.screen.notice("the conversation begins anew")


def _trace(session: Session, _: str) -> None:
    session.screen.notice("\n".join(session.transcript.tree(monotonic())))


def _show(session: Session, number: str) -> None:
    result = _result(session, number)
    lines = [visible(whole_result(result.event, result.number))]
    for file in result.files:
        place = one_line(file.path or "/save writes it")
        lines.append(f"file {one_line(file.name)}, {file.size:,} bytes: {place}")
    session.screen.notice("\n".join(lines))


def _save(session: Session, typed: str) -> None:
    number, _, path = typed.partition(" ")
    if not (number.isascii() and number.isdigit()):
        number = ""
        path = typed
    try:
        typed_path = path.strip()
        target = expanded(typed_path, strict=True) if typed_path else session.folder or Path()
    except ValueError as error:
        raise UsageError(f"cannot write {one_line(path)}: {error}") from error
    if not number:
        answer = session.transcript.answer
        if not answer:
            raise UsageError("there is no answer to save")
        files = [("answer.txt", answer.encode(errors="backslashreplace"))]
    else:
        files = _contents(_result(session, number))
    for name, data in files:
        saved = save_bytes(data, target, name)
        session.screen.notice(f"wrote {len(data):,} bytes to {one_line(str(saved))}")


def _contents(result: NumberedResult) -> list[tuple[str, bytes]]:
    """Return names and data of what a result has: its files, else its text."""
    if not result.files:
        text = text_in(result.event, "text").encode(errors="backslashreplace")
        return [(f"{text_in(result.event, 'tool')}.txt", text)]
    for file in result.files:
        if file.path:
            raise UsageError(f"it is saved already, as {one_line(file.path)}")
        if file.data is None:
            raise UsageError("it was too large to keep: start the chat with --save DIR")
    return [(file.name, file.data or b"") for file in result.files]


def _result(session: Session, number: str) -> NumberedResult:
    with suppress(ValueError):
        found = session.transcript.result(int(number[:9]))
        if found is not None:
            return found
    numbers = session.transcript.numbers
    raise UsageError(f"there is no result {one_line(number, 20) or '(name its number)'}: {numbers}")


def _quit(_: Session, __: str) -> None:
    raise Quit


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "/help": Command("", "list the commands", _help),
        "/tools": Command("", "list the tools of the agent", _tools),
        "/mode": Command("[MODE]", "show the mode of permissions, or change it", _mode),
        "/new": Command("", "forget the conversation", _new),
        "/trace": Command("", "show the last question as a tree, with its trace id", _trace),
        "/show": Command("N", "show result N whole", _show),
        "/save": Command("[N] [PATH]", "write the answer, or result N, to a file", _save),
        "/quit": Command("", "end the chat", _quit),
    }
)
"""Every command by its name."""
