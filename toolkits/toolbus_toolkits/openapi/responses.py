"""A response as the result of a tool, or as its failure, and where the next page is. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from pydantic import BaseModel, Field, model_validator

from toolbus import FileChunk, JsonChunk, TextChunk, ToolFailed
from toolbus.chunks.chunk_types import fitting, result_chunk
from toolbus.chunks.json_values import pointer_keys
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.bounded_json import answer_of
from toolbus_toolkits.credentials.redaction import redacted_bytes, redacted_json
from toolbus_toolkits.network import MAX_ADDRESS_CHARS
from toolbus_toolkits.network.client import retry_after_s, status_text
from toolbus_toolkits.openapi.model import Operation
from toolbus_toolkits.openapi.requests import PreparedRequest

__all__ = ["PageRule", "ReadResponse", "next_request", "result_of"]

_MAX_EXCERPT = 2_000
"""Of the body, in the details: an error has 32 KiB for them (PROTOCOL.md, ERR-7)."""
_POSTPONED = (429, 503)
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
"""An index of RFC 6901; a list of more items is in no response."""
_CHARSET = re.compile(
    r"utf-?(8|16|32)([lb]e)?|(us-)?ascii|(iso|windows|cp|koi8|euc|latin)[-_]?[a-z0-9_-]*|big5"
    r"|gbk?|gb2312|gb18030|shift[_-]jis"
)
"""Encodings of text. Python knows others, which take long, or raise for what they cannot decode."""


class ReadResponse(NamedTuple):
    """A response that was read to its end."""

    status: int
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes

    @property
    def media_type(self) -> str:
        """Its media type, in lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_json(self) -> bool:
        """Whether it says that it is JSON."""
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    def text(self) -> str:
        """Return the body as text, by the charset of its type; else JSON as it shows itself.

        Else it is UTF-8.
        """
        message = Message()
        message["content-type"] = self.headers.get("content-type", "")
        charset = message.get_content_charset() or ""
        if not charset and self.is_json:
            charset = json.detect_encoding(self.body)
        try:
            return self.body.decode(charset if _CHARSET.fullmatch(charset) else "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


def result_of(operation: Operation, response: ReadResponse, redact: Callable[[str], str]) -> Any:
    """Return the value of a successful response: JSON, text, a file, or None if it is empty.

    What says that it is JSON and is not, is a text that says so (`as_text`). JSON or text that
    fills more than a frame is a file.

    Args:
        operation: The operation that it answers.
        response: The response.
        redact: Removes credentials from a text.

    Raises `ToolFailed` for any other status than 2xx. Its message has the status and the first
    words of the body; its details have more of it.
    """
    if not 200 <= response.status < 300:
        raise _failure(operation, response, redact)
    if not response.body:
        return None
    kind = response.media_type
    if response.is_json:
        text = response.text()
        try:
            value = redacted_json(answer_of(text), redact)
        except ValueError:
            return fitting(TextChunk(redact(text), ("",)), MAX_RESULT_BYTES)
        return fitting(result_chunk(JsonChunk(value)), MAX_RESULT_BYTES)
    if _is_text(kind):
        return fitting(result_chunk(redact(response.text())), MAX_RESULT_BYTES)
    kind = redact(kind or "application/octet-stream")
    message = Message()
    message["content-disposition"] = response.headers.get("content-disposition", "")
    name = redact(message.get_filename() or "").replace("\\", "/").rpartition("/")[2][:255]
    return FileChunk(redacted_bytes(response.body, redact), name, kind)


def _failure(
    operation: Operation, response: ReadResponse, redact: Callable[[str], str]
) -> ToolFailed:
    status = response.status
    details: dict[str, Any] = {"status": status, "method": operation.method}
    reason = ""
    if _is_text(response.media_type) or "json" in response.media_type:
        details["body"] = _excerpt(response, redact)
        if response.media_type != "text/html":  # a page for people, which begins with no reason
            reason = one_line(details["body"].strip(), SHOWN_CHARS)
    wait_s = None
    if status in _POSTPONED:
        wait_s = retry_after_s(response.headers.get("retry-after", ""))
    return ToolFailed(
        f"{operation.label} answered {status_text(status)}{reason and ': '}{reason}",
        executed="yes",
        retryable=status in _POSTPONED and operation.method in ("GET", "HEAD", "PUT", "DELETE"),
        details=details,
        retry_after_s=wait_s,
    )


def _excerpt(response: ReadResponse, redact: Callable[[str], str]) -> str:
    """Return the beginning of a body, without credentials in any spelling that JSON has."""
    text = response.text()
    if "json" in response.media_type:
        try:
            value = answer_of(text)
            clean = redacted_json(value, redact)
            if clean is not value:
                text = json.dumps(clean, ensure_ascii=False)
        except ValueError:
            pass  # it is shown as text
    return redact(text)[:_MAX_EXCERPT]


def _is_text(kind: str) -> bool:
    is_xml = kind == "application/xml" or kind.endswith("+xml")
    return kind.startswith("text/") or is_xml or kind == "application/x-www-form-urlencoded"


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
    if rule.cursor:
        cursor = _pointed(page, rule.cursor)
    else:
        cursor = _next_link(response.headers.get("link", ""))
    if cursor is None or cursor == "" or cursor is False:
        return None
    if not rule.parameter:
        return _at(request, url, str(cursor))
    key = quote(rule.parameter, safe="")
    others = [part for part in request.query if part.partition("=")[0] != key]
    return replace(request, query=[*others, f"{key}={quote(str(cursor), safe='')}"])


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
    return replace(request, address=address, query=[parts.query] if parts.query else [])


def _pointed(value: Any, pointer: str) -> Any:
    for key in pointer_keys(pointer):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
