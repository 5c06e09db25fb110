"""An MCP server whose tools ask their user, in each revision of MCP as that has it.

By pipes it speaks 2025-11-25, with `--http PORT` 2026-07-28 too, with `--sse PORT` 2025-11-25.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)

server = MCPServer("asking")
released = asyncio.Event()
required: list[str] = []
waiting = set[asyncio.Task[Any] | None]()
FORM = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "title": "Days"}},
    "required": ["days"],
}


def shown(results: list[ElicitResult]) -> str:
    return "; ".join(f"{result.action} {result.content}" for result in results)


async def asked_before(
    context: Context, params: list[ElicitRequestFormParams | ElicitRequestURLParams]
) -> str:
    """Ask one after another while the call waits: 2025-11-25."""
    results = []
    for each in params:
        if isinstance(each, ElicitRequestFormParams):
            asked = context.session.elicit_form(
                each.message, each.requested_schema, context.request_id
            )
        else:
            asked = context.session.elicit_url(each.message, each.url, "one", context.request_id)
        results.append(await asked)
    return shown(results)


def asked_by_result(
    context: Context, params: list[ElicitRequestFormParams | ElicitRequestURLParams]
) -> str | InputRequiredResult:
    """Ask one after another by the results of requests: 2026-07-28."""
    results = [
        ElicitResult.model_validate_json(line)
        for line in (context.request_state or "").splitlines()
    ]
    if context.input_responses:
        results.append(context.input_responses["asked"])  # type: ignore[arg-type]
    if len(results) == len(params):
        return shown(results)
    return InputRequiredResult(
        input_requests={"asked": ElicitRequest(params=params[len(results)])},
        request_state="\n".join(result.model_dump_json() for result in results),
    )


async def answer(context: Context, params: list[Any]) -> str | InputRequiredResult:
    if context.protocol_version == "2026-07-28":
        return asked_by_result(context, params)
    return await asked_before(context, params)


@server.tool(structured_output=False)
async def book(
    context: Context, message: str = "How long?", times: int = 1
) -> str | InputRequiredResult:
    """Ask by a form, as often as is said."""
    form = ElicitRequestFormParams(message=message, requested_schema=FORM)
    return await answer(context, [form] * times)


@server.tool(structured_output=False)
async def visit(context: Context, url: str, message: str = "Log in.") -> str | InputRequiredResult:
    """Ask to open an address."""
    return await answer(context, [ElicitRequestURLParams(message=message, url=url)])


@server.tool(structured_output=False)
def download(url: str, times: int = 1) -> str:
    """Require that an address is opened, as often as is said: 2025-11-25."""
    required.append(url)
    if len(required) > times:
        return "downloaded"
    raise UrlElicitationRequiredError(
        [ElicitRequestURLParams(message="Log in.", url=url, elicitation_id="one")]
    )


@server.tool(structured_output=False)
def declared(context: Context) -> str:
    """Return what the client can be asked."""
    capabilities = context.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    return (
        "nothing" if elicitation is None else ", ".join(elicitation.model_dump(exclude_none=True))
    )


@server.tool(structured_output=False)
async def hold() -> str:
    """Wait until it is released."""
    waiting.add(asyncio.current_task())
    try:
        await released.wait()
    finally:
        waiting.discard(asyncio.current_task())
    return "released"


@server.tool(structured_output=False)
async def held() -> str:
    """Return how many calls wait."""
    return str(len(waiting))


@server.tool(structured_output=False)
async def release() -> str:
    """Release what is held."""
    released.set()
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        transport = "sse" if sys.argv[1] == "--sse" else "streamable-http"
        server.run(transport, host="127.0.0.1", port=int(sys.argv[2]))  # type: ignore[call-overload]
    else:
        server.run()
