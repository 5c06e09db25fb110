"""OpenAPI 3.0 and 3.1 to the model. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast, get_args

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

__all__ = ["merged_parameters", "read_operation", "read_schemes", "security_of", "texts"]

_LOCATIONS = get_args(Location)
_STYLES: dict[str, Style] = {
    "path": "simple",
    "query": "form",
    "header": "simple",
    "cookie": "form",
}
_IGNORED_HEADERS = PROTOCOL_HEADERS | {"accept", "content-type", "authorization"}


def read_operation(root: Place, method: str, path: str, item: Place, operation: Place) -> Operation:
    """Read an operation of OpenAPI 3.0 or 3.1. Raises `SpecError`."""
    parameters = (
        parameter
        for place in merged_parameters(item, operation)
        if (parameter := _parameter(place)) is not None
    )
    return Operation(
        id=operation.text("operationId"),
        method=method.upper(),
        path=path,
        servers=_servers(operation) or _servers(item) or _servers(root) or ("/",),
        parameters=tuple(parameters),
        body=_body(operation.get("requestBody")),
        security=security_of(root, operation),
        summary=operation.text("summary"),
        description=operation.text("description"),
        tags=texts(operation.value.get("tags")),
        deprecated=operation.flag("deprecated"),
    )


def merged_parameters(item: Place, operation: Place) -> Iterator[Place]:
    """Give the parameters of a path and an operation; those of the operation replace others."""
    found: dict[tuple[str, str], Place] = {}
    for place in (*item.get("parameters").elements(), *operation.get("parameters").elements()):
        found[place.text("in"), place.text("name")] = place
    return iter(found.values())


def security_of(root: Place, operation: Place) -> tuple[tuple[str, ...], ...]:
    """Return the alternatives of an operation, or those of the whole description."""
    listed = operation.value.get("security", root.value.get("security"))
    alternatives = listed if isinstance(listed, list) else []
    return tuple(tuple(schemes) for schemes in alternatives if isinstance(schemes, dict))


def texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a list; none of anything else."""
    listed = value if isinstance(value, list) else ()
    return tuple(name for name in listed if isinstance(name, str))


def read_schemes(root: Place) -> dict[str, SecurityScheme]:
    """Read `components.securitySchemes`, by name."""
    schemes = root.get("components").get("securitySchemes")
    return {name: _scheme(name, place) for name, place in schemes.items()}


def _scheme(name: str, place: Place) -> SecurityScheme:
    match place.text("type"):
        case "apiKey" if place.text("in") in ("query", "header", "cookie"):
            location: Any = place.text("in")
            return SecurityScheme(name, "apiKey", location, place.text("name"))
        case "http" if place.text("scheme").lower() == "basic":
            return SecurityScheme(name, "basic")
        case "http" if place.text("scheme").lower() == "bearer":
            return SecurityScheme(name, "bearer")
        case "oauth2" | "openIdConnect":
            return SecurityScheme(name, "bearer")
    return SecurityScheme(name, "unsupported")


def _servers(place: Place) -> tuple[str, ...]:
    return tuple(
        _with_variables(server.text("url"), server)
        for server in place.get("servers").elements()
        if server.text("url")
    )


def _with_variables(url: str, server: Place) -> str:
    for name, variable in server.get("variables").items():
        value = variable.value if isinstance(variable.value, dict) else {}
        listed = value.get("enum")
        choices = listed if isinstance(listed, list) and listed else [None]
        default = value.get("default", choices[0])
        if default is not None:
            url = url.replace(f"{{{name}}}", str(default))
    return url


def _parameter(place: Place) -> Parameter | None:
    name = place.text("name")
    location = place.text("in")
    if not name or location not in _LOCATIONS:
        raise SpecError(f"a parameter has the name {name[:100]!r} and the place {location[:20]!r}")
    if location == "header" and name.lower() in _IGNORED_HEADERS:
        return None
    schema = place.get("schema")
    encoding = _encoding(place, _STYLES[location])
    if location != "query":  # elsewhere a reserved character would begin another part
        encoding = replace(encoding, allow_reserved=False)
    for media_type, content in place.get("content").items():
        schema = content.get("schema")
        encoding = Encoding(media_type=media_type)
        break
    return Parameter(
        name=name,
        location=cast(Location, location),
        required=location == "path" or place.flag("required"),
        schema=schema,
        encoding=encoding,
        description=place.text("description"),
    )


def _encoding(place: Place, default: Style) -> Encoding:
    style = place.text("style") or default
    if style not in get_args(Style):
        raise SpecError(f"the style {style[:20]!r} of a parameter is not known")
    return Encoding(
        style=cast(Style, style),
        explode=place.flag("explode", style in ("form", "deepObject")),
        allow_reserved=place.flag("allowReserved"),
    )


def _body(place: Place) -> Body | None:
    if not isinstance(place.value, dict):
        return None
    media_types = tuple(
        MediaType(name.lower(), content.get("schema"), dict(_encodings(content)))
        for name, content in place.get("content").items()
    )
    if not media_types:
        return None
    return Body(place.flag("required"), media_types, place.text("description"))


def _encodings(media_type: Place) -> Iterator[tuple[str, Encoding]]:
    for name, place in media_type.get("encoding").items():
        if not isinstance(place.value, dict):
            raise SpecError(f"the encoding of the field {name[:100]!r} is not an object")
        if any(key in place.value for key in ("style", "explode", "allowReserved")):
            yield name, _encoding(place, "form")
        elif place.text("contentType"):
            yield name, Encoding(media_type=place.text("contentType"))
