"""What the clients of providers raise, as a `ModelError` without the key."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Any

import httpx2

from toolbus.models.bounded_client import TooLongReplyError
from toolbus.models.model_error import ModelError
from toolbus.untrusted_text import one_line

__all__ = ["model_error", "unusable_reply"]

_MAX_TEXT_CHARS = 1_000
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed, as the clients see it."""
_PASSING_TYPES = frozenset(
    {"api_error", "overloaded_error", "rate_limit_error", "server_error", "timeout_error"}
)
"""Types of errors inside of a stream: Anthropic's, and OpenAI's `server_error`."""


def model_error(error: Exception, provider: str, redact: Callable[[str], str]) -> ModelError:
    """Return what to raise in place of what a client raised.

    The exception of the client holds the request with the key in a header: it must become neither
    the cause nor the context of what is raised.
    """
    status = _status(error)
    headers = _headers(error)
    body = getattr(error, "body", None) or getattr(error, "details", None)
    if status is None and (transport := _transport_error(error)) is not None:
        failure = str(transport) or type(transport).__name__
        if isinstance(transport, TooLongReplyError):
            return ModelError(_text(f"{provider} sent what is no reply: ", failure, redact))
        is_away = isinstance(transport, httpx2.ConnectError | httpx2.ConnectTimeout)
        what = "cannot be reached" if is_away else "broke off"
        return ModelError(_text(f"{provider} {what}: ", failure, redact), retryable=True)
    if isinstance(error, TypeError) and status is None and body is None:
        what = "does not take this request, or sent what is no reply"
        hint = "model.adapter.request makes requests that it takes"
        return ModelError(_text(f"{provider} {what} ({hint}): ", f"{error}", redact))
    if status is None and body is None:
        text = _text(f"{provider} sent what is no reply: ", f"{error}", redact)
        return ModelError(text)
    if status is not None and 300 <= status < 400:
        place = headers.get("location", "elsewhere")
        told = _text(
            f"{provider} answered {status}, a redirect, which is not followed; if you trust the "
            "new place, give it as base_url: ",
            place,
            redact,
        )
        return ModelError(told, status=status)
    before = f"{provider} answered {status}: " if status else f"{provider} broke off: "
    return ModelError(
        _text(before, _message(body) or str(error), redact),
        status=status,
        retryable=_is_passing(status, headers, body),
        retry_after_s=_retry_after_s(headers, body),
    )


def unusable_reply(reply: Any, provider: str, redact: Callable[[str], str]) -> ModelError:
    """Return the error for a reply with the status 200 that is none of this API.

    Some gateways tell errors in this way.
    """
    error = reply.get("error") if isinstance(reply, dict) else None
    told = _message(reply) if error else ""
    if told:
        return ModelError(_text(f"{provider} answered with an error: ", told, redact))
    return ModelError(_text(f"{provider} sent what is no reply: ", str(reply), redact))


def _text(before: str, told: str, redact: Callable[[str], str]) -> str:
    # Redacted before it is cut, so that no part of the key is left at the end.
    return before + one_line(redact(told).strip(), _MAX_TEXT_CHARS)


def _status(error: Exception) -> int | None:
    for name in ("status_code", "code"):  # of openai and anthropic; of google-genai
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status if status >= 300 else None  # 200: an error inside of a stream
    return None


def _headers(error: Exception) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def _transport_error(error: BaseException) -> BaseException | None:
    """Return the error of HTTP below, if there is one: openai and anthropic chain it."""
    for each in (error, error.__cause__):
        if isinstance(each, httpx2.HTTPError | httpx2.StreamError):
            return each
    return None


def _message(body: Any) -> str:
    """Return the words of an error; the providers and compatible servers have them in places."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, dict):
        return body if isinstance(body, str) else ""
    for name in ("error", "message", "detail"):
        value = body.get(name)
        if value and (told := _message(value)):
            return told
    return json.dumps(body) if body else ""


def _is_passing(status: int | None, headers: Mapping[str, str], body: Any) -> bool:
    told = headers.get("x-should-retry", "")
    if told in ("true", "false"):
        return told == "true"
    if status is not None:
        return status in _PASSING or status >= 500
    error = body.get("error", body) if isinstance(body, dict) else None
    return isinstance(error, dict) and error.get("type") in _PASSING_TYPES


def _retry_after_s(headers: Mapping[str, str], body: Any) -> float | None:
    for seconds in _told_pauses(headers, body):
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


def _told_pauses(headers: Mapping[str, str], body: Any) -> Iterator[float]:
    """Give the pauses that a provider asks for, the most exact one first."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        yield milliseconds / 1_000
    told = headers.get("retry-after")
    if (seconds := _number(told)) is not None:
        yield seconds
    elif told and (moment := _moment(told)) is not None:
        yield max(0.0, moment - time.time())
    # Gemini has it in the body: `google.rpc.RetryInfo`, with a text as "37s".
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (seconds := _number(delay.removesuffix("s"))) is not None:
            yield seconds


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _moment(text: str) -> float | None:
    date = parsedate_tz(text)
    try:
        return None if date is None else float(mktime_tz(date))
    except (OverflowError, ValueError):
        return None
