from __future__ import annotations

from datetime import date
from enum import Enum

import pytest
from pydantic import BaseModel

from toolbus import InvalidArguments, Toolkit, tool
from toolbus_server.testing import room_of


class Size(Enum):
    SMALL = "small"


class Parcel(BaseModel):
    size: Size
    on: date


async def test_models_enums_and_dates_are_sent_as_json_and_others_are_refused_by_name() -> None:
    @tool
    async def weigh(parcel: Parcel, again: Size, today: date) -> str:
        return f"{parcel.size.value} {again.value} {today.isoformat()}"

    async with room_of("alice", "bob") as (alice, bob):
        async with alice.host(Toolkit("post", [weigh])):
            parcel = Parcel(size=Size.SMALL, on=date(2026, 1, 2))
            day = date(2026, 1, 31)
            output = await bob.call("post.weigh", parcel=parcel, again=Size.SMALL, today=day)
            assert output == "small small 2026-01-31"
            with pytest.raises(InvalidArguments, match="object") as refused:
                await bob.call("post.weigh", parcel=parcel, again=object(), today=day)
            assert refused.value.details["path"] == "/again"
