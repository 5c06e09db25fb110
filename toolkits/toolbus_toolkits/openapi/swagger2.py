"""Swagger 2.0 to the model. Pure."""

from __future__ import annotations

from typing import Any, cast

from toolbus_toolkits.openapi.body_fields import file_shape
from toolbus_toolkits.openapi.model import (
    PROTOCOL_HEADERS,
    Body,
    Encoding,
    Location,
    MediaType,
    Operation,
    Parameter,
    SecurityScheme,
    Style,
)
from toolbus_toolkits.openapi.parsing import SpecError
from toolbus_toolkits.openapi.references import Place
from toolbus_toolkits.openapi.version3 import merged_parameters, security_of, texts

__all__ = ["read_operation", "read_schemes"]

_DELIMITED: dict[str, Style] = {
    "csv": "form",
    "ssv": "spaceDelimited",
    "tsv": "tabDelimited",
    "pipes": "pipeDelimited",
    "multi": "form",
}
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def read_operation(root: Place, method: str, path: str, item: Place, operation: Place) -> Operation:
    """Read an operation of Swagger 2.0. Raises `SpecError`."""
    places = list(merged_parameters(item, operation))
    consumes = texts(operation.value.get("consumes", root.value.get("consumes")))
    return Operation(
        id=operation.text("operationId"),
        method=method.upper(),
        path=path,
        servers=_servers(root, operation),
        parameters=tuple(
            _parameter(place)
            for place in places
            if place.text("in") not in ("body", "formData") and not _is_of_http(place)
        ),
        body=_body(places, consumes, root.resolver),
        security=security_of(root, operation),
        summary=operation.text("summary"),
        description=operation.text("description"),
        tags=texts(operation.value.get("tags")),
        deprecated=operation.flag("deprecated"),
    )


def read_schemes(root: Place) -> dict[str, SecurityScheme]:
    """Read `securityDefinitions`, by name."""
    schemes = root.get("securityDefinitions")
    return {name: _scheme(name, place) for name, place in schemes.items()}


def _scheme(name: str, place: Place) -> SecurityScheme:
    match place.text("type"):
        case "apiKey" if place.text("in") in ("query", "header"):
            location: Any = place.text("in")
            return SecurityScheme(name, "apiKey", location, place.text("name"))
        case "basic":
            return SecurityScheme(name, "basic")
        case "oauth2":
            return SecurityScheme(name, "bearer")
    return SecurityScheme(name, "unsupported")


def _servers(root: Place, operation: Place) -> tuple[str, ...]:
    base = root.text("basePath") or "/"
    host = root.text("host")
    schemes = texts(operation.value.get("schemes", root.value.get("schemes")))
    if not host:
        return (base,)
    first = [scheme for scheme in ("https", "http") if scheme in schemes]
    if not schemes:
        return (f"//{host}{base}",)  # the scheme of the description's own address
    return tuple(f"{scheme}://{host}{base}" for scheme in first or schemes)


def _is_of_http(place: Place) -> bool:
    return place.text("in") == "header" and place.text("name").lower() in PROTOCOL_HEADERS


def _parameter(place: Place) -> Parameter:
    name = place.text("name")
    location = place.text("in")
    if not name or location not in ("path", "query", "header"):
        raise SpecError(f"a parameter has the name {name[:100]!r} and the place {location[:20]!r}")
    return Parameter(
        name=name,
        location=cast(Location, location),
        required=location == "path" or place.flag("required"),
        schema=place,
        encoding=_encoding(place, is_query=location == "query"),
        description=place.text("description"),
    )


def _encoding(place: Place, *, is_query: bool) -> Encoding:
    collection = place.text("collectionFormat") or "csv"
    if collection not in _DELIMITED:
        raise SpecError(f"the collectionFormat {collection[:20]!r} is not known")
    if is_query:
        return Encoding(_DELIMITED[collection], explode=collection == "multi")
    return Encoding("simple", explode=False)


def _body(places: list[Place], consumes: tuple[str, ...], resolver: Any) -> Body | None:
    for place in places:
        if place.text("in") == "body":
            kinds = consumes or ("application/json",)
            schema = place.get("schema")
            return Body(
                place.flag("required"),
                tuple(MediaType(kind.lower(), schema) for kind in kinds),
                place.text("description"),
            )
    fields = [place for place in places if place.text("in") == "formData"]
    if not fields:
        return None
    has_file = any(file_shape(place).is_file for place in fields)
    only_multipart = _FORMS[0] in consumes and _FORMS[1] not in consumes
    kind = _FORMS[0] if has_file or only_multipart else _FORMS[1]
    required = [place.text("name") for place in fields if place.flag("required")]
    members = {
        "type": "object",
        "properties": {place.text("name"): place.value for place in fields},
        "required": required,
    }
    encodings = {place.text("name"): _encoding(place, is_query=True) for place in fields}
    media_type = MediaType(kind, Place(members, resolver), encodings)
    return Body(bool(required), (media_type,))
