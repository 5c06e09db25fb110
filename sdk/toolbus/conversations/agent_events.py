"""What an agent says while it answers: plain dicts, so that they travel as JSON.

    dropped      reason: why the model does not see some or all of what was said before
    text         text: a piece of what the model says
    restart      the reply broke off, and the model is asked again: its text so far does not count
    tool_call    id, tool, arguments: the model asks for a call
    progress     id, tool, value: progress of a call
    tool_result  id, tool, state, executed, text: the result as the model reads it, cut; error with
                 code and message unless state is "ok"; files with name, mime_type, size of each
    waiting      seconds since the last event: nothing is lost, it takes longer
    end          reason, text of the last reply, steps, tokens with input and output, trace

After a `tool_result` with `files` these follow, each as a `FileChunk`. `end` is always the last;
its `reason` is "done", "max_steps" or "max_tokens". A question that fails has no `end`, but an
error.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from toolbus.agents.tool_use import ToolResult, ToolUse
from toolbus.chunks.chunk_types import FileChunk

__all__ = ["AgentEvent", "EndReason", "result_event", "use_event"]

AgentEvent: TypeAlias = dict[str, Any]
"""One event, as the table above says."""
EndReason: TypeAlias = str
"""Why an answer ended."""
MAX_RESULT_CHARS = 16_384
"""Of the text of a result in its event: it is to be looked at, while the model has all of it."""


def use_event(use: ToolUse, tool: str) -> AgentEvent:
    """Return the event of a call that the model asks for.

    Args:
        use: The use.
        tool: The tool that it names, `toolkit.tool`; the name of the use if there is none.
    """
    return {"type": "tool_call", "id": use.id, "tool": tool, "arguments": use.arguments}


def result_event(result: ToolResult) -> AgentEvent:
    """Return the event of a result, without the bytes of its files."""
    text = result.for_model(lambda file: True)
    event: AgentEvent = {
        "type": "tool_result",
        "id": result.id,
        "tool": result.tool,
        "state": result.state,
        "executed": result.executed,
        "text": text[:MAX_RESULT_CHARS],
    }
    if result.error is not None:
        event["error"] = {"code": result.error.code, "message": result.error.message}
    files = [chunk for chunk in result.chunks if isinstance(chunk, FileChunk)]
    if files:
        event["files"] = [_file_facts(file) for file in files]
    return event


def _file_facts(file: FileChunk) -> AgentEvent:
    """Return name, type and size of a file; no size for one that is not in memory."""
    size = len(file.data) if file.is_whole else None
    return {"name": file.name, "mime_type": file.mime_type, "size": size}
