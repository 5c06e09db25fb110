"""`toolbus chat`: a conversation with an agent in the terminal, or one question for a script."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO

import typer

from toolbus.agents.agent import Agent
from toolbus.cli.agent_options import AgentChoices, agent_of, chooses_an_agent, own_identity
from toolbus.cli.arguments import read_json_option
from toolbus.cli.chat.agents import ChatAgent, LocalAgent, RemoteAgent, find_agent
from toolbus.cli.chat.commands import COMMANDS, Quit, run_command
from toolbus.cli.chat.files import checked_folder
from toolbus.cli.chat.interrupts import Interrupted
from toolbus.cli.chat.line_input import History, LineInput
from toolbus.cli.chat.screens import JsonScreen, PipeScreen, Screen, TerminalScreen
from toolbus.cli.chat.session import Session, on_background_loop
from toolbus.cli.completion import complete_owner, complete_toolkit
from toolbus.cli.error_report import reporting
from toolbus.cli.room_options import CommandRoom, Locked, RoomOptions, joined_room, joins_a_room
from toolbus.cli.toolkit_options import OfferingCommand, last_name
from toolbus.diagnostics.exit_codes import CallTarget, Terminated, UsageError
from toolbus.errors import RoomException
from toolbus.settings import home_of
from toolbus.telemetry.tracing import recorded
from toolbus.untrusted_text import one_line

__all__ = ["chat"]

_MAX_QUESTION_BYTES = 1024 * 1024
"""A frame takes no more, and a question is not a file."""
_STDIN = "-"
_LOCAL_NAME = "agent"


@joins_a_room
@chooses_an_agent
def ask_agent(  # noqa: PLR0913 - a parameter for each flag
    options: RoomOptions,
    choices: AgentChoices,
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The name of the agent.",
            autocompletion=complete_toolkit,
            show_default=False,
        ),
    ] = None,
    participant: Annotated[
        str | None,
        typer.Option(
            help="Owner of the agent, if several have one of this name.",
            autocompletion=complete_owner,
        ),
    ] = None,
    conversation: Annotated[
        str, typer.Option(help="Name of the conversation, which the agent keeps.")
    ] = "",
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE",
            help="Toolkits to build for each question: a list of objects, each with `name` and the "
            "fields of its config. "
            "Default with --model: those of --offer.",
        ),
    ] = None,
    once: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Ask this question, print the answer, and end; - reads stdin."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write files of results into this folder."),
    ] = None,
    locked: Locked = None,
) -> None:
    """Chat with an agent, and see its calls of tools.

    In the chat /help lists commands. Ctrl-C interrupts an answer; Ctrl-D ends the chat. Without a
    terminal stdin is the question, with --json one in each line. With --json each event is a line
    of JSON. With --model the agent runs in this process, and asks in the terminal what its
    permissions do not decide. `toolbus chat --offer NAME --help` shows the flags of the toolkit
    NAME too.

    Exit codes: those of `toolbus call`; a chat in a terminal ends with 0.
    """
    configs = _read_tools(tools)
    if tools is None and choices.model is not None:
        # Who offers a toolkit here is who asks: a person that wrote --offer wants it.
        configs = [{"name": last_name(reference)} for reference in choices.offer or ()]
    _check_flags(choices, agent, participant)
    is_interactive = once is None and not options.as_json and _is_terminal(sys.stdin)
    text = None if is_interactive else _question(once, as_json=options.as_json)
    session = Session(
        _screen(as_json=options.as_json, is_interactive=is_interactive),
        save and checked_folder(save),
    )

    @asynccontextmanager
    async def opened() -> AsyncIterator[ChatAgent]:
        async with joined_room(options, locked=locked) as room:
            about: dict[str, Any] = {"tools": configs, "conversation": conversation}
            if choices.model is None:
                found = await find_agent(room, agent or "", participant)
                yield RemoteAgent(room, found, waits=is_interactive, **about)
                return
            trusted = await own_identity(options.resolve(), options.context)
            made = agent_of(
                room,
                choices,
                name=agent or _LOCAL_NAME,
                approve=session.ask_person,
                answer=session.answer_question,
                trusted=trusted,
            )
            async with _started(made, room):
                yield LocalAgent(room, made, **about)

    target = None if agent is None else CallTarget(agent, "ask", participant)
    with (
        reporting(as_json=options.as_json, target=target),
        recorded("toolbus-cli"),
        on_background_loop(session, opened),
        session.logging(),
    ):
        if is_interactive:
            _interact(session)
        elif text is not None:
            _ask_once(session, text)
        else:
            _ask_lines(session)


def _check_flags(choices: AgentChoices, agent: str | None, participant: str | None) -> None:
    """Raise UsageError for flags that do not fit together."""
    if choices.model is not None:
        if participant is not None:
            raise UsageError("--participant is for an agent in the room, without --model")
    elif given := choices.given():
        raise UsageError(
            f"without --model there is no agent here for {', '.join(given)}: add --model"
        )
    elif agent is None:
        raise UsageError("name an agent, toolbus chat NAME, or give --model for one here")


chat: typer.Typer = typer.Typer(add_completion=False)
"""The command `toolbus chat`."""
chat.command("chat", cls=OfferingCommand)(ask_agent)


@asynccontextmanager
async def _started(agent: Agent, room: CommandRoom) -> AsyncIterator[None]:
    """Start an agent of this process for a block."""
    try:
        try:
            await agent.start(room)
        except ValueError as error:  # two toolkits of one name
            raise UsageError(str(error)) from error
        try:
            yield
        finally:
            await agent.stop()
    finally:
        await agent.model.aclose()


def _read_tools(typed: str | None) -> Sequence[Any]:
    """Read configs of toolkits: a JSON list, or @FILE with one. Raises UsageError."""
    if typed is None:
        return ()
    name, value = read_json_option("--tools", typed)
    if not isinstance(value, list) or not all(isinstance(config, dict) for config in value):
        raise UsageError(f'{name} must be a list of objects, for example [{{"name": "clock"}}]')
    return value


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: closed from the start


def _screen(*, as_json: bool, is_interactive: bool) -> Screen:
    if as_json:
        return JsonScreen()
    is_terminal = _is_terminal(sys.stdout) and (is_interactive or _is_terminal(sys.stderr))
    return TerminalScreen() if is_terminal else PipeScreen()


def _question(once: str | None, *, as_json: bool) -> str | None:
    """Return the one question; None if there is one in each line of stdin. Raises UsageError."""
    if once is None and as_json:
        return None
    text = once
    if once is None or once == _STDIN:
        text = _decoded(_stdin().read(_MAX_QUESTION_BYTES + 1))
    if not text or not text.strip():
        raise UsageError("the question is empty")
    return text


def _stdin() -> BinaryIO:
    return io.BytesIO() if sys.stdin is None else sys.stdin.buffer


def _decoded(data: bytes) -> str:
    if len(data) > _MAX_QUESTION_BYTES:
        raise UsageError(f"a question has at most {_MAX_QUESTION_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError("stdin is not text in UTF-8") from error


def _ask_once(session: Session, text: str) -> None:
    try:
        session.ask(text)
    except RoomException as error:
        if isinstance(session.screen, JsonScreen):
            session.fail(error)
        raise


def _ask_lines(session: Session) -> None:
    """Ask what each line of stdin asks; at the end raise the first error."""
    failure: RoomException | None = None
    while True:
        with session.interrupts.at_prompt():
            line = _stdin().readline(_MAX_QUESTION_BYTES + 1)
        if not line:
            break
        text = _decoded(line).strip()
        if not text:
            continue
        try:
            session.ask(text)
        except (Interrupted, Terminated):
            raise
        except RoomException as error:
            session.fail(error)
            failure = failure or error
    if failure is not None:
        raise failure


def _interact(session: Session) -> None:
    """Read lines and ask, until the user ends the chat."""
    lines = LineInput(History(home_of(os.environ) / "chat_history"), tuple(COMMANDS))
    session.screen.notice(f"chat with {one_line(session.agent.name, 64)}; /help lists commands")
    interrupted = 0
    while True:
        session.show_log()
        try:
            with session.interrupts.at_prompt():
                text = lines.read()
        except KeyboardInterrupt:
            interrupted += 1
            hint = "/quit or Ctrl-D ends the chat" if interrupted > 1 else ""
            session.screen.notice(hint)
            continue
        except EOFError:
            session.screen.notice("")
            return
        except UnicodeDecodeError:
            session.screen.notice("this is not text in UTF-8")
            continue
        interrupted = 0
        try:
            _do(session, text)
        except Quit:
            return
        except Interrupted:
            session.screen.notice("(interrupted)")
        except Terminated:
            raise
        except RoomException as error:
            session.fail(error)


def _do(session: Session, text: str) -> None:
    if text.startswith("//"):
        session.ask(text[1:])
    elif text.startswith("/"):
        run_command(session, text)
    elif text:
        session.ask(text)
