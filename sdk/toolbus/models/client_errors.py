"""What the clients of providers raise, as a `ModelError` without the key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import mktime_tz, parsedate_tz
from typing import Any

import httpx2

from toolbus.models.api_errors import api_error, error_text
from toolbus.models.bounded_client import TooLongReplyError
from toolbus.models.model_error import ModelError
from toolbus.models.stream_reading import ErrorReply

__all__ = ["model_error", "unusable_reply"]


def model_error(error: Exception, provider: str, redact: Callable[[str], str]) -> ModelError:
    """Return what to raise in place of what a client raised.

    The exception of the client holds the request with the key in a header: it must become neither
    the cause nor the context of what is raised.
    """
    status = _status(error)
    headers = _headers(error)
    body = getattr(error, "body", None) or getattr(error, "details", None)
    if status is None and (transport := _transport_error(error)) is not None:
        return _transport_failure(transport, provider, redact)
    if status is None and body is None:
        what = "sent what is no reply"
        if isinstance(error, TypeError):
            hint = "model.adapter.request makes requests that it takes"
            what = f"does not take this request, or {what} ({hint})"
        return ModelError(error_text(f"{provider} {what}: ", str(error), redact))
    if status is not None and 300 <= status < 400:
        words = "a redirect, which is not followed; if you trust the new place, give it as base_url"
        place = headers.get("location", "elsewhere")
        text = error_text(f"{provider} answered {status}, {words}: ", place, redact)
        return ModelError(text, status=status)
    before = f"{provider} answered {status}: " if status else f"{provider} answered with an error: "
    failure = api_error(body, before, str(error), redact=redact, status=status, headers=headers)
    failure.retry_after_s = next(_asked_pauses(headers), failure.retry_after_s)
    return failure


def unusable_reply(reply: Any, provider: str, redact: Callable[[str], str]) -> ModelError:
    """Return the error for a reply with the status 200 that is none of this API."""
    return ModelError(error_text(f"{provider} sent what is no reply: ", str(reply), redact))


def _transport_failure(
    transport: BaseException, provider: str, redact: Callable[[str], str]
) -> ModelError:
    if isinstance(transport, ErrorReply):
        what = "answered with an error" if transport.is_report else "sent what is no reply"
        return api_error(transport.body, f"{provider} {what}: ", redact=redact)
    failure = str(transport) or type(transport).__name__
    if isinstance(transport, TooLongReplyError):
        return ModelError(error_text(f"{provider} sent what is no reply: ", failure, redact))
    is_away = isinstance(transport, httpx2.ConnectError | httpx2.ConnectTimeout)
    what = "cannot be reached" if is_away else "broke off"
    return ModelError(error_text(f"{provider} {what}: ", failure, redact), retryable=True)


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
    for found in (error, error.__cause__):
        if isinstance(found, httpx2.HTTPError | httpx2.StreamError):
            return found
    return None


def _asked_pauses(headers: Mapping[str, str]) -> Iterator[float]:
    """Yield the pauses in seconds that a provider asks for, the most exact one first."""
    milliseconds = _number(headers.get("retry-after-ms"))
    written = headers.get("retry-after")
    seconds = _number(written)
    if seconds is None and written and (moment := _moment(written)) is not None:
        seconds = max(0.0, moment - time.time())
    for pause_s in (None if milliseconds is None else milliseconds / 1_000, seconds):
        if pause_s is not None and 0 <= pause_s < math.inf:
            yield pause_s


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
