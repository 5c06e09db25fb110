"""A description of OpenAPI 3.0, 3.1 or Swagger 2.0 to the one model of all versions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from toolbus.tools.omission import Omission
from toolbus_toolkits.openapi.body_fields import file_shape
from toolbus_toolkits.openapi.documents import Place, SpecError
from toolbus_toolkits.openapi.model import (
    PROTOCOL_HEADERS,
    Api,
    Body,
    Encoding,
    Location,
    MediaType,
    Operation,
    Parameter,
    SecurityScheme,
    Style,
)

__all__ = ["MAX_OPERATIONS", "read_api"]

MAX_OPERATIONS = 20_000
"""Of one description: each takes a millisecond."""
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_STYLES: dict[str, Style] = {
    "path": "simple",
    "query": "form",
    "header": "simple",
    "cookie": "form",
}
"""By the place of a parameter of version 3."""
_DELIMITED: dict[str, Style] = {
    "csv": "form",
    "ssv": "spaceDelimited",
    "tsv": "tabDelimited",
    "pipes": "pipeDelimited",
    "multi": "form",
}
"""By the `collectionFormat` of version 2."""
_IGNORED_HEADERS = PROTOCOL_HEADERS | {"accept", "content-type", "authorization"}
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def read_api(root: Place) -> Api:
    """Read a description.

    An operation that cannot be read is left out, with its reason in `left_out`. Raises `SpecError`
    if the document is no description of a known version, or has over 20,000 operations.
    """
    dialect = _dialect(root)
    is_old = dialect == "2.0"
    found: list[Operation] = []
    left_out: list[Omission] = []
    for path, method, item, operation in _operations(root, left_out):
        try:
            found.append(_operation(root, method, path, item, operation, is_old=is_old))
        except SpecError as error:
            left_out.append(Omission(f"{method.upper()} {path}", str(error)))
        if len(found) > MAX_OPERATIONS:
            raise SpecError(f"the description has more than {MAX_OPERATIONS:,} operations")
    schemes = root.get("components").get("securitySchemes")
    if is_old:
        schemes = root.get("securityDefinitions")
    info = root.get("info")
    return Api(
        title=info.text("title"),
        description=info.text("description"),
        version=info.text("version"),
        dialect=dialect,
        operations=tuple(found),
        schemes={name: _scheme(name, place) for name, place in schemes.items()},
        left_out=tuple(left_out),
    )


def _dialect(root: Place) -> Literal["2.0", "3.0", "3.1"]:
    for key in ("swagger", "openapi"):
        text = str(root.value.get(key, ""))
        if key == "swagger" and text == "2.0":
            return "2.0"
        if key == "openapi" and (found := re.fullmatch(r"3\.([01])(\.\d+)?(-\w+)?", text)):
            return "3.1" if found[1] == "1" else "3.0"
        if text:
            raise SpecError(
                f"{key} {text[:20]!r} is not supported: write the description as OpenAPI 3.1, 3.0 "
                "or Swagger 2.0"
            )
    raise SpecError("the document has neither `openapi` nor `swagger`: is it an API description?")


def _operations(root: Place, left_out: list[Omission]) -> Iterator[tuple[str, str, Place, Place]]:
    """Give path, method, path item and operation."""
    paths = root.get("paths")
    for path, value in paths.members.items():
        if not path.startswith("/"):
            continue  # an extension
        try:
            # `Place.get` of a wrapper follows the `$ref` of a path item.
            item = Place({"item": value}, paths.resolver).get("item")
            found = [
                (path, method, item, item.get(method))
                for method in _METHODS
                if isinstance(item.members.get(method), dict)
            ]
        except SpecError as error:
            left_out.append(Omission(path, str(error)))
            continue
        yield from found


def _operation(
    root: Place, method: str, path: str, item: Place, operation: Place, *, is_old: bool
) -> Operation:
    # Parameters of the operation replace those of its path.
    of_both = (*item.get("parameters").elements(), *operation.get("parameters").elements())
    places = {(place.text("in"), place.text("name")): place for place in of_both}.values()
    if is_old:
        servers = _old_servers(root, operation)
        body = _old_body(list(places), _texts(_inherited(root, operation, "consumes")), root)
    else:
        servers = _servers(operation) or _servers(item) or _servers(root) or ("/",)
        body = _body(operation.get("requestBody"))
    security = _inherited(root, operation, "security")
    alternatives = security if isinstance(security, list) else []
    return Operation(
        id=operation.text("operationId"),
        method=method.upper(),
        path=path,
        servers=servers,
        parameters=tuple(
            _parameter(place, is_old=is_old)
            for place in places
            if _is_parameter(place, is_old=is_old)
        ),
        body=body,
        security=tuple(tuple(schemes) for schemes in alternatives if isinstance(schemes, dict)),
        summary=operation.text("summary"),
        description=operation.text("description"),
        tags=_texts(operation.value.get("tags")),
        deprecated=operation.flag("deprecated"),
    )


def _inherited(root: Place, operation: Place, key: str) -> Any:
    """Return a member of an operation, or that of the whole description."""
    return operation.value.get(key, root.value.get(key))


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a list; none of anything else."""
    listed = value if isinstance(value, list) else ()
    return tuple(name for name in listed if isinstance(name, str))


def _scheme(name: str, place: Place) -> SecurityScheme:
    location: Any = place.text("in")
    match place.text("type"), place.text("scheme").lower():
        case "apiKey", _ if location in ("query", "header", "cookie"):
            return SecurityScheme(name, "apiKey", location, place.text("name"))
        case ("http", "basic") | ("basic", _):
            return SecurityScheme(name, "basic")
        case ("http", "bearer") | ("oauth2" | "openIdConnect", _):
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
        choices = variable.get("enum").value
        default = variable.get("default").value
        if default is None and isinstance(choices, list) and choices:
            default = choices[0]
        if default is not None:
            url = url.replace(f"{{{name}}}", str(default))
    return url


def _old_servers(root: Place, operation: Place) -> tuple[str, ...]:
    base = root.text("basePath") or "/"
    host = root.text("host")
    schemes = _texts(_inherited(root, operation, "schemes"))
    if not host:
        return (base,)
    if not schemes:
        return (f"//{host}{base}",)  # the scheme of the description's own address
    first = [scheme for scheme in ("https", "http") if scheme in schemes]
    return tuple(f"{scheme}://{host}{base}" for scheme in first or schemes)


def _is_parameter(place: Place, *, is_old: bool) -> bool:
    """Whether it is not a part of the body, nor a header that HTTP or this client sets."""
    ignored = PROTOCOL_HEADERS if is_old else _IGNORED_HEADERS
    match place.text("in"):
        case "body" | "formData":
            return not is_old
        case "header":
            return place.text("name").lower() not in ignored
    return True


def _parameter(place: Place, *, is_old: bool) -> Parameter:
    name = place.text("name")
    location = place.text("in")
    if not name or location not in _STYLES or (is_old and location == "cookie"):
        raise SpecError(f"a parameter has the name {name[:100]!r} and the place {location[:20]!r}")
    if is_old:
        schema = place
        encoding = _old_encoding(place, is_query=location == "query")
    else:
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


def _old_encoding(place: Place, *, is_query: bool) -> Encoding:
    collection = place.text("collectionFormat") or "csv"
    if collection not in _DELIMITED:
        raise SpecError(f"the collectionFormat {collection[:20]!r} is not known")
    if is_query:
        return Encoding(_DELIMITED[collection], explode=collection == "multi")
    return Encoding("simple", explode=False)


def _body(place: Place) -> Body | None:
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


def _old_body(places: list[Place], consumes: tuple[str, ...], root: Place) -> Body | None:
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
    multipart, urlencoded = _FORMS
    kind = urlencoded
    if any(file_shape(place).is_file for place in fields) or (
        multipart in consumes and urlencoded not in consumes
    ):
        kind = multipart
    required = [place.text("name") for place in fields if place.flag("required")]
    members = {
        "type": "object",
        "properties": {place.text("name"): place.value for place in fields},
        "required": required,
    }
    encodings = {place.text("name"): _old_encoding(place, is_query=True) for place in fields}
    media_type = MediaType(kind, Place(members, root.resolver), encodings)
    return Body(bool(required), (media_type,))
