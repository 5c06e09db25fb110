"""The configuration of MCP servers: `mcpServers` JSON, as editors write it, and our own keys.

A file is read entry by entry: one that is not valid is skipped, and the reason is kept. Nothing is
started here, and references to credentials stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import AliasChoices, BaseModel, Field, ValidationError, model_validator

from toolbus.untrusted_text import one_line
from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.credentials.references import has_reference
from toolbus_toolkits.mcp.names import toolkit_name

__all__ = [
    "HOME_FILE",
    "MAX_FILE_BYTES",
    "MAX_SERVERS",
    "ServerEntry",
    "ServersFile",
    "SkippedEntry",
    "entries_key",
    "read_file",
    "read_servers",
    "usual_files",
]

HOME_FILE = "mcp.json"
"""The file of `TOOLBUS_HOME` that bundles add their servers to."""
MAX_FILE_BYTES = 1024 * 1024
MAX_SERVERS = 256
_MAX_REASON_CHARS = 1_000
_MAX_SECONDS = 24 * 3600.0

Transport = Literal["stdio", "streamable_http", "sse"]
_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "http": "streamable_http",
    "streamable-http": "streamable_http",
    "streamable_http": "streamable_http",
    "streamableHttp": "streamable_http",
    "sse": "sse",
}
"""How editors write a transport, and which one it is."""
_VARIABLE = re.compile(r"\$\{(?!cred:)([A-Za-z_]\w*(?::[A-Za-z_][\w.-]*)?)[^}]*\}")
"""What editors fill in: `${input:key}`, `${env:NAME}`, `${NAME:-default}`, `${workspaceFolder}`."""

_AUDIENCE_KEYS = ("shared_with", "sharedWith", "assign_to_agents")


def _either(*names: str) -> AliasChoices:
    return AliasChoices(*names)


class ServerEntry(BaseModel, frozen=True, extra="ignore", hide_input_in_errors=True):
    """One MCP server: a command that is started, or an address.

    Unknown keys are ignored, because every editor has some of its own. Raises `ValidationError`
    unless there is exactly one of `command` and `url`.
    """

    command: str | None = Field(None, min_length=1, max_length=4096, repr=False)
    args: tuple[str, ...] = Field((), repr=False)
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    cwd: Path | None = None
    url: str | None = Field(
        None, max_length=8192, repr=False, validation_alias=_either("url", "serverUrl", "httpUrl")
    )
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    transport: Transport = Field("stdio", validation_alias=_either("transport", "type"))
    timeout_s: float = Field(
        60.0, gt=0, le=_MAX_SECONDS, validation_alias=_either("timeout_s", "timeout")
    )
    """Seconds that one call may take."""
    connect_timeout_s: float = Field(30.0, gt=0, le=600)
    """Seconds until the server has answered the first requests; `npx` installs within them."""
    enabled_tools: frozenset[str] | None = Field(
        None, validation_alias=_either("enabled_tools", "enabledTools", "enable_tools")
    )
    """The only tools that are shown, by their original names; None shows all."""
    disabled_tools: frozenset[str] = Field(
        frozenset(), validation_alias=_either("disabled_tools", "disabledTools", "disable_tools")
    )
    shared_with: tuple[str, ...] | None = Field(
        None, validation_alias=_either("shared_with", "sharedWith")
    )
    """Who sees the toolkit: `name:x`, `role:x` or `*`; None shows it to the whole room."""
    stateful: bool = True
    """Whether one session serves all calls; else each call has a session of its own."""
    disabled: bool = False
    memory_mb: int | None = Field(None, ge=1)
    """Address space of a started program, in MiB."""

    @model_validator(mode="before")
    @classmethod
    def _normalized(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise ValueError("must be an object")
        found = dict(data)
        _set_transport(found)
        if "assign_to_agents" in found and "shared_with" not in found:
            agents = found["assign_to_agents"] or ()
            if not isinstance(agents, list | tuple):
                raise ValueError("assign_to_agents must be a list of names")
            found["shared_with"] = [f"name:{each}" for each in agents]
        return found

    @model_validator(mode="after")
    def _is_whole(self) -> ServerEntry:
        if self.command is not None and self.url is not None:
            raise ValueError('has both "command" and "url": an entry has one of them')
        if self.url is not None:
            _check_url(self.url)
        shown = [self.command or "", *self.args, self.url or ""]
        if has_reference(shown):
            raise ValueError("only env and headers may refer to credentials: others see the rest")
        overlap = sorted((self.enabled_tools or frozenset()) & self.disabled_tools)
        if overlap:
            raise ValueError(f"{one_line(overlap[0], 64)} is both enabled and disabled")
        if self.transport == "stdio" and not self.stateful:
            raise ValueError("a started program serves all calls: stateful must be true")
        return self


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


def read_servers(data: object, source: str) -> ServersFile:
    """Read `{"mcpServers": {name: entry}}`, or the entries alone.

    Args:
        data: The JSON value.
        source: Where it comes from, for messages.

    Raises:
        ValueError: It is no object, or has more than 256 servers.
    """
    entries = _entries_of(data)
    if not isinstance(entries, Mapping) or not all(isinstance(each, str) for each in entries):
        raise ValueError(f'{source}: must be an object with "mcpServers"')
    if len(entries) > MAX_SERVERS:
        raise ValueError(f"{source}: has {len(entries)} servers, and may have {MAX_SERVERS}")
    servers: dict[str, ServerEntry] = {}
    skipped: list[SkippedEntry] = []
    # Of two keys with one name the one that is the name itself wins, wherever it stands.
    for key in sorted(entries, key=lambda each: (toolkit_name(each) != each, each)):
        name, entry = toolkit_name(key), entries[key]
        try:
            found = ServerEntry.model_validate(entry)
            reason = _unusable(found)
        except ValidationError as error:
            reason = one_line("; ".join(_problems(error)), _MAX_REASON_CHARS)
        if not reason and name in servers:
            reason = f"{one_line(key, 64)!r} would have the name of another entry"
        if reason:
            skipped.append(SkippedEntry(name, reason, source, _audience_of(entry)))
        else:
            servers[name] = found
    return ServersFile(source, servers, tuple(skipped))


def entries_key(data: Mapping[str, Any]) -> str | None:
    """Return the key that has the entries of a file; None if the file is the entries alone."""
    # The second is VS Code's.
    return next((key for key in ("mcpServers", "servers") if key in data), None)


def read_file(path: Path) -> ServersFile:
    """Read a file of servers.

    Raises:
        ValueError: It cannot be read, is larger than 1 MiB or is no JSON; the message has its path.
    """
    return read_servers(read_json_file(path, MAX_FILE_BYTES), str(path))


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


def _entries_of(data: object) -> object:
    if not isinstance(data, Mapping):
        return None
    key = entries_key(data)
    return data if key is None else data[key]


def _set_transport(found: dict[str, Any]) -> None:
    """Set the transport of an entry: as it is written, else by what it has."""
    written = found.pop("transport", None) or found.pop("type", None)
    url = found.get("url") or found.get("serverUrl") or found.get("httpUrl")
    if written is not None:
        if not isinstance(written, str) or written not in _TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(sorted(set(_TRANSPORTS)))}")
        found["transport"] = _TRANSPORTS[written]
    elif isinstance(url, str):
        # The path alone counts: an address may have a query.
        found["transport"] = "sse" if _split(url).path.rstrip("/").endswith("/sse") else "http"
        found["transport"] = _TRANSPORTS[found["transport"]]
    if (found.get("transport", "stdio") == "stdio") == bool(url):
        kind = found.get("transport", "stdio")
        needs = "command" if kind == "stdio" else "url"
        raise ValueError(f'a server with transport {kind} must have "{needs}"')
    if not url and not found.get("command"):
        near = [each for key in ("command", "url") for each in get_close_matches(key, found, 1)]
        hint = f", not {one_line(near[0], 64)!r}" if near else ""
        raise ValueError(f'must have either "command" or "url"{hint}')


def _unusable(entry: ServerEntry) -> str:
    """Return why a valid entry is not used; empty if it is."""
    if entry.disabled:
        return "it is disabled"
    if variable := _variable_in(entry):
        return f"{variable} is not filled in here, as editors do: write it out"
    return ""


def _audience_of(entry: object) -> tuple[str, ...] | None:
    """Return who would see the toolkit of an entry that may be invalid elsewhere."""
    if not isinstance(entry, Mapping):
        return None
    audience = {key: entry[key] for key in _AUDIENCE_KEYS if key in entry}
    try:
        return ServerEntry.model_validate({"command": "any", **audience}).shared_with
    except ValidationError:
        return ()


def _variable_in(entry: ServerEntry) -> str:
    """Return a variable that only an editor fills in, without its default; empty if none."""
    # `sh -c 'echo ${HOME}'` is filled in by the shell.
    args = () if "-c" in entry.args else entry.args
    texts = [*args, *entry.env.values(), *entry.headers.values(), entry.url, str(entry.cwd)]
    found = next(filter(None, map(_VARIABLE.search, filter(None, texts))), None)
    return f"${{{one_line(found[1], 64)}}}" if found else ""


def _split(url: str) -> SplitResult:
    """Return the parts of an address; the error shows none of them."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is not valid
    except ValueError:
        raise ValueError("url must have a valid host and port") from None
    return parts


def _check_url(url: str) -> None:
    parts = _split(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("url must be an http or https address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("url must not hold a user or password: use headers with ${cred:...}")


def _problems(error: ValidationError) -> Iterator[str]:
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(map(str, each["loc"]))
        words = each["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
        yield f"{path}: {words}" if path else words
