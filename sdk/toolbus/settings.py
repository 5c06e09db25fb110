"""The settings of a participant: server, room, name and token.

Each setting comes from the first of: an argument, a `TOOLBUS_*` variable, the context in use, the
TOML file that `TOOLBUS_CONFIG` names (else `config.toml` in `TOOLBUS_HOME`), the default. A context
that is chosen by an argument or by `TOOLBUS_CONTEXT` overrides the variables. Variables and
files are read when `resolve` is called, never at import. The token is read or minted for every
connection, so that files and keys may change meanwhile.
"""

from __future__ import annotations

import base64
import codecs
import getpass
import inspect
import ipaddress
import json
import os
import re
import secrets
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from toolbus.auth.grants import ApiScope, is_room_name
from toolbus.auth.token_limits import MAX_JWT_BYTES
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.contexts import CONTEXT_SETTINGS, Contexts
from toolbus.untrusted_text import SHOWN_CHARS

__all__ = [
    "DEFAULT_DRAIN_S",
    "DEFAULT_URL",
    "DEV_KEYS_FILE",
    "DEV_KEY_ORIGIN",
    "DRAIN_FORM",
    "TOKEN_THREADS",
    "VARIABLES",
    "BadTokenSource",
    "RoomSettings",
    "Token",
    "check_room",
    "check_url",
    "checked_headers",
    "checked_instance",
    "default_name",
    "expanded",
    "home_of",
    "is_drain",
    "is_loopback",
    "is_loopback_host",
    "is_token",
    "read_token_file",
    "records_file",
    "token_or_file",
    "user_folder",
]

DEFAULT_URL = "ws://127.0.0.1:7717"
"""Where `toolbus serve --dev` listens."""
DEV_KEYS_FILE = "dev-keys.toml"
"""The development key in `TOOLBUS_HOME`: a process that can read it is trusted on this machine."""
DEV_KEY_ORIGIN = "the development key"
"""The source of a token that is made with it, since nothing else is set."""

DEFAULT_DRAIN_S = 10.0
"""Seconds that running calls may take to finish when a host stops."""
_MAX_DRAIN_S = 2_592_000  # 30 days: threads wait at most 49 days on some systems
DRAIN_FORM = f"a number of seconds from 0 to {_MAX_DRAIN_S}"
"""What `is_drain` accepts, for messages."""

Token: TypeAlias = str | os.PathLike[str] | Callable[[], Awaitable[str]]
"""A token, as text or as a function that returns it, or its file: a path, also as text.

Which of both a text is, `token_or_file` says.
"""

TOKEN_THREADS = WorkerThreads("tokens", 4)
"""What reads the files of tokens and keys, for each connection and each renewal."""

_OWN_SETTINGS = ("instance", "drain", "wait", "lock")  # of a process: no context has them
_FILE_SETTINGS = frozenset({*CONTEXT_SETTINGS, *_OWN_SETTINGS})
VARIABLES = frozenset(
    f"TOOLBUS_{name.upper()}" for name in {*_FILE_SETTINGS, "token", "context", "config", "home"}
)
"""The variables of participants."""
_SWITCH = {"on": True, "off": False}
_CREDENTIALS = ("token", "token_file", "keys")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[ -~]*")
_OWN_HEADERS = frozenset({"authorization", "connection", "host", "upgrade"})
_SIGNED = re.compile(r"([A-Za-z0-9_-]+)={0,2}\.[A-Za-z0-9_-]*={0,2}\.[A-Za-z0-9_-]*={0,2}")


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
    drain_s: float | None = None
    """Seconds that running calls may take to finish when a host stops; None if nothing says it."""
    wait: bool = True
    """Whether a service that cannot reach its server at the start keeps trying."""
    keys: Path | None = None
    """The key file that tokens are minted from; None for a given token."""
    context: str | None = None
    """The context that the server, the room or the token comes from; None if there is none."""
    lock: Path | None = None
    """The lock file that all calls are checked by."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers of the request that opens a connection."""

    @classmethod
    def resolve(  # noqa: PLR0913 - an argument for each setting
        cls,
        *,
        url: str | None = None,
        room: str | None = None,
        token: Token | None = None,
        name: str | None = None,
        instance: str | None = None,
        context: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> RoomSettings:
        """Combine arguments, variables and the file.

        Args:
            url: The server's address.
            room: The room's name.
            token: The token, its file, or a function that returns one; a text is taken as
                `token_or_file` says.
            name: The participant's name, if this process mints its own tokens. Not with the
                argument `token`, which contains a name; variables or files may set a token.
            instance: A name for this replica, of at most 128 printable characters; random by
                default.
            context: The name of a context, which overrides the variables.
            environ: The variables; those of the process by default.

        Raises:
            ValueError: A setting is missing or malformed; the message tells what to do.
        """
        texts = {"url": url, "room": room, "name": name, "instance": instance, "context": context}
        for argument, value in texts.items():
            if not isinstance(value, str | None):
                raise ValueError(f"{argument}= must be text, not {type(value).__name__}")
        if environ is None:
            environ = os.environ
        found = _Sources(environ, context)
        address = url or found.text("url") or DEFAULT_URL
        room_name = room or found.text("room") or "main"
        with found.naming_context("url", url):
            check_url(address)
        with found.naming_context("room", room):
            check_room(room_name)
        lock = found.text("lock")
        source = _token_source(token, name, room_name, address, found)
        return cls(
            url=address.rstrip("/"),
            room=room_name,
            instance=checked_instance(instance or found.text("instance")),
            token=source.read,
            renewable=source.renewable,
            token_from=source.origin,
            drain_s=found.seconds("drain"),
            wait=found.switch("wait", default=True),
            keys=source.keys,
            context=found.used_context,
            lock=Path(lock) if lock else None,
        )


def default_name(environ: Mapping[str, str], context: str | None = None) -> str:
    """Return the name that the development key gives a process that names none.

    Raises `ValueError` as `RoomSettings.resolve` does.
    """
    return _Sources(environ, context).default_name()


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the further headers of the request that opens a connection.

    Raises `ValueError` for one that this client sets itself, and for what cannot be sent.
    """
    checked = dict(headers or {})
    for name, value in checked.items():
        if not isinstance(name, str) or _HEADER_NAME.fullmatch(name) is None:
            raise ValueError(f"headers: {name!r} is not the name of a header")
        if name.lower() in _OWN_HEADERS or name.lower().startswith("sec-websocket-"):
            raise ValueError(f"headers: {name} is set by this client")
        # Without the value: it may be a secret of a proxy.
        if not isinstance(value, str) or _HEADER_VALUE.fullmatch(value) is None:
            raise ValueError(f"headers: the value of {name} is not a line of printable ASCII")
    return checked


def is_drain(value: Any) -> bool:
    """Whether this is a number of seconds that running calls can have to finish."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _MAX_DRAIN_S


def home_of(environ: Mapping[str, str]) -> Path:
    """Return the folder of toolbus's files: `TOOLBUS_HOME`, else `~/.toolbus`."""
    return Path(environ.get("TOOLBUS_HOME") or user_folder() / ".toolbus")


def user_folder() -> Path:
    """Return the user's folder.

    A user without a name and `HOME`, as containers have it, has `/`: that is what Docker sets.
    Nothing is found in it, and what cannot be written there names `TOOLBUS_HOME`.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def expanded(path: str | os.PathLike[str], *, strict: bool = False) -> Path:
    """Return a path with the folder of the user for `~`.

    `~NAME` stays if nobody has the name, or raises `ValueError` where that is `strict`.
    """
    text = os.fspath(path)
    if text == "~" or text.startswith("~/"):
        return user_folder() / text[2:]
    found = os.path.expanduser(text)
    if strict and found == text and text.startswith("~"):
        raise ValueError(f"there is no user {text[1:].partition('/')[0]!r}")
    return Path(found)


def records_file(environ: Mapping[str, str]) -> Path:
    """Return where calls are recorded by default: `records.db` in `TOOLBUS_HOME`."""
    return home_of(environ) / "records.db"


def is_loopback(url: str) -> bool:
    """Whether a server's address is on this machine."""
    return is_loopback_host(urlsplit(url).hostname or "")


def is_loopback_host(host: str) -> bool:
    """Whether a host is 127.0.0.0/8, ::1 or localhost; other names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class _Source:
    """The settings of one place; empty text counts as not set."""

    values: Mapping[str, Any]
    place: str
    """How messages name a setting of this place: text with `{name}` or `{variable}`."""
    context: str | None = None

    def origin(self, name: str) -> str:
        return self.place.format(name=name, variable=f"TOOLBUS_{name.upper()}")


class _Sources:
    """The variables, the context and the settings file, in the order in which they apply."""

    def __init__(self, environ: Mapping[str, str], context: str | None) -> None:
        self.environ = environ
        self.home = home_of(environ)
        self.used_context: str | None = None
        """The context, once a setting was read from it."""
        chosen = context or environ.get("TOOLBUS_CONTEXT")
        names = (*_FILE_SETTINGS, "token")
        variables = {name: environ.get(f"TOOLBUS_{name.upper()}", "") for name in names}
        variables["token"] = variables["token"].strip()
        if chosen:
            variables = {name: variables[name] for name in _OWN_SETTINGS}
        file = _Source(self._read_file(), "{name} in the settings file")
        order = [_Source(variables, "{variable}"), *self._contexts(chosen)]
        if chosen:
            order.reverse()
        self._order = [*order, file]

    def _contexts(self, chosen: str | None) -> list[_Source]:
        """Return the context that is chosen, else the one in use, else none."""
        contexts = Contexts.load(self.home)
        name = chosen or contexts.in_use
        if name is None:
            return []
        try:
            settings = contexts.get(name)
        except ValueError as error:
            if chosen:
                raise
            step = "`toolbus context use NAME`, or `toolbus context use --none`"
            raise ValueError(f"the context in use is missing: {error}; {step}") from None
        return [_Source(settings, f"{{name}} of context {name}", name)]

    def credentials(self) -> _Source | None:
        """Return the first source that has a token, a token file or keys."""
        for source in self._order:
            if any(source.values.get(name) for name in _CREDENTIALS):
                return source
        return None

    @contextmanager
    def naming_context(self, name: str, given: str | None) -> Iterator[None]:
        """Name the context in a ValueError about a setting that comes from it, and is not given."""
        try:
            yield
        except ValueError as error:
            source = self._find(name)[1]
            if given or source.context is None:
                raise
            raise ValueError(f"{source.origin(name)}: {error}") from None

    def _find(self, name: str, *places: _Source) -> tuple[Any, _Source]:
        order = places or self._order
        for source in order:
            if value := source.values.get(name):
                self.used_context = source.context or self.used_context
                return value, source
        return order[-1].values.get(name), order[-1]

    def _read_file(self) -> dict[str, Any]:
        named = self.environ.get("TOOLBUS_CONFIG")
        path = Path(named or self.home / "config.toml")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if named:
                raise ValueError(f"TOOLBUS_CONFIG names {path}, which does not exist") from None
            return {}
        except OSError as error:
            variable = "TOOLBUS_CONFIG" if named else "TOOLBUS_HOME"
            raise ValueError(f"{variable}: cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from error
        unknown = sorted(set(values) - _FILE_SETTINGS)
        if unknown:
            raise ValueError(f"{path}: unknown setting {unknown[0]!r}")
        return values

    def text(self, name: str, *places: _Source) -> str | None:
        """Read a setting that is text, from the first that has it of these places, or of all."""
        value, source = self._find(name, *places)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{source.origin(name)} must be text")
        return value

    def default_name(self) -> str:
        """Return the name that is set, else that of the user."""
        return self.text("name") or _user_name()

    def seconds(self, name: str) -> float | None:
        """Read a setting that is a number of seconds."""
        value, source = self._find(name)
        if value is None:
            return None
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if not is_drain(value):
            raise ValueError(f"{source.origin(name)} must be {DRAIN_FORM}")
        return float(value)

    def switch(self, name: str, *, default: bool) -> bool:
        """Read a setting that is on or off."""
        value, source = self._find(name)
        if value is None or value == "":
            return default
        if not isinstance(value, str) or value not in _SWITCH:
            raise ValueError(f"{source.origin(name)} must be 'on' or 'off'")
        return _SWITCH[value]


def checked_instance(instance: str | None) -> str:
    """Return the instance, a random one by default; ValueError if a server refuses it (CONN-4)."""
    if not instance:
        return secrets.token_hex(8)
    if len(instance) > 128 or not instance.isprintable():
        form = "printable text of at most 128 characters"
        raise ValueError(f"{instance[:SHOWN_CHARS]!r} is not an instance: {form}")
    return instance


def check_room(room: str) -> None:
    """Raise ValueError for anything but the name of a room."""
    if not is_room_name(room):
        raise ValueError(
            f"{room[:SHOWN_CHARS]!r} is not a room name: 1 to 63 of a-z 0-9 -, no - at either end"
        )


def check_url(url: str) -> None:
    """Raise ValueError for anything but a server address: `ws://HOST:PORT` or `wss://HOST:PORT`."""
    wrong = _wrong_part(url)
    if wrong is not None:
        shown = "this" if "@" in url else repr(url)  # the text before an @ may be a password
        form = "write ws://HOST:PORT or wss://HOST:PORT"
        raise ValueError(f"{shown} is not a server address{wrong}: {form}")


def _wrong_part(url: str) -> str | None:
    """Return what is wrong with a server address: "" for its form, None if nothing is."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")  # as a lookup does
    except ValueError:  # a bracket that is not closed, or not a host name
        return ""
    if parts.scheme not in {"ws", "wss"} or not host or "@" in parts.netloc or " " in url:
        return ""
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    if not is_port:
        return " (a port is a number from 1 to 65535)"
    if parts.path.strip("/") or parts.query or parts.fragment:
        return " (nothing may follow the port)"
    return None


@dataclass(frozen=True, slots=True)
class _TokenSource:
    """Where tokens come from."""

    read: Callable[[], Awaitable[str]]
    origin: str
    """For messages."""
    renewable: bool = True
    keys: Path | None = None


def _token_source(
    token: Token | None, name: str | None, room: str, url: str, found: _Sources
) -> _TokenSource:
    if token is not None:
        if name and name != _name_in(token):
            raise ValueError(f"a token contains a name: give either the token or the name {name!r}")
        return _given(token)
    source = found.credentials()
    if source is not None:
        return _configured(source, name, room, found)
    dev_keys = found.home / DEV_KEYS_FILE
    if is_loopback(url) and dev_keys.exists():
        minted_for = name or found.default_name()
        return _minting(dev_keys, minted_for, room, ApiScope.full(), DEV_KEY_ORIGIN)
    text = f"no token: {_without_token(url, dev_keys, found)}"
    if found.used_context is not None:
        text = f"context {found.used_context}: {text}"
    raise ValueError(text)


def _without_token(url: str, dev_keys: Path, found: _Sources) -> str:
    """Return why the development key is not used, if there may be one, and what to do."""
    step = "set TOOLBUS_TOKEN or TOOLBUS_TOKEN_FILE (`toolbus token create` makes one)"
    if not is_loopback(url) and dev_keys.exists():
        parts = urlsplit(url)
        here = f"{parts.scheme}://127.0.0.1"
        if parts.port:
            here = f"{here}:{parts.port}"
        return f"the development key is only for a server on this machine: use {here}, or {step}"
    start = f"{step}, or start a local server with `toolbus serve --dev`"
    if is_loopback(url) and found.environ.get("TOOLBUS_HOME"):
        return f"TOOLBUS_HOME is {found.home}, which has no {DEV_KEYS_FILE}: {start}"
    return start


def _configured(source: _Source, name: str | None, room: str, found: _Sources) -> _TokenSource:
    """Return the token source of a variable, the context or the settings file."""
    if token := found.text("token", source):
        return _given(token, f"the token ({source.origin('token')})")
    if path := found.text("token_file", source):
        return _given(Path(path), f"the token ({source.origin('token_file')})")
    keys = found.text("keys", source)
    name = name or found.text("name")
    assert keys is not None
    if not name:
        raise ValueError(
            f"{source.origin('keys')} mints tokens and needs a participant name: set"
            " TOOLBUS_NAME, --name of a command, or name= in a program"
        )
    origin = f"the keys ({source.origin('keys')})"
    return _minting(Path(keys), name, room, ApiScope.host_default(), origin)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may be a number alone
        raise ValueError(
            "the user of this process has no name: set TOOLBUS_NAME, --name or name="
        ) from None


def token_or_file(text: str, origin: str = "the token") -> str | Path:
    """Tell a token from the name of its file.

    A text with the form of a signed token is a token, `@PATH` a file whether it exists or not, and
    the path of something that exists a file too. Nothing else is taken for a token: it may be the
    name of a file that is missing, which no server should see.

    Raises:
        ValueError: It is none of these. The message does not show it: it may be part of a token.
    """
    text = text.strip()
    if is_token(text):
        return text
    path = text.removeprefix("@")
    if path and (path != text or (os.path.exists(path) and not os.path.isdir(path))):
        return Path(path)
    raise ValueError(
        f"{origin} is neither a signed token nor the name of a file with one:"
        " `toolbus token create` creates one"
    )


def is_token(text: str) -> bool:
    """Whether a text has the form of a signed token: three parts, the first a JSON object."""
    parts = _SIGNED.fullmatch(text)
    if parts is None:
        return False
    header = parts[1]
    try:
        return isinstance(json.loads(base64.urlsafe_b64decode(header + "==")), dict)
    except (ValueError, RecursionError):
        return False


def read_token_file(path: str | os.PathLike[str]) -> str:
    """Read a token from a file, or as much of the file as no token has.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not text in ASCII, or the path is a token. The message does not show it.
    """
    if is_token(os.fspath(path).strip().removeprefix("@")):
        raise ValueError("this is the token itself, not the name of its file")
    with open(path, "rb") as file:
        data = file.read(2 * MAX_JWT_BYTES + 4)
    # Windows: `>` of PowerShell writes UTF-16, and editors put a mark before UTF-8.
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16").encode("ascii")
    return data.removeprefix(codecs.BOM_UTF8).decode("ascii").strip()[: MAX_JWT_BYTES + 1]


def _name_in(token: Token) -> Any:
    """Return the name in a token, unchecked; None if it cannot be read here and now."""
    try:
        if isinstance(token, str):
            token = token_or_file(token)
        if isinstance(token, os.PathLike):
            token = read_token_file(token)
        if not isinstance(token, str):
            return None
        payload = token.split(".")[1]
        return json.loads(base64.urlsafe_b64decode(payload + "=="))["sub"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _given(token: Token, origin: str = "") -> _TokenSource:
    if isinstance(token, str):
        token = token_or_file(token, origin or "the token")
    if isinstance(token, str):
        text = token

        async def the_text() -> str:
            return text

        return _TokenSource(the_text, origin or "the token", renewable=False)
    if isinstance(token, os.PathLike):
        path = Path(token)

        async def the_file() -> str:
            return await TOKEN_THREADS.run(read_token_file, path)

        return _TokenSource(the_file, origin or "the token file")
    if not callable(token):
        text = "token= must be a token, the path of its file, or an async function"
        raise ValueError(f"{text}, not {type(token).__name__}")
    source: Callable[[], object] = token

    async def the_answer() -> str:
        answer = source()
        if not inspect.isawaitable(answer):
            kind = type(answer).__name__
            raise BadTokenSource(f"token= must be an async function, not one that returns {kind}")
        text = await answer
        if not isinstance(text, str):
            kind = type(text).__name__
            raise BadTokenSource(f"the function of token= must return text, not {kind}")
        return text.strip()

    return _TokenSource(the_answer, origin or "the token")


def _minting(path: Path, name: str, room: str, api: ApiScope, origin: str) -> _TokenSource:
    async def mint() -> str:
        # Most programs are given a token.
        from toolbus.auth.keys import KeyRing
        from toolbus.auth.tokens import ParticipantToken

        key = (await TOKEN_THREADS.run(KeyRing.load, path)).signing_key
        if key is None:
            raise ValueError(f"{path} has no key that can sign")
        return ParticipantToken(name=name, room=[room], api=api).to_jwt(key)

    return _TokenSource(mint, origin, keys=path)
