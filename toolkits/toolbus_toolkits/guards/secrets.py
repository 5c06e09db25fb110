"""Finds secrets in text by their form, with the patterns of the library detect-secrets. Pure.

Only forms that are unmistakable are known: keys and tokens with a prefix or a checksum of their
own. Entropy is no sign, since every hash has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

try:
    from detect_secrets.plugins.artifactory import ArtifactoryDetector
    from detect_secrets.plugins.aws import AWSKeyDetector
    from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
    from detect_secrets.plugins.base import RegexBasedDetector
    from detect_secrets.plugins.basic_auth import BasicAuthDetector
    from detect_secrets.plugins.discord import DiscordBotTokenDetector
    from detect_secrets.plugins.github_token import GitHubTokenDetector
    from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
    from detect_secrets.plugins.jwt import JwtTokenDetector
    from detect_secrets.plugins.mailchimp import MailchimpDetector
    from detect_secrets.plugins.npm import NpmDetector
    from detect_secrets.plugins.openai import OpenAIDetector
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

__all__ = ["without_secrets"]

_DETECTORS: tuple[type[RegexBasedDetector], ...] = (
    ArtifactoryDetector,
    AWSKeyDetector,
    AzureStorageKeyDetector,
    BasicAuthDetector,
    DiscordBotTokenDetector,
    GitHubTokenDetector,
    GitLabTokenDetector,
    JwtTokenDetector,
    MailchimpDetector,
    NpmDetector,
    OpenAIDetector,
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
_MARK = "[secret removed: {}]"


def without_secrets(text: str) -> str:
    """Return a text in which each secret is `[secret removed: AWS Access Key]`."""
    text = _PRIVATE_KEY.sub(_MARK.format("Private Key"), text)
    for name, pattern in _patterns():
        text = pattern.sub(_MARK.format(name), text)
    return text


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(_found())


def _found() -> Iterator[tuple[str, re.Pattern[str]]]:
    for each in _DETECTORS:
        detector = each()
        for pattern in detector.denylist:
            yield detector.secret_type, pattern
