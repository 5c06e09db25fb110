"""What the body of an operation may be: its media types, its fields, and which are files. Pure.

Of media types JSON comes first, then forms, text and bytes. Of those that say the same, such as
`application/json` and `text/json`, one is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from toolbus_toolkits.openapi.documents import Place, SpecError, follow
from toolbus_toolkits.openapi.model import Body, MediaType, is_json_type

__all__ = [
    "JSON_PATCH",
    "BodyFields",
    "BodyKind",
    "Candidate",
    "FileShape",
    "body_fields",
    "candidates",
    "file_shape",
    "is_plain_object",
    "json_types",
    "without_files",
]

_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties")
_NOT_ENCODED = ("", "binary", "7bit", "8bit")
"""Values of `contentEncoding` that leave bytes as they are; others make text of them."""
_MAX_LEVELS = 32
"""How deep parts and alternatives are followed: Python's own stack would end at some 300."""


@dataclass(frozen=True, slots=True)
class FileShape:
    """What a schema says about files."""

    is_file: bool = False
    is_list: bool = False
    """Whether it takes several files."""
    has_other: bool = False
    """Whether it takes a value that is no file, too, such as the id of an earlier upload."""


@dataclass(slots=True)
class BodyFields:
    """The fields of a body."""

    places: dict[str, list[Place]] = field(default_factory=dict)
    """The schemas of each field: several, where alternatives or parts describe it again."""
    required: set[str] = field(default_factory=set)


def file_shape(place: Place) -> FileShape:
    """Return whether the values of a schema are files. Raises `SpecError`."""
    return _file_shape(place, set(), _MAX_LEVELS)


def _file_shape(place: Place, seen: set[int], levels: int) -> FileShape:
    place = follow(place)
    value = place.value
    if not isinstance(value, dict) or id(value) in seen or not levels:
        return FileShape()
    seen.add(id(value))  # a schema may contain itself
    kinds = json_types(place)
    if _is_bytes(value):
        return FileShape(is_file=True)
    if "array" in kinds and "items" in value:
        items = _file_shape(place.get("items"), seen, levels - 1)
        return FileShape(items.is_file, items.is_file, not items.is_file)
    branches = [
        _file_shape(branch, seen, levels - 1)
        for key in ("allOf", "anyOf", "oneOf")
        for branch in place.get(key).elements()
    ]
    is_file = any(branch.is_file for branch in branches)
    if not branches:
        return FileShape(has_other=kinds != {"null"})
    return FileShape(
        is_file,
        any(branch.is_list for branch in branches),
        any(branch.has_other for branch in branches) and not (is_file and "allOf" in value),
    )


def without_files(place: Place) -> list[Place]:
    """Return the alternatives of a schema that are no files, if some are; else the schema."""
    if not file_shape(place).is_file:
        return [place]
    found = follow(place)
    alternatives = [*found.get("anyOf").elements(), *found.get("oneOf").elements()]
    return [branch for branch in alternatives if not file_shape(branch).is_file] or [place]


def _is_bytes(value: dict[str, object]) -> bool:
    if value.get("type") == "file" or value.get("format") == "binary":
        return True
    encoding = value.get("contentEncoding", "")
    if value.get("contentEncoding") == "binary":
        return True
    return isinstance(value.get("contentMediaType"), str) and encoding in _NOT_ENCODED


def body_fields(place: Place) -> BodyFields:
    """Return the fields of a body that is sent as a form: also those of parts and alternatives.

    A field is required if a part requires it, or all alternatives do. Raises `SpecError`.
    """
    return _body_fields(place, {}, _MAX_LEVELS)


def _body_fields(place: Place, known: dict[int, BodyFields], levels: int) -> BodyFields:
    place = follow(place)
    value = place.value
    if not isinstance(value, dict) or not levels:
        return BodyFields()
    if id(value) in known:
        return known[id(value)]
    fields = known[id(value)] = BodyFields()
    properties = place.get("properties")
    for name, schema in properties.members.items():
        fields.places[name] = [Place(schema, properties.resolver)]
    fields.required.update(_required(value))
    for part in place.get("allOf").elements():
        _merge(fields, _body_fields(part, known, levels - 1))
    for key in ("anyOf", "oneOf"):
        alternatives = [
            _body_fields(branch, known, levels - 1)
            for branch in place.get(key).elements()
            if isinstance(branch.value, dict) and branch.value.get("type") != "null"
        ]
        for alternative in alternatives:
            _merge(fields, BodyFields(alternative.places))
        if alternatives:
            fields.required |= set.intersection(*(branch.required for branch in alternatives))
    return fields


def _merge(fields: BodyFields, further: BodyFields) -> None:
    for name, places in further.places.items():
        # Each schema once: parts that share parts would double it at each level.
        found = {id(place.value): place for place in (*fields.places.get(name, ()), *places)}
        fields.places[name] = list(found.values())
    fields.required |= further.required


def json_types(place: Place) -> set[str]:
    """Return the types that a schema names; none of one that says nothing."""
    kind = place.members.get("type", "object" if "properties" in place.members else None)
    listed = kind if isinstance(kind, list) else [kind]
    return {name for name in listed if isinstance(name, str)}


def is_plain_object(place: Place) -> bool:
    """Return whether the members of a body can be arguments of their own, and nothing is lost."""
    value = place.value
    if not isinstance(value, dict) or not isinstance(value.get("properties"), dict):
        return False
    if value.get("nullable") is True or value.get("type", "object") != "object":
        return False
    further = value.get("additionalProperties", False)
    return further is False and not any(key in value for key in _COMBINED)


def _required(value: dict[str, object]) -> list[str]:
    listed = value.get("required")
    if not isinstance(listed, list):
        return []  # `required: true` of a member, as older versions write it
    if not all(isinstance(name, str) for name in listed):
        raise SpecError("`required` of the body is not a list of names")
    return listed


BodyKind: TypeAlias = Literal["json", "multipart", "form", "text", "binary"]
JSON_PATCH = "application/json-patch+json"
_KINDS: tuple[BodyKind, ...] = get_args(BodyKind)
_PLAIN_JSON = ("application/json", "text/json", "application/x-json")
_ANY = ("*/*", "application/*", "application/*+json")
_TEXTS = ("/xml", "+xml", "/graphql", "/x-ndjson", "/ndjson", "/jsonl", "/json-seq", "/csv", "/sql")
_YAML = ("/yaml", "/x-yaml", "+yaml")
_PACKED = ("octet-stream", "pdf", "zip", "tar", "protobuf", "cbor", "msgpack", "x-binary")
"""Ends of types that are bytes, also where the description calls their values strings."""
_MAX_CANDIDATES = 20
"""Media types of one body: the caller chooses among them by name, in an enum."""
_RANKS = {
    **{name: rank for rank, name in enumerate(_PLAIN_JSON)},
    **dict.fromkeys(_ANY, 3),
    # Before merge-patch: it knows the lists of the server, and is kubectl's choice.
    "application/strategic-merge-patch+json": 4,
    JSON_PATCH: 6,
}
"""Of media types of JSON; most others have 5."""


class Candidate(NamedTuple):
    """A media type in which a body can be written."""

    kind: BodyKind
    media_type: MediaType
    place: Place
    """Its schema, after its `$ref`."""


def candidates(body: Body) -> list[Candidate]:
    """Return the media types of a body that are of use, the best first. Raises `SpecError`."""
    found: dict[str, Candidate] = {}
    for media_type in body.media_types:
        name = _name(media_type)
        place = follow(media_type.schema)
        candidate = Candidate(_kind(name, place), media_type, place)
        same = "json" if candidate.kind == "json" and name in _PLAIN_JSON + _ANY else name
        if same not in found or _rank(candidate) < _rank(found[same]):
            found[same] = candidate
    ranked = sorted(found.values(), key=_rank)
    if ranked and ranked[0].kind in ("json", "multipart", "form"):
        # The caller writes texts itself: where the values can be arguments, no text is asked for.
        ranked = [
            candidate
            for candidate in ranked
            if candidate.kind != "text" and not _repeats(candidate, ranked)
        ]
    return ranked[:_MAX_CANDIDATES]


def _name(media_type: MediaType) -> str:
    return media_type.name.partition(";")[0].strip()


def _kind(name: str, place: Place) -> BodyKind:
    if name in ("multipart/form-data", "multipart/*"):
        return "multipart"
    if name == "application/x-www-form-urlencoded":
        return "form"
    if is_json_type(name):
        return "json"
    if file_shape(place).is_file:
        return "binary"
    if name in _ANY:
        return "json"
    types = json_types(place)
    if name.endswith(_YAML):
        return "text" if types <= {"string"} else "json"  # JSON is YAML
    if name.startswith("text/") or name.endswith(_TEXTS):
        return "text"
    is_text = name.startswith("application/") and not name.endswith(_PACKED)
    return "text" if is_text and types == {"string"} else "binary"


def _rank(candidate: Candidate) -> tuple[int, int]:
    name = _name(candidate.media_type)
    order = _RANKS.get(name, 7 if name.endswith(_YAML) else 5)
    return _KINDS.index(candidate.kind), order


def _repeats(candidate: Candidate, others: Iterable[Candidate]) -> bool:
    """Whether a media type is of no use beside the others.

    A patch of JSON is a list of changes. Some frameworks name its media type for every object, and
    some clients name bytes for what is also described as an object.
    """
    structured = [
        candidate for candidate in others if candidate.kind in ("json", "multipart", "form")
    ]
    if candidate.kind == "binary":
        place = candidate.place
        return bool(json_types(place) - {"string"} or body_fields(place).places)
    if _name(candidate.media_type) == JSON_PATCH:
        return len(structured) > 1 and bool(body_fields(candidate.place).places)
    return False
