"""Logs the start and the end of each call. Never logs results, and arguments only on request."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from time import monotonic

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk
from toolbus.middlewares.outcomes import outcome_of, quoted, shortened
from toolbus.tools.middleware import CallNext, ToolCall

__all__ = ["Log"]


class Log:
    """A middleware that logs one line when a call begins, and one when it ends.

        call began: tool=words.count caller="ada" principal="bo" call="c1"
        call ended: tool=words.count caller="ada" principal="bo" call="c1" outcome=ok executed=yes
        chunks=1 duration_ms=3.2

    `outcome` is "ok", the code of the error, "cancelled", or "closed" if an outer middleware ended
    the call early. Lines are escaped and have at most 2,000 characters; results are never logged.

    Args:
        name: The name of the logger.
        level: The level of both lines, such as `logging.INFO`.
        arguments: Whether the first line has the arguments, shortened.

    Raises `TypeError` for a name or a level of another type.
    """

    def __init__(
        self, name: str = "toolbus.calls", *, level: int = logging.INFO, arguments: bool = False
    ) -> None:
        if not isinstance(name, str) or type(level) is not int:
            raise TypeError("Log takes the name of a logger, and level=logging.INFO")
        self._logger = bounded_logger(name)
        self._level = level
        self._arguments = arguments

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Log around the call."""
        if not self._logger.isEnabledFor(self._level):
            async for chunk in next(call):
                yield chunk
            return
        began_s, count, raised = monotonic(), 0, None
        label = _label_of(call)
        arguments = ""
        if self._arguments:
            arguments = f" arguments={shortened(call.arguments)}"
        self._logger.log(self._level, "call began: %s%s", label, arguments)
        try:
            async for chunk in next(call):
                count += 1
                yield chunk
        except BaseException as error:
            raised = error
            raise
        finally:
            code, executed = outcome_of(call, raised)
            self._logger.log(
                self._level,
                "call ended: %s outcome=%s executed=%s chunks=%d duration_ms=%.1f",
                *(label, code, executed, count, (monotonic() - began_s) * 1000),
            )


def _label_of(call: ToolCall) -> str:
    principal = call.context.on_behalf_of
    parts = [f"tool={call.tool.name}", f"caller={quoted(call.context.caller.full_name)}"]
    if principal is not None:
        parts.append(f"principal={quoted(principal.full_name)}")
    if call.id:
        parts.append(f"call={quoted(call.id)}")
    return " ".join(parts)
