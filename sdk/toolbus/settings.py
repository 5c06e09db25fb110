"""The settings of a participant: server, room, name and token.

Each setting comes from the first of: an argument, a `TOOLBUS_*` variable, the TOML file that
`TOOLBUS_CONFIG` names (else `config.toml` in `TOOLBUS_HOME`), the default. Variables and files are
read when `resolve` is called, never at import. The token is read or minted for every connection, so
that files and keys may change meanwhile.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import secrets
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from toolbus.auth.grants import ApiScope, is_room_name
from toolbus.auth.keys import KeyRing
from toolbus.auth.tokens import ParticipantToken

__all__ = [
    "DEFAULT_DRAIN_S",
    "DEFAULT_URL",
    "DEV_KEYS_FILE",
    "DRAIN_FORM",
    "PRESETS",
    "BadTokenSource",
    "RoomSettings",
    "Token",
    "home_of",
    "is_drain",
    "is_loopback",
]

DEFAULT_URL = "ws://127.0.0.1:7717"
"""Where `toolbus serve --dev` listens."""
DEV_KEYS_FILE = "dev-keys.toml"
"""The development key in `TOOLBUS_HOME`: a process that can read it is trusted on this machine."""
PRESETS: dict[str, Callable[[], ApiScope]] = {
    "host": ApiScope.host_default,
    "agent": ApiScope.agent_default,
    "user": ApiScope.user_default,
    "full": ApiScope.full,
}
"""The named sets of grants."""

DEFAULT_DRAIN_S = 10.0
"""Seconds that running calls may take to finish when a host stops."""
_MAX_DRAIN_S = 2_592_000  # 30 days: threads wait at most 49 days on some systems
DRAIN_FORM = f"a number of seconds from 0 to {_MAX_DRAIN_S}"
"""What `is_drain` accepts, for messages."""

Token: TypeAlias = str | os.PathLike[str] | Callable[[], Awaitable[str]]
"""A token: the text itself, the path of a file that holds it, or a function that returns one."""

_MAX_INSTANCE_CHARS = 128
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_FILE_SETTINGS = frozenset(
    {"url", "room", "token_file", "keys", "name", "instance", "drain", "lock"}
)


class BadTokenSource(TypeError):
    """The function given as `token=` is not async, or does not return text."""


@dataclass(frozen=True, slots=True)
class RoomSettings:
    """One participant's connection."""

    url: str
    """The server, as `ws://HOST:PORT` or `wss://HOST:PORT`."""
    room: str
    """The room to join."""
    instance: str
    """Distinguishes replicas of one identity; a newer connection of one replaces the older."""
    token: Callable[[], Awaitable[str]] = field(repr=False)
    """Returns the token for the next connection."""
    renewable: bool = False
    """Whether a refused token may be followed by another one."""
    token_from: str = "the token"
    """The source of the token, and the setting that names it; for error messages."""
    drain_s: float = DEFAULT_DRAIN_S
    """Seconds that running calls may take to finish when a host stops."""
    lock: Path | None = None
    """The lock file that all calls are checked by."""

    @classmethod
    def resolve(
        cls,
        *,
        url: str | None = None,
        room: str | None = None,
        token: Token | None = None,
        name: str | None = None,
        instance: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> RoomSettings:
        """Combine arguments, variables and the file.

        Args:
            url: The server's address.
            room: The room's name.
            token: The token, its file, or a function that returns one.
            name: The participant's name, if this process mints its own tokens. Not with the
                argument `token`, which contains a name; variables or files may set a token.
            instance: A name for this replica, of at most 128 printable characters; random by
                default.
            environ: The variables; those of the process by default.

        Raises:
            ValueError: A setting is missing or malformed; the message tells what to do.
        """
        _check_texts(url=url, room=room, name=name, instance=instance)
        found = _Sources(os.environ if environ is None else environ)
        address = url or found.text("url") or DEFAULT_URL
        _check_url(address)
        room_name = room or found.text("room") or "main"
        if not is_room_name(room_name):
            raise ValueError(
                f"{room_name[:200]!r} is not a room name: 1 to 63 of a-z 0-9 -, no - at either end"
            )
        source, renewable, origin = _token_source(token, name, room_name, address, found)
        return cls(
            url=address.rstrip("/"),
            room=room_name,
            instance=_checked_instance(instance or found.text("instance")),
            token=source,
            renewable=renewable,
            token_from=origin,
            drain_s=found.seconds("drain", DEFAULT_DRAIN_S),
            lock=Path(lock) if (lock := found.text("lock")) else None,
        )


def is_drain(value: Any) -> bool:
    """Whether this is a number of seconds that running calls can have to finish."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _MAX_DRAIN_S


def home_of(environ: Mapping[str, str]) -> Path:
    """Return the folder of toolbus's files: `TOOLBUS_HOME`, else `~/.toolbus`."""
    return Path(environ.get("TOOLBUS_HOME") or Path.home() / ".toolbus")


def is_loopback(url: str) -> bool:
    """Whether a server's address is on this machine."""
    return urlsplit(url).hostname in _LOOPBACK


class _Sources:
    """The variables and the file."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.home = home_of(environ)
        self._file = self._read_file()

    def _read_file(self) -> dict[str, Any]:
        named = self.environ.get("TOOLBUS_CONFIG")
        path = Path(named) if named else self.home / "config.toml"
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if named:
                raise ValueError(f"TOOLBUS_CONFIG names {path}, which does not exist") from None
            return {}
        except OSError as error:
            variable = "TOOLBUS_CONFIG" if named else "TOOLBUS_HOME"
            raise ValueError(f"{variable}: cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from error
        unknown = sorted(set(values) - _FILE_SETTINGS)
        if unknown:
            raise ValueError(f"{path}: unknown setting {unknown[0]!r}")
        return values

    def text(self, name: str) -> str | None:
        """Read a setting that is text."""
        value = self.environ.get(f"TOOLBUS_{name.upper()}") or self._file.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.origin(name)} must be text")
        return value

    def seconds(self, name: str, default: float) -> float:
        """Read a setting that is a number of seconds."""
        value = self.environ.get(f"TOOLBUS_{name.upper()}") or self._file.get(name, default)
        with suppress(ValueError):
            value = float(value) if isinstance(value, str) else value
        if not is_drain(value):
            raise ValueError(f"{self.origin(name)} must be {DRAIN_FORM}")
        return float(value)

    def origin(self, name: str) -> str:
        """Return the source of a setting, for messages."""
        variable = f"TOOLBUS_{name.upper()}"
        return variable if self.environ.get(variable) else f"{name} in the settings file"


def _check_texts(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, str | None):
            raise ValueError(f"{name}= must be text, not {type(value).__name__}")


def _checked_instance(instance: str | None) -> str:
    """Return the instance, a random one by default; ValueError if a server refuses it (CONN-4)."""
    if not instance:
        return secrets.token_hex(8)
    if len(instance) > _MAX_INSTANCE_CHARS or not instance.isprintable():
        raise ValueError(
            f"{instance[:200]!r} is not an instance: printable text of at most"
            f" {_MAX_INSTANCE_CHARS} characters"
        )
    return instance


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in {"ws", "wss"} and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as a lookup does
    except ValueError:  # a port out of range, a bracket that is not closed, not a host name
        well_formed = False
    else:
        well_formed &= not (parts.path.strip("/") or parts.query or parts.fragment)
        well_formed &= "@" not in parts.netloc
    if not well_formed:
        shown = "this" if "@" in url else repr(url)  # the text before an @ may be a password
        raise ValueError(
            f"{shown} is not a server address: write ws://HOST:PORT or wss://HOST:PORT"
        )


def _token_source(
    token: Token | None, name: str | None, room: str, url: str, found: _Sources
) -> tuple[Callable[[], Awaitable[str]], bool, str]:
    if token is not None and name:
        raise ValueError(f"a token contains a name: give either the token or the name {name!r}")
    origin = "the token file" if isinstance(token, os.PathLike) else "the token"
    if isinstance(token, str) and _is_file(token):
        raise ValueError(f"{token} is a file: write token=Path({token!r})")
    if token is None:
        token = found.environ.get("TOOLBUS_TOKEN", "").strip() or None
        if isinstance(token, str) and _is_file(token):
            raise ValueError(f"TOOLBUS_TOKEN is a file: set TOOLBUS_TOKEN_FILE={token} instead")
    if token is None and (path := found.text("token_file")):
        token, origin = Path(path), f"the token ({found.origin('token_file')})"
    if token is not None:
        return *_given(token), origin
    name = name or found.text("name")
    keys_path = found.text("keys")
    if keys_path:
        if not name:
            raise ValueError(
                f"{found.origin('keys')} mints tokens and needs a participant name: set"
                " TOOLBUS_NAME, --name of a command, or name= in a program"
            )
        source = _minting(Path(keys_path), name, room, ApiScope.host_default())
        return source, True, f"the keys ({found.origin('keys')})"
    dev_keys = found.home / DEV_KEYS_FILE
    if is_loopback(url) and dev_keys.exists():
        source = _minting(dev_keys, name or _user_name(), room, ApiScope.full())
        return source, True, "the development key"
    raise ValueError(
        "no token: set TOOLBUS_TOKEN or TOOLBUS_TOKEN_FILE (`toolbus token create` makes one), "
        "or start a local server with `toolbus serve --dev`"
    )


def _is_file(token: str) -> bool:
    """Whether the text given as a token is the name of an existing file."""
    return token.count(".") != 2 and os.path.isfile(token)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may be a number alone
        raise ValueError(
            "the user of this process has no name: set TOOLBUS_NAME, --name or name="
        ) from None


def _given(token: Token) -> tuple[Callable[[], Awaitable[str]], bool]:
    if isinstance(token, str):
        text = token.strip()

        async def the_text() -> str:
            return text

        return the_text, False
    if isinstance(token, os.PathLike):
        path = Path(token)

        async def the_file() -> str:
            return (await asyncio.to_thread(path.read_text, encoding="ascii")).strip()

        return the_file, True
    if not callable(token):
        text = "token= must be a token, the path of its file, or an async function"
        raise ValueError(f"{text}, not {type(token).__name__}")
    return _text_from(token), True


def _text_from(source: Callable[[], object]) -> Callable[[], Awaitable[str]]:
    async def the_answer() -> str:
        answer = source()
        if not inspect.isawaitable(answer):
            kind = type(answer).__name__
            raise BadTokenSource(f"token= must be an async function, not one that returns {kind}")
        text = await answer
        if not isinstance(text, str):
            kind = type(text).__name__
            raise BadTokenSource(f"the function of token= must return text, not {kind}")
        return text

    return the_answer


def _minting(path: Path, name: str, room: str, api: ApiScope) -> Callable[[], Awaitable[str]]:
    async def mint() -> str:
        key = (await asyncio.to_thread(KeyRing.load, path)).signing_key
        if key is None:
            raise ValueError(f"{path} has no key that can sign")
        return ParticipantToken(name=name, room=[room], api=api).to_jwt(key)

    return mint
