"""An HTTP request from the arguments and files of a call. Pure: no credential is known.

Values become text in URLs, headers and forms by style and explode (RFC 6570). A null is sent
nowhere: no style has a text for it, and an empty one would be a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx2

from toolbus import ToolFailed
from toolbus_toolkits.openapi.arguments import Arguments, BodyForm, BodyPlan
from toolbus_toolkits.openapi.documents import SpecError
from toolbus_toolkits.openapi.model import Encoding, Operation, Parameter, is_json_type

__all__ = [
    "ArgumentRefused",
    "PreparedRequest",
    "ReadFile",
    "WrittenBody",
    "check_path",
    "document_text",
    "field_pairs",
    "header_text",
    "overrides_method",
    "path_text",
    "plain_text",
    "prepare",
    "query_pairs",
    "server_of",
    "split_template",
    "write_body",
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
    url = urljoin(base, operation.servers[0])
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
    def filled(part: re.Match[str]) -> str:
        name = part.group(1)
        if name is None:
            return quote(part.group(0), safe="%:@!$&'()*+,;=~")
        if name not in texts:
            raise ArgumentRefused("", f"the path needs the parameter {name[:100]!r}")
        return texts[name]

    return re.sub(r"\{([^{}]*)\}|[^{}]+|.", filled, template)


_RESERVED = ":/?@!$'()*,;"
"""What `allowReserved` leaves as it is; the rest would end the value or begin another one."""
_DELIMITERS = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}


def plain_text(value: Any) -> str:
    """Return a value as text: JSON for what is nested, and for true, false and numbers."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def document_text(value: Any, media_type: str) -> str:
    """Return a value as a document of its own; a text is quoted only as JSON."""
    if is_json_type(media_type):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return plain_text(value)


def path_text(name: str, value: Any, encoding: Encoding) -> str:
    """Return the text of a path parameter, which never begins another segment."""
    escape = _escape(encoding)
    if encoding.media_type:
        return escape(document_text(value, encoding.media_type))
    items = _items(value, escape, explode=encoding.explode)
    match encoding.style:
        case "matrix" if encoding.explode and isinstance(value, list):
            return "".join(f";{escape(name)}={item}" for item in items)
        case "matrix" if encoding.explode and isinstance(value, dict):
            return "".join(f";{item}" for item in items)
        case "matrix":
            return f";{escape(name)}={','.join(items)}"
        case "label" if encoding.explode:
            return f".{'.'.join(items)}"
        case "label":
            return f".{','.join(items)}"
    return ",".join(items)


def header_text(value: Any, encoding: Encoding) -> str:
    """Return the text of a header, in style simple. Raises `ValueError` for a control character."""
    if encoding.media_type:
        text = document_text(value, encoding.media_type)
    else:
        text = ",".join(_items(value, str, explode=encoding.explode))
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError("a header must not contain line breaks or other control characters")
    return text


def query_pairs(name: str, value: Any, encoding: Encoding) -> list[str]:
    """Return the parts of a query, a cookie or a form, such as `a=1`, escaped."""
    escape = _escape(encoding)
    return [
        f"{quote(key, safe='')}={text}" for key, text in field_pairs(name, value, encoding, escape)
    ]


def field_pairs(
    name: str, value: Any, encoding: Encoding, escape: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Give the names of fields and their texts, of which the texts alone are escaped."""
    if value is None:
        return
    if encoding.media_type:
        yield name, escape(document_text(value, encoding.media_type))
    elif encoding.style == "deepObject" and isinstance(value, dict | list):
        yield from _deep(name, value, escape)
    elif isinstance(value, dict) and encoding.explode:
        for key, item in value.items():
            if item is not None:
                yield key, escape(plain_text(item))
    elif isinstance(value, list) and encoding.explode:
        for item in value:
            yield name, escape(plain_text(item))
    else:
        # A comma separates the items as it is; the other delimiters are no characters of a URL.
        delimiter = _DELIMITERS.get(encoding.style, ",")
        joiner = delimiter if delimiter == "," else escape(delimiter)
        yield name, joiner.join(_items(value, escape, explode=False))


def _escape(encoding: Encoding) -> Callable[[str], str]:
    safe = _RESERVED if encoding.allow_reserved else ""
    return lambda text: quote(text, safe=safe)


def _items(value: Any, escape: Callable[[str], str], *, explode: bool) -> list[str]:
    """Return the parts of a value: one of a scalar, those of a list, and keys with their values."""
    if isinstance(value, list):
        return [escape(plain_text(item)) for item in value]
    if not isinstance(value, dict):
        return [escape(plain_text(value))]
    pairs = [(escape(key), escape(plain_text(item))) for key, item in value.items()]
    if explode:
        return [f"{key}={item}" for key, item in pairs]
    return [part for pair in pairs for part in pair]


def _deep(name: str, value: Any, escape: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Give the leaves of a nested value.

    The elements of arrays are numbered, `a[0][b]`: OpenAPI leaves it open, but only so do the
    members of one element stay together. Stripe's clients and `qs` write the same.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _deep(f"{name}[{key}]", item, escape)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _deep(f"{name}[{index}]", item, escape)
    elif value is not None:
        yield name, escape(plain_text(value))


class ArgumentRefused(ToolFailed):
    """An argument or a file that cannot be sent, though it fits the schema.

    Args:
        argument: The argument, as its tool names it; empty for several.
        message: What is wrong with it, without the value.
    """

    def __init__(self, argument: str, message: str) -> None:
        path = argument and "/" + argument.replace("~", "~0").replace("/", "~1")
        super().__init__(
            f"{path}: {message}".removeprefix(": "),
            executed="no",
            retryable=False,
            details={"path": path, "message": message},
        )


class ReadFile(NamedTuple):
    """A file of a call, in memory."""

    name: str
    media_type: str
    data: bytes


class WrittenBody(NamedTuple):
    """The bytes of a body, and its `Content-Type`."""

    content: bytes
    media_type: str


def write_body(
    plan: BodyPlan, arguments: dict[str, Any], files: list[ReadFile]
) -> WrittenBody | None:
    """Write a body; None if no part of an optional one is given.

    Raises `ArgumentRefused` for files that do not fit the fields of the body, and for arguments
    that no media type takes together.
    """
    given = {name for name in plan.arguments if name in arguments}
    if not given and not files and not plan.required:
        return None
    form = _chosen(plan, arguments, given, files)
    if form.kind == "binary" and files:
        if len(files) > 1:
            raise ArgumentRefused("attachment", "the operation takes one file")
        return WrittenBody(files[0].data, _type_of_file(form.name, files[0]))
    if form.kind == "binary" or (form.argument and form.argument not in arguments):
        return None
    value: Any = {field: arguments[name] for name, field in form.fields.items() if name in given}
    if form.argument:
        value = arguments[form.argument]
    match form.kind:
        case "json":
            return WrittenBody(json.dumps(value, ensure_ascii=False).encode(), form.name)
        case "text":
            kind = form.name
            if kind.startswith("text/") and "charset" not in kind:
                kind += "; charset=utf-8"
            return WrittenBody(str(value).encode(), kind)
        case "form":
            return WrittenBody(_urlencoded(form, value), form.name)
    return _multipart(form, value, files)


def _chosen(
    plan: BodyPlan, arguments: dict[str, Any], given: set[str], files: list[ReadFile]
) -> BodyForm:
    """Return the form that is asked for, else the first one that takes what is given."""
    wanted = arguments.get(plan.choice)
    problems: list[ArgumentRefused] = []
    usable: list[BodyForm] = []
    for form in plan.forms:
        if wanted in (None, form.name):
            problem = _problem(form, arguments, given, files)
            if problem is not None:
                problems.append(problem)
            elif form.kind != "binary" or not files or _allows(form.name, files[0].media_type):
                return form
            else:  # its bytes are said to be of another type
                usable.append(form)
    if not usable:
        raise problems[0]
    return usable[0]


def _problem(
    form: BodyForm, arguments: dict[str, Any], given: set[str], files: list[ReadFile]
) -> ArgumentRefused | None:
    """Return why a form does not take what is given; None if it does."""
    if further := sorted(given - form.arguments):
        return ArgumentRefused(further[0], f"a body of the type {form.name} has no such field")
    if files and not form.takes_files:
        return ArgumentRefused("attachment", f"a body of the type {form.name} takes no file")
    if form.files_required and not files:
        names = ", ".join(form.files) or "body"
        return ArgumentRefused("attachment", f"a file is required: {names}")
    value = arguments.get(form.argument)
    kind = "array" if isinstance(value, list) else "object"
    if isinstance(value, list | dict) and form.types and kind not in form.types:
        return ArgumentRefused(form.argument, f"a body of the type {form.name} is no {kind}")
    return None


def _type_of_file(described: str, file: ReadFile) -> str:
    """Return the media type of a file: its own if the description allows it, else the described.

    Args:
        described: Media types and ranges such as `image/*`, with commas between them.
        file: The file.
    """
    allowed = [name.strip() for name in described.split(",") if name.strip()]
    exact = [name for name in allowed if "*" not in name]
    if exact and not any(_allows(name, file.media_type) for name in allowed):
        return exact[0]
    return file.media_type or "application/octet-stream"


def _allows(described: str, media_type: str) -> bool:
    """Whether a media type is a described one, or in a described range."""
    described = described.partition(";")[0].strip().lower()
    name = media_type.partition(";")[0].strip().lower()
    is_range = described.endswith("/*") and name.startswith(described[:-1])
    return bool(name) and (described in (name, "*/*") or is_range)


def _urlencoded(form: BodyForm, value: Any) -> bytes:
    pairs: list[str] = []
    for name, member in _object(value).items():
        # An object is written as JSON, if the description does not say how.
        default = Encoding(media_type="application/json" if isinstance(member, dict) else "")
        pairs += query_pairs(name, member, form.media_type.encodings.get(name, default))
    return "&".join(pairs).encode()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentRefused("body", "a form is an object of its fields")
    return value


_Part: TypeAlias = tuple[str, tuple[str | None, bytes, str | None]]
_ANY_TYPE = Encoding(media_type="*/*")


def _multipart(form: BodyForm, value: Any, files: list[ReadFile]) -> WrittenBody:
    parts: list[_Part] = []
    for name, member in _object(value).items():
        parts.extend(_parts(name, member, form.media_type.encodings.get(name, _ANY_TYPE)))
    for name, file in _assigned(form, set(_object(value)), files):
        described = form.media_type.encodings.get(name, _ANY_TYPE).media_type or "*/*"
        parts.append((name, (file.name or "file", file.data, _type_of_file(described, file))))
    # A boundary, quoting of names and the order of parts: as httpx2 writes them.
    try:
        request = httpx2.Request("POST", "http://multipart.invalid/", files=parts)
    except ValueError as error:  # a control character in a described media type
        raise ArgumentRefused("", f"a form cannot be written: {error}") from error
    return WrittenBody(request.read(), request.headers["content-type"])


def _parts(name: str, value: Any, encoding: Encoding) -> Iterator[_Part]:
    """Give the parts of a field: one for each item of a list, but one for a document of JSON."""
    if not encoding.media_type:
        for key, text in field_pairs(name, value, encoding):
            yield key, (None, text.encode(), None)
        return
    kind = encoding.media_type.partition(",")[0].strip()
    if "*" in kind:
        kind = ""
    items = value if isinstance(value, list) and not is_json_type(kind) else [value]
    for item in items:
        if item is not None:
            default = "application/json" if isinstance(item, dict | list) else ""
            text = document_text(item, kind or default)
            yield name, (None, text.encode(), kind or default or None)


def _assigned(form: BodyForm, given: set[str], files: list[ReadFile]) -> list[tuple[str, ReadFile]]:
    """Give each file its field: by order, the last list takes the rest.

    A field that an argument has filled is passed over.
    """
    found: list[tuple[str, ReadFile]] = []
    fields = [name for name in form.files if name not in given]
    for file in files:
        if not fields:
            names = ", ".join(form.files)
            raise ArgumentRefused("attachment", f"more files than the fields take: {names}")
        found.append((fields[0], file))
        if not form.files[fields[0]]:
            del fields[0]
    return found
