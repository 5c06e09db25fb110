"""The tools of an MCP server as tools of a toolkit, as far as a room takes them.

The rest is left out and named. Those of a list are made in slices, because it may have a thousand
tools with large schemas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import mcp_types as types
from pydantic import ValidationError

from toolbus import Chunk, Omission, RoomException, Tool, ToolContext, ToolFailed
from toolbus.chunks.chunk_types import fitting
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.permissions.rule import Rule
from toolbus.schemas.foreign import usable_schema
from toolbus.schemas.text import shortened, with_short_texts
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.untrusted_text import one_line
from toolbus.wire import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFEST_VALUES,
    MAX_TOOLS,
    BadBody,
    pack_body,
)
from toolbus.wire.body_steps import run_steps
from toolbus.wire.manifest import read_tool
from toolbus_toolkits.credentials.references import refuse_references
from toolbus_toolkits.mcp.connection import ServerConnection
from toolbus_toolkits.mcp.content import failure_text, progress_value, to_chunk, without_values
from toolbus_toolkits.mcp.exchange import TOO_MANY
from toolbus_toolkits.mcp.messages import MAX_WORDS, ServerError
from toolbus_toolkits.mcp.names import tool_names

__all__ = ["MAX_DESCRIPTION_CHARS", "ListedTools", "McpTool", "Opener", "origin_of", "tools_of"]

# Texts of a server are part of each request to a model, and all its tools share one manifest.
MAX_DESCRIPTION_CHARS = 8_000
_MAX_TITLE_CHARS = 1_000


def origin_of(server: str, *, trusted: bool) -> dict[str, Any]:
    """Return the annotations of what an MCP server wrote.

    `mcp` is its name here; `mcp_trusted` says that its entry trusts it, and is left out otherwise.
    """
    return {"mcp": server, "mcp_trusted": True} if trusted else {"mcp": server}


class Opener(Protocol):
    """Opens a connection for the tools of one turn."""

    async def acquire(self) -> None:
        """Connect, if this is the first user."""

    async def release(self) -> None:
        """Disconnect, if this was the last one."""


class McpTool(Tool):
    """One tool of an MCP server.

    The hints of a trusted server become flags: `readOnlyHint`, `idempotentHint`, `destructiveHint`,
    `openWorldHint`, with the defaults of MCP: what says nothing of itself may destroy and reaches
    the open world. Any other server is taken as one that says nothing. These defaults are the
    strictest values, so that what a hint tightens holds in any case.

    One thing an untrusted `readOnlyHint` still does: calls of the tool run side by side
    (`concurrency_safe`). It decides when a call runs, never whether it runs or how often.

    Args:
        name: Its name in the toolkit.
        definition: As the server lists it.
        connection: The connection to the server.
        timeout_s: Seconds that one call may run.
        trusted: Whether its hints count.
        description_chars: To how much its descriptions are cut. Those in the schemas are cut only
            where it is less than usual.
    """

    marks_entry = True  # the function runs at the server, which the call may not have reached
    schemas_are_checked = True  # by `usable_schema`

    def __init__(
        self,
        name: str,
        definition: types.Tool,
        connection: ServerConnection,
        timeout_s: float,
        *,
        trusted: bool = False,
        description_chars: int = MAX_DESCRIPTION_CHARS,
    ) -> None:
        annotations = definition.annotations or types.ToolAnnotations()
        hints = annotations if trusted else types.ToolAnnotations()
        read_only = bool(hints.read_only_hint)
        schemas: dict[str, dict[str, Any] | None] = {"input": definition.input_schema}
        schemas["output"] = definition.output_schema
        unchecked: list[str] = []
        for key, schema in schemas.items():
            if schema is not None:
                usable = usable_schema(schema)
                schemas[key] = usable.schema
                unchecked += (f"{key}_schema: {line}" for line in usable.dropped)
                if description_chars < MAX_DESCRIPTION_CHARS:
                    schemas[key] = with_short_texts(usable.schema, description_chars)
        super().__init__(
            name=name,
            title=shortened(definition.title or annotations.title or "", _MAX_TITLE_CHARS),
            description=shortened(definition.description or "", description_chars),
            input_schema=schemas["input"],
            output_schema=schemas["output"],
            read_only=read_only,
            idempotent=read_only or bool(hints.idempotent_hint),
            destructive=not read_only and hints.destructive_hint is not False,
            open_world=hints.open_world_hint is not False,
            concurrency_safe=annotations.read_only_hint or None,
            timeout_s=timeout_s,
            annotations=origin_of(connection.name, trusted=trusted),
        )
        self.definition = definition
        """As the server lists it."""
        self.unchecked: tuple[str, ...] = tuple(unchecked)
        """What of its schemas is not checked here, but by its server alone."""
        self._connection = connection
        self._is_trusted = trusted
        self.opener: Opener | None = None
        """Connects when the tool starts; None if the server is connected by others."""

    async def start(self, room: Any) -> None:
        """Connect, if this tool has an `opener`."""
        if self.opener is not None:
            await self.opener.acquire()

    async def stop(self) -> None:
        """Disconnect, if this tool has an `opener`."""
        if self.opener is not None:
            await self.opener.release()

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        """Assess by the flags; of a server that is not trusted, quote what it says of itself."""
        server = self._connection.name
        assessment = assessment_of_flags(self.manifest())
        if not self._is_trusted:
            words = f"the MCP server {server} is not trusted, so that its hints do not count"
            hints = self.definition.annotations
            if hints is not None and hints.read_only_hint:
                words += "; it says of itself that this tool only reads"
            assessment = replace(assessment, message=words)
        rule = Rule(behavior="allow", tool=f"{server}.{self.name}")
        return replace(assessment, suggestions=(rule,))

    async def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Chunk:
        """Call the tool at its server."""
        result = await self.call(context, arguments)
        if result.is_error:
            raise ToolFailed(failure_text(result))
        return to_chunk(result)

    def make_result(self, value: Any) -> Chunk:
        """Check and convert a result; a text or JSON that fills more than a frame is a file."""
        return fitting(super().make_result(value), MAX_RESULT_BYTES)

    async def call(self, context: ToolContext, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call the tool and return the result as the server sent it, also one that is an error.

        A value of a credential in it is replaced by its name. Raises `InvalidArguments` for a
        reference to one in the arguments.
        """
        redact = self._connection.redact

        async def report(progress: float, total: float | None, message: str | None) -> None:
            words = None if message is None else redact(message)
            context.emit(progress_value(progress, total, words))

        try:
            refuse_references(arguments)
            result = await self._connection.call(
                self.definition.name,
                arguments,
                report if context.wants_progress else None,
                context.ask if context.can_ask else None,
            )
        except RoomException as error:
            raise context.refuse(error) from error
        except ServerError as error:
            words = one_line(redact(error.message), MAX_WORDS)
            text = f"MCP server {self._connection.name} refused the call: {words}"
            details = {"mcp_code": error.code}
            # Whatever its code says, also that there is no such method: it had the call.
            failure = ToolFailed(text, executed="maybe", details=details)
            raise context.refuse(failure) from None  # it may hold a credential
        except (RuntimeError, ValidationError) as error:  # the SDK, for what is no result
            context.enter()
            text = one_line(redact(str(error)), MAX_WORDS)
            raise ToolFailed(f"the server returned what is no result of MCP: {text}") from None
        context.enter()
        return without_values(result, redact)


_SLICE_S = 0.01
"""How long the event loop is held, but for the last tool of a slice."""
# Of a manifest, for all that is not its tools: rules, and what is left out and unchecked.
_RESERVED_BYTES = 64 * 1024
_RESERVED_VALUES = 2_000
_SHORTER_CHARS = (1_000, 300, 100)
"""To what descriptions are cut, step by step, before a tool is left out for the size of all."""
_TOO_LARGE = (
    "all tools together are larger than a toolkit may be: choose tools with enabledTools or "
    "disabledTools"
)


@dataclass(slots=True)
class ListedTools:
    """The tools of a server's list, and those of it that are left out."""

    tools: list[McpTool] = field(default_factory=list)
    left_out: list[Omission] = field(default_factory=list)
    """Tools that cannot be hosted, by the names that the server gives them."""
    description_chars: int = MAX_DESCRIPTION_CHARS
    """The longest description; less than usual where all tools together were too large."""

    @property
    def unchecked(self) -> list[Omission]:
        """Parts of schemas that only the server can check, by the names of the tools here."""
        return [Omission(tool.name, line) for tool in self.tools for line in tool.unchecked]


async def tools_of(
    listed: Iterable[types.Tool],
    connection: ServerConnection,
    timeout_s: float,
    former: ListedTools | None = None,
    *,
    trusted: bool = False,
) -> ListedTools:
    """Make the tools of a list.

    What is too large for one manifest first loses its long descriptions, and then the last tools in
    the order of their names.

    Args:
        listed: As the server lists them.
        connection: The connection to the server.
        timeout_s: Seconds that one call may run.
        former: What became of an earlier list: a tool whose definition is the same is used again.
        trusted: Whether the hints of the server count.
    """
    definitions = {tool.name: tool for tool in listed}
    names = tool_names(definitions)
    for chars in (MAX_DESCRIPTION_CHARS, *_SHORTER_CHARS):
        made = ListedTools(description_chars=chars)
        known: dict[str, McpTool] = {}
        if former is not None and former.description_chars == chars:
            known = {tool.definition.name: tool for tool in former.tools}
        make = partial(
            McpTool,
            connection=connection,
            timeout_s=timeout_s,
            trusted=trusted,
            description_chars=chars,
        )
        is_last = chars == _SHORTER_CHARS[-1]
        if await _add_tools(made, names, definitions, known, make, to_the_end=is_last):
            break
    for original in sorted(set(definitions) - set(names.values())):
        reason = "another tool of this server has its name here"
        made.left_out.append(Omission(original, reason))
    return made


async def _add_tools(
    made: ListedTools,
    names: Mapping[str, str],
    definitions: Mapping[str, types.Tool],
    known: Mapping[str, McpTool],
    make: Callable[[str, types.Tool], McpTool],
    *,
    to_the_end: bool,
) -> bool:
    """Add tools, or name why they are left out; return whether one manifest takes all of them."""
    left_bytes = MAX_MANIFEST_BYTES - _RESERVED_BYTES
    left_values = MAX_MANIFEST_VALUES - _RESERVED_VALUES
    is_full = False
    loop = asyncio.get_running_loop()
    began = loop.time()
    for name, original in names.items():
        if loop.time() - began > _SLICE_S:
            await asyncio.sleep(0)
            began = loop.time()
        definition = definitions[original]
        try:
            if len(made.tools) == MAX_TOOLS:
                raise ValueError(TOO_MANY)
            if is_full:  # also for a smaller one: which are left out is easy to say
                raise ValueError(_TOO_LARGE)
            tool = known.get(original)
            if tool is None or (tool.name, tool.definition) != (name, definition):
                tool = make(name, definition)
            # With its defaults, as readers get it: a toolkit that only fits without them would be
            # hosted, and nobody could read its definition. Beside it they get the names once more.
            packed = pack_body(tool.manifest().model_dump(mode="json"))
            left_values -= run_steps(read_tool(packed)).values  # raises if a room refuses it
            left_bytes -= len(packed) + len(pack_body(name))
            is_full = left_bytes < 0 or left_values < 0
            if is_full:
                raise ValueError(_TOO_LARGE)
            made.tools.append(tool)
        except BadBody as error:
            reason = f"{error.path}: {error.reason}".removeprefix(": ")
            made.left_out.append(Omission(original, reason))
        except Exception as error:  # a definition may be anything
            made.left_out.append(Omission(original, str(error) or type(error).__name__))
        if is_full and not to_the_end:
            break
    return not is_full
