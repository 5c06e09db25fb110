"""The media types of a body that can be written here, in the order in which they are tried. Pure.

JSON comes first, then forms, text and bytes. Of media types that say the same, such as
`application/json` and `text/json`, one is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias, get_args

from toolbus_toolkits.openapi.body_fields import body_fields, file_shape, json_types
from toolbus_toolkits.openapi.model import Body, MediaType, is_json_type
from toolbus_toolkits.openapi.references import Place, follow

__all__ = ["JSON_PATCH", "BodyKind", "Candidate", "candidates"]

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
    if name in _PLAIN_JSON:
        order = _PLAIN_JSON.index(name)
    elif name in _ANY:
        order = 3
    elif name == "application/strategic-merge-patch+json":
        order = 4  # before merge-patch: it knows the lists of the server, and is kubectl's choice
    elif name == JSON_PATCH:
        order = 6
    else:
        order = 7 if name.endswith(_YAML) else 5
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
        return bool(json_types(candidate.place) - {"string"}) or bool(
            body_fields(candidate.place).places
        )
    if _name(candidate.media_type) == JSON_PATCH:
        return len(structured) > 1 and bool(body_fields(candidate.place).places)
    return False
