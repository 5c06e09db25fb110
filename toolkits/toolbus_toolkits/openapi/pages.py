"""Results in pages: where the next page is. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from pydantic import BaseModel, Field, model_validator

from toolbus import ToolFailed
from toolbus.chunks.json_values import pointer_keys
from toolbus_toolkits.network import MAX_ADDRESS_CHARS
from toolbus_toolkits.openapi.requests import PreparedRequest
from toolbus_toolkits.openapi.responses import ReadResponse

__all__ = ["PageRule", "next_request"]

_NEXT_LINK = re.compile(r'<([^<>]*)>\s*((?:;[^,;<>"]*(?:"[^"]*")?)*)')


class PageRule(BaseModel, frozen=True, extra="forbid"):
    """How an operation that returns pages names the next one. `ValidationError` for half a rule."""

    cursor: str = Field(
        "", description="JSON pointer to the next cursor or URL in a page; empty: the Link header."
    )
    parameter: str = Field("", description="The query parameter that takes the cursor.")
    max_pages: int = Field(100, ge=1, le=10_000, description="Pages of one call.")

    @model_validator(mode="after")
    def _must_be_whole(self) -> PageRule:
        if self.parameter and not self.cursor:
            raise ValueError("`parameter` needs `cursor`, the JSON pointer to its next value")
        if self.cursor and not self.cursor.startswith("/"):
            raise ValueError("`cursor` is a JSON pointer, which begins with '/'")
        return self


def next_request(
    rule: PageRule, request: PreparedRequest, response: ReadResponse, page: Any, url: str
) -> PreparedRequest | None:
    """Return the request of the page after a page; None after the last one.

    Args:
        rule: Where the next page is named.
        request: The request of this page.
        response: Its response.
        page: The JSON value of the response.
        url: The URL that the response came from.

    Raises `ToolFailed` if the next page is on another origin, or its address is too long.
    """
    if not rule.cursor:
        link = _next_link(response.headers.get("link", ""))
        return _at(request, url, link) if link else None
    cursor = _pointed(page, rule.cursor)
    if cursor is None or cursor == "" or cursor is False:
        return None
    if not rule.parameter:
        return _at(request, url, str(cursor))
    key = quote(rule.parameter, safe="")
    others = [part for part in request.query if part.partition("=")[0] != key]
    return _with(request, request.address, [*others, f"{key}={quote(str(cursor), safe='')}"])


def _next_link(header: str) -> str:
    if len(header) > MAX_ADDRESS_CHARS:
        raise ToolFailed(f"the header Link has more than {MAX_ADDRESS_CHARS:,} characters")
    for target, parameters in _NEXT_LINK.findall(header):
        relation = re.search(r';\s*rel\s*=\s*"?([^";]*)"?', parameters, re.IGNORECASE)
        if relation is not None and "next" in relation.group(1).lower().split():
            return str(target)
    return ""


def _at(request: PreparedRequest, url: str, target: str) -> PreparedRequest:
    """Return a request for another URL of the same origin, to which credentials may go."""
    parts = urlsplit(urljoin(url, target))
    own = urlsplit(request.address)
    if (parts.scheme, parts.netloc.lower()) != (own.scheme, own.netloc.lower()):
        raise ToolFailed("the next page is on another server, to which no request is sent")
    address = f"{parts.scheme}://{parts.netloc}{parts.path}"
    return _with(request, address, [parts.query] if parts.query else [])


def _with(request: PreparedRequest, address: str, query: list[str]) -> PreparedRequest:
    return PreparedRequest(
        request.method, address, query, request.headers, request.cookies, request.content
    )


def _pointed(value: Any, pointer: str) -> Any:
    for key in pointer_keys(pointer):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
