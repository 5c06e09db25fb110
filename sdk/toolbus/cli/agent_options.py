"""The options of an agent that a command runs, and the agent that they make.

`AgentChoices` is their one list: a command that is decorated with `chooses_an_agent` gets them as
flags, and receives what was chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from toolbus.agents.agent import Agent
from toolbus.agents.model_middlewares import ModelLog, ModelRetries
from toolbus.agents.state_store import SqliteStateStore, StateStoreUnavailable
from toolbus.chunks.json_values import shown
from toolbus.cli.arguments import read_file, warn_if_readable
from toolbus.cli.avatars import AvatarPieces, read_avatar
from toolbus.cli.completion import complete_avatar, complete_installed, complete_toolkit
from toolbus.cli.factory_options import NO_FLAGS, GivenFlags, make_configured, operator_values
from toolbus.cli.group_file import GroupFileError, read_group_file
from toolbus.cli.options import takes
from toolbus.cli.toolkit_references import find_object, find_toolkit, last_name
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.factories.factory import ToolkitFactory
from toolbus.models.adapter import Model
from toolbus.models.registry import open_model
from toolbus.permissions.modes import Mode
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.rule_file import RuleFileError
from toolbus.records.records import Records
from toolbus.room.room_client import RoomClient
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.agent_state import AgentState
from toolbus.turns.approvals import Approver
from toolbus.turns.builders import AnyBuilder, ToolkitBuilder
from toolbus.turns.factory_builder import builder_of
from toolbus.turns.tool_groups import ActiveGroups, ToolGroup
from toolbus.turns.turn_assembly import ToolkitNames
from toolbus.turns.turn_toolkits import RequiredToolkit

__all__ = ["AgentChoices", "agent_of", "chooses_an_agent"]


_Option = functools.partial(typer.Option, rich_help_panel="Agent", show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentChoices:
    """What the flags say of an agent; each field is one of them, None or () where it is not given.

    All have defaults, so that a command can do without an agent: `model` is None then.
    """

    model: Annotated[
        str | None,
        _Option(
            metavar="NAME",
            help="The model: openai:NAME, anthropic:NAME, gemini:NAME or scripted:FILE.",
        ),
    ] = None
    base_url: Annotated[
        str | None,
        _Option(metavar="URL", help="The address of the model's API. Default: its provider's."),
    ] = None
    instructions: Annotated[
        str | None,
        _Option(metavar="TEXT|@FILE", help="What the model is told before everything else."),
    ] = None
    description: Annotated[
        str | None,
        _Option(metavar="TEXT", help="What the agent is for, told to those who may ask it."),
    ] = None
    require: Annotated[
        list[str] | None,
        _Option(
            metavar="NAME[@OWNER]",
            help="A toolkit that the agent uses and waits for. Repeatable.",
            autocompletion=complete_toolkit,
        ),
    ] = None
    offer: Annotated[
        list[str] | None,
        _Option(
            metavar="NAME",
            help="A toolkit that is built for the questions that ask for it: module:attribute, or "
            "the name of an installed one. Repeatable.",
            autocompletion=complete_installed,
        ),
    ] = None
    groups: Annotated[
        Path | None, _Option(metavar="FILE", help="A file of groups of toolkits.")
    ] = None
    avatar: Annotated[
        str | None,
        _Option(
            metavar="NAME",
            help="An installed avatar: its instructions, tools and skills.",
            autocompletion=complete_avatar,
        ),
    ] = None
    available: Annotated[
        bool | None,
        _Option(
            "--available/--no-available",
            help="Use all public toolkits of the room, or only those that are required. "
            "Default: --available.",
        ),
    ] = None
    tool_budget: Annotated[
        int | None,
        _Option(
            metavar="TOKENS",
            min=0,
            help="The most that definitions of the room's tools may take of a prompt; above it the "
            "model searches for tools. Default: 8000.",
        ),
    ] = None
    permissions: Annotated[
        Path | None,
        _Option(metavar="FILE", help="A file of rules for the calls that the agent makes."),
    ] = None
    mode: Annotated[
        str | None,
        _Option(
            metavar="MODE",
            help="What happens to calls that no rule decides: default, accept_edits, explore, "
            "bypass or dont_ask. Default: as the file of rules says, else default.",
        ),
    ] = None
    max_steps: Annotated[
        int | None,
        _Option(
            metavar="N", min=1, help="The most replies of the model to one question. Default: 20."
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        _Option(
            metavar="N",
            min=1,
            help="After how many tokens of a question the model is not asked again.",
        ),
    ] = None
    state: Annotated[
        Path | None,
        _Option(metavar="FILE", help="Keep conversations in this file, over restarts."),
    ] = None

    invocation: typer.Context = None  # type: ignore[assignment]  # typer knows no optional one
    """The command line, in which the offered toolkits have flags; None for one without them."""

    def given(self) -> list[str]:
        """Return the flags that were given, as `--max-steps`."""
        flags = []
        for flag in fields(self):
            value = getattr(self, flag.name)
            if flag.name != "invocation" and value not in (None, [], ()):
                negation = "no-" if value is False else ""
                flags.append(f"--{negation}{flag.name.replace('_', '-')}")
        return flags


chooses_an_agent: Callable[[Callable[..., None]], Callable[..., None]] = takes(AgentChoices)
"""Gives a command the flags of `AgentChoices`, in place of its parameter of that type."""


def agent_of(
    room: RoomClient | None,
    choices: AgentChoices,
    *,
    name: str,
    approve: Approver | None = None,
    records: Records | None = None,
) -> Agent:
    """Make the agent that the flags describe. Nothing is sent, and nothing is started.

    Args:
        room: Its room; None for an agent that is asked in this process alone.
        choices: What the flags say; `model` is given.
        name: The name of the agent.
        approve: Asks a person about a call; without it, what would be asked is denied.
        records: Where the calls that it makes are recorded.

    Raises:
        UsageError: A flag is wrong, or what it names: the message says what to do.
    """
    avatar = AvatarPieces() if choices.avatar is None else read_avatar(choices.avatar)
    if choices.model is None:
        suggested = f"; the avatar suggests {avatar.model}" if avatar.model else ""
        raise UsageError(f"an agent needs a model: give --model NAME{suggested}")
    for note in avatar.notes:
        typer.echo(f"  note: {note}", err=True)
    # What flags name counts before the same of the avatar; lists of both add up.
    typed = choices.instructions
    required = [_required(typed_name) for typed_name in choices.require or ()]
    named = {toolkit.name for toolkit in required}
    required += [RequiredToolkit(kit) for kit in avatar.require if kit not in named]
    offer = list(choices.offer or ())
    offered = {last_name(reference) for reference in offer}
    flags = NO_FLAGS if choices.invocation is None else GivenFlags.of(choices.invocation)
    offer += [reference for reference in avatar.offer if reference not in offered]
    limits = {
        "max_steps": choices.max_steps,
        "max_tokens": choices.max_tokens,
        "tool_budget_tokens": choices.tool_budget,
    }
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    always = [toolkit for toolkit in avatar.always if toolkit.name not in named]
    groups = () if choices.groups is None else _groups(choices.groups)
    try:
        _check_names(name, always, required, ActiveGroups(groups, AgentState(), avatar.skills))
        return Agent(
            room,
            _model(choices.model, choices.base_url),
            name=name,
            # Never read as a flag: `@FILE` of an avatar would be any file of this user.
            instructions=avatar.instructions if typed is None else _instructions(typed),
            description=choices.description or "",
            always=always,
            required=required,
            builders=[offered_builder(reference, flags) for reference in offer],
            groups=groups,
            skills=avatar.skills,
            permissions=avatar.restricted(_permissions(choices.permissions, choices.mode)),
            approve=approve,
            model_middlewares=[ModelRetries(), ModelLog()],
            records=records,
            store=None if choices.state is None else _states(choices.state),
            available=avatar.available if choices.available is None else choices.available,
            **given,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _check_names(
    name: str,
    always: Sequence[Toolkit],
    required: Sequence[RequiredToolkit],
    groups: ActiveGroups,
) -> None:
    """Raise `ValueError` for two toolkits of one name, before anything is waited for."""
    every = (*required, *groups.required)
    ToolkitNames((*always, *groups.toolkits), every)
    if any(kit.name == name and kit.participant in (None, name) for kit in every):
        raise ValueError(f"the agent {name} cannot require its own toolkit: write {name}@OWNER")


def offered_builder(reference: str, given: GivenFlags = NO_FLAGS) -> AnyBuilder:
    """Return the builder that a reference means: one, a toolkit, or that of a factory.

    Args:
        reference: `module:attribute`, or the name of an installed toolkit.
        given: The flags of the command line, for what only the operator sets.

    Raises:
        UsageError: There is none, it cannot be loaded, or the operator has to set a value.
    """

    def build(factory: ToolkitFactory) -> ToolkitBuilder[Any]:
        values = operator_values(reference, factory, given)
        return builder_of(factory.function, last_name(reference), **values)

    found = find_object(reference, (Toolkit, ToolkitBuilder), build)
    return cast("AnyBuilder", found)


def required_toolkit(typed: str) -> RequiredToolkit:
    """Read a required toolkit: its name, and `@OWNER` if only that owner's counts.

    Raises `ValueError`.
    """
    name, at, owner = typed.partition("@")
    if at and not owner:
        raise ValueError(f"{shown(typed)} names no owner: write NAME, or NAME@OWNER")
    return RequiredToolkit(name, participant=owner or None)


def _groups(path: Path) -> list[ToolGroup]:
    def toolkit(reference: str) -> Toolkit:
        return find_toolkit(
            reference, functools.partial(make_configured, reference, given=NO_FLAGS)
        )

    try:
        return read_group_file(path, toolkit, required_toolkit, offered_builder)
    except GroupFileError as error:
        raise UsageError(f"--groups: {error}") from error


def _model(name: str, base_url: str | None) -> Model:
    try:
        return open_model(name, base_url)
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        raise UsageError(f"--model: {error}") from error


def _states(path: Path) -> SqliteStateStore:
    states = SqliteStateStore(path)
    try:
        states.check()
    except StateStoreUnavailable as error:
        raise UsageError(f"--state: {error.message}; {error.next_step}") from error
    warn_if_readable("--state", path)
    return states


def _instructions(typed: str) -> str:
    return read_file("--instructions", typed[1:]) if typed.startswith("@") else typed


def _required(typed: str) -> RequiredToolkit:
    try:
        return required_toolkit(typed)
    except ValueError as error:
        raise UsageError(f"--require: {error}") from error


def _permissions(path: Path | None, mode: str | None) -> Permissions:
    try:
        permissions = Permissions() if path is None else Permissions.from_toml(path)
        return permissions if mode is None else replace(permissions, mode=cast(Mode, mode))
    except RuleFileError as error:
        raise UsageError(f"--permissions: {error}") from error
    except ValueError as error:
        raise UsageError(f"--mode: {error}") from error
