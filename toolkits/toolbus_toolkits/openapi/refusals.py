"""Refusals of a call before its request is sent."""

from __future__ import annotations

from toolbus import ToolFailed

__all__ = ["ArgumentRefused"]


class ArgumentRefused(ToolFailed):
    """An argument or a file that cannot be sent, though it fits the schema.

    Args:
        argument: The argument, as its tool names it; empty for several.
        message: What is wrong with it, without the value.
    """

    def __init__(self, argument: str, message: str) -> None:
        path = "/" + argument.replace("~", "~0").replace("/", "~1") if argument else ""
        super().__init__(
            f"{path}: {message}" if path else message,
            executed="no",
            retryable=False,
            details={"path": path, "message": message},
        )
