"""Removes keys from errors, and from what the clients of providers and their HTTP client log.

At DEBUG these log the headers of responses; a server that is made badly sends the key back there.
"""

from __future__ import annotations

import json
import logging
from urllib.parse import quote
from weakref import WeakSet

from pydantic import SecretStr

from toolbus.bounded_logging import traceback_text

__all__ = ["KeyRedaction"]

_MIN_KEY_CHARS = 4
"""A shorter key occurs in texts by chance."""
_LOGGERS = (
    *("anthropic", "anthropic._base_client"),
    *("google_genai._api_client", "google_genai.models"),
    *("httpcore2.connection", "httpcore2.http2", "httpcore2.http11", "httpcore2.proxy", "httpx2"),
    *("openai", "openai._base_client"),
)
"""Those that log requests, responses and errors. A filter is not inherited."""


class KeyRedaction:
    """Removes a key from texts, also as it is written within JSON and URLs."""

    def __init__(self, secret: SecretStr) -> None:
        key = secret.get_secret_value()
        self._forms: list[str] = []
        if len(key) >= _MIN_KEY_CHARS:
            forms = {key, json.dumps(key)[1:-1], quote(key, safe=""), quote(key)}
            self._forms = sorted(forms, key=len, reverse=True)
        _in_use.add(self)

    def __repr__(self) -> str:
        return "KeyRedaction(...)"

    def __call__(self, text: str) -> str:
        """Return a text without the key."""
        for form in self._forms:
            text = text.replace(form, "[key]")
        return text


_in_use: WeakSet[KeyRedaction] = WeakSet()


def _redact_record(record: logging.LogRecord) -> bool:
    redactions = list(_in_use)
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = traceback_text(record.exc_info[1])
    for redact in redactions:
        record.msg, record.args = redact(record.getMessage()), ()
        record.exc_text = record.exc_text and redact(record.exc_text)
    return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_redact_record)  # noqa: TID251 - those of others
