"""The definitions of tools in the form of MCP, kept once by digest for all members."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from toolbus.agents.asked_agents import is_of_agent
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.schemas.walker import rewritten
from toolbus.turns.model_tools import visible_schema
from toolbus.untrusted_text import visible
from toolbus.wire import ToolkitManifest, ToolManifest
from toolbus_gateway.limits import MAX_DEFINITION_BYTES

__all__ = ["Definitions", "ToolDefinition"]

RESULT = "result"
"""The property that holds a result which is not an object."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool of a toolkit, and how MCP describes it."""

    toolkit: str
    tool: str
    body: dict[str, Any]
    """The tool in the form of MCP, without its name. Not to be changed."""
    is_streaming: bool
    is_of_agent: bool
    """Whether its stream is that of an agent which answers."""
    is_wrapped: bool
    """Whether its result is a value that is put into an object."""
    timeout_s: float | None
    needs: str
    """What a call has to send beside its arguments, which MCP cannot: "attachment" or "input"."""

    @classmethod
    def of(cls, toolkit: ToolkitManifest, tool: ToolManifest) -> ToolDefinition:
        """Make the definition of a tool."""
        output = None if tool.streaming else tool.output_schema
        is_wrapped = output is not None and output.get("type") != "object"
        return cls(
            toolkit.name,
            tool.name,
            _body(toolkit, tool, _wrapped(output) if is_wrapped and output else output),
            is_streaming=tool.streaming,
            is_of_agent=is_of_agent(tool.name, toolkit.annotations),
            is_wrapped=is_wrapped,
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
        # A schema may leave out that arguments are an object, which MCP asks for.
        "inputSchema": {**visible_schema(tool.input_schema), "type": "object"},
        "annotations": annotations,
    }
    if title:
        body["title"] = annotations["title"] = title
    if output is not None:
        body["outputSchema"] = visible_schema(output)
    return body


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has a value of this schema as `result`."""
    return {
        "type": "object",
        "properties": {RESULT: _moved(schema)},
        "required": [RESULT],
    }


def _moved(schema: Any) -> Any:
    """Return a schema whose references lead to the same places one property further down."""
    if not isinstance(schema, dict):
        return schema
    moved = {key: rewritten(key, value, _moved) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = f"#/properties/{RESULT}{reference[1:]}"
    return moved


@dataclass(slots=True)
class _Known:
    tools: dict[str, ToolDefinition]
    bytes: int


class Definitions:
    """The definitions of toolkits by digest, the least recently used of which are dropped.

    A digest covers a definition as a whole, so that what one member has read is right for all. Who
    may list which of its tools is asked for each member.
    """

    def __init__(self, max_bytes: int = MAX_DEFINITION_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._bytes = 0

    async def tools_of(
        self, info: ToolkitInfo, describe: Callable[[], Awaitable[ToolkitProxy | None]]
    ) -> list[ToolDefinition]:
        """Return the tools of a toolkit that a member may list.

        Args:
            info: The toolkit as it was listed for the member.
            describe: Reads its manifest; None if it has gone.
        """
        known = self._known.get(info.digest)
        if known is None or not known.tools.keys() >= {*info.tools}:
            proxy = await describe()
            if proxy is None:
                return []
            info = proxy.info
            known = self._keep(info.digest, proxy.manifest)
        self._known.move_to_end(info.digest)
        return [known.tools[name] for name in info.tools if name in known.tools]

    def _keep(self, digest: str, manifest: ToolkitManifest) -> _Known:
        """Keep the tools of a manifest, beside those that other members may read."""
        old = self._known.pop(digest, None)
        tools = {} if old is None else dict(old.tools)
        for tool in manifest.tools:
            if tool.name not in tools:
                tools[tool.name] = ToolDefinition.of(manifest, tool)
        size = sum(len(json.dumps(tool.body)) for tool in tools.values())
        known = self._known[digest] = _Known(tools, size)
        self._bytes += size - (0 if old is None else old.bytes)
        while self._bytes > self._max_bytes and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.bytes
        return known
