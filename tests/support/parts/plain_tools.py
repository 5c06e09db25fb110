"""Small tools: a function, a class, a model for arguments; and how arguments are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from toolbus.errors import InvalidArguments
from toolbus.tools.context import ToolContext
from toolbus.tools.options import tool
from toolbus.tools.tool import Tool


class Place(BaseModel):
    name: str
    height: int = 0


@tool
async def forecast(context: ToolContext, city: str, days: int = 3) -> dict[str, Any]:
    """Forecast the weather.

    Args:
        city: Name of the city.
    """
    return {"city": city, "days": days, "caller": context.caller.name}


class Echo(Tool):
    name = "echo"
    input_schema = {  # noqa: RUF012 - as people write it
        "properties": {"value": {"$ref": "#/$defs/value"}},
        "required": ["value"],
        "$defs": {"value": {"type": "integer"}},
    }

    async def execute(self, context: ToolContext, /, value: int) -> Any:
        return value


def refusal(of: Tool, arguments: Any) -> tuple[str, str]:
    """Return the path and the message with which a tool refuses arguments."""
    with pytest.raises(InvalidArguments) as caught:
        of.read_arguments(arguments)
    assert caught.value.executed == "no"
    return caught.value.details["path"], caught.value.details["message"]
