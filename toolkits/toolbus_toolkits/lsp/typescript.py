"""Diagnostics of typescript-language-server, which only tells them, and not when they are complete.

It passes requests on to the server of TypeScript itself, which answers this one when it is done.
"""

from __future__ import annotations

from typing import Any

from toolbus_toolkits.lsp.documents import Document
from toolbus_toolkits.lsp.server import LanguageServer

__all__ = ["TYPESCRIPT", "typescript_diagnostics"]

TYPESCRIPT = frozenset({"typescript-language-server"})
"""The names of its program."""
_REQUESTS = ("syntacticDiagnosticsSync", "semanticDiagnosticsSync")
_SEVERITIES = {"error": 1, "warning": 2, "suggestion": 4, "message": 3}


async def typescript_diagnostics(server: LanguageServer, document: Document) -> list[Any]:
    """Return the diagnostics of a file, as the protocol has them.

    Raises what `LanguageServer.ask` raises.
    """
    found: list[Any] = []
    for request in _REQUESTS:
        arguments = [request, {"file": document.path}]
        params = {"command": "typescript.tsserverRequest", "arguments": arguments}
        answer = await server.ask("workspace/executeCommand", params)
        body = answer.get("body") if isinstance(answer, dict) else None
        found += map(_converted, body if isinstance(body, list) else [])
    return found


def _converted(item: Any) -> Any:
    """Return an item of TypeScript as one of the protocol; what is none fails later."""
    if not isinstance(item, dict):
        return item
    return {
        "range": {"start": _position(item.get("start")), "end": _position(item.get("end"))},
        "message": item.get("text"),
        "severity": _SEVERITIES.get(str(item.get("category")), 1),
        "code": item.get("code"),
        "source": "typescript",
    }


def _position(place: Any) -> Any:
    """Both count units of UTF-16; TypeScript from 1 on."""
    try:
        return {"line": place["line"] - 1, "character": place["offset"] - 1}
    except (TypeError, KeyError):
        return place
