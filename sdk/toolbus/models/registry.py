"""Opens a model by its name, and finds the key of its provider: given, in a variable, or stored."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from toolbus.errors import RoomException
from toolbus.models.adapter import Model
from toolbus.settings import is_loopback_host

__all__ = ["open_model"]


@dataclass(frozen=True, slots=True)
class _Api:
    """An API of a provider. Modules are imported when a model of it is opened."""

    provider: str
    """The extra, the part of names of stored keys, and the name for people."""
    adapter: str
    client: str
    """Module and class."""
    keys: tuple[str, ...]
    """The variables with a key that its client reads, in this order."""
    address: str
    """The variable with an address that its client reads."""
    host: str
    """Where it asks without an address."""


_OPENAI = (("OPENAI_API_KEY",), "OPENAI_BASE_URL", "api.openai.com")
_RESPONSES = _Api("openai", "openai_responses", "openai_client:ResponsesClient", *_OPENAI)
_APIS = {
    "openai": _RESPONSES,
    "openai-chat": _Api("openai", "openai_chat", "openai_client:ChatClient", *_OPENAI),
    "openai-responses": _RESPONSES,
    "anthropic": _Api(
        "anthropic",
        "anthropic",
        "anthropic_client:MessagesClient",
        ("ANTHROPIC_API_KEY",),
        "ANTHROPIC_BASE_URL",
        "api.anthropic.com",
    ),
    "gemini": _Api(
        "gemini",
        "gemini",
        "gemini_client:GeminiClient",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "GOOGLE_GEMINI_BASE_URL",
        "generativelanguage.googleapis.com",
    ),
}
_NAMES = (
    "openai:NAME, openai-chat:NAME, openai-responses:NAME, anthropic:NAME, gemini:NAME or "
    "scripted:FILE"
)
_NO_KEY = "no-key"
"""Sent to a server of one's own that was given no key, because the clients need one."""
_STORES = "toolbus.model_keys"
"""The entry point group of stores: `(provider, host) -> key or None`.

The host is a name with an optional port. A store gives a key only to a host that the key may go to;
a `RoomException` says why there is none.
"""
_NOT_OPTIONS = frozenset(
    {
        *("contents", "input", "instructions", "messages", "system", "system_instruction", "tools"),
        *("http_options", "model", "self", "stream", "timeout"),
    }
)
"""Fields that options cannot set: the adapter or this module writes them."""


def open_model(
    name: str,
    base_url: str | None = None,
    *,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    max_retries: int = 2,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Open a model. Nothing is sent; a stored key is read, which may take a moment.

    The model can be used in any event loop. Close it with `aclose` in each.

    Args:
        name: `openai:NAME` (the responses API; chat completions where an address is given, because
            compatible servers have that), `openai-chat:NAME`, `openai-responses:NAME`,
            `anthropic:NAME`, `gemini:NAME`, or `scripted:FILE`, which needs no provider.
        base_url: The address of the API; without it the variable that the provider's client reads
            (OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL), else the provider's.
        api_key: The key; without it the provider's variable (OPENAI_API_KEY, ANTHROPIC_API_KEY,
            GEMINI_API_KEY or GOOGLE_API_KEY), else the credential `models/PROVIDER/key`, which is
            sent only to its hosts. A server at an address needs none.
        timeout_s: How long a reply may take, retries included. Of a stream: how long until its
            first event, retries included, and then until each further one.
        max_retries: How often a request is sent again after a failure that may pass; of a stream,
            only before its first event. It is not sent again inside of the middleware
            `ModelRetries`, whose `attempts` count alone.
        options: Further fields of each request, such as `max_tokens`; of Gemini's, fields of
            `config`. They replace those of the adapter.

    Raises:
        ValueError: The name or another value is wrong, or there is no key.
        TypeError: An option that the API does not have.
        ModuleNotFoundError: The provider's client is not installed; the message names the extra.
    """
    # From here on no frame of a traceback has the key as text.
    given = None if api_key is None else SecretStr(api_key)
    del api_key
    prefix, _, model = name.partition(":")
    if prefix not in {"scripted", *_APIS} or not model.strip():
        raise ValueError(f"{name[:80]!r} is not the name of a model: write {_NAMES}")
    if prefix == "scripted":
        if base_url is not None or given is not None or options:
            raise ValueError("a scripted model takes no base_url, api_key or options")
        scripted: Model = import_module("toolbus.models.scripted_model").ScriptedModel(model)
        return scripted
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s}")
    if max_retries < 0:
        raise ValueError(f"max_retries must be 0 or more, not {max_retries}")
    api = _APIS[prefix]
    address = base_url
    if address is None:
        address = os.environ.get(api.address) or None
    host = api.host
    if address is not None:
        host = _host_of(address)
        if prefix == "openai":
            api = _APIS["openai-chat"]
    client = _client_class(api)
    further = dict(options or {})
    if unknown := [option for option in further if option not in client.OPTIONS - _NOT_OPTIONS]:
        possible = ", ".join(sorted(client.OPTIONS - _NOT_OPTIONS))
        raise TypeError(f"{unknown[0]!r} is no option of {prefix}: there are {possible}")
    key = _key(api, given, host, address)
    from toolbus.models.client_model import ClientModel
    from toolbus.models.key_redaction import KeyRedaction

    return ClientModel(
        name,
        import_module(f"toolbus.models.{api.adapter}"),
        make_client=partial(client, model, address, key, further),
        redact=KeyRedaction(key),
        timeout_s=timeout_s,
        max_retries=max_retries,
        host=host,
    )


def _host_of(address: str) -> str:
    """Return `name` or `name:port` of an address."""
    try:
        parts = urlsplit(address)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or parts.username is not None or parts.query or parts.fragment:
        # Not shown: what stands where it should not may be a secret.
        raise ValueError(
            "base_url must be http://HOST:PORT/PATH or https://..., without user, query or fragment"
        )
    return parts.netloc


def _client_class(api: _Api) -> Any:
    module, _, name = api.client.partition(":")
    try:
        return getattr(import_module(f"toolbus.models.{module}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{api.provider} models need {error.name}: pip install 'toolbus[{api.provider}]'",
            name=error.name,
        ) from None


def _key(api: _Api, given: SecretStr | None, host: str, address: str | None) -> SecretStr:
    reason = ""
    # Anybody on the way reads what goes over HTTP: a stored key is not sent so.
    stores = () if address is not None and _is_readable(address) else entry_points(group=_STORES)
    try:
        key = _find_key(api, given, host, stores)
    except RoomException as error:  # of a store
        key = None
        reason = f" ({error.message})"
    if key is None and address is None:
        stored = f"`toolbus credential set models/{api.provider}/key --host {host}`"
        raise ValueError(
            f"there is no key for {api.provider}: set {' or '.join(api.keys)}, store one with "
            f"{stored}, or give api_key in a program{reason}"
        )
    return key or SecretStr(_NO_KEY)


def _is_readable(address: str) -> bool:
    """Whether requests to an address go over a network without TLS."""
    parts = urlsplit(address)
    return parts.scheme == "http" and not is_loopback_host(parts.hostname or "")


def _find_key(
    api: _Api, given: SecretStr | None, host: str, stores: Iterable[EntryPoint]
) -> SecretStr | None:
    """Return the key for a provider at a host; None if there is none at all.

    Raises `ValueError` for a key that cannot be sent, without the key.
    """
    # A key is never a text in a local variable: frames of tracebacks are shown with them.
    places = [(name, SecretStr(os.environ[name])) for name in api.keys if os.environ.get(name)]
    if given is not None:
        places = [("api_key", given)]
    if not places:
        for entry in stores:
            stored: Callable[[str, str], str | None] = entry.load()
            if key := SecretStr(stored(api.provider, host) or ""):
                places.append((f"the stored key of {api.provider}", key))
    for place, key in places:
        if not _is_usable(key):
            raise ValueError(
                f"{place} is no key: it is empty, or has a space, a line end or a character "
                "beyond ASCII"
            )
        return key
    return None


def _is_usable(key: SecretStr) -> bool:
    """Whether HTTP takes it in a header; the error about another one would show it."""
    text = key.get_secret_value()
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
