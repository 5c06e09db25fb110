"""The documents of a description: from a file or an address, as JSON or YAML, with their `$ref`.

A description from a file reads further files only below its own folder. One from an address reads
no file at all. Other addresses are read only from hosts that the operator allows.

Every part of a description is a `Place`: a value together with the resolver of its document, so
that a relative `$ref` means the same wherever it is read.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

import httpx2
import yaml
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

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

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "Place",
    "Retrieve",
    "SpecError",
    "follow",
    "load_file",
    "load_url",
    "parse_document",
    "root_place",
]

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""It is in memory as bytes, as text, and as values that take several times as much."""
_MAX_DEPTH = 100
"""Each level takes frames of Python, which ends at 1,000."""
_MAX_VALUES = 4_000_000
"""Values of one document, where each use of a YAML alias counts anew."""
_TOO_DEEP = f"nests deeper than {_MAX_DEPTH} levels"


class SpecError(ValueError):
    """A document that cannot be read, or is not a usable API description."""


class _JsonSchemaLoader(yaml.CSafeLoader):
    """YAML with the scalar types of JSON: a date, `on` and `no` are texts, as is 1:30."""


_OTHER_TYPES = (":timestamp", ":bool", ":int", ":float")
_JsonSchemaLoader.yaml_implicit_resolvers = {
    first: usable
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    if (usable := [resolver for resolver in resolvers if not resolver[0].endswith(_OTHER_TYPES)])
}
# Of YAML 1.2: numbers to the base of 60 take time in proportion to the square of their length.
_JsonSchemaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)\Z"), list("-+0123456789")
)
_JsonSchemaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?=[0-9]*[.eE])(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"),
    list("-+.0123456789"),
)
_JsonSchemaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)


def parse_document(data: bytes, source: str) -> dict[str, Any]:
    """Parse a document.

    Args:
        data: Its bytes, in UTF-8.
        source: Its address, for messages.

    Raises `SpecError` if it is larger than 32 MiB, is neither JSON nor YAML, nests deeper than 100
    levels, has over 4 million values, or is not an object.
    """
    try:
        if len(data) > MAX_DOCUMENT_BYTES:
            raise SpecError(f"has more than {MAX_DOCUMENT_BYTES:,} bytes")
        text = data.decode("utf-8-sig")
        value = None
        if text.lstrip()[:1] == "{":
            with suppress(json.JSONDecodeError):  # a YAML flow mapping begins with a brace, too
                value = json.loads(text)
        if value is None:
            value = _from_yaml(text)
        if not isinstance(value, dict):
            raise SpecError("is not an object: is it an OpenAPI document?")
        plain: dict[str, Any] = _plain(value, 0, iter(range(_MAX_VALUES)))
        return plain
    except SpecError as error:
        words = str(error)
    except UnicodeDecodeError:
        words = "is not UTF-8"
    except RecursionError:
        words = _TOO_DEEP
    except (ValueError, OverflowError, TypeError):  # a number with more digits than Python reads
        words = "has a value that cannot be read"
    raise SpecError(f"{source}: the document {words}")


def _from_yaml(text: str) -> Any:
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_JsonSchemaLoader):  # iterative, unlike `load`
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH:
                raise SpecError(_TOO_DEEP)
        return yaml.load(text, Loader=_JsonSchemaLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise SpecError(f"is neither JSON nor YAML{where}") from error


def _plain(value: Any, depth: int, budget: Iterator[int]) -> Any:
    """Copy a value as JSON: keys are texts, and no part is shared. Raises `SpecError`."""
    if next(budget, None) is None:
        raise SpecError(f"has more than {_MAX_VALUES:,} values")
    if depth > _MAX_DEPTH:
        raise SpecError(_TOO_DEEP)
    if isinstance(value, dict):
        return {
            str(name).lower() if isinstance(name, bool) else str(name): _plain(
                member, depth + 1, budget
            )
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [_plain(item, depth + 1, budget) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


Retrieve: TypeAlias = Callable[[str], dict[str, Any]]
"""Returns the document of an address. Raises `SpecError` if it may not be read."""
_MAX_CHAIN = 32
"""References may lead in a circle."""


class Place(NamedTuple):
    """A value of a description, and the resolver of the `$ref` in it."""

    value: Any
    resolver: Any

    @property
    def members(self) -> dict[str, Any]:
        """Its members as they are written; none unless it is an object."""
        return self.value if isinstance(self.value, dict) else {}

    def get(self, key: str) -> Place:
        """Return a member, after its `$ref`; None as the value if there is none."""
        return follow(Place(self.members.get(key), self.resolver))

    def items(self) -> Iterator[tuple[str, Place]]:
        """Give the members of an object, each after its `$ref`."""
        for key, member in self.members.items():
            yield key, follow(Place(member, self.resolver))

    def elements(self) -> Iterator[Place]:
        """Give the elements of an array, each after its `$ref`."""
        if isinstance(self.value, list):
            for element in self.value:
                yield follow(Place(element, self.resolver))

    def text(self, key: str) -> str:
        """Return a member that is text; empty if there is none."""
        found = self.members.get(key)
        return found if isinstance(found, str) else ""

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a member that is true or false."""
        found = self.members.get(key)
        return found if isinstance(found, bool) else default


def root_place(document: dict[str, Any], uri: str, retrieve: Retrieve) -> Place:
    """Return the place of a whole document, whose `$ref` are relative to an address."""
    registry: Registry[Any] = Registry(
        retrieve=lambda address: Resource.opaque(retrieve(address))  # type: ignore[call-arg]
    )
    registry = registry.with_resource(uri, Resource.opaque(document))
    return Place(document, _Resolver(registry.resolver(base_uri=uri)))


class _Resolver:
    """Looks references up relative to one part of a description, each of them once.

    A lookup takes 25 us, and a part is read again for each operation that reaches it.
    """

    __slots__ = ("_inner", "_known")

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._known: dict[str, Place] = {}

    def lookup(self, ref: str) -> Place:
        """Return what a reference means. Raises as the resolver of `referencing` does."""
        place = self._known.get(ref)
        if place is None:
            found = self._inner.lookup(ref)
            place = self._known[ref] = Place(found.contents, _Resolver(found.resolver))
        return place


def follow(place: Place) -> Place:
    """Return what a `$ref` refers to; the place itself if it is none.

    Raises `SpecError` if it cannot be read, or refers to itself.
    """
    for _ in range(_MAX_CHAIN):
        ref = place.members.get("$ref")
        if not isinstance(ref, str):
            return place
        try:
            place = place.resolver.lookup(ref)
        except Unresolvable as error:
            cause = error.__cause__
            while cause is not None and not isinstance(cause, SpecError):
                cause = cause.__cause__
            why = cause or "there is no such part"
            raise SpecError(f"$ref {_shown(ref)} cannot be read: {why}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SpecError(f"$ref {_shown(ref)} is not a valid reference") from error
    raise SpecError(f"$ref {_shown(place.value.get('$ref'))} refers to itself")


def _shown(ref: Any) -> str:
    return ascii(str(ref)[:200])


_MAX_DOCUMENTS = 64
"""Each reference may name one more address, to which a request is sent."""
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
    return root_place(_fetch(url, own), url, _bounded(lambda address: _fetch(address, own)))


def _bounded(retrieve: Retrieve) -> Retrieve:
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
