"""A middleware that looks at what calls return before anybody else does.

Secrets are found by their form, with the patterns of the library detect-secrets. Only forms that
are unmistakable are known: keys and tokens with a prefix or a checksum of their own. Entropy is no
sign, since every hash has it. Every pattern takes time in proportion to the text; three forms,
whose patterns in the library do not, have patterns here.
"""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, cast

from toolbus import (
    CallNext,
    Chunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    MixedChunk,
    TextChunk,
    ToolCall,
    ToolFailed,
)

try:
    from detect_secrets.plugins.artifactory import ArtifactoryDetector
    from detect_secrets.plugins.aws import AWSKeyDetector
    from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
    from detect_secrets.plugins.base import RegexBasedDetector
    from detect_secrets.plugins.basic_auth import BasicAuthDetector
    from detect_secrets.plugins.discord import DiscordBotTokenDetector
    from detect_secrets.plugins.github_token import GitHubTokenDetector
    from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
    from detect_secrets.plugins.mailchimp import MailchimpDetector
    from detect_secrets.plugins.pypi_token import PypiTokenDetector
    from detect_secrets.plugins.sendgrid import SendGridDetector
    from detect_secrets.plugins.slack import SlackDetector
    from detect_secrets.plugins.square_oauth import SquareOAuthDetector
    from detect_secrets.plugins.stripe import StripeDetector
    from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
    from detect_secrets.plugins.twilio import TwilioKeyDetector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"guards need {error.name}: pip install 'toolbus[guards]'", name=error.name
    ) from None

__all__ = ["OutputGuard"]

_DETECTORS: tuple[type[RegexBasedDetector], ...] = (
    ArtifactoryDetector,
    AWSKeyDetector,
    AzureStorageKeyDetector,
    BasicAuthDetector,
    DiscordBotTokenDetector,
    GitHubTokenDetector,
    GitLabTokenDetector,
    MailchimpDetector,
    PypiTokenDetector,
    SendGridDetector,
    SlackDetector,
    SquareOAuthDetector,
    StripeDetector,
    TelegramBotTokenDetector,
    TwilioKeyDetector,
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.*?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|.*)",
    re.DOTALL,
)
# The lookbehind lets a run of characters be tried once, and not again from each of its characters.
_JWT = re.compile(r"(?<![A-Za-z0-9_=-])[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+(?:\.[A-Za-z0-9_.+/=-]*)?")
_NPM = re.compile(r":_authToken=\s{0,8}(?:npm_|[A-Fa-f0-9-]{36}).*")
_OPENAI_RUN = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{51,}")
_OPENAI_END = re.compile(r"[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}")
_MARK = "[secret removed: {}]"


def _without_jwt(run: re.Match[str]) -> str:
    first = run[0].partition(".")[0]
    start = first.find("eyJ")
    if not 0 <= start < len(first) - 3:
        return run[0]
    return first[:start] + _MARK.format("JSON Web Token")


def _without_openai(run: re.Match[str]) -> str:
    start = run[0].find("sk-")
    end = _OPENAI_END.search(run[0], start + 3) if start >= 0 else None
    if end is None:
        return run[0]
    return run[0][:start] + _MARK.format("OpenAI Token") + run[0][end.end() :]


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    detectors = [detector() for detector in _DETECTORS]
    return tuple((found.secret_type, pattern) for found in detectors for pattern in found.denylist)


_MAX_DEPTH = 64
"""What is deeper in a value is not looked at: the walk is recursive, and Python ends deep ones."""
_LONGEST_SECRET = 8_192


class OutputGuard:
    """A middleware that removes secrets from results, cuts them, and marks text from outside.

    Secrets are looked for in texts, in all texts of JSON values, in text files that are in memory,
    and in the words and details of `ToolFailed`. A secret that a stream has in two chunks is not
    found. A text beyond `max_chars` is cut, with a note.

    Text that a tool brought from outside, one with the flag `open_world`, stands between
    `<outside source="toolkit.tool">` and `</outside>`: it is data and no instruction. JSON values
    keep their form and are not marked.

    Args:
        max_chars: The longest text, in characters, of one chunk or of one text in a JSON value.
        secrets: Whether secrets are removed.
        mark: Whether text from outside is marked.

    Raises `ValueError` for `max_chars` below 1.
    """

    def __init__(self, *, max_chars: int = 50_000, secrets: bool = True, mark: bool = True) -> None:
        if max_chars < 1:
            raise ValueError("max_chars must be at least 1")
        self._max_chars = max_chars
        self._secrets = secrets
        self._mark = mark

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Run the call and look at each chunk."""
        source = call.tool.name if self._mark and call.tool.open_world else ""
        try:
            async with aclosing(cast(Any, next(call))) as chunks:
                async for chunk in chunks:
                    yield self._looked_at(chunk, source)
        except ToolFailed as error:
            error.message = self._text(error.message)
            error.args = (error.message,)
            error.details = self._value(error.details, 0)
            raise

    def _looked_at(self, chunk: Chunk, source: str) -> Any:
        match chunk:
            case TextChunk(text, as_text):
                return TextChunk(_marked(self._text(text), source), as_text)
            case JsonChunk(json, as_text, more):
                return JsonChunk(self._value(json, 0), as_text, more)
            case MixedChunk(chunks):
                return MixedChunk(tuple(self._looked_at(part, source) for part in chunks))
            case LinkChunk(url, name):
                return LinkChunk(self._without(url), self._without(name))
            case FileChunk() if chunk.is_whole and chunk.mime_type.startswith("text/"):
                with suppress(UnicodeDecodeError):
                    data = self._without(chunk.data.decode()).encode()
                    return FileChunk(data, chunk.name, chunk.mime_type)
        return chunk

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, list | tuple):
            return [self._value(item, depth + 1) for item in value]
        if isinstance(value, Mapping):
            return {
                self._without(str(name)): self._value(member, depth + 1)
                for name, member in value.items()
            }
        return value

    def _text(self, text: str) -> str:
        # A secret that stands across the cut is still found as a whole.
        shown = self._without(text[: self._max_chars + _LONGEST_SECRET])
        if len(text) <= self._max_chars + _LONGEST_SECRET and len(shown) <= self._max_chars:
            return shown
        left_out = len(text) - self._max_chars
        return f"{shown[: self._max_chars]}\n[cut here: {left_out:,} characters are left out]"

    def _without(self, text: str) -> str:
        """Return a text in which each secret is `[secret removed: AWS Access Key]`."""
        if not self._secrets:
            return text
        text = _PRIVATE_KEY.sub(_MARK.format("Private Key"), text)
        for name, pattern in _patterns():
            text = pattern.sub(_MARK.format(name), text)
        text = _NPM.sub(_MARK.format("NPM tokens"), text)
        text = _OPENAI_RUN.sub(_without_openai, text)
        return _JWT.sub(_without_jwt, text)


def _marked(text: str, source: str) -> str:
    """Return a text from outside between marks, which it cannot end itself."""
    if not source:
        return text
    inner = text.replace("</outside", "&lt;/outside").replace("<outside", "&lt;outside")
    return f'<outside source="{html.escape(source)}">\n{inner}\n</outside>'
