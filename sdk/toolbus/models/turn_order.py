"""The order of messages that the strictest servers take. Pure.

A saved conversation is mended whenever it is sent, so that one which a server refuses now is not
refused for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolbus.models.adapter import Plain

__all__ = ["FILLER", "alternating"]

FILLER = "OK."
"""What the model says where it said nothing between two messages for it. It claims nothing: it
stands between results and their files as well as between results and the next question."""


def alternating(messages: Iterable[Mapping[str, Any]], filler: Plain) -> list[Mapping[str, Any]]:
    """Return messages in which the model speaks before each message of the user.

    Mistral refuses a message of the user behind a result, and many servers two messages of the
    user: such an order comes of a question that ended at a limit, or of an empty reply.

    Args:
        messages: The messages.
        filler: What is put between, in the words of the API.
    """
    made: list[Mapping[str, Any]] = []
    speaks = filler["role"]
    for message in messages:
        if message.get("role") == "user" and made and made[-1].get("role") != speaks:
            made.append(filler)
        made.append(message)
    return made
