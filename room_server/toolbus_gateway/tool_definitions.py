"""One tool of a room in the form of MCP."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from toolbus.agents.asked_agents import is_of_agent
from toolbus.turns.model_tools import visible_schema
from toolbus.untrusted_text import visible
from toolbus.wire import ToolkitManifest, ToolManifest
from toolbus_gateway.output_schemas import OutputSchema, output_schema

__all__ = ["ToolDefinition"]

_ABOUT_CHARS = 300
"""Of the words about a toolkit that a search reads: each tool of it has them in the index."""


@dataclass(frozen=True, slots=True, eq=False)
class ToolDefinition:
    """A tool of a toolkit, and how MCP describes it."""

    toolkit: str
    tool: str
    body: dict[str, Any]
    """The tool in the form of MCP, without its name. Not to be changed."""
    bytes: int
    """The length of `body` as JSON."""
    about: str
    """What its toolkit says about itself, for a search."""
    is_streaming: bool
    is_of_agent: bool
    """Whether its stream is that of an agent which answers."""
    has_output: bool
    """Whether clients check its result with a schema."""
    is_wrapped: bool
    """Whether its result is a value that is put into an object."""
    is_idempotent: bool
    """Whether a call that has begun may be made again."""
    timeout_s: float | None
    needs: str
    """What a call has to send beside its arguments, which MCP cannot: "attachment" or "input"."""

    @classmethod
    def of(cls, toolkit: ToolkitManifest, tool: ToolManifest) -> ToolDefinition:
        """Make the definition of a tool."""
        output = OutputSchema(None) if tool.streaming else output_schema(tool.output_schema)
        body = _body(toolkit, tool, output.schema)
        return cls(
            toolkit.name,
            tool.name,
            body,
            len(json.dumps(body)),
            f"{toolkit.title} {toolkit.description}"[:_ABOUT_CHARS],
            is_streaming=tool.streaming,
            is_of_agent=is_of_agent(tool.name, toolkit.annotations),
            has_output=output.schema is not None,
            is_wrapped=output.is_wrapped,
            is_idempotent=tool.idempotent or tool.read_only,
            timeout_s=tool.timeout_s,
            needs=tool.takes if tool.takes_required else "",
        )


def _body(
    toolkit: ToolkitManifest, tool: ToolManifest, output: dict[str, Any] | None
) -> dict[str, Any]:
    texts = [tool.description, *tool.rules, *toolkit.rules]
    title = visible(tool.title)
    annotations: dict[str, Any] = {
        "readOnlyHint": tool.read_only,
        "destructiveHint": tool.destructive,
        "idempotentHint": tool.idempotent,
        "openWorldHint": tool.open_world,
    }
    body: dict[str, Any] = {
        "description": visible("\n\n".join(filter(None, texts))),
        "inputSchema": _input_schema(tool.input_schema),
        "annotations": annotations,
    }
    if title:
        body["title"] = annotations["title"] = title
    if output is not None:
        body["outputSchema"] = visible_schema(output, None)
    return body


def _input_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of arguments as MCP has it: one that may leave out that they are an object.

    The SDK refuses a whole list because of one schema that is not as it has them at the root. No
    server of toolbus compiles schemas, so a host may register any.
    """
    shown: dict[str, Any] = {**visible_schema(schema, None), "type": "object"}
    if not isinstance(shown.get("$schema", ""), str):
        del shown["$schema"]
    if "properties" in shown:
        properties = shown["properties"]
        if not isinstance(properties, dict):
            del shown["properties"]
        elif not all(isinstance(part, dict | bool) for part in properties.values()):
            found = {key: part for key, part in properties.items() if isinstance(part, dict | bool)}
            shown["properties"] = found
    required = shown.get("required", [])
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        del shown["required"]
    return shown
