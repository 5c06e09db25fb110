"""The requests that docs/guides/mcp-clients.md shows are answered by a gateway."""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import pairwise

import httpx2
import pytest

from gateway.conftest import Door
from support.documents.pages import ROOT
from support.documents.snippets import blocks_of
from toolbus import Toolkit, tool

GUIDE = (ROOT / "docs/guides/mcp-clients.md").read_text(encoding="utf-8")
TYPED = [block.text for block in blocks_of(GUIDE) if block.text.startswith("curl ")]


@tool
async def count(text: str) -> dict[str, int]:
    return dict(Counter(text.split()))


@pytest.mark.parametrize("typed", TYPED, ids=["2026-07-28", "2025-11-25"])
async def test_a_request_of_the_guide_calls_the_tool(door: Door, typed: str) -> None:
    words = shlex.split(typed.replace("$TOOLBUS_TOKEN", door.server.token("ann")))
    given = [word.split(": ", 1) for flag, word in pairwise(words) if flag == "-H"]
    async with door.server.room("host") as host, host.host(Toolkit("words", [count])):
        async with httpx2.AsyncClient(timeout=60) as http:
            answer = await http.post(
                door.address(), headers=dict(given), content=words[words.index("-d") + 1]
            )
    assert answer.status_code == 200, answer.text
    assert '"structuredContent":{"a":2,"b":1}' in answer.text.replace(" ", "")
