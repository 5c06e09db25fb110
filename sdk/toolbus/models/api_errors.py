"""What an API says about a failure: its words, its status, and whether it may pass.

All APIs are read by one table, because most servers speak the API of another provider and few of
them report errors as that one does. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolbus.models.model_error import ModelError
from toolbus.models.reply_values import as_object, as_text
from toolbus.untrusted_text import one_line

__all__ = ["api_error", "error_in", "error_text"]

_MAX_TEXT_CHARS = 1_000
"""A gateway may answer with a page of megabytes; the words of an API about a schema are long."""
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed."""
_NEVER_PASSING = frozenset({501, 505})
_STATUS_OF_NAME = (
    (re.compile(r"ratelimit|toomanyrequests|throttl|resourceexhausted"), 429),
    (re.compile(r"overload"), 529),
    (re.compile(r"unavailable|notready|slowdown"), 503),
    (re.compile(r"timeout|timedout|deadlineexceeded"), 504),
    (re.compile(r"badgateway|upstream|connectionerror|networkerror"), 502),
    (re.compile(r"servererror|apierror|^internal"), 500),
    (re.compile(r"^aborted|conflict"), 409),
)
"""The status that a type or a code means, by its letters. Servers write one of them as
`overloaded_error`, `OverloadedError` or `OVERLOADED`. A name that is not here does not pass."""
_PERMANENT = re.compile(
    r"insufficientquota|currentquota|billing|insufficient(balance|credit|fund)|creditbalance"
    r"|payment|contextlength|contextwindow|modelnotfound|invalidapikey"
)
"""Names of what does not pass, also with a status that may: OpenAI sends 429 where an account has
no money left."""
_NUMBERS = ("code", "status", "status_code", "statusCode", "error_code")
_NAMES = ("type", "code", "status", "error_type", "reason", "status_msg")
_WORDS = ("error", "message", "detail", "error_message", "msg", "status_msg", "errors")
_PARTS = ("error", "errors", "response", "metadata", "detail", "details", "base_resp", "choices")
"""Fields of an error whose objects have further fields of it."""
_PAUSES = ("retryDelay", "retry_after", "retry_after_seconds")
_MAX_DEPTH = 4
"""A server writes the body: with each level each object may have one more in each of `_PARTS`."""


def error_in(value: Any, event: str = "") -> Any:
    """Return the part of a reply, or of the data of an event, that reports an error; else None."""
    if isinstance(value, list):
        found = (error_in(part) for part in value)
        return next((error for error in found if error is not None), None)
    if event == "error":
        return value
    if not isinstance(value, dict):
        return None
    if value.get("error") or "error" in (value.get("type"), value.get("object")):
        return value
    match value:
        case {"type": "response.failed", "response": {"error": error}} if error:
            return value
        case {"choices": [{"error": error}, *_]} if error:
            return value
        case {"choices": [*_]} | {"candidates": [*_]}:
            return None
        case {"choices": None}:
            return None if value.get("usage") else value
    # Parts of replies have objects as `message`, and none of the other fields.
    words = (value.get(name) for name in _WORDS)
    is_failure = any(word and isinstance(word, str | list) for word in words)
    return value if is_failure or isinstance(value.get("detail"), dict) else None


def api_error(
    body: Any,
    before: str = "the model's API failed: ",
    otherwise: str = "it gave no reason",
    *,
    redact: Callable[[str], str] = str,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> ModelError:
    """Return the error for a response, a reply or an event that reports a failure.

    After `before` follow the words of the API, or `otherwise` if it has none, without the key.
    Status and headers are those of a response that is not a success.
    """
    objects = [*_objects(body)]
    numbers = [number for part in objects for number in _numbers(part)]
    if status is not None:
        numbers.insert(0, status)
    names = [name for part in objects for name in _names(part)]
    if not (names or numbers) and isinstance(body, str) and not body.lstrip().startswith("<"):
        names = [_letters(body)]
    meant = [
        number for name in names for pattern, number in _STATUS_OF_NAME if pattern.search(name)
    ]
    should_retry = (headers or {}).get("x-should-retry")
    if should_retry in ("true", "false"):
        retryable = should_retry == "true"
    elif any(_PERMANENT.search(name) for name in names):
        retryable = False
    else:
        # Each status has to permit it: an upstream's 400 may come with the 500 of a gateway.
        retryable = bool(numbers or meant) and all(
            number in _PASSING or (number >= 500 and number not in _NEVER_PASSING)
            for number in numbers or meant
        )
    words = _words(body) or next(_written_names(objects), otherwise)
    return ModelError(
        error_text(before, words, redact),
        status=next(iter(numbers or meant), None),
        retryable=retryable,
        retry_after_s=next((pause for part in objects for pause in _pauses(part)), None),
    )


def error_text(before: str, words: str, redact: Callable[[str], str]) -> str:
    """Return the message of an error, with the words of others cut and without the key."""
    # Redacted before it is cut, so that no part of the key is left at the end.
    return before + one_line(redact(words).strip(), _MAX_TEXT_CHARS)


def _objects(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the objects that may have a field of an error, the outermost first."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for part in value[:_MAX_DEPTH]:
            yield from _objects(part, depth + 1)
    elif isinstance(value, Mapping):
        yield dict(value)
        for name in _PARTS:
            yield from _objects(value.get(name), depth + 1)


def _numbers(part: Mapping[str, Any]) -> Iterator[int]:
    for name in _NUMBERS:
        value = part.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)
        if type(value) is int and 400 <= value < 600:
            yield value


def _names(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the letters of the names of an error; one that is only a text counts as a name."""
    for name in (*_NAMES, "error"):
        value = part.get(name)
        if isinstance(value, str) and value != "error":
            yield _letters(value)


def _written_names(objects: list[dict[str, Any]]) -> Iterator[str]:
    for part in reversed(objects):
        for name in ("code", "type", "status"):
            value = part.get(name)
            if value not in (None, "", "error") and isinstance(value, str | int):
                yield str(value)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _words(body: Any) -> str:
    """Return the words of an error; servers have them in different places."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, Mapping):
        return as_text(body)
    for name in (*_WORDS, "response", "base_resp"):
        value = body.get(name)
        if value and (words := _words(value)):
            # Behind a gateway, those of the server are here.
            raw = as_text(as_object(body.get("metadata")).get("raw"))
            return ": ".join(filter(None, (words, raw)))
    match body:
        case {"choices": [{"error": error}, *_]}:
            return _words(error)
    if not body or any(body.get(name) for name in _NAMES):
        return ""
    return json.dumps(body, default=str)


def _pauses(part: Mapping[str, Any]) -> Iterator[float]:
    """Yield the seconds to wait, which Gemini writes as `37s`."""
    for name in _PAUSES:
        try:
            seconds = float(str(part.get(name)).removesuffix("s"))
        except ValueError:
            continue
        if 0 <= seconds < math.inf:
            yield seconds
