"""One model of an API, whatever version of the description it comes from. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from toolbus.tools.omission import Omission
from toolbus_toolkits.openapi.documents import Place

__all__ = [
    "PROTOCOL_HEADERS",
    "Api",
    "Body",
    "Encoding",
    "Location",
    "MediaType",
    "Operation",
    "Parameter",
    "SecurityScheme",
    "Style",
    "is_json_type",
]

Location: TypeAlias = Literal["path", "query", "header", "cookie"]
Style: TypeAlias = Literal[
    "simple",
    "label",
    "matrix",
    "form",
    "spaceDelimited",
    "pipeDelimited",
    "tabDelimited",
    "deepObject",
]


PROTOCOL_HEADERS = frozenset(
    "accept-encoding connection content-encoding content-length expect host keep-alive "
    "proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)
"""Headers of HTTP itself, in lower case: no parameter sets them. `Host` would lead a credential
elsewhere, and a length would end the request early."""


def is_json_type(media_type: str) -> bool:
    """Whether documents of a media type are JSON: `application/json`, `text/json`, `x/y+json`."""
    name = media_type.partition(";")[0].strip().lower()
    return name.endswith(("+json", "/json", "/x-json"))


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a value becomes text in a URL, a header or a form."""

    style: Style = "form"
    explode: bool = True
    allow_reserved: bool = False
    media_type: str = ""
    """Of a value that is written as a document of its own, such as `application/json`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query, a header or a cookie."""

    name: str
    location: Location
    required: bool
    schema: Place
    encoding: Encoding
    description: str = ""


@dataclass(frozen=True, slots=True)
class MediaType:
    """One form that a body may have."""

    name: str
    schema: Place
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    """The encodings of fields that have one of their own."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request."""

    required: bool
    media_types: tuple[MediaType, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """A way to present a credential."""

    name: str
    kind: Literal["apiKey", "basic", "bearer", "unsupported"]
    location: Literal["query", "header", "cookie"] = "header"
    parameter: str = ""
    """The name of the header, query parameter or cookie of an API key."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str
    """Its `operationId`; empty if it has none."""
    method: str
    """In upper case."""
    path: str
    """The template, such as `/pets/{id}`."""
    servers: tuple[str, ...]
    """Addresses of servers, the first is used; relative ones are relative to the description."""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    security: tuple[tuple[str, ...], ...] = ()
    """Alternatives; each names the schemes that are needed together. None at all: anonymous."""
    summary: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    deprecated: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Its method and path, which no other operation has."""
        return self.method, self.path

    @property
    def label(self) -> str:
        """Its method and path, for messages."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Api:
    """A whole API."""

    title: str
    description: str
    version: str
    dialect: Literal["2.0", "3.0", "3.1"]
    operations: tuple[Operation, ...]
    schemes: Mapping[str, SecurityScheme]
    left_out: tuple[Omission, ...] = ()
    """Operations and paths that cannot be read."""
