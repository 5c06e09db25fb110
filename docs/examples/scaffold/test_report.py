import asyncio
from collections.abc import AsyncIterator

import pytest
from toolbus import CallNext, Chunk, ToolCall, ToolFailed, Toolkit

from report import (
    NEXT,
    TOOLKITS,
    main,
    publish,
)


def test_the_text_has_a_title_and_facts() -> None:
    text = asyncio.run(main("hats"))
    assert text == "Hats\nThere are hats.\nSome hats are old."


@pytest.mark.parametrize("executed", ["no", "yes"])
def test_a_failed_call_says_what_to_do_next(executed: str) -> None:
    async def lose(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        """Lose the press before the tool runs, or after it."""
        if executed == "yes":
            async for chunk in next(call):
                assert chunk.value == 39
        raise ToolFailed("the press is lost")
        yield

    press = Toolkit("press", [publish], middlewares=[lose])
    text = asyncio.run(main("hats", [TOOLKITS[0], press]))
    assert text == f"the press is lost; {NEXT[executed]}"
