"""The body of a request, from the arguments and files of a call. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx2

from toolbus import ToolFailed
from toolbus_toolkits.openapi.arguments import BodyPlan
from toolbus_toolkits.openapi.serialization import plain_text, query_pairs

__all__ = ["ArgumentRefused", "ReadFile", "WrittenBody", "write_body"]

_UNSET: Any = object()


class ArgumentRefused(ToolFailed):
    """An argument or a file that cannot be sent, though it fits the schema.

    Args:
        argument: The argument, as its tool names it; empty for several.
        message: What is wrong with it, without the value.
    """

    def __init__(self, argument: str, message: str) -> None:
        path = "/" + argument.replace("~", "~0").replace("/", "~1") if argument else ""
        super().__init__(
            f"{path}: {message}" if path else message,
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

    Raises `ArgumentRefused` for files that do not fit the fields of the body.
    """
    if plan.kind == "binary":
        return _binary(plan, files)
    value = _value(plan, arguments)
    if value is _UNSET and not files:
        if not plan.required or plan.argument:
            return None
        value = {}
    if value is _UNSET:
        value = {}
    name = plan.media_type.name
    match plan.kind:
        case "json":
            kind = "application/json" if "*" in name else name
            return WrittenBody(json.dumps(value, ensure_ascii=False).encode(), kind)
        case "text":
            return WrittenBody(str(value).encode(), _text_type(name))
        case "form":
            return WrittenBody("&".join(_pairs(plan, value)).encode(), name)
    return _multipart(plan, value, files)


def _value(plan: BodyPlan, arguments: dict[str, Any]) -> Any:
    if plan.argument:
        return arguments.get(plan.argument, _UNSET)
    given = {
        field: arguments[argument]
        for argument, field in plan.fields.items()
        if argument in arguments
    }
    return given or _UNSET


def _binary(plan: BodyPlan, files: list[ReadFile]) -> WrittenBody | None:
    if not files:
        return None
    if len(files) > 1:
        raise ArgumentRefused("attachment", "the operation takes one file")
    name = plan.media_type.name
    generic = "*" in name or name == "application/octet-stream"
    return WrittenBody(files[0].data, (files[0].media_type if generic else name))


def _text_type(name: str) -> str:
    name = "text/plain" if "*" in name else name
    return name if "charset" in name or not name.startswith("text/") else f"{name}; charset=utf-8"


def _pairs(plan: BodyPlan, value: Any) -> list[str]:
    if not isinstance(value, dict):
        raise ArgumentRefused("body", "a form is an object of its fields")
    media_type = plan.media_type
    return [
        part
        for name, each in value.items()
        for part in query_pairs(name, each, media_type.encodings.get(name, media_type.default))
    ]


def _multipart(plan: BodyPlan, value: Any, files: list[ReadFile]) -> WrittenBody:
    if not isinstance(value, dict):
        raise ArgumentRefused("body", "a form is an object of its fields")
    parts: list[tuple[str, tuple[str | None, bytes, str | None]]] = []
    for name, each in value.items():
        encoding = plan.media_type.encodings.get(name)
        kind = encoding.media_type if encoding is not None else ""
        items = each if isinstance(each, list) and not kind else [each]
        for item in items:
            default = "application/json" if isinstance(item, dict | list) else None
            parts.append((name, (None, plain_text(item).encode(), kind or default)))
    for name, file in _assigned(plan, files):
        kind = file.media_type or "application/octet-stream"
        parts.append((name, (file.name or "file", file.data, kind)))
    # A boundary, quoting of names and the order of parts: as httpx2 writes them.
    request = httpx2.Request("POST", "http://multipart.invalid/", files=parts)
    return WrittenBody(request.read(), request.headers["content-type"])


def _assigned(plan: BodyPlan, files: list[ReadFile]) -> list[tuple[str, ReadFile]]:
    """Give each file its field: by order, the last list takes the rest."""
    found: list[tuple[str, ReadFile]] = []
    fields = list(plan.files)
    for file in files:
        if not fields:
            names = ", ".join(each.name for each in plan.files)
            raise ArgumentRefused("attachment", f"more files than the fields take: {names}")
        found.append((fields[0].name, file))
        if not fields[0].is_list:
            del fields[0]
    return found
