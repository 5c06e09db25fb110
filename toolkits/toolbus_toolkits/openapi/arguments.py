"""The arguments of an operation's tool: names, schema, and where each one goes. Pure.

Names, also those of tools, are deterministic and without collisions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from toolbus.schemas.walker import joined
from toolbus_toolkits.openapi.body_fields import (
    JSON_PATCH,
    BodyFields,
    BodyKind,
    Candidate,
    body_fields,
    candidates,
    file_shape,
    is_plain_object,
    json_types,
    without_files,
)
from toolbus_toolkits.openapi.documents import Place, SpecError
from toolbus_toolkits.openapi.model import Body, Location, MediaType, Operation, Parameter
from toolbus_toolkits.openapi.schemas import SchemaWriter, is_hidden

__all__ = [
    "ArgumentNames",
    "Arguments",
    "BodyForm",
    "BodyPlan",
    "plan_arguments",
    "tool_names",
    "toolkit_name",
]

# Tools: PROTOCOL.md, REG-3. Anthropic refuses parameters with longer names.
_MAX_NAME = 64
_DIGEST_CHARS = 8


def tool_names(operations: Iterable[Operation]) -> dict[tuple[str, str], str]:
    """Return the name of the tool of each operation, by its method and path.

    It is the `operationId`, or the method and the path, in `A-Z a-z 0-9 _ -`. One that is too long
    or that several operations share ends with a digest of the method and path. So the name of an
    operation depends neither on the order of the description nor on which operations are chosen.
    """
    names: dict[tuple[str, str], str] = {}
    for operation in operations:
        name = _sanitised(operation.id, r"[^A-Za-z0-9_-]+")
        path = f"{operation.method.lower()}{operation.path}"
        names[operation.key] = name or _sanitised(path, r"[^A-Za-z0-9-]+")
    count = Counter(names.values())
    for key, name in names.items():
        if count[name] > 1 or len(name) > _MAX_NAME:
            digest = hashlib.sha256(" ".join(key).encode()).hexdigest()[:_DIGEST_CHARS]
            names[key] = f"{name[: _MAX_NAME - _DIGEST_CHARS - 1]}_{digest}"
    return names


def toolkit_name(title: str) -> str:
    """Return a name for the toolkit of an API, from its title."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:_MAX_NAME].rstrip("-")
    return name if re.match("[a-z]", name) else "openapi"


class ArgumentNames:
    """Gives the arguments of one tool their names.

    Args:
        reserved: Names that no argument has.
        wire_names: The names of all parameters and fields. An argument with the name of one that it
            is not would send a value to the wrong place, such as that of `filter` to `$filter`.
    """

    def __init__(self, reserved: Iterable[str], wire_names: Iterable[str]) -> None:
        self._taken = set(reserved)
        self._wire_names = frozenset(wire_names)

    def name(self, wire_name: str, location: str) -> str:
        """Return the name for a parameter or field.

        With its place as a suffix if it is taken, or is exactly that of another one.
        """
        base = _sanitised(wire_name, r"[^A-Za-z0-9_.-]+")[:_MAX_NAME] or location
        name = base
        suffix = f"_{location}"
        number = 1
        while name in self._taken or (name != wire_name and name in self._wire_names):
            name = f"{base[: _MAX_NAME - len(suffix)]}{suffix}"
            number += 1
            suffix = f"_{location}_{number}"
        self._taken.add(name)
        return name


def _sanitised(text: str, pattern: str) -> str:
    return re.sub(pattern, "_", text).strip("_")


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ATTACHMENT = "attachment"
_ORDER = get_args(Location)
_CHANGES: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
"""The schema of a JSON patch (RFC 6902), which many descriptions call an object."""


@dataclass(frozen=True, slots=True)
class BodyForm:
    """How a body is made from arguments, in one media type."""

    kind: BodyKind
    media_type: MediaType
    fields: dict[str, str] = field(default_factory=dict)
    """The name of the field for each argument, where the body is an object of arguments."""
    argument: str = ""
    """The argument that is the whole body, where there is one."""
    types: frozenset[str] = frozenset()
    """The JSON types that a whole body may have; all if it is empty."""
    files: Mapping[str, bool] = field(default_factory=dict)
    """The fields that take files, and whether each takes several."""
    files_required: bool = False

    @property
    def name(self) -> str:
        """Its media type, as it is sent and chosen."""
        name = self.media_type.name
        if self.kind == "multipart":
            return "multipart/form-data"
        if "*" in name:
            return {"json": "application/json", "text": "text/plain"}.get(self.kind, name)
        return name

    @property
    def arguments(self) -> set[str]:
        """The names of the arguments that it takes."""
        return {*self.fields, self.argument} - {""}

    @property
    def takes_files(self) -> Literal["", "one", "many"]:
        """Whether it sends no file, one, or several."""
        if self.kind == "binary":
            return "one"
        if not self.files:
            return ""
        return "many" if len(self.files) > 1 or any(self.files.values()) else "one"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The forms that a body may have."""

    required: bool
    forms: tuple[BodyForm, ...]
    """At least one; the first that takes what a call gives is used."""
    choice: str = ""
    """The argument that names the media type; empty if there is nothing to choose."""

    @property
    def arguments(self) -> set[str]:
        """The names of the arguments of all forms."""
        return {argument for form in self.forms for argument in form.arguments}

    @property
    def files_required(self) -> bool:
        """Whether no call can do without a file."""
        return all(form.files_required for form in self.forms)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one tool."""

    schema: dict[str, Any]
    """Their schema, without the `$defs` that it refers to."""
    definitions: frozenset[str]
    """The names of the definitions that it refers to itself."""
    parameters: tuple[tuple[str, Parameter], ...]
    """The argument of each parameter."""
    body: BodyPlan | None

    @property
    def takes_files(self) -> Literal["", "one", "many"]:
        """Whether a call sends no file, one, or several."""
        if self.body is None:
            return ""
        return max((form.takes_files for form in self.body.forms), key=("", "one", "many").index)


def plan_arguments(operation: Operation, writer: SchemaWriter) -> Arguments:
    """Plan the arguments of an operation. Raises `SpecError`."""
    drafts = _drafts_of(operation.body)
    fields = [name for draft in drafts for name in draft.fields.places]
    wire_names = [*(parameter.name for parameter in operation.parameters), *fields]
    names = ArgumentNames([_ATTACHMENT], wire_names)
    properties: dict[str, Any] = {}
    required: list[str] = []
    parameters: list[tuple[str, Parameter]] = []
    for parameter in sorted(
        operation.parameters, key=lambda found: (_ORDER.index(found.location), found.name)
    ):
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
        body = _plan_body(operation.body, drafts, names, writer, properties, required)
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return Arguments(schema, frozenset(writer.used), tuple(parameters), body)


@dataclass(slots=True)
class _FormDraft:
    """A media type whose fields are known, but not yet their arguments."""

    candidate: Candidate
    fields: BodyFields = field(default_factory=BodyFields)
    """The fields that are arguments."""
    is_whole: bool = False
    """Whether one argument is the whole body."""
    files: dict[str, bool] = field(default_factory=dict)
    """Whether each field that takes files takes several."""
    files_required: bool = False


def _plan_body(
    body: Body,
    drafts: Sequence[_FormDraft],
    names: ArgumentNames,
    writer: SchemaWriter,
    properties: dict[str, Any],
    required: list[str],
) -> BodyPlan:
    """Plan a body, whatever media types it has; its arguments are added to those of the tool."""
    arguments = _name_fields(body, drafts, names, writer, properties)
    forms = tuple(_form(draft, arguments) for draft in drafts)
    if body.required:
        must = set.intersection(*(_required(draft, arguments) for draft in drafts))
        required.extend(name for name in properties if name in must)
    choice = ""
    if len({form.name for form in forms}) > 1:
        choice = names.name("content_type", "body")
        properties[choice] = {
            "type": "string",
            "enum": list(dict.fromkeys(form.name for form in forms)),
            "description": "The media type of the body; by default one that fits.",
        }
    return BodyPlan(body.required, forms, choice)


def _name_fields(
    body: Body,
    drafts: Iterable[_FormDraft],
    names: ArgumentNames,
    writer: SchemaWriter,
    properties: dict[str, Any],
) -> dict[str, str]:
    """Make an argument of each field of any media type; return them by the fields' names."""
    places: dict[str, list[Place]] = {}
    for draft in drafts:
        for name, found in draft.fields.places.items():
            places.setdefault(name, []).extend(found)
    arguments: dict[str, str] = {}
    for name, found in places.items():
        arguments[name] = names.name(name, "body")
        different = {id(place.value): place for place in found}.values()
        properties[arguments[name]] = _any_of(map(writer.write, different))
    written = [_whole(draft.candidate, writer) for draft in drafts if draft.is_whole]
    if written:
        arguments[""] = names.name("body", "body")
        schema = _any_of(written)
        if body.description:
            schema = {**schema, "description": body.description}
        properties[arguments[""]] = schema
    return arguments


def _whole(candidate: Candidate, writer: SchemaWriter) -> dict[str, Any]:
    if candidate.kind == "text":
        text = f"The body of the request, as {candidate.media_type.name}."
        return {"type": "string", "description": text}
    if _is_json_patch(candidate):
        return _CHANGES
    return writer.write(candidate.media_type.schema)


def _form(draft: _FormDraft, arguments: dict[str, str]) -> BodyForm:
    candidate = draft.candidate
    types = {"array"} if _is_json_patch(candidate) else json_types(candidate.place)
    return BodyForm(
        candidate.kind,
        candidate.media_type,
        {arguments[name]: name for name in draft.fields.places},
        argument=arguments[""] if draft.is_whole else "",
        types=frozenset(types),
        files=draft.files,
        files_required=draft.files_required,
    )


def _drafts_of(body: Body | None) -> list[_FormDraft]:
    """Return the media types of use of a body, with their fields. Raises `SpecError`.

    Where a form takes files, its fields are arguments, however its schema describes them, and
    those of the other media types too: so that a call can give a file or leave it out. A media type
    that cannot carry a required file is not offered beside such a form.
    """
    if body is None:
        return []
    found = candidates(body)
    of_forms = {
        id(candidate): _files(candidate.place)
        for candidate in found
        if candidate.kind == "multipart"
    }
    file_names = {name for files in of_forms.values() for name in files}
    drafts: list[_FormDraft] = []
    for candidate in found:
        if candidate.kind == "binary":
            drafts.append(_FormDraft(candidate, files_required=body.required))
            continue
        draft = _draft(candidate, of_forms.get(id(candidate), {}), file_names)
        if draft is not None:
            draft.files_required = draft.files_required and body.required
            drafts.append(draft)
    return [draft for draft in drafts if draft is drafts[0] or _adds(draft, drafts[0])]


def _draft(candidate: Candidate, files: dict[str, bool], file_names: set[str]) -> _FormDraft | None:
    """Return the fields of JSON, a form or a text; None if it cannot carry a required file.

    Args:
        candidate: The media type.
        files: Its own fields that take files.
        file_names: The fields that take files in any media type of the body.
    """
    is_object = candidate.kind != "text" and is_plain_object(candidate.place)
    fields = body_fields(candidate.place) if is_object or file_names else BodyFields()
    if candidate.kind == "text" or not (is_object or fields.places):
        return _FormDraft(candidate, is_whole=True)
    only_files = {
        name
        for name in file_names.intersection(fields.places)
        if all(
            shape.is_file and not shape.has_other for shape in map(file_shape, fields.places[name])
        )
    }
    if only_files & fields.required and candidate.kind != "multipart":
        return None
    hidden = {name for name, places in fields.places.items() if all(map(is_hidden, places))}
    remaining = {
        name: [part for place in places for part in without_files(place)] if files else places
        for name, places in fields.places.items()
        if name not in only_files and name not in hidden
    }
    required = fields.required - set(files) - hidden
    is_missing = bool(only_files & fields.required)
    return _FormDraft(
        candidate, BodyFields(remaining, required), files=files, files_required=is_missing
    )


def _files(place: Place) -> dict[str, bool]:
    """Return the fields of a form that take files, and whether each takes several."""
    fields = body_fields(place)
    found: dict[str, bool] = {}
    for name, places in fields.places.items():
        shapes = [file_shape(place) for place in places]
        if any(shape.is_file for shape in shapes) and not all(map(is_hidden, places)):
            found[name] = any(shape.is_list for shape in shapes)
    return found


def _adds(draft: _FormDraft, first: _FormDraft) -> bool:
    """Whether a further media type does not only describe the same in other arguments."""
    if draft.candidate.kind in ("json", "binary") or draft.files:
        return True
    return draft.is_whole == first.is_whole


def _required(draft: _FormDraft, arguments: dict[str, str]) -> set[str]:
    if draft.is_whole:
        return {arguments[""]}
    return {arguments[name] for name in draft.fields.places if name in draft.fields.required}


def _is_json_patch(candidate: Candidate) -> bool:
    """Whether a body is a list of changes, though its schema does not say so."""
    is_patch = candidate.media_type.name.partition(";")[0].strip() == JSON_PATCH
    return is_patch and "array" not in json_types(candidate.place)


def _any_of(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema that takes what any of some schemas takes."""
    schemas = list(schemas)
    if len(schemas) == 1:
        return schemas[0]
    different = {json.dumps(schema, sort_keys=True): schema for schema in schemas}
    return joined("anyOf", different.values())
