"""The configuration of MCP servers: `mcpServers` JSON, as editors and other hubs write it.

A file is read entry by entry: one that cannot be used as it is meant is skipped, and the reason is
kept. Nothing is started here, and references to credentials stay as they are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, model_validator

from toolbus.settings import expanded
from toolbus.untrusted_text import one_line
from toolbus_toolkits.bounded_json import parse_json, read_json_file
from toolbus_toolkits.credentials.references import has_reference
from toolbus_toolkits.mcp.entry_keys import (
    MAX_S,
    denied_in,
    denies_tools,
    matches_any,
    names_in,
    plain_key,
    read_entry,
    restricts,
)
from toolbus_toolkits.mcp.names import toolkit_name
from toolbus_toolkits.mcp.variables import MAX_FILE_BYTES, FileContext, filled_in
from toolbus_toolkits.sandbox import SandboxConfig

__all__ = [
    "HOME_FILE",
    "MAX_FILE_BYTES",
    "MAX_REASON_CHARS",
    "MAX_SERVERS",
    "FileContext",
    "ServerEntry",
    "ServersFile",
    "SkippedEntry",
    "entries_path",
    "read_file",
    "read_servers",
    "usual_files",
]

HOME_FILE = "mcp.json"
"""The file of `TOOLBUS_HOME` that bundles add their servers to."""
MAX_SERVERS = 256
"""Each may be a program that runs here, and callers may add entries."""
MAX_REASON_CHARS = 1_000
"""Why a server is not used: what its file or a room said, as `mcp.list` shows it to all callers."""

_PLACES: tuple[tuple[str, ...], ...] = (
    ("mcpServers",),
    ("servers",),
    ("context_servers",),
    ("mcp_servers",),
    ("amp.mcpServers",),
    ("mcp", "servers"),
    ("mcp",),
)
"""Where files have their entries: most, VS Code, Zed, Codex, Amp, VS Code's settings, opencode."""
_EXCLUDING = frozenset(
    "disabledmcpservers disabledmcpjsonservers excludemcpservers disabledservers excludedservers "
    "excludeservers deniedservers blockedservers".split()
)
_ONLY = frozenset("allowmcpservers enabledservers includedservers allowedservers".split())
_HARMLESS = frozenset("enabledmcpjsonservers enabledmcpservers enableallprojectmcpservers".split())
"""Keys of a whole file, of Claude Code, Gemini CLI and others, in one spelling. The last say what
Claude Code asks no more."""

_AUDIENCE_KEYS = ("shared_with", "sharedWith", "assign_to_agents")
_COMMENT = re.compile(
    # Each part is matched to its end, or to that of the text: nothing is searched again. There is
    # no lookahead in a possessive group: Python 3.11.2 matches it wrongly.
    r'(?P<string>"(?:[^"\\]++|\\.)*+"?)|//[^\n]*|/\*(?:.*?\*/|.*)',
    re.DOTALL,
)
_LAST_COMMA = re.compile(r'(?P<string>"(?:[^"\\]++|\\.)*+"?)|,(?=\s*+[\]}])', re.DOTALL)


class ServerEntry(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """One MCP server: a command that is started, or an address.

    It is made of an entry in any form that editors write. Keys that are not known are ignored,
    unless they seem to restrict the server. Raises `ValidationError` for those, and unless there is
    exactly one of `command` and `url`.
    """

    command: str | None = Field(None, min_length=1, max_length=4096, repr=False)
    args: tuple[str, ...] = Field((), repr=False)
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    cwd: Path | None = None
    url: str | None = Field(None, max_length=8192, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    transport: Literal["stdio", "streamable_http", "sse"] = "stdio"
    timeout_s: float = Field(60.0, gt=0, le=MAX_S["timeout_s"])
    """Seconds that one call may take."""
    connect_timeout_s: float = Field(30.0, gt=0, le=MAX_S["connect_timeout_s"])
    """Seconds until the server has answered the first requests; `npx` installs within them."""
    enabled_tools: frozenset[str] | None = None
    """The only tools that are shown, by original names, or with `*` and `?`; None shows all."""
    disabled_tools: frozenset[str] = frozenset()
    """Tools that are not shown, also where `enabled_tools` names them."""
    shared_with: tuple[str, ...] | None = None
    """Who sees the toolkit: `name:x`, `role:x` or `*`; None shows it to the whole room."""
    stateful: bool = True
    """Whether one session serves all calls; else each call has a session of its own."""
    disabled: bool = False
    memory_mb: int | None = Field(None, ge=1)
    """Address space of a started program, in MiB."""
    trusted: bool = False
    """Whether the hints that the server gives of its tools count as flags. Of a file only where an
    operator names it: see `FileContext.may_trust`."""
    sandbox: SandboxConfig | None = None
    """What a started program may reach; None leaves that to `ServerAccess.sandbox`."""

    @model_validator(mode="before")
    @classmethod
    def _normalized(cls, data: Any) -> Any:
        fields, _ = read_entry(data)
        if "env_file" in fields:
            raise ValueError("envFile is read for the entries of a file")
        command = fields.get("command")
        cwd = fields.get("cwd")
        if isinstance(command, str) and "/" in command and isinstance(cwd, str | Path):
            # The launcher would look it up from the folder of this process.
            fields["command"] = str(expanded(cwd) / command)
        return fields

    @model_validator(mode="after")
    def _is_whole(self) -> ServerEntry:
        if self.url is not None:
            _check_url(self.url)
        shown = [self.command or "", *self.args, self.url or ""]
        if has_reference(shown):
            raise ValueError("only env and headers may refer to credentials: others see the rest")
        if self.transport == "stdio" and not self.stateful:
            raise ValueError("a started program serves all calls: stateful must be true")
        if self.transport != "stdio" and self.sandbox is not None:
            raise ValueError("sandbox is for a command: nothing here confines a server with a url")
        return self

    def shows(self, tool: str) -> bool:
        """Whether a tool is shown, by its original name."""
        if matches_any(tool, self.disabled_tools):
            return False
        return self.enabled_tools is None or matches_any(tool, self.enabled_tools)


class SkippedEntry(NamedTuple):
    """An entry that is not used."""

    name: str
    reason: str
    """Why, without a value of the entry."""
    source: str = ""
    """Where the entry was read."""
    shared_with: tuple[str, ...] | None = None
    """Who would see the toolkit, as in `ServerEntry`; empty if the entry has no valid list."""


@dataclass(frozen=True, slots=True)
class ServersFile:
    """What a file, or an object of the same form, says."""

    source: str
    """Where it was read, for messages."""
    servers: Mapping[str, ServerEntry]
    """By the names of their toolkits."""
    skipped: tuple[SkippedEntry, ...] = ()
    excluded: frozenset[str] = frozenset()
    """Names of servers that are not used, whichever file has them."""
    warnings: tuple[str, ...] = ()
    """What is not understood of entries that are used."""


_NO_FILE = FileContext()


def read_servers(data: object, source: str, context: FileContext = _NO_FILE) -> ServersFile:
    """Read `{"mcpServers": {name: entry}}`, another form that editors write, or the entries alone.

    Args:
        data: The JSON value.
        source: Where it comes from, for messages.
        context: What its variables stand for, and where its paths begin.

    Raises:
        ValueError: It is no object, has more than 256 servers, or restricts them in a way that is
            not understood.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f'{source}: must be an object with "mcpServers"')
    try:
        entries = _entries_of(data)
        rules = _FileRules(data)
    except ValueError as error:
        raise ValueError(f"{source}: {one_line(str(error), MAX_REASON_CHARS)}") from None
    if len(entries) > MAX_SERVERS:
        raise ValueError(f"{source}: has {len(entries)} servers, and may have {MAX_SERVERS}")
    servers: dict[str, ServerEntry] = {}
    skipped: list[SkippedEntry] = []
    warnings: list[str] = []
    taken: set[str] = set()
    # Of two keys with one name the one that is the name itself wins, wherever it stands.
    for key in sorted(entries, key=lambda name: (toolkit_name(name) != name, name)):
        name = toolkit_name(key)
        try:
            entry, notes = _read_entry(entries[key], context)
            rules.check(key)
            if name in taken:
                raise ValueError(f"{key!r} would have the name of another entry")
        except ValueError as error:
            reason = one_line(_words_of(error), MAX_REASON_CHARS)
            skipped.append(SkippedEntry(name, reason, source, _audience_of(entries[key])))
        else:
            denied = entry.disabled_tools.union(rules.denied_tools(key))
            servers[name] = entry.model_copy(update={"disabled_tools": denied})
            for note in notes:
                text = one_line(note, MAX_REASON_CHARS)
                warnings.append(f"MCP server {name}: {source}: {text}")
        taken.add(name)
    excluded = frozenset(rules.excluded)
    return ServersFile(source, servers, tuple(skipped), excluded, tuple(warnings))


def entries_path(data: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the keys that lead to the entries of a file; None if the file is the entries alone."""
    for path in _PLACES:
        found = _at(data, *path)
        if path == ("mcp",) and not (
            # Gemini's `mcp` holds rules, and beside other entries it may be the name of a server.
            isinstance(found, Mapping)
            and all(isinstance(entry, Mapping) for entry in found.values())
        ):
            continue
        if found is not None and not _is_entry(found):
            return path
    return None


def read_file(path: Path, *, by_operator: bool = False) -> ServersFile:
    """Read a file of servers. It may have comments and last commas, as VS Code writes them.

    Args:
        path: The file.
        by_operator: Whether an operator has named it: then its variables of the environment are
            filled in, its entries may say that their servers are trusted, and relative paths begin
            in its folder, or in the one above a folder such as `.vscode`. Else they begin in the
            current folder.

    Raises:
        ValueError: It cannot be read, is larger than 1 MiB or is no JSON; the message has its path.
    """
    data = read_json_file(path, MAX_FILE_BYTES, parse=_parse_with_comments)
    folder = Path.cwd()
    environment = None
    if by_operator:
        environment = dict(os.environ)
        folder = path.absolute().parent
        if folder.name.startswith("."):
            folder = folder.parent
    context = FileContext(folder, environment, _defaults_of_inputs(data), may_trust=by_operator)
    return read_servers(data, str(path), context)


def usual_files(folder: Path, home: Path, toolbus_home: Path) -> list[Path]:
    """Return the files that exist: of the folder, of toolbus, then of the user's editors."""
    paths = [
        folder / ".mcp.json",
        folder / ".cursor" / "mcp.json",
        folder / ".vscode" / "mcp.json",
        toolbus_home / HOME_FILE,
        home / ".cursor" / "mcp.json",
        home / ".claude.json",
        home / ".config" / "Claude" / "claude_desktop_config.json",
    ]
    return [path for path in paths if path.is_file()]


class _FileRules:
    """What a whole file says of its servers, and of those of other files."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.excluded: set[str] = set()
        """Names of servers that are not used."""
        self._only: list[frozenset[str]] = []
        self._denied_tools: list[str] = []
        """With the names of their servers before theirs."""
        self._denied_of_all: list[str] = []
        """As they are listed, whichever server has them; or as above."""
        path = entries_path(data)
        if path is None and "projects" not in data:
            return  # its keys are names of servers
        places = {path[0] for path in _PLACES}
        of_folder = _object_at(data, "projects", str(Path.cwd()))  # as Claude Code writes it
        for key, value in (*data.items(), *of_folder.items()):
            self._read(key, value, key in ("enabled", "disabled"))
            if isinstance(value, Mapping) and key not in places | {"projects"}:
                for inner, rule in value.items():  # such as "security" or "settings"
                    self._read(str(inner), rule)
        self._read_tools(data)
        rules = data.get("mcp")
        if isinstance(rules, Mapping) and (path is None or path[0] != "mcp"):
            known = {"excluded": "excludeMCPServers", "allowed": "allowMCPServers"}
            for key, value in rules.items():
                self._read(known.get(key, str(key)), value, is_about_servers=True)

    def check(self, key: str) -> None:
        """Raise `ValueError` for an entry that is not used."""
        if toolkit_name(key) in self.excluded:
            raise ValueError("its file says that it is not used")
        if not all(matches_any(key, names) for names in self._only):
            raise ValueError("its file allows others only")

    def denied_tools(self, key: str) -> Iterator[str]:
        """Return the tools of an entry that the file denies."""
        yield from self._denied_of_all
        for name in (*self._denied_of_all, *self._denied_tools):
            for prefix in (f"mcp__{key}__", f"{key}__", f"{key}_", f"{key}.", f"{key}/"):
                if name.startswith(prefix):
                    yield name.removeprefix(prefix)
                elif name.endswith("*") and prefix.startswith(name[:-1]):
                    yield "*"
            if name == f"mcp__{key}":
                yield "*"

    def _read(self, key: str, value: object, is_about_servers: bool = False) -> None:
        plain = plain_key(key)
        is_about_servers |= "mcp" in plain or "servers" in plain
        if value is None or plain in _HARMLESS or key in {path[0] for path in _PLACES}:
            return
        if plain in _EXCLUDING:
            self.excluded.update(map(toolkit_name, names_in(key, value)))
        elif plain in _ONLY:
            self._only.append(frozenset(names_in(key, value)))
        elif is_about_servers and restricts(key, value):
            raise ValueError(f'"{key}" seems to restrict servers, and is not understood here')

    def _read_tools(self, data: Mapping[str, Any]) -> None:
        """Read what a file denies of the tools of all its servers.

        opencode's `{"tools": {"server_tool*": false}}` and `permission` with "deny", Claude Code's
        `{"permissions": {"deny": [...]}}`, Gemini's `excludeTools` and `{"tools": {"exclude":
        [...]}}`.
        """
        for key, value in data.items():
            if denies_tools(key):
                self._denied_of_all += denied_in(key, value)
        for key in ("tools", "permission", "permissions"):
            for name, rule in _object_at(data, key).items():
                if rule is False or rule == "deny":
                    self._denied_tools.append(name)
                elif name in ("deny", "exclude") and isinstance(rule, list):
                    self._denied_of_all += denied_in(f"{key}.{name}", rule)


def _entries_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a file by their names, and of Claude Code those of this folder too."""
    path = entries_path(data)
    found = _at(data, *(path or ()))
    if path is None and isinstance(data.get("projects"), Mapping):
        found = {}
    elif (
        path is None
        and not all(isinstance(entry, Mapping) for entry in data.values())
        and not any(_is_entry(entry) for entry in data.values())
    ):
        found = None
    if isinstance(found, list):
        found = {_name_in(entry): entry for entry in found}
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ValueError('must be an object with "mcpServers"')
    return {**found, **_object_at(data, "projects", str(Path.cwd()), "mcpServers")}


def _at(data: object, *keys: str) -> Any:
    """Return what stands below some keys, each in the object of the one before; else None."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _object_at(data: object, *keys: str) -> Mapping[str, Any]:
    """Return the object below some keys; an empty one if there is none."""
    found = _at(data, *keys)
    return found if isinstance(found, Mapping) else {}


def _name_in(entry: object) -> str:
    if isinstance(entry, Mapping):
        for key in ("name", "key", "id"):
            if isinstance(entry.get(key), str) and entry[key]:
                return str(entry[key])
    raise ValueError("each server of the list must have a name")


def _is_entry(value: object) -> bool:
    """Whether a value is one entry, and not several."""
    return isinstance(value, Mapping) and any(
        isinstance(value.get(key), str | list) for key in ("command", "url", "serverUrl", "httpUrl")
    )


def _defaults_of_inputs(data: object) -> dict[str, str]:
    """Return the defaults of what VS Code asks its user for."""
    for inputs in (_at(data, "inputs"), _at(data, "mcp", "inputs")):
        if isinstance(inputs, list):
            return {
                str(item.get("id")): str(item["default"])
                for item in inputs
                if isinstance(item, Mapping) and isinstance(item.get("default"), str)
            }
    return {}


def _read_entry(data: object, context: FileContext) -> tuple[ServerEntry, list[str]]:
    fields, warnings = read_entry(data)
    if fields.get("disabled"):
        raise ValueError("it is disabled")  # whatever else is wrong with it
    if fields.pop("trusted", False):
        if context.may_trust:
            fields["trusted"] = True
        else:
            warnings.append("trusted has no effect here: name the file with --config")
    return ServerEntry.model_validate(filled_in(fields, context)), warnings


def _parse_with_comments(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        without = _COMMENT.sub(lambda part: part["string"] or " ", text)
        without = _LAST_COMMA.sub(lambda part: part["string"] or "", without)
        if without == text:
            raise
        try:
            return parse_json(without)
        except ValueError:
            raise error from None


def _audience_of(entry: object) -> tuple[str, ...] | None:
    """Return who would see the toolkit of an entry that may be invalid elsewhere."""
    if not isinstance(entry, Mapping):
        return None
    audience = {key: entry[key] for key in _AUDIENCE_KEYS if key in entry}
    try:
        return ServerEntry.model_validate({"command": "any", **audience}).shared_with
    except ValidationError:
        return ()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is not valid
    except ValueError:
        raise ValueError("url must have a valid host and port") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("url must be an http or https address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("url must not hold a user or password: use headers with ${cred:...}")


def _words_of(error: ValueError) -> str:
    """Return what is wrong with an entry, without its values."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        words = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
        path = ".".join(map(str, problem["loc"]))
        problems.append(f"{path}: {words}".removeprefix(": "))
    return "; ".join(problems)
