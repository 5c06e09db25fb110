"""What a tool says about one input: `Toolkit.assess` asks it, and bounds whatever it answers."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from toolbus import (
    Assessment,
    InvalidArguments,
    NotFound,
    Participant,
    Permissions,
    Rule,
    Tool,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.errors import PermissionDenied
from toolbus.tools import assessing

ALLOW = Assessment("allow", read_only=True)


def toolkit_of(assess: Any = None, match_rule: Any = None, **flags: Any) -> Toolkit:
    @tool(assess=assess, match_rule=match_rule, **flags)
    async def run(command: str, times: int = 3) -> str:
        raise AssertionError("an assessment runs nothing")

    return Toolkit("shell", [run])


async def asked(toolkit: Toolkit, *patterns: str, command: str = "ls") -> Assessment:
    return await toolkit.assess(ToolContext(), "run", {"command": command}, patterns)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, Assessment("pass")),
        ({"read_only": True}, Assessment("pass", read_only=True)),
        ({"approval": True}, Assessment("ask", immune=True)),
        ({"destructive": True}, Assessment("ask")),
        ({"open_world": True}, Assessment("ask")),
    ],
)
async def test_flags_answer_without_an_assess(flags: dict[str, bool], expected: Assessment) -> None:
    assert replace(await asked(toolkit_of(**flags)), message="") == expected


async def test_function_gets_the_arguments_that_it_names_with_their_defaults() -> None:
    def by_name(times: int, command: str, context: ToolContext) -> Assessment:
        assert context.caller.name == "local"
        return Assessment("deny" if command == "rm" else "pass", message=f"{times} times")

    async def by_text(**arguments: Any) -> str:
        return "allow" if arguments == {"command": "ls", "times": 3} else "pass"

    assert await asked(toolkit_of(by_name)) == Assessment("pass", message="3 times")
    assert (await asked(toolkit_of(by_name), command="rm")).behavior == "deny"
    assert (await asked(toolkit_of(by_text))).behavior == "allow"


async def test_patterns_are_matched_in_the_words_of_the_tool() -> None:
    def match_rule(pattern: str, command: str) -> bool:
        return command.startswith(pattern)

    found = await asked(toolkit_of(match_rule=match_rule), "l", "rm", "ls")
    assert found.matches == ("l", "ls")
    assert (await asked(toolkit_of(), "l")).matches == ()


class Listed(Tool):
    name = "run"
    input_schema = {"properties": {"command": {"type": "string"}}}  # noqa: RUF012

    async def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> str:
        raise AssertionError("an assessment runs nothing")

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        if arguments["command"] == "no":
            raise context.refuse(PermissionDenied("not you"))
        return Assessment("pass", matches=(*context.patterns, "never asked"))


async def test_subclass_may_match_the_patterns_itself_and_refuse_the_call() -> None:
    toolkit = Toolkit("shell", [Listed()])
    assert (await asked(toolkit, "a", "b")).matches == ("a", "b")
    with pytest.raises(PermissionDenied, match="not you"):
        await asked(toolkit, command="no")


SUBSETS = tuple(
    tuple(pattern for place, pattern in enumerate("abcdefghi") if number >> place & 1)
    for number in range(512)
)
DENY_X = Rule(behavior="deny", match="x")


@pytest.mark.parametrize("options", [{}, {"policy": Permissions("bypass", [DENY_X])}])
@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((("a", "b"), ["x"], ("b", "a", "a"), ("b", "x", "a")), (("a", "b"), (), ("b", "a"))),
        ((("a",),) * 999, (("a",),)),
        (((),), ((),)),
        (SUBSETS[:256], SUBSETS[:256]),
        (SUBSETS[:257], ((),)),
    ],
)
async def test_no_part_of_an_input_is_lost_and_of_too_many_no_pattern_allows(
    parts: Any, found: Any, options: Any
) -> None:
    """ASSESS-8."""
    assessment = Assessment("pass", matches=("i",), parts=parts)
    toolkit = Toolkit("shell", toolkit_of(lambda: assessment).tools, **options)
    answer = await asked(toolkit, *"abcdefghi")
    assert answer.parts == found
    assert set(answer.matches) == {"i", *"".join(chain(*parts)).replace("x", "")}
    assert bool(answer.refusal) == (options != {} and ["x"] in parts)


@pytest.mark.parametrize(
    ("fields", "matches", "parts", "uncertain"),
    [
        ({"uncertain": ("a", "x")}, "a", ((),), "a"),
        ({"matches": ("a", "b"), "uncertain": ["b", "b"]}, "ab", (("a",),), "b"),
        ({"uncertain": ("b",), "parts": (("a", "b"), ("b",))}, "ba", (("a",), ()), "b"),
    ],
)
async def test_what_only_may_match_allows_no_part_of_an_input(
    fields: Any, matches: str, parts: Any, uncertain: str
) -> None:
    """ASSESS-9: nor does it for a client that knows `matches` and `parts` alone."""
    answer = await asked(toolkit_of(lambda: Assessment("pass", **fields)), "a", "b")
    assert answer.matches == tuple(matches)
    assert answer.parts == parts
    assert answer.uncertain == tuple(uncertain)


async def test_arguments_are_checked_first() -> None:
    toolkit = toolkit_of(lambda: ALLOW)
    with pytest.raises(InvalidArguments):
        await toolkit.assess(ToolContext(), "run", {"command": 1})
    with pytest.raises(NotFound):
        await toolkit.assess(ToolContext(), "walk", {})


def raises(command: str) -> Assessment:
    raise ValueError(f"secret of {command}")


async def swallows_cancellation() -> Assessment:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def by_coroutine(pattern: str) -> bool:
    return True


async def cancels_itself() -> Assessment:
    raise asyncio.CancelledError


async def exits() -> Assessment:
    raise SystemExit(2)  # as a parser of arguments


def exits_on_a_thread() -> Assessment:
    raise SystemExit(2)


@pytest.mark.parametrize(
    "assess",
    [
        raises,
        cancels_itself,
        exits,
        exits_on_a_thread,
        lambda: None,
        lambda: "maybe",
        lambda: {"behavior": "allow"},
        lambda: Assessment("maybe"),  # type: ignore[arg-type]
        lambda: Assessment("allow", read_only=1),  # type: ignore[arg-type]
        lambda: Assessment("allow", message=b"x"),  # type: ignore[arg-type]
        lambda: Assessment("allow", suggestions=3),  # type: ignore[arg-type]
        lambda: Assessment("allow", suggestions=itertools.count()),  # type: ignore[arg-type]
        lambda: Assessment("allow", matches=([],)),  # type: ignore[arg-type]
        lambda: Assessment("allow", parts="ls"),  # type: ignore[arg-type]
        lambda: Assessment("allow", parts=(("ls",), "ls")),  # type: ignore[arg-type]
        lambda: Assessment("allow", parts=([[]],)),  # type: ignore[arg-type]
        lambda: Assessment("allow", parts=itertools.count()),  # type: ignore[arg-type]
        lambda: Assessment("allow", source="me"),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_assessment_is_an_immune_ask(assess: Callable[..., Any]) -> None:
    found = await asked(toolkit_of(assess))
    assert (found.behavior, found.immune, found.source) == ("ask", True, "manifest")
    assert "secret" not in found.message


@pytest.mark.parametrize(
    "match_rule",
    [
        lambda pattern, command: re.match(pattern, command),
        lambda pattern: None,
        lambda pattern: 1,
        lambda pattern: 1 / 0,
        lambda pattern: sys.exit(2),
    ],
)
async def test_what_a_match_rule_does_not_say_is_unknown(match_rule: Callable[..., Any]) -> None:
    found = await asked(toolkit_of(lambda: ALLOW, match_rule), "ls")
    assert (found.behavior, found.immune, found.source) == ("ask", True, "manifest")


@pytest.mark.parametrize("reached", [lambda *_: 1 / 0, lambda *_: None])
async def test_tool_that_cannot_say_what_it_reaches_is_denied(
    reached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listed, "reached", reached)
    assert (await asked(Toolkit("shell", [Listed()]))).behavior == "deny"


async def test_tool_has_a_share_of_the_time_that_its_caller_has() -> None:
    asked_at = 100.0
    context = ToolContext(deadline_at=asked_at, clock=lambda: asked_at)
    never = asyncio.Event()
    found = await toolkit_of(never.wait).assess(context, "run", {"command": "ls"})
    assert "longer than 0 s" in found.message


async def test_tool_that_takes_too_long_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assessing, "MAX_ASSESS_S", 0.01)
    never = threading.Event()

    def blocks() -> Assessment:
        never.wait()
        return ALLOW

    def match_rule(pattern: str) -> bool:
        return never.wait()

    kits = toolkit_of(blocks), toolkit_of(match_rule=match_rule), toolkit_of(swallows_cancellation)
    try:
        for toolkit in kits:
            found = await asked(toolkit, "ls")
            assert (found.behavior, found.immune, found.source) == ("ask", True, "manifest")
            assert "longer than" in found.message
    finally:
        never.set()
        swallowing = list(assessing._abandoned)
        for task in swallowing:
            task.get_coro().close()


async def test_caller_whose_assessments_block_leaves_threads_for_others() -> None:
    never = threading.Event()

    def assess(command: str) -> Assessment:
        if command == "block":
            never.wait()
        return ALLOW

    toolkit = toolkit_of(assess)
    eve = ToolContext(caller=Participant("1", "eve"))
    blocked = [
        asyncio.create_task(toolkit.assess(eve, "run", {"command": "block"})) for _ in range(100)
    ]
    try:
        for _ in range(5):  # all of them ask for a thread before anybody else
            await asyncio.sleep(0)
        assert await asked(toolkit) == ALLOW
        blocked.pop().cancel()
        never.set()
        assert await asyncio.gather(*blocked[:99]) == [ALLOW] * 99
    finally:
        never.set()


async def test_answer_is_bounded_and_safe_to_show() -> None:
    big = "begin" + "é\x1b[2J" * 500_000 + "end"
    rules = tuple(Rule(behavior="allow", match=f"ls {number}") for number in range(9))
    others = (
        Rule(behavior="allow", tool="shell"),
        Rule(behavior="allow", tool="other.run"),
        Rule(behavior="deny"),
    )
    assessment = Assessment("pass", message=big, preview=big, suggestions=(*others, *rules))
    found = await asked(toolkit_of(lambda: assessment))
    assert 1_990 < len(found.message) <= 2_000
    assert 60 * 1024 < len(found.preview.encode()) <= 64 * 1024
    for text in (found.message, found.preview):  # both ends, and how much is left out
        begin, count, end = re.split(r" \[\.\.\. ([0-9,]+) characters \.\.\.\] ", text)
        left_out = int(count.replace(",", ""))
        assert len(begin) + left_out + len(end) == len("begin" + "é\\x1b[2J" * 500_000 + "end")
        assert begin.startswith("begin")
        assert end.endswith("end")
    assert "\x1b" not in found.message + found.preview
    assert found.suggestions == tuple(replace(rule, tool="shell.run") for rule in rules[:5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assess": lambda comand: ALLOW}, "'comand', which is no argument"),
        ({"assess": lambda command, /: ALLOW}, "'command' must be taken by name"),
        ({"assess": "allow"}, "assess must be a function"),
        ({"assess": Assessment}, "assess must be a function"),
        ({"match_rule": by_coroutine}, "match_rule must not be async"),
        ({"match_rule": lambda: True}, "must take the pattern first"),
        ({"match_rule": lambda pattern, size: True}, "'size', which is no argument"),
    ],
)
def test_function_of_another_form_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        toolkit_of(**options)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"assess": lambda self, context, arguments: ALLOW}, "assess must be async"),
        ({"match_rule": by_coroutine}, "match_rule must not be async"),
    ],
)
def test_subclass_with_a_method_of_another_kind_is_refused(
    method: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        Toolkit("shell", [type("Other", (Listed,), method)()])
