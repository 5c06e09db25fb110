"""An HTTP request from the arguments of a call. Pure: nothing is sent, no credential is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from toolbus_toolkits.openapi.arguments import Arguments
from toolbus_toolkits.openapi.bodies import ArgumentRefused, ReadFile, write_body
from toolbus_toolkits.openapi.model import Operation, Parameter
from toolbus_toolkits.openapi.parsing import SpecError
from toolbus_toolkits.openapi.serialization import header_text, path_text, query_pairs

__all__ = [
    "PreparedRequest",
    "check_path",
    "overrides_method",
    "prepare",
    "server_of",
    "split_template",
]

_METHOD_PARAMETERS = frozenset(
    {"x-http-method-override", "x-http-method", "x-method-override", "_method"}
)
"""Headers, and a query parameter, by which frameworks let a request name its real method."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_EXPRESSION = re.compile(r"\{[?&#][^{}]*\}")
_TEMPLATE = re.compile(r"((?:\{[^{}]*\}|[^?#])*)(?:\?((?:\{[^{}]*\}|[^#])*))?")


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
        """The URL with its query."""
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
    if open_variable := _PLACEHOLDER.search(url):
        text = f"the server has the variable {open_variable[0][:100]} without a value"
        raise SpecError(f"{text}: name one with server (--server URL)")
    return url.rstrip("/")


def prepare(
    operation: Operation,
    server: str,
    plan: Arguments,
    arguments: dict[str, Any],
    files: list[ReadFile],
) -> PreparedRequest:
    """Make the request of a call. Raises `ArgumentRefused` for values that cannot be sent.

    Only given arguments are sent: a default in the description is the server's. A query in the
    path is sent as one, with those parameters that it names; other parameters of the query replace
    its parts of the same name.
    """
    request = PreparedRequest(operation.method, "")
    path, query = split_template(operation.path)
    in_query = set(_PLACEHOLDER.findall(query))
    texts: dict[str, str] = {}
    for argument, parameter in plan.parameters:
        value = arguments.get(argument)
        if value is None and parameter.location != "path":
            continue  # no place but a body has a text for null
        if parameter.location == "path" or parameter.name in in_query:
            texts[parameter.name] = path_text(parameter.name, value, parameter.encoding)
            if not texts[parameter.name] and f"{{{parameter.name}}}" in path:
                raise ArgumentRefused(argument, "a parameter of the path must not be empty")
        else:
            _add(request, argument, parameter, value)
    request.address = server + _filled_path(path, texts)
    request.query = [*_filled_query(query, texts, request.query), *request.query]
    if plan.body is not None:
        body = write_body(plan.body, arguments, files)
        if body is not None:
            request.content = body.content
            request.headers["content-type"] = body.media_type
    return request


def split_template(template: str) -> tuple[str, str]:
    """Return the path and the query of a template, without a fragment.

    Expressions of RFC 6570 for a query or a fragment, `{?limit,after}`, are left out: what they
    name is a parameter of the query anyway.
    """
    found = _TEMPLATE.match(_EXPRESSION.sub("", template))
    assert found is not None  # all of it may be empty
    return found.group(1), found.group(2) or ""


def check_path(operation: Operation) -> None:
    """Raise `SpecError` for a path that no call could fill: it names what is no parameter."""
    known = {parameter.name for parameter in operation.parameters}
    path, _ = split_template(operation.path)
    for name in _PLACEHOLDER.findall(path):
        if name not in known:
            raise SpecError(f"the path has {{{name[:100]}}}, which is none of its parameters")


def overrides_method(operation: Operation) -> bool:
    """Whether an argument can make the server take a request as one of another method."""
    names = {parameter.name.lower() for parameter in operation.parameters}
    return not names.isdisjoint(_METHOD_PARAMETERS)


def _add(request: PreparedRequest, argument: str, parameter: Parameter, value: Any) -> None:
    name = parameter.name
    encoding = parameter.encoding
    match parameter.location:
        case "query":
            request.query.extend(query_pairs(name, value, encoding))
        case "cookie":
            request.cookies.extend(query_pairs(name, value, encoding))
        case "header":
            try:
                request.headers[name] = header_text(value, encoding)
            except ValueError as error:
                raise ArgumentRefused(argument, str(error)) from error


def _filled_path(template: str, texts: dict[str, str]) -> str:
    """Fill a path. Raises `ArgumentRefused` if a segment would become `.` or `..`."""
    segments = template.split("/")
    filled = [_filled(segment, texts) for segment in segments]
    for before, after in zip(segments, filled, strict=True):
        if after in (".", "..") and before != after:
            raise ArgumentRefused("", "a segment of the path must not be '.' or '..'")
    return "/".join(filled)


def _filled_query(template: str, texts: dict[str, str], given: list[str]) -> Iterator[str]:
    """Give the parts of the query of a template, but none whose parameter is not given."""
    names = {unquote(part.partition("=")[0]) for part in given}
    for part in template.split("&"):
        is_given = all(name in texts for name in _PLACEHOLDER.findall(part))
        if part and is_given and unquote(part.partition("=")[0]) not in names:
            yield _filled(part, texts)


def _filled(template: str, texts: dict[str, str]) -> str:
    return re.sub(r"\{([^{}]*)\}|[^{}]+|.", lambda part: _filled_part(part, texts), template)


def _filled_part(part: re.Match[str], texts: dict[str, str]) -> str:
    name = part.group(1)
    if name is None:
        return quote(part.group(0), safe="%:@!$&'()*+,;=~")
    if name not in texts:
        raise ArgumentRefused("", f"the path needs the parameter {name[:100]!r}")
    return texts[name]
