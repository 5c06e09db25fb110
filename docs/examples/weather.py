from datetime import date
from typing import Any

from pydantic import BaseModel, Field

from toolbus import FunctionTool, RemoteToolkit, tool


@tool(read_only=True)
def weather(city: str, days: int = 1) -> str:
    """Look up the weather.

    Args:
        city: A city, such as "Oslo".
        days: How many days.
    """
    return f"{city}: sun, {days} d"


class Day(BaseModel):
    city: str = Field(min_length=2, description="A city, such as Oslo.")
    day: date


STATION = {
    "properties": {"city": {"type": "string"}, "station": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}


def ask_service(api_key: str, city: str, **fields: Any) -> dict[str, str]:
    """Ask a service for the weather."""
    return {"city": city, "as": api_key, **{name: repr(value) for name, value in fields.items()}}


class Thinking(BaseModel):
    thinking: str = Field(description="What you know so far, and what you do next.")


def sentence(found: dict[str, str]) -> str:
    return f"sun in {found['city']}"


meteo = RemoteToolkit(
    "meteo",
    [
        weather,
        FunctionTool(ask_service, name="day", args_schema=Day, preset={"api_key": "k1"}),
        FunctionTool(ask_service, name="station", args_schema=STATION, preset={"api_key": "k2"}),
        FunctionTool(weather, name="careful", extended=Thinking),
        FunctionTool(
            ask_service,
            name="spoken",
            args_schema=Day,
            preset={"api_key": "k1"},
            postprocess=sentence,
        ),
    ],
)


@meteo.tool(read_only=True)
def cities() -> list[str]:
    """List the cities."""
    return ["Oslo", "Bergen"]


if __name__ == "__main__":
    meteo.run()
