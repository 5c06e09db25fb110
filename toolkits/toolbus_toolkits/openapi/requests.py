"""An HTTP request from the arguments of a call. Pure: nothing is sent, no credential is known."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from toolbus_toolkits.openapi.arguments import Arguments
from toolbus_toolkits.openapi.bodies import ArgumentRefused, ReadFile, write_body
from toolbus_toolkits.openapi.model import Operation, Parameter
from toolbus_toolkits.openapi.parsing import SpecError
from toolbus_toolkits.openapi.serialization import header_text, path_text, query_pairs

__all__ = ["PreparedRequest", "prepare", "server_of"]


@dataclass
class PreparedRequest:
    """A request without its credentials."""

    method: str
    address: str
    """The URL without a query."""
    query: list[str] = field(default_factory=list)
    """Parts such as `a=1`, escaped."""
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)
    content: bytes = b""

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.address}?{'&'.join(self.query)}" if self.query else self.address


def server_of(operation: Operation, base: str) -> str:
    """Return the absolute address of the server of an operation, without a final slash.

    Args:
        operation: The operation; its first server counts.
        base: The address of the description, for relative servers; empty if it came from a file.

    Raises `SpecError` if the address is not absolute, or has a part that is not a base path.
    """
    url = urljoin(base, operation.servers[0]) if base else operation.servers[0]
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SpecError("the address of the server is not valid") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        text = f"the server {url[:100]!r} is not an address with http or https"
        raise SpecError(f"{text}: name one with server (--server URL)")
    if parts.query or parts.fragment:
        raise SpecError("the address of the server has a query or a fragment")
    return url.rstrip("/")


def prepare(
    operation: Operation,
    server: str,
    plan: Arguments,
    arguments: dict[str, Any],
    files: list[ReadFile],
) -> PreparedRequest:
    """Make the request of a call. Raises `ArgumentRefused` for values that cannot be sent.

    Only given arguments are sent: a default in the description is the server's.
    """
    request = PreparedRequest(operation.method, "")
    segments: dict[str, str] = {}
    for argument, parameter in plan.parameters:
        if argument in arguments:
            _add(request, segments, argument, parameter, arguments[argument])
    request.address = server + _path(operation.path, segments)
    if plan.body is not None:
        body = write_body(plan.body, arguments, files)
        if body is not None:
            request.content = body.content
            request.headers["content-type"] = body.media_type
    return request


def _add(
    request: PreparedRequest,
    segments: dict[str, str],
    argument: str,
    parameter: Parameter,
    value: Any,
) -> None:
    name, encoding = parameter.name, parameter.encoding
    match parameter.location:
        case "path":
            segments[name] = path_text(name, value, encoding)
            if not segments[name]:
                raise ArgumentRefused(argument, "a parameter of the path must not be empty")
        case "query":
            request.query.extend(query_pairs(name, value, encoding))
        case "cookie":
            request.cookies.extend(query_pairs(name, value, encoding))
        case "header":
            try:
                request.headers[name] = header_text(value, encoding)
            except ValueError as error:
                raise ArgumentRefused(argument, str(error)) from error


def _path(template: str, segments: dict[str, str]) -> str:
    """Fill a path. Raises `ArgumentRefused` if a segment would become `.` or `..`."""
    filled = [
        re.sub(r"\{([^{}]*)\}|[^{}]+|.", lambda part: _filled(part, segments), each)
        for each in template.split("/")
    ]
    for before, after in zip(template.split("/"), filled, strict=True):
        if after in (".", "..") and before != after:
            raise ArgumentRefused("", "a segment of the path must not be '.' or '..'")
    return "/".join(filled)


def _filled(part: re.Match[str], segments: dict[str, str]) -> str:
    name = part.group(1)
    if name is None:
        return quote(part.group(0), safe="%:@!$&'()*+,;=~")
    if name not in segments:
        raise ArgumentRefused("", f"the path needs the parameter {name[:100]!r}")
    return segments[name]
