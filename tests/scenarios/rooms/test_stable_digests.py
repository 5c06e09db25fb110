"""Digests of toolkits stay what they are, whatever the SDK does by default for a kind of tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from toolbus import ToolContext, Toolkit, tool
from toolbus.room.hosting import packed_manifest
from toolbus_server.registry.toolkit_definition import read_definition


@tool
def plain(text: str, count: int = 1) -> str:
    """Repeat a text."""
    return text * count


@tool(read_only=True, idempotent=True)
def reading(context: ToolContext, key: str) -> dict[str, int]:
    return {key: 1}


@tool(concurrency_safe=False)
def alone() -> None: ...


@tool(max_concurrency=2, timeout_s=3)
def limited() -> Iterator[int]:
    yield 1


@tool
async def ordinary(value: float) -> float:
    return value


@tool(concurrency_safe=True)
async def streaming() -> AsyncIterator[int]:
    yield 1


DIGESTS = {
    "plain": "3f7ba3c3de27d47c",
    "reading": "870d13637bc061f7",
    "alone": "5e69bc4297e30612",
    "limited": "258f42596454be4a",
    "ordinary": "1632accb82dd538e",
    "streaming": "d793e198c12a020a",
}


@pytest.mark.parametrize("function", [plain, reading, alone, limited, ordinary, streaming])
def test_digest_of_a_toolkit_is_what_it_was(function: Any) -> None:
    packed = packed_manifest(Toolkit("t", [function]))
    assert read_definition(packed).digest[:16] == DIGESTS[function.__name__]
