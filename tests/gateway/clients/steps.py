"""What each client in Python does: it uses the toolkit `kit`, and prints what it got as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["run"]


async def run(
    names: Callable[[], Awaitable[list[str]]],
    call: Callable[..., Awaitable[Any]],
    changed: Callable[[], Awaitable[list[str]]] | None,
    *,
    asks: bool = False,
) -> None:
    """Use the toolkit.

    Args:
        names: Lists the tools.
        call: Calls a tool by its name, with arguments and a function for progress.
        changed: Waits for a change, and lists the tools; None if the client is not told of any.
        asks: Whether the client asks its user, who approves.
    """
    got: dict[str, Any] = {"tools": await names()}
    got["sum"] = (await call("kit__add", {"a": 1, "b": 2})).structured_content
    picture = (await call("kit__picture", {})).content[0]
    got["picture"] = [picture.type, picture.mime_type, len(base64.b64decode(picture.data))]
    got["progress"] = []

    async def record(*progress: Any) -> None:
        got["progress"].append(progress)

    await call("kit__step", {}, record)
    failed = await call("kit__fail", {})
    got["error"] = [failed.is_error, failed.meta["toolbus/error"]["executed"]]
    waiting = asyncio.ensure_future(call("kit__wait", {}))
    await call("kit__until_waiting", {})
    waiting.cancel()
    await asyncio.wait([waiting])
    got["ended"] = "cancelled" if waiting.cancelled() else "result"
    got["cancelled"] = (await call("kit__until_cancelled", {})).structured_content["result"]
    if asks:
        got["approved"] = (await call("kit__pay", {"amount": 5})).content[0].text
    if changed is not None:
        await call("kit__bring", {})
        got["came"] = "guest__hello" in await changed()
        await call("kit__leave", {})
        got["went"] = "guest__hello" not in await changed()
    print(json.dumps(got), flush=True)  # noqa: T201 - the test reads it
