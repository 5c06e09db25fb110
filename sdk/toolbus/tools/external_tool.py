"""A tool without code: a person, or a program elsewhere, gives the result of each call."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.chunks.chunk_types import Chunk
from toolbus.errors import RoomException
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.questions import ToolQuestion
from toolbus.tools.tool import Tool
from toolbus.wire import pack_body

__all__ = ["ExternalTool"]


class ExternalTool(Tool):
    """A tool without code: each call waits until somebody answers it, and the answer is the result.

        review = ExternalTool(
            "review",
            {"properties": {"text": {"type": "string"}}, "required": ["text"]},
            description="Have a person review a text.",
            approvers=["role:reviewer"],
        )

    It takes the options of `Tool`. A call waits for `approval_timeout_s`; `approvers` may answer it
    with the grant `answer`, and without them whoever it is made for. The answer has to match
    `output_schema`. Until somebody who may answer has read the call, its errors say that nothing
    ran; from then on it may have been done.
    """

    external: bool = True
    marks_entry: bool = True

    async def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Chunk:
        """Let the call wait for its answer."""
        run = run_of(context)
        question = ToolQuestion(
            "",
            self.output_schema,
            timeout_s=self.approval_timeout_s,
            approvers=tuple(self.approvers),
            arguments=pack_body(arguments),
            is_entered=run.executed != "no",
        )
        try:
            answer = await run.ask_question(question)
        except RoomException as error:
            if run.entered:  # an earlier attempt of a middleware was answered
                error.executed = "yes"
            run.record(error)
            raise
        except asyncio.CancelledError:
            run.unentered = "maybe"  # the server knows whether somebody has read it, this host not
            raise
        context.enter()
        return answer
