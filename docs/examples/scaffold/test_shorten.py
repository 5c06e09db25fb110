import asyncio

import pytest
from toolbus import ToolContext, ToolFailed, Toolkit

from shorten import run

TEXTS = Toolkit("texts", [run])
NAME = TEXTS.tools[0].name


@pytest.mark.parametrize(
    ("text", "shortened"),
    [("to be or not", "to be"), ("to be", "to be"), ("tomorrow", "tomor"), ("", "")],
)
def test_a_text_is_shortened_to_its_first_words(text: str, shortened: str) -> None:
    assert asyncio.run(run(text, longest=5)) == shortened


def test_the_tool_refuses_a_text_without_characters() -> None:
    arguments = {"text": "to be", "longest": 0}
    with pytest.raises(ToolFailed, match="1 or more"):
        asyncio.run(TEXTS.execute(ToolContext(), NAME, arguments))
