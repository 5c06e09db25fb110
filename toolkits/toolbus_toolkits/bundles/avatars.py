"""Avatars: the instructions, toolkits and skills of an agent, as a file that a bundle installs.

A file names things and brings none: skills, toolkits and MCP servers must be installed. What it
takes away counts (`denied_tools`, `available: false`), and nothing in it permits a call.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, StringConstraints

from toolbus.auth.grants import ToolPatterns, is_toolkit_name
from toolbus.settings import home_of
from toolbus.untrusted_text import one_line, visible
from toolbus_toolkits.bundles.bundle import AVATARS, no_references
from toolbus_toolkits.bundles.contents import BundleRefused, is_hidden
from toolbus_toolkits.bundles.home_state import Installed, McpFile
from toolbus_toolkits.bundles.manifest import read_mapping, validated
from toolbus_toolkits.bundles.transaction import recover
from toolbus_toolkits.mcp.config import HOME_FILE
from toolbus_toolkits.mcp.entry_keys import denies_tools, plain_key, restricts
from toolbus_toolkits.mcp.names import toolkit_name
from toolbus_toolkits.skills.files import UnreadableFile, read_bytes
from toolbus_toolkits.skills.front_matter import MAX_FRONT_MATTER_BYTES
from toolbus_toolkits.skills.library import Skills
from toolbus_toolkits.skills.skill import standard_sources

__all__ = ["Avatar", "AvatarRefused", "read_avatar"]

_TOOLKITS = "toolbus.toolkits"
"""The entry point group of toolkits."""
_ALIASES = {
    "system_prompt": "instructions",
    "skills_enabled": "skills",
}
"""Keys of AgenticX, and the fields that they are."""
_SAYS_NOTHING = frozenset(
    "id avatarurl tags pinned color createdby createdat updatedat brainsenabled schema".split()
)
"""Keys of AgenticX, in one spelling, that concern its windows, or knowledge that is not here."""
_RESTRICTING = re.compile(
    "polic|guard|privileg|network|internet|(?:access|mode|rules?|grants?|scopes?)$"
)
"""Keys that restrict an agent, beside those that restrict an MCP server."""


class AvatarRefused(ValueError):
    """There is no such avatar, its file is not valid, or what it names is not installed."""


def _switched(switches: object, value: bool) -> list[str]:
    """Return the names of a mapping that are switched on, or off; a list is on as it is."""
    if isinstance(switches, list) and value:
        return switches
    if not isinstance(switches, Mapping) or not all(
        isinstance(switch, bool) for switch in switches.values()
    ):
        raise ValueError(f"must be {'a list of names' if value else 'names with true or false'}")
    return [name for name, switch in switches.items() if switch is value]


_Line = Annotated[str, StringConstraints(max_length=4_096)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Names = tuple[_Name, ...]


class _Fields(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """What the file of an avatar says."""

    name: _Line = ""
    role: _Line = ""
    description: _Line = ""
    instructions: str = ""
    skills: Annotated[_Names, BeforeValidator(partial(_switched, value=True))] = ()
    toolkits: _Names = ()
    require: _Names = ()
    offer: _Names = ()
    denied_tools: _Names = ()
    tools_enabled: Annotated[_Names, BeforeValidator(partial(_switched, value=False))] = ()
    """What AgenticX switches off. A tool that is switched on is permitted there, and not needed."""
    available: bool = True
    model: _Line = ""
    default_provider: _Line = ""
    default_model: _Line = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Avatar:
    """What an avatar gives to an agent, and takes from it."""

    name: str
    """The name of its file."""
    path: Path
    description: str
    """What it is for, for people."""
    instructions: str
    """What a model reads before a conversation; invisible characters are escaped."""
    skills: tuple[Skills, ...]
    """The skills that it names, as one listing; empty without any."""
    toolkits: tuple[str, ...]
    """Names of installed toolkits."""
    require: tuple[str, ...]
    """Toolkits that others host, MCP servers of `mcp.json` among them."""
    offer: tuple[str, ...]
    """Installed toolkits that a question may ask to be built."""
    denied_tools: tuple[str, ...]
    """Patterns, as in rules of permissions, of tools that the agent must not call."""
    available: bool
    """Whether the agent may have the public toolkits of its room that nobody names."""
    model: str
    """What its author used, as `open_model` takes it: a suggestion for people; may be empty."""
    notes: tuple[str, ...]
    """For the operator: what is not understood, and what has to be hosted."""


def read_avatar(name: str, *, home: Path | None = None) -> Avatar:
    """Read an installed avatar. Blocking.

    Args:
        name: The name of its file, without the ending.
        home: Where it is installed; by default `TOOLBUS_HOME`.

    Raises `AvatarRefused`, with what to do.
    """
    place = home or home_of(os.environ)
    try:
        recover(place)
        path = _find(name, place)
        fields, notes = _read(path)
        return _made(name, path, fields, notes)
    except (BundleRefused, OSError) as error:
        raise AvatarRefused(str(error)) from None


def _find(name: str, home: Path) -> Path:
    # The folder is listed, so that a name is compared and never becomes a path.
    folder = home / AVATARS
    paths = (
        [path for path in folder.iterdir() if not is_hidden(path.name)] if folder.is_dir() else []
    )
    found = [path for path in paths if name in (path.stem, path.name)]
    if len(found) == 1:
        return found[0]
    shown = one_line(name, 64)
    if found:
        names = " and ".join(sorted(path.name for path in found))
        raise AvatarRefused(f"{folder} has {names}, both of which are avatar {shown!r}: remove one")
    bringing = "install a bundle that has it with `toolbus bundle install PATH`, or write"
    bringing = f"{bringing} {folder / 'NAME.yaml'}"
    stems = sorted({path.stem for path in paths})
    listed = ", and no other avatar"
    if stems:
        listed = f"; the avatars are {one_line(', '.join(stems), 1_000)}"
    raise AvatarRefused(f"there is no avatar {shown!r}{_near(name, stems)}{listed}: {bringing}")


def _read(path: Path) -> tuple[_Fields, list[str]]:
    """Read a file, within the limits of a manifest."""
    try:
        content, _ = read_bytes(Path(os.path.realpath(path)), MAX_FRONT_MATTER_BYTES)
    except UnreadableFile as error:
        raise AvatarRefused(f"{path} {error}") from None
    data = read_mapping(content, str(path))
    no_references(data, str(path))
    known: dict[str, Any] = {}
    notes: list[str] = []
    fields_by_key = {plain_key(field): field for field in _Fields.model_fields}
    fields_by_key |= {plain_key(key): field for key, field in _ALIASES.items()}
    for key, value in data.items():
        plain = plain_key(key)
        field = fields_by_key.get(plain)
        if field is None and denies_tools(key):
            field = "denied_tools"
        if value is None or plain in _SAYS_NOTHING:
            continue
        if field is None:
            notes += _judged(path, key, value, list(fields_by_key))
        elif field not in known:
            known[field] = value
        elif known[field] != value:
            raise AvatarRefused(
                f"{path}: {one_line(key, 64)}: {field} is there in another spelling"
            )
    return validated(_Fields, known, str(path)), notes


def _judged(path: Path, key: str, value: object, known: list[str]) -> Iterator[str]:
    """Yield a warning of a key that is not known. Raises `AvatarRefused` if it restricts."""
    near = _near(plain_key(key), known)
    for where, inner, found in _keys(key, key, value):
        if restricts(inner, found) or _RESTRICTING.search(plain_key(inner)):
            raise AvatarRefused(
                f"{path}: {one_line(where, 128)} seems to restrict the agent, and is not "
                f"understood{near}: take it out; denied_tools names tools that it must not call, "
                "and the options --permissions and --mode say the rest"
            )
    if not key.startswith("_"):  # else a comment
        yield f"{path}: {one_line(key, 64)} is not understood{near}"


def _keys(where: str, key: str, value: object) -> Iterator[tuple[str, str, object]]:
    """Yield a key and all within it: where it is, the key, its value. Their number is bounded."""
    yield where, key, value
    if isinstance(value, Mapping):
        for inner, found in value.items():
            yield from _keys(f"{where}.{inner}", inner, found)
    elif isinstance(value, list):
        for found in value:
            yield from _keys(where, key, found)


def _made(name: str, path: Path, fields: _Fields, notes: list[str]) -> Avatar:
    home = path.parent.parent
    installed = frozenset(entry.name for entry in entry_points(group=_TOOLKITS))
    servers = frozenset(McpFile(home).entries)
    toolkits: list[str] = []
    hosted: list[str] = []
    for toolkit in fields.toolkits:
        server = toolkit_name(toolkit)
        # A bundle whose server has the name of an installed toolkit means its own server.
        if server in servers:
            hosted.append(server)
            command = f"toolbus host mcp --config {shlex.quote(str(home / HOME_FILE))}"
            notes.append(f"toolkit {server} is an MCP server: host it with `{command}`")
        elif toolkit in installed:
            toolkits.append(toolkit)
        else:
            raise _missing(path, "toolkits", toolkit, sorted(installed | servers))
    for toolkit in fields.offer:
        if toolkit not in installed:
            raise _missing(path, "offer", toolkit, sorted(installed))
    for toolkit in fields.require:
        if not is_toolkit_name(toolkit):
            shown = one_line(toolkit, 64)
            raise AvatarRefused(f"{path}: require: {shown!r} is no name of a toolkit")
    model = fields.model
    if not model and fields.default_provider and fields.default_model:
        model = f"{fields.default_provider}:{fields.default_model}"
    return Avatar(
        name=name,
        path=path,
        description=fields.description,
        instructions=_instructions(fields),
        skills=_skills(path, fields.skills),
        toolkits=tuple(dict.fromkeys(toolkits)),
        require=tuple(dict.fromkeys((*hosted, *fields.require))),
        offer=tuple(dict.fromkeys(fields.offer)),
        denied_tools=tuple(_patterns(path, (*fields.denied_tools, *fields.tools_enabled))),
        available=fields.available,
        model=one_line(model),
        notes=tuple(one_line(note, 1_000) for note in notes),
    )


def _instructions(fields: _Fields) -> str:
    lines = []
    if fields.name:
        lines.append(f"Your name is {fields.name}.")
    if fields.role:
        lines.append(f"Your role: {fields.role}")
    facts = "\n".join(lines)
    return visible("\n\n".join(filter(None, (facts, fields.instructions.strip()))))


def _skills(path: Path, names: Iterable[str]) -> tuple[Skills, ...]:
    """Return one listing of these skills alone."""
    if not names:
        return ()
    sources = standard_sources({"TOOLBUS_HOME": str(path.parent.parent)})
    found = {skill.name: skill for skill in Skills(sources).list()}
    for name in names:
        if name not in found:
            raise _missing(path, "skills", name, list(found))
    return (Skills([found[name] for name in dict.fromkeys(names)]),)


def _patterns(path: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield patterns of tools.

    A name without a dot is that of a toolkit, or of a tool of any toolkit, as AgenticX names them,
    or both with two underscores between. What is meant is not known, so all of it is denied.
    """
    for name in dict.fromkeys(names):
        meant = [name] if "." in name else [name, f"*.{name}", name.replace("__", ".", 1)]
        patterns = [pattern for pattern in dict.fromkeys(meant) if _is_pattern(pattern)]
        if not patterns:
            raise AvatarRefused(
                f"{path}: denied_tools: {one_line(name, 64)!r} is no tool: write toolkit.tool or "
                "toolkit, with * for any characters"
            )
        yield from patterns


def _is_pattern(text: str) -> bool:
    try:
        ToolPatterns([text])
    except ValueError:
        return False
    return True


def _missing(path: Path, key: str, name: str, known: list[str]) -> AvatarRefused:
    """Return the error about a name that is not installed: what there is, and what brings it."""
    bringing = "no bundle here has it: install one with `toolbus bundle install PATH`"
    for bundle in Installed.read(path.parent.parent).bundles.values():
        if name in (bundle.skills if key == "skills" else bundle.servers):
            origin = shlex.quote(bundle.origin or "PATH")
            bringing = f"bundle {bundle.name} has it: `toolbus bundle install {origin}`"
    if key == "toolkits":
        bringing += ", or write it under `require` where others host it"
    has = f"; there are {one_line(', '.join(known), 1_000)}" if known else ""
    what = f"{one_line(name, 64)!r} is not installed{_near(name, known)}"
    return AvatarRefused(f"{path}: {key}: {what}{has}; {one_line(bringing, 1_000)}")


def _near(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name[:64], [known for known in names if len(known) <= 64], 1)
    return f": did you mean {one_line(near[0])}?" if near else ""
