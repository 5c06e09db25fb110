"""The options of an agent that a command runs, and the agent that they make.

`AgentChoices` is their one list: a command that is decorated with `chooses_an_agent` gets them as
flags, and receives what was chosen.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, cast

import typer
from pydantic import Field, ValidationInfo, field_validator

from toolbus.agents.agent import Agent
from toolbus.agents.model_middlewares import ModelLog, ModelRetries
from toolbus.agents.state_store import SqliteStateStore, StateStoreUnavailable
from toolbus.auth.keys import KeyRing
from toolbus.auth.tokens import ParticipantToken, TokenRefused
from toolbus.chunks.json_values import shown
from toolbus.cli.arguments import read_file
from toolbus.cli.completion import (
    complete_avatar,
    complete_installed,
    complete_owner,
    complete_toolkit,
)
from toolbus.cli.options import takes, warn_if_readable
from toolbus.cli.toolkit_options import (
    NO_FLAGS,
    GivenFlags,
    find_factory,
    find_object,
    find_toolkit,
    last_name,
    make_configured,
    operator_values,
)
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.join_errors import read_token
from toolbus.factories.factory import ToolkitFactory
from toolbus.models.registry import open_model
from toolbus.permissions.modes import Mode
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.rule import Rule, name_fault_in_rules
from toolbus.permissions.toml_file import Place, TomlFile, TomlFileError, TomlTable
from toolbus.records.records import Records
from toolbus.room.room_client import RoomClient
from toolbus.settings import DEV_KEYS_FILE, RoomSettings, default_name, home_of, is_loopback
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.agent_state import AgentState
from toolbus.turns.approvals import Approve
from toolbus.turns.builders import AnyBuilder, ToolkitBuilder, builder_of
from toolbus.turns.tool_groups import ActiveGroups, SkillListing, ToolGroup
from toolbus.turns.tool_questions import Answer
from toolbus.turns.turn_assembly import ToolkitNames
from toolbus.turns.turn_toolkits import RequiredToolkit
from toolbus.untrusted_text import one_line

__all__ = [
    "AgentChoices",
    "InstalledAvatar",
    "agent_of",
    "chooses_an_agent",
    "own_identity",
    "read_avatar",
]


T = TypeVar("T")
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
    trust: Annotated[
        list[str] | None,
        _Option(
            metavar="NAME",
            help="An owner of toolkits whose tools are believed: what they call read-only runs "
            "without a question. Repeatable.",
            autocompletion=complete_owner,
        ),
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
                name = f"no-{flag.name}" if value is False else flag.name
                flags.append(f"--{name.replace('_', '-')}")
        return flags

    @property
    def flags(self) -> GivenFlags:
        """The flags of the offered toolkits."""
        if self.invocation is None:
            return NO_FLAGS
        return GivenFlags.of(self.invocation)


chooses_an_agent: Callable[[Callable[..., None]], Callable[..., None]] = takes(AgentChoices)
"""Gives a command the flags of `AgentChoices`, in place of its parameter of that type."""


def agent_of(  # noqa: PLR0913 - each is one fact of an agent, by keyword
    room: RoomClient | None,
    choices: AgentChoices,
    *,
    name: str,
    approve: Approve | None = None,
    answer: Answer | None = None,
    records: Records | None = None,
    trusted: Sequence[str] = (),
) -> Agent:
    """Make the agent that the flags describe. Nothing is sent, and nothing is started.

    Args:
        room: Its room; None for an agent that is asked in this process alone.
        choices: What the flags say; `model` is given.
        name: The name of the agent.
        approve: Asks a person about a call; without it, what would be asked is denied.
        answer: Answers what its own tools ask.
        records: Where the calls that it makes are recorded.
        trusted: Owners that it trusts without `--trust`.

    Raises:
        UsageError: A flag is wrong, or what it names: the message says what to do.
    """
    avatar = read_avatar(choices.avatar)
    if choices.model is None:
        suggested = f"; the avatar suggests {avatar.model}" if avatar.model else ""
        raise UsageError(f"an agent needs a model: give --model NAME{suggested}")
    for note in avatar.notes:
        typer.echo(f"  note: {note}", err=True)
    # What flags name counts before the same of the avatar; lists of both add up.
    with _naming("--require"):
        required = [required_toolkit(typed) for typed in choices.require or ()]
    named = {toolkit.name for toolkit in required}
    required += [RequiredToolkit(kit) for kit in avatar.require if kit not in named]
    always = [toolkit for toolkit in avatar.always if toolkit.name not in named]
    offer = list(choices.offer or ())
    offered = {last_name(reference) for reference in offer}
    offer += [reference for reference in avatar.offer if reference not in offered]
    # Never read as a flag: `@FILE` of an avatar would be any file of this user.
    instructions = avatar.instructions
    if choices.instructions is not None:
        instructions = choices.instructions
        if instructions.startswith("@"):
            instructions = read_file("--instructions", instructions[1:])
    with _naming("--groups"):
        groups = list(_read_groups(choices.groups))
    with _naming("--model"):
        model = open_model(choices.model, choices.base_url)
    given: dict[str, Any] = {
        "description": choices.description,
        "available": choices.available,
        "max_steps": choices.max_steps,
        "max_tokens": choices.max_tokens,
        "tool_budget_tokens": choices.tool_budget,
    }
    try:
        _check_names(name, always, required, ActiveGroups(groups, AgentState(), avatar.skills))
        return Agent(
            room,
            model,
            name=name,
            instructions=instructions,
            always=always,
            required=required,
            builders=[offered_builder(reference, choices.flags) for reference in offer],
            groups=groups,
            skills=avatar.skills,
            permissions=avatar.restricted(_permissions(choices, trusted)),
            approve=approve,
            answer=answer,
            model_middlewares=[ModelRetries(), ModelLog()],
            records=records,
            store=_states(choices.state),
            **{"available": avatar.available}
            | {option: value for option, value in given.items() if value is not None},
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


@contextmanager
def _naming(flag: str) -> Iterator[None]:
    """Name the flag in an error of what it says."""
    try:
        yield
    except (ModuleNotFoundError, TypeError, ValueError) as error:
        raise UsageError(f"{flag}: {error}") from error


def _states(path: Path | None) -> SqliteStateStore | None:
    if path is None:
        return None
    states = SqliteStateStore(path)
    try:
        states.check()
    except StateStoreUnavailable as error:
        raise UsageError(f"--state: {error.message}; {error.next_step}") from error
    warn_if_readable("--state", path)
    return states


def _permissions(choices: AgentChoices, trusted: Sequence[str]) -> Permissions:
    permissions = Permissions()
    if choices.permissions is not None:
        with _naming("--permissions"):
            permissions = Permissions.from_toml(choices.permissions)
    if choices.mode is not None:
        with _naming("--mode"):
            permissions = replace(permissions, mode=cast(Mode, choices.mode))
    for owner in choices.trust or ():
        if (fault := name_fault_in_rules(owner)) is not None:
            raise UsageError(f"--trust: {shown(owner)} {fault}")
    owners = (*permissions.trusted_owners, *trusted, *(choices.trust or ()))
    return replace(permissions, trusted_owners=tuple(dict.fromkeys(owners)))


async def own_identity(settings: RoomSettings, context: str | None) -> tuple[str, ...]:
    """Return the name of this user's own programs, which an agent of this user trusts.

    Empty unless the token of `settings` is signed by the key of `dev-keys.toml`, and the server is
    on this machine: whoever reads that key can be anybody there, so its user hosts these toolkits.

    Raises `UsageError` if the token cannot be read.
    """
    token = await read_token(settings)
    if not is_loopback(settings.url):
        return ()
    try:
        keys = KeyRing.load(home_of(os.environ) / DEV_KEYS_FILE)
        ParticipantToken.from_jwt(token, keys)
        return (default_name(os.environ, context),)
    except (OSError, ValueError, TokenRefused):
        return ()


# `--groups FILE`: toolkits that an agent switches on and off together, for people to write
#
#     [[group]]
#     name = "times"
#     description = "Dates and time zones."
#     toolkits = ["clock"]
#
# A file with a mistake is refused as a whole.


class _GroupKeys(TomlTable):
    name: str
    description: str
    instructions: str = ""
    active: bool = False
    toolkits: list[str] = Field([], max_length=100)
    """Toolkits that run in the agent: as of `toolbus host`."""
    required: list[str] = Field([], max_length=100)
    """Toolkits of others: as of `--require`."""
    offer: list[str] = Field([], max_length=100)
    """Toolkits that are built on request: as of `--offer`."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        ToolGroup(name, "of any")  # raises
        return name

    @field_validator("description")
    @classmethod
    def _check_description(cls, description: str, info: ValidationInfo) -> str:
        ToolGroup(info.data.get("name", "any"), description)  # raises
        return description


class _GroupFileKeys(TomlTable):
    group: list[_GroupKeys] = Field([], max_length=100)
    """A model chooses among their descriptions, so more are of no use."""


def _read_groups(path: Path | None) -> Iterator[ToolGroup]:
    """Read the file, and make what the groups have. Raises `TomlFileError` for a mistake."""
    if path is None:
        return
    file = TomlFile(path, _GroupFileKeys, TomlFileError)
    names: set[str] = set()
    for index, keys in enumerate(file.content.group):
        at: Place = ("group", index)
        if keys.name in names:
            raise file.error((*at, "name"), f"there is a group {keys.name!r} already")
        names.add(keys.name)
        yield ToolGroup(
            keys.name,
            keys.description,
            _made(file, (*at, "toolkits"), keys.toolkits, _toolkit_of_a_file),
            required=_made(file, (*at, "required"), keys.required, required_toolkit),
            builders=_made(file, (*at, "offer"), keys.offer, offered_builder),
            instructions=keys.instructions,
            active=keys.active,
        )


def _toolkit_of_a_file(reference: str) -> Toolkit:
    return find_toolkit(reference, functools.partial(make_configured, reference, given=NO_FLAGS))


def _made(
    file: TomlFile[_GroupFileKeys], at: Place, texts: Sequence[str], make: Callable[[str], T]
) -> list[T]:
    """Return what is made of the texts of a list."""
    made = []
    for index, text in enumerate(texts):
        try:
            made.append(make(text))
        except (TypeError, UsageError, ValueError) as error:
            raise file.error((*at, index), str(error)) from error
    return made


# `--avatar NAME`: what an installed avatar gives to an agent
#
# The package that keeps avatars joins through the entry point group `toolbus.avatars`: a function
# from a name to an `InstalledAvatar`, which raises `ValueError` with what to do. One of another
# distribution is used in place of our own, `bundles`.


class InstalledAvatar(Protocol):
    """An avatar, as a package keeps it. What it names is installed."""

    @property
    def path(self) -> Path:
        """The file that defines it."""

    @property
    def instructions(self) -> str:
        """What a model reads before a conversation; may be empty."""

    @property
    def skills(self) -> Sequence[SkillListing]:
        """Skills that are always active."""

    @property
    def toolkits(self) -> Sequence[str]:
        """Names of installed toolkits."""

    @property
    def require(self) -> Sequence[str]:
        """Names of toolkits that others host."""

    @property
    def offer(self) -> Sequence[str]:
        """Names of installed toolkits that a question may ask to be built."""

    @property
    def denied_tools(self) -> Sequence[str]:
        """Patterns of tools that the agent must not call."""

    @property
    def available(self) -> bool:
        """Whether the agent may have toolkits of its room that nobody names."""

    @property
    def model(self) -> str:
        """The model that its author suggests; may be empty."""

    @property
    def notes(self) -> Sequence[str]:
        """What the operator should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvatarPieces:
    """What an avatar gives to an agent, and takes from it; without arguments, of no avatar."""

    instructions: str = ""
    always: tuple[Toolkit, ...] = ()
    require: tuple[str, ...] = ()
    offer: tuple[str, ...] = ()
    skills: tuple[SkillListing, ...] = ()
    denials: tuple[Rule, ...] = ()
    available: bool = True
    model: str = ""
    notes: tuple[str, ...] = ()

    def restricted(self, permissions: Permissions) -> Permissions:
        """Return permissions that deny what the avatar denies too."""
        return replace(permissions, rules=(*permissions.rules, *self.denials))


def read_avatar(name: str | None) -> AvatarPieces:
    """Read an installed avatar, and make its toolkits; without a name it has nothing.

    Raises `UsageError` if there is none of that name, it is not valid, or no package keeps avatars.
    """
    if name is None:
        return AvatarPieces()
    every = tuple(entry_points(group="toolbus.avatars"))
    packages = [entry for entry in every if entry.name != "bundles"] or every
    if not packages:
        raise UsageError("--avatar: no package here keeps avatars: pip install 'toolbus[bundles]'")
    if len(packages) > 1:
        names = ", ".join(sorted(entry.value for entry in packages))
        raise UsageError(f"--avatar: several packages here keep avatars, leave one: {names}")
    always: list[Toolkit] = []
    require: list[str] = []
    try:
        read: Callable[[str], InstalledAvatar] = packages[0].load()
        found = read(name)
        notes = list(found.notes)
        for toolkit in found.toolkits:
            if _is_hosted_by_an_operator(toolkit):
                require.append(toolkit)
                notes.append(
                    f"toolkit {toolkit} has settings: host it with `toolbus host {toolkit}`"
                )
            else:
                always.append(find_toolkit(toolkit))
    except (ImportError, ValueError) as error:
        raise UsageError(f"--avatar: {error}") from None
    return AvatarPieces(
        instructions=found.instructions,
        always=tuple(always),
        require=tuple(dict.fromkeys((*require, *found.require))),
        offer=tuple(found.offer),
        skills=tuple(found.skills),
        denials=tuple(
            Rule(behavior="deny", tool=tool, origin=str(found.path)) for tool in found.denied_tools
        ),
        available=found.available,
        model=found.model,
        notes=tuple(one_line(note) for note in notes),
    )


def _is_hosted_by_an_operator(toolkit: str) -> bool:
    """Whether only an operator can say what an installed toolkit may reach."""
    # An avatar comes from others. So it starts here what a message could have built, no more.
    factory = find_factory(toolkit)
    return factory is not None and any(
        field.is_operator_only or field.is_partly_operator_only or field.info.is_required()
        for field in factory.fields
    )
