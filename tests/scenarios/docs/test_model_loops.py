"""The loops that the page models.md shows for the clients of providers, with a local server."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys

import pytest

from support.documents.pages import EXAMPLES, examples
from support.models.model_server import KEY, model_server
from support.models.wire_replies import Says
from toolbus import Toolkit, tool
from toolbus.agents import loop
from toolbus_server.testing import TestServer


@tool(read_only=True)
async def count(text: str, top: int = 3) -> dict[str, int]:
    """Count the words of a text, the most frequent first."""
    assert (text, top) == ("the cat and the hat", 1)
    return {"the": 2}


@pytest.mark.parametrize("name", sorted(each for each in examples() if each.startswith("loop_")))
async def test_loop_of_the_page_prints_what_it_shows(name: str, server: TestServer) -> None:
    uses = (("words__count", {"text": "the cat and the hat", "top": 1}),)
    answer = Says("The most frequent word is 'the'.")
    async with (
        model_server(Says(uses=uses), answer) as models,
        server.room("host") as host,
        host.host(Toolkit("words", [count])),
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            EXAMPLES / name,
            env={
                **os.environ,
                "TOOLBUS_URL": server.url,
                "TOOLBUS_ROOM": "lab",
                "TOOLBUS_TOKEN": server.token("agent"),
                "OPENAI_BASE_URL": models.url("openai-responses"),
                "ANTHROPIC_BASE_URL": models.url("anthropic"),
                "GOOGLE_GEMINI_BASE_URL": models.url("gemini"),
                "OPENAI_API_KEY": KEY,
                "ANTHROPIC_API_KEY": KEY,
                "GEMINI_API_KEY": KEY,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
    assert models.wrongs == []
    assert (out.decode(), errors.decode()) == ("The most frequent word is 'the'.\n", "")


def test_a_loop_takes_less_than_40_lines() -> None:
    loops = [text for name, text in examples().items() if name.startswith(("loop_", "agent.py"))]
    assert [len(text.splitlines()) < 40 for text in loops] == [True] * 5
    assert len(examples()["agent.py"].splitlines()) <= 25


def test_the_loop_of_agents_is_short_enough_to_be_copied() -> None:
    assert len(inspect.getsource(loop).splitlines()) <= 155
