"""Finds secrets in text by their form, with the patterns of the library detect-secrets. Pure.

Only forms that are unmistakable are known: keys and tokens with a prefix or a checksum of their
own. Entropy is no sign, since every hash has it. Every pattern takes time in proportion to the
text; three forms, whose patterns in the library do not, have patterns here.
"""

from __future__ import annotations

import re
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

__all__ = ["without_secrets"]

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


def without_secrets(text: str) -> str:
    """Return a text in which each secret is `[secret removed: AWS Access Key]`."""
    text = _PRIVATE_KEY.sub(_MARK.format("Private Key"), text)
    for name, pattern in _patterns():
        text = pattern.sub(_MARK.format(name), text)
    text = _NPM.sub(_MARK.format("NPM tokens"), text)
    text = _OPENAI_RUN.sub(_without_openai, text)
    return _JWT.sub(_without_jwt, text)


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
