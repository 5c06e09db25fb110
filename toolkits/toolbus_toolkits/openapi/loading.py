"""Reads a description and the documents that it refers to, from files or addresses.

A description from a file reads further files only below its own folder. One from an address reads
no file at all. Other addresses are read only from hosts that the operator allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2

from toolbus import ToolFailed
from toolbus.concurrency.event_loop import run_on_any_thread
from toolbus.settings import expanded
from toolbus_toolkits.network import (
    AddressPolicy,
    AddressRefused,
    failure_reason,
    host_and_port,
    host_text,
    http_client,
    read_body,
)
from toolbus_toolkits.openapi.parsing import MAX_DOCUMENT_BYTES, SpecError, parse_document
from toolbus_toolkits.openapi.references import Place, root_place

__all__ = ["load_file", "load_url"]

_MAX_DOCUMENTS = 64
_TIMEOUT_S = 30.0
"""Seconds for one document."""
_TOTAL_S = 60.0
"""Seconds after which no further document is read: each slow one would take its own limit."""


def load_file(path: Path, policy: AddressPolicy) -> Place:
    """Read a description from a file.

    Args:
        path: The file; documents that it refers to must be in its folder or below.
        policy: Hosts in its `allow_hosts` may be read as well; an empty list allows none here.

    Raises `SpecError`.
    """
    path = expanded(path).resolve()
    folder = path.parent

    def retrieve(address: str) -> dict[str, Any]:
        if urlsplit(address).scheme == "file":
            return _read_file(_path_of(address, folder), address)
        if not policy.allow_hosts:
            raise SpecError("other addresses are read only from hosts in allow_hosts")
        return _fetch(address, policy)

    return root_place(_read_file(path, str(path)), path.as_uri(), _bounded(retrieve))


def load_url(url: str, policy: AddressPolicy) -> Place:
    """Read a description from an address.

    Args:
        url: The address; documents that it refers to may be on the same host.
        policy: Hosts in its `allow_hosts` may be read as well.

    Blocks, also where an event loop runs: use `asyncio.to_thread` there. Raises `SpecError`.
    """
    try:
        own = AddressPolicy((*policy.allow_hosts, host_and_port(url)), policy.allow_private)
    except AddressRefused as error:
        raise SpecError(error.message) from error

    def retrieve(address: str) -> dict[str, Any]:
        return _fetch(address, own)

    return root_place(_fetch(url, own), url, _bounded(retrieve))


def _bounded(retrieve: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Return a function that reads at most 64 documents, and begins none after some seconds."""
    count = 0
    until = monotonic() + _TOTAL_S

    def bounded(address: str) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count > _MAX_DOCUMENTS:
            raise SpecError(f"the description refers to more than {_MAX_DOCUMENTS} documents")
        if monotonic() > until:
            raise SpecError(f"the documents of the description took more than {_TOTAL_S:g} s")
        return retrieve(address)

    return bounded


def _path_of(address: str, folder: Path) -> Path:
    """Return the path of a file: address. Raises `SpecError` if it is not below the folder."""
    parts = urlsplit(address)
    try:
        path = Path(unquote(parts.path)).resolve()
    except (ValueError, OSError) as error:
        raise SpecError("the address of the file is not valid") from error
    if parts.netloc not in ("", "localhost") or not path.is_relative_to(folder):
        raise SpecError("files are read only below the folder of the description")
    return path


def _read_file(path: Path, source: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{source[:200]}: the file cannot be read: {error.strerror}") from error
    return parse_document(data, source[:200])


def _fetch(url: str, policy: AddressPolicy) -> dict[str, Any]:
    return parse_document(
        run_on_any_thread(_download(url, policy)), urlsplit(url).path[:200] or "/"
    )


async def _download(url: str, policy: AddressPolicy) -> bytes:
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            http_client(policy, timeout_s=_TIMEOUT_S) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != 200:
                host = host_text(urlsplit(url).netloc)
                raise SpecError(f"{host} answered {response.status_code} for the description")
            return await read_body(response, MAX_DOCUMENT_BYTES)
    except ToolFailed as error:
        raise SpecError(error.message) from error
    except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        host = host_text(urlsplit(url).netloc)
        text = f"the description cannot be read from {host}: {failure_reason(error)}"
        raise SpecError(text) from error
