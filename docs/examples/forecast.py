import asyncio
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from toolbus import OperatorOnly, RoomClient, Toolkit, Turn, builder_of, tool


class ForecastConfig(BaseModel):
    key: Annotated[SecretStr, OperatorOnly] = Field(description="The key of the weather service.")
    region: str = Field("everywhere", description="The only region that is answered for.")
    units: list[str] = Field(["celsius"], description="Units of temperatures.")


def forecast(config: ForecastConfig) -> Toolkit:
    """Weather forecasts of one region."""

    @tool(read_only=True)
    async def tomorrow() -> str:
        """Return tomorrow's weather."""
        return f"Sunny {config.region}, in {' and '.join(config.units)}."

    return Toolkit("forecast", [tomorrow])


async def main() -> None:
    builder = builder_of(forecast, key=SecretStr("only I know"))
    request = builder.type(region="in Oslo")
    async with (
        RoomClient(name="agent") as room,
        Turn(room, builders=[builder], tools=[request]) as turn,
    ):
        print(await turn.call("forecast.tomorrow"))


if __name__ == "__main__":
    asyncio.run(main())
