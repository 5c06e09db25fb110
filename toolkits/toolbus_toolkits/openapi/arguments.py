"""The arguments of an operation's tool: their names and schema, and where each one goes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from toolbus_toolkits.openapi.model import Body, MediaType, Operation, Parameter
from toolbus_toolkits.openapi.naming import ArgumentNames
from toolbus_toolkits.openapi.parsing import SpecError
from toolbus_toolkits.openapi.references import Place, follow
from toolbus_toolkits.openapi.schemas import SchemaWriter, is_binary

__all__ = ["Arguments", "BodyKind", "BodyPlan", "FileField", "plan_arguments"]

BodyKind: TypeAlias = Literal["json", "form", "multipart", "text", "binary"]
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ATTACHMENT = "attachment"
_ORDER = ("path", "query", "header", "cookie")
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties")
_KINDS: tuple[BodyKind, ...] = ("json", "multipart", "form", "text", "binary")


@dataclass(frozen=True, slots=True)
class FileField:
    """A field of a multipart body that takes a file."""

    name: str
    is_list: bool


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """How a body is made from arguments."""

    kind: BodyKind
    media_type: MediaType
    required: bool
    fields: dict[str, str] = field(default_factory=dict)
    """The name of the field for each argument, where the body is an object of arguments."""
    argument: str = ""
    """The argument that is the whole body, where there is one."""
    files: tuple[FileField, ...] = ()
    files_required: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one tool."""

    schema: dict[str, Any]
    parameters: tuple[tuple[str, Parameter], ...]
    """The argument of each parameter."""
    body: BodyPlan | None

    @property
    def takes_files(self) -> Literal["", "one", "many"]:
        """Whether a call sends no file, one, or several."""
        if self.body is None or not (self.body.files or self.body.kind == "binary"):
            return ""
        files = self.body.files
        return "many" if len(files) > 1 or any(each.is_list for each in files) else "one"


def plan_arguments(operation: Operation, writer: SchemaWriter) -> Arguments:
    """Plan the arguments of an operation. Raises `SpecError`."""
    names = ArgumentNames(reserved=[_ATTACHMENT])
    properties: dict[str, Any] = {}
    required: list[str] = []
    parameters: list[tuple[str, Parameter]] = []
    for parameter in sorted(operation.parameters, key=_precedence):
        if parameter.location == "header" and not _HEADER_NAME.fullmatch(parameter.name):
            raise SpecError(f"{parameter.name[:100]!r} is not the name of a header")
        argument = names.name(parameter.name, parameter.location)
        schema = writer.write(parameter.schema)
        if parameter.description:
            schema = {**schema, "description": parameter.description}
        properties[argument] = schema
        parameters.append((argument, parameter))
        if parameter.required:
            required.append(argument)
    body = None
    if operation.body is not None:
        body = _plan_body(operation.body, names, writer, properties, required)
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if defs := writer.defs():
        schema["$defs"] = defs
    return Arguments(schema, tuple(parameters), body)


def _precedence(parameter: Parameter) -> tuple[int, str]:
    return _ORDER.index(parameter.location), parameter.name


def _plan_body(
    body: Body,
    names: ArgumentNames,
    writer: SchemaWriter,
    properties: dict[str, Any],
    required: list[str],
) -> BodyPlan:
    kind, media_type = _chosen(body)
    if kind == "binary":
        return BodyPlan(kind, media_type, body.required, files_required=body.required)
    place = follow(media_type.schema)
    if kind == "text" or not _is_plain_object(place):
        argument = names.name("body", "body")
        properties[argument] = _whole_body(kind, media_type, body, writer)
        if body.required:
            required.append(argument)
        return BodyPlan(kind, media_type, body.required, argument=argument)
    files = tuple(_files(place)) if kind == "multipart" else ()
    must = set(_required(place))
    fields: dict[str, str] = {}
    for name, schema in _fields(place, {each.name for each in files}):
        argument = names.name(name, "body")
        fields[argument] = name
        properties[argument] = writer.write(schema)
        if body.required and name in must:
            required.append(argument)
    files_required = body.required and any(each.name in must for each in files)
    return BodyPlan(
        kind, media_type, body.required, fields, files=files, files_required=files_required
    )


def _whole_body(
    kind: BodyKind, media_type: MediaType, body: Body, writer: SchemaWriter
) -> dict[str, Any]:
    schema = {"type": "string"} if kind == "text" else writer.write(media_type.schema)
    if body.description:
        return {**schema, "description": body.description}
    if kind == "text":
        return {**schema, "description": f"The body of the request, as {media_type.name}."}
    return schema


def _chosen(body: Body) -> tuple[BodyKind, MediaType]:
    """Return the form in which a body is sent: JSON if it may be, then forms, text and bytes."""
    kinds = [(_kind(each), each) for each in body.media_types]
    return min(kinds, key=lambda each: _KINDS.index(each[0]))


def _kind(media_type: MediaType) -> BodyKind:
    name = media_type.name.partition(";")[0].strip()
    if name in ("application/json", "*/*", "application/*") or name.endswith("+json"):
        return "json"
    if name == "multipart/form-data":
        return "multipart"
    if name == "application/x-www-form-urlencoded":
        return "form"
    if is_binary(media_type.schema):
        return "binary"
    if name.startswith("text/") or name == "application/xml" or name.endswith("+xml"):
        return "text"
    return "binary"


def _is_plain_object(place: Place) -> bool:
    """Return whether the members of a body can be arguments of their own."""
    value = place.value
    if not isinstance(value, dict) or not isinstance(value.get("properties"), dict):
        return False
    if value.get("nullable") is True or value.get("type", "object") != "object":
        return False
    further = value.get("additionalProperties", False)
    return further is False and not any(key in value for key in _COMBINED)


def _fields(place: Place, files: set[str]) -> Iterator[tuple[str, Place]]:
    for name, schema in place.value["properties"].items():
        hidden = isinstance(schema, dict) and schema.get("readOnly") is True
        if name not in files and not hidden:
            yield name, Place(schema, place.resolver)


def _files(place: Place) -> Iterator[FileField]:
    for name, schema in place.value["properties"].items():
        found = Place(schema, place.resolver)
        if is_binary(found):
            yield FileField(name, is_list=False)
        elif is_binary(follow(found).get("items")):
            yield FileField(name, is_list=True)


def _required(place: Place) -> list[str]:
    listed = place.value.get("required")
    if isinstance(listed, list) and not all(isinstance(each, str) for each in listed):
        raise SpecError("`required` of the body is not a list of names")
    return listed if isinstance(listed, list) else []
