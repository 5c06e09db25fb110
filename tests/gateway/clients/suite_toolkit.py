"""The toolkit whose tools the conformance suite of MCP calls, each by the name that it asks for."""

from __future__ import annotations

import asyncio
import base64
import itertools
from contextlib import AsyncExitStack
from typing import Annotated, Any

from pydantic import Field

from toolbus import (
    FileChunk,
    MixedChunk,
    RoomClient,
    TextChunk,
    Tool,
    ToolContext,
    ToolFailed,
    Toolkit,
    tool,
)

__all__ = ["PIXEL", "suite_toolkit"]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A picture of one point."""
_PICTURE = FileChunk(PIXEL, "point.png", "image/png")
_SILENCE = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0"


@tool
async def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool
async def test_image_content() -> FileChunk:
    """Return a picture."""
    return _PICTURE


@tool
async def test_audio_content() -> FileChunk:
    """Return a sound."""
    return FileChunk(_SILENCE, "silence.wav", "audio/wav")


@tool
async def test_embedded_resource() -> FileChunk:
    """Return a file."""
    return FileChunk(b"This is an embedded resource content.", "note.txt", "text/plain")


@tool
async def test_multiple_content_types() -> MixedChunk:
    """Return a text, a picture and a file."""
    document = FileChunk(b'{"test":"data","value":123}', "data.json", "application/json")
    return MixedChunk((TextChunk("Multiple content types test:"), _PICTURE, document))


@tool
async def test_error_handling() -> str:
    """Fail."""
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(context: ToolContext) -> str:
    """Send progress, as far apart as the suite asks."""
    for progress in (0, 50, 100):
        context.emit({"progress": progress, "total": 100})
        await asyncio.sleep(0.05)
    return "done"


@tool
async def test_logging_tool() -> str:
    """Log nothing."""
    return "nothing is logged"


@tool
async def test_streaming_elicitation() -> str:
    """Ask nobody."""
    return "nobody is asked"


@tool
async def test_headers(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Return an argument that a header has to repeat."""
    return region


def _fields(title: str, **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"title": title, "type": "object", "properties": properties, "required": [*types]}


# Those that ask their user begin again with each answer: they change nothing before.


@tool(read_only=True)
async def test_input_required_result_elicitation(context: ToolContext) -> str:
    """Ask for a name."""
    answer = await context.ask("What is your name?", schema=_fields("user_name", name="string"))
    return f"Hello, {answer['name']}!"


@tool(read_only=True)
async def test_input_required_result_request_state(context: ToolContext) -> str:
    """Ask for a confirmation."""
    await context.ask("Please confirm", schema=_fields("confirm", ok="boolean"))
    return "state-ok"


@tool(read_only=True)
async def test_input_required_result_multi_round(context: ToolContext) -> str:
    """Ask twice."""
    name = await context.ask("What is your name?", schema=_fields("step1", name="string"))
    color = await context.ask("What is your color?", schema=_fields("step2", color="string"))
    return f"{name['name']} likes {color['color']}"


@tool(approval=True)
async def test_input_required_result_tampered_state() -> str:
    """Wait for an approval."""
    return "approved"


class SchemaTool(Tool):
    """A tool whose schema has to reach the client as it is."""

    name = "json_schema_2020_12_tool"
    description = "Tool with JSON Schema 2020-12 features"
    input_schema = {  # noqa: RUF012 - as tools define themselves
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object"}},
        "properties": {
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }

    async def execute(self, context: ToolContext, /, **arguments: Any) -> str:
        """Return a text."""
        return "called"


def suite_toolkit(host: RoomClient, hosted: AsyncExitStack) -> Toolkit:
    """Return the toolkit.

    Args:
        host: Where a tool adds toolkits.
        hosted: What ends those.
    """
    numbers = itertools.count(1)

    @tool
    async def test_trigger_tool_change() -> str:
        """Add a toolkit to the room."""
        toolkit = Toolkit(f"added-{next(numbers)}", [test_simple_text])
        await hosted.enter_async_context(host.host(toolkit))
        return "added"

    return Toolkit(
        "suite",
        [
            test_simple_text,
            test_image_content,
            test_audio_content,
            test_embedded_resource,
            test_multiple_content_types,
            test_error_handling,
            test_tool_with_progress,
            test_logging_tool,
            test_streaming_elicitation,
            test_headers,
            test_input_required_result_elicitation,
            test_input_required_result_request_state,
            test_input_required_result_multi_round,
            test_input_required_result_tampered_state,
            test_trigger_tool_change,
            SchemaTool(),
        ],
    )
