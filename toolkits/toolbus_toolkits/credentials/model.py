"""A credential, its name and the places it may go to, with their checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from toolbus import ToolFailed

__all__ = [
    "Credential",
    "CredentialInfo",
    "CredentialName",
    "CredentialNotFound",
    "CredentialRefused",
    "StoreUnavailable",
]

MIN_CHARS, MAX_BYTES = 4, 64 * 1024
_PART = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(
    r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*(?::[0-9]{1,5})?|\[[0-9a-f:.]+\](?::\d+)?"
)


class CredentialRefused(ToolFailed):
    """A credential is missing, or may not go to this place. Nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, executed="no", retryable=False)


class CredentialNotFound(CredentialRefused):
    """There is no credential of this name."""


class StoreUnavailable(CredentialRefused):
    """Credentials can be neither read nor stored; the message says what to do."""


class CredentialName(NamedTuple):
    """The name of a credential; its text form is `org/tool/key`."""

    org: str
    tool: str
    key: str

    @classmethod
    def parse(cls, text: str) -> CredentialName:
        """Read `org/tool/key`. Raises `ValueError` for any other text."""
        parts = text.split("/", 3)
        if len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
            raise ValueError(
                f"{text[:64]!r} is not the name of a credential: write org/tool/key, each part of "
                "1 to 64 letters, digits and . _ -"
            )
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True)
class CredentialInfo:
    """What may be shown of a credential."""

    name: CredentialName
    hosts: tuple[str, ...] = ()
    """The hosts it may go to: a name, `*.example.org`, or either with `:port`."""
    commands: tuple[str, ...] = ()
    """The commands it may go to, as they are written in a config."""
    set_at: str = ""
    """When it was set: ISO 8601, UTC."""

    def allows_host(self, host: str) -> bool:
        """Whether it may go to `host` or `host:port`; a pattern without a port allows each port."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            return False
        return any(_matches(pattern, name, port) for pattern in self.hosts)


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential with its value, which is not part of its `repr`.

    Raises ValueError for a value, host or command that is not valid.
    """

    info: CredentialInfo
    value: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) < MIN_CHARS:
            raise ValueError(
                f"a value needs {MIN_CHARS} characters or more: a shorter one cannot be removed "
                "from logs and errors"
            )
        try:
            size = len(self.value.encode())
        except UnicodeEncodeError:
            raise ValueError("the value is not valid text") from None
        if size > MAX_BYTES:
            raise ValueError(f"the value has {size} bytes; at most {MAX_BYTES} are stored")
        if not all(map(_is_host, self.info.hosts)):
            raise ValueError(
                "a host is api.example.org, *.example.org or host:port, without a scheme or a path"
            )
        if any(not command or not command.isprintable() for command in self.info.commands):
            raise ValueError("a command is printable text, as in the config that starts it")

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, with the value."""
        info = self.info
        return {
            "value": self.value,
            "hosts": list(info.hosts),
            "commands": list(info.commands),
            "set_at": info.set_at,
        }

    @classmethod
    def from_json(cls, name: CredentialName, data: Mapping[str, Any]) -> Credential:
        """Read the stored form. Raises KeyError, TypeError and ValueError."""
        hosts, commands = _texts(data["hosts"]), _texts(data["commands"])
        info = CredentialInfo(name, hosts, commands, str(data["set_at"]))
        if not isinstance(data["value"], str):
            raise TypeError("a value must be text")
        return cls(info, data["value"])


def _is_host(pattern: str) -> bool:
    try:
        return bool(_HOST.fullmatch(pattern)) and urlsplit(f"//{pattern}").port != 0
    except ValueError:  # a port beyond 65535, an address in brackets that is none
        return False


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _matches(pattern: str, name: str, port: int | None) -> bool:
    wanted = urlsplit(f"//{pattern}")
    if wanted.port is not None and wanted.port != port:
        return False
    host = wanted.hostname or ""
    return name.endswith(host[1:]) if host[:2] == "*." else name == host
