import asyncio

import pytest

from prices import prices, total
from toolbus import InvalidArguments, ToolContext, ToolFailed


def test_the_function_alone() -> None:
    assert asyncio.run(total({"pen": 3})) == 6


def test_the_tool() -> None:
    chunk = asyncio.run(prices.execute(ToolContext(), "total", {"items": {"pen": 3}}))
    assert chunk.value == 6


def test_an_unknown_item_fails() -> None:
    with pytest.raises(ToolFailed) as raised:
        asyncio.run(prices.execute(ToolContext(), "total", {"items": {"cup": 1}}))
    assert isinstance(raised.value.__cause__, KeyError)


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidArguments, match="/items/pen"):
        asyncio.run(prices.execute(ToolContext(), "total", {"items": {"pen": "many"}}))
