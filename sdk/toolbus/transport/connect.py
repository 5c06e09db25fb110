"""Opens a websocket, as websockets does; a redirect to another origin gets no token."""

from __future__ import annotations

from websockets.asyncio.client import connect as websockets_connect
from websockets.datastructures import HeadersLike
from websockets.uri import parse_uri

__all__ = ["connect"]


class connect(websockets_connect):
    """`websockets.asyncio.client.connect` without headers of ours after such a redirect.

    Before version 16.1, websockets sends them, and so the token, wherever a response points.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the URL that a response redirects to, or why it cannot be followed."""
        before = parse_uri(self.uri)
        target = super().process_redirect(exc)
        if isinstance(target, str):
            after = parse_uri(target)
            if (before.secure, before.host, before.port) != (after.secure, after.host, after.port):
                self.additional_headers: HeadersLike | None = None
        return target
