"""A tool without code: a person or another program gives the result of each of its calls.

In a turn that has its toolkit in its own process, a use of it is parked until `Turn.settle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolbus.errors import Unavailable
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool import Tool

__all__ = ["ExternalTool", "Parked"]


class Parked(Unavailable):
    """How a call of an `ExternalTool` ends that is parked: its use waits for its result.

    Middlewares see it pass, and a program that makes such a call itself gets it. It is never sent.
    """

    code = "parked"

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        text = f"{tool} has no code: Turn.run parks its uses, and Turn.settle gives their results"
        super().__init__(text, executed="no", retryable=False)
        self.arguments: Mapping[str, Any] = arguments
        """The arguments that reached the tool."""


class ExternalTool(Tool):
    """A tool without code, whose result a person or another program gives.

        colour = ExternalTool(
            "colour",
            {"properties": {"question": {"type": "string"}}, "required": ["question"]},
            {"type": "string"},
            "Ask the customer which colour it should be.",
        )

    The turn of an agent in this process parks its uses: see `Turn.settle`.

    Args:
        name: As of any tool.
        input_schema: A JSON Schema of the arguments.
        output_schema: A JSON Schema that each result has to match.
        description: What the tool does, for humans and models.
        options: What else `Tool` takes.
    """

    external: bool = True
    marks_entry: bool = True
    """Nothing runs before there is a result."""

    def __init__(
        self,
        name: str,
        input_schema: dict[str, Any],
        output_schema: dict[str, Any] | None = None,
        description: str = "",
        **options: Any,
    ) -> None:
        if "external" in options:
            raise TypeError(f"ExternalTool {name!r}: external is always True")
        super().__init__(
            name, input_schema, output_schema=output_schema, description=description, **options
        )

    async def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Return the result that is given for this call; raises what is given in its place."""
        return await run_of(context).external_result(arguments)
