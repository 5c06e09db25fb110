"""Which callers get the text of a tool's exception, and in which form."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolbus import (
    FunctionTool,
    PermissionDenied,
    RoomClient,
    RoomException,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.auth.keys import KeyRing
from toolbus.middlewares import Log
from toolbus.tools.context import run_of
from toolbus.tools.error_text import SentErrors
from toolbus.tools.toolkit import failure_of
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server


class OddText(str):
    """A text that cannot be worked with."""

    def __getitem__(self, key: Any) -> str:
        raise SystemExit(key)

    strip = isprintable = translate = __getitem__  # type: ignore[assignment]


class OddError(Exception):
    """An exception whose text is what its argument says."""

    def __str__(self) -> Any:
        kind = self.args[0]
        if isinstance(kind, type):
            raise kind
        return str(self) if kind == "loops" else kind


LONG = "b" * 3_000
INNER = ValueError()
INNER.args = (INNER,)
INNER.__cause__ = INNER

# The exception, and what its caller gets after the words "the tool raised CLASS".
TEXTS: dict[str, tuple[BaseException, str]] = {
    "usual": (ValueError("no such city: Osl"), ": no such city: Osl"),
    "of_key": (KeyError("Osl"), ": 'Osl'"),
    "lines": (ValueError("one\n\ttwo\r"), ": one\n\ttwo"),
    "hidden": (ValueError("a\x1b[31m\u202e\x00\udc80"), ": a\\x1b[31m\\u202e\\x00\\udc80"),
    "none": (ValueError(), ""),
    "group": (
        ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [OddError(5)])]),
        ": two (2 sub-exceptions); the tool raised ValueError: a; the tool raised OddError",
    ),
    "wide": (
        ExceptionGroup("wide", [ValueError(LONG)] * 9_000),
        f": wide (9000 sub-exceptions){f'; the tool raised ValueError: {LONG}' * 2}"[:4_065] + "…",
    ),
    "exit": (SystemExit("bye"), ": bye"),
    "odd_text": (OddError(OddText("odd")), ": odd"),
    "not_text": (OddError(5), ""),
    "loops": (OddError("loops"), ""),
    "contains_itself": (INNER, ""),
    "raises": (OddError(ZeroDivisionError), ""),
    "exits": (OddError(SystemExit), ""),
    "cancels": (OddError(asyncio.CancelledError), ""),
}


@tool
async def fails(case: str) -> None:
    raise TEXTS[case][0]


@tool(name="fails_on_thread")
def fails_on_thread(case: str) -> None:
    raise TEXTS[case][0]


@asynccontextmanager
async def turn_of(
    toolkit: Toolkit, *, development: bool, host: str = "127.0.0.1"
) -> AsyncIterator[Turn]:
    """Enter a turn that has a toolkit twice: `t` is hosted elsewhere, `here` in this process."""
    settings = ServerSettings(
        keys=KeyRing([]), host=host, port=0, drain_s=1.0, asks_for_error_text=development
    )
    here = Toolkit("here", toolkit.tools, errors=toolkit.errors)
    async with (
        running_server(settings=settings) as server,
        RoomClient(server.url, room="lab", token=server.token("host")) as hosting,
        RoomClient(server.url, room="lab", token=server.token("agent")) as agent,
        hosting.host(toolkit),
        Turn(agent, always=[here], available=True, middlewares=[Log()]) as turn,
    ):
        yield turn


async def failure(turn: Turn, name: str, case: str) -> RoomException:
    with pytest.raises(RoomException) as raised:
        await turn.invoke(name, {"case": case})
    return raised.value


async def test_text_of_an_exception_goes_to_its_caller_escaped_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ERR-5, ERR-7: whatever its class does, the call ends and the host logs it once."""
    for length in (4_095, 4_200, 2**20):
        text = "é" * length
        shown = f"{text[: 4_096 - 29]}…"
        TEXTS[f"long_{length}"] = (ValueError(text), f": {shown}")
    kit = Toolkit("t", [fails, fails_on_thread], errors="text")
    async with turn_of(kit, development=False) as turn:
        for case, (error, text) in TEXTS.items():
            for name in ("t.fails", "t.fails_on_thread", "here.fails", "here.fails_on_thread"):
                caplog.clear()
                got = await failure(turn, name, case)
                words = f"the tool raised {type(error).__name__}"
                assert (got.code, got.executed, got.message) == ("tool_failed", "yes", words + text)
                details = {"cause": type(error).__name__}
                assert got.details == (details | {"text": text[2:]} if text else details)
                logged = [each for each in caplog.records if each.levelno == logging.ERROR]
                assert [each.getMessage() for each in logged] == [f"tool {name} raised"]
        [result] = await turn.run([ToolUse("1", "t.fails", {"case": "usual"})])
        told = "error tool_failed: the tool raised ValueError: no such city: Osl. The tool ran."
        assert result.for_model() == told


@tool
async def breaks_down(case: str) -> None:
    raise LookupError(case)


@tool
def breaks_down_on_thread(case: str) -> None:
    raise LookupError(case)


@pytest.mark.parametrize("name", ["t.breaks_down", "t.breaks_down_on_thread", "here.breaks_down"])
async def test_tracebacks_begin_at_the_line_of_an_author_and_name_the_call(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    kit = Toolkit("t", [breaks_down, breaks_down_on_thread])
    async with turn_of(kit, development=False) as turn:
        got = await failure(turn, name, "a")
    shown = "".join(traceback.format_exception(got))
    text = f"ToolFailed: the tool raised LookupError\nthe call of {name} failed (executed: yes)\n"
    assert shown.endswith(text)
    assert str(got) == "the tool raised LookupError", "the text does not name the tool"
    [logged] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert logged.exc_info is not None
    frames = traceback.extract_tb(logged.exc_info[1].__traceback__)  # type: ignore[union-attr]
    assert [frame.filename for frame in frames] == [__file__]


async def test_the_error_of_a_stream_names_the_call() -> None:
    async def breaks() -> AsyncIterator[int]:
        yield 1
        raise ValueError

    async with running_server() as server, server.room("me") as me:
        async with me.host(Toolkit("t", [breaks])), me.stream("t.breaks") as chunks:
            await anext(chunks)
            with pytest.raises(ToolFailed) as raised:
                await anext(chunks)
    assert raised.value.__notes__ == ["the call of t.breaks failed (executed: yes)"]


@pytest.mark.parametrize(
    ("of_tool", "of_toolkit", "development", "host", "is_sent"),
    [
        (None, None, False, "127.0.0.1", False),
        (None, None, True, "127.0.0.1", True),
        (None, "class", True, "127.0.0.1", False),
        ("class", "text", True, "127.0.0.1", False),
        ("text", "class", False, "127.0.0.1", True),
        (None, None, True, "127.0.0.2", True),
        (None, None, True, "127.2", False),  # not known to be this machine
    ],
)
async def test_tool_then_toolkit_then_server_decides_about_the_text(
    of_tool: SentErrors | None,
    of_toolkit: SentErrors | None,
    development: bool,
    host: str,
    is_sent: bool,
) -> None:
    """ERR-5."""

    @tool(errors=of_tool)
    async def fails(case: str) -> None:
        raise ValueError(case)

    async with turn_of(
        Toolkit("t", [fails], errors=of_toolkit), development=development, host=host
    ) as turn:
        for name in ("t.fails", "here.fails"):
            got = await failure(turn, name, "its words")
            assert got.message == "the tool raised ValueError" + (": its words" if is_sent else "")


def test_option_of_another_value_is_refused_where_it_is_set() -> None:
    with pytest.raises(ValueError, match="'text', 'class' or None, not True"):
        Toolkit("t", errors=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tool 'fails'.*not 'all'"):
        Toolkit("t", [FunctionTool(fails, errors="all")])  # type: ignore[arg-type]


def test_text_about_a_refused_nested_call_is_never_sent() -> None:
    """ERR-9: it may name a tool that this caller may not see."""
    run = run_of(ToolContext())
    run.sends_error_text = run.entered = True
    facts = {"grant": "agents.call", "lacks": "host", "tool": "hidden.tool"}
    inner = PermissionDenied("no grant for hidden.tool", details=facts)
    outer = ToolFailed("refused: hidden.tool", details={"refused": facts})
    assert "text" not in failure_of(inner, run).details
    assert "hidden" not in failure_of(ExceptionGroup("a", [inner, outer]), run).message
    assert "hidden" not in failure_of(outer, run).message
