# The tools of the public toolkit words for type checkers, written by `toolbus stubs words`.
# Owner: you (issuer toolbus-dev)
# Version: -
# Digest: 75a6b4b95030ba83f48e4aa707cdad6154372536f3685354a9bf0911c124175b
#
# words: Words = await room.toolkit("words")

from typing import Any

from toolbus import TypedToolkitProxy

class Words(TypedToolkitProxy):
    async def count(self, *, text: str, top: int = 3) -> Any:
        """Count the words of a text, the most frequent first."""
