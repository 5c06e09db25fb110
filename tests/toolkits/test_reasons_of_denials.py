"""A denial names its true reason, and what the tool says about another call: shell and files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolbus import Permissions, Rule, Toolkit, ToolResult, ToolUse, Turn
from toolbus_server.testing import running_server
from toolbus_toolkits.files import Files
from toolbus_toolkits.shell import Shell

RULES = Permissions(
    "bypass",
    [
        Rule(behavior="deny", tool="shell.run", match="git push:*"),
        Rule(behavior="deny", tool="files", match="*.lock"),
    ],
)


@asynccontextmanager
async def by_permissions(kits: list[Toolkit]) -> AsyncIterator[Turn]:
    async with Turn(None, always=kits, permissions=RULES) as turn:
        yield turn


@asynccontextmanager
async def by_policy_elsewhere(kits: list[Toolkit]) -> AsyncIterator[Turn]:
    for kit in kits:
        kit.policy = RULES
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(kits[0]),
        host.host(kits[1]),
        server.room("agent") as room,
        Turn(room, required=["shell", "files"]) as turn,
    ):
        yield turn


@asynccontextmanager
async def elsewhere_by_permissions(kits: list[Toolkit]) -> AsyncIterator[Turn]:
    async with (
        running_server() as server,
        server.room("agent") as host,
        host.host(kits[0]),
        host.host(kits[1]),
        server.room("agent") as room,
        Turn(room, required=["shell", "files"], permissions=RULES) as turn,
    ):
        yield turn


def line(command: str) -> ToolUse:
    return ToolUse("1", "shell.run", {"command": command})


def use(name: str, **arguments: Any) -> ToolUse:
    return ToolUse("1", f"files.{name}", arguments)


MIGHT = ('the rule deny shell.run "git push:*" might cover this call', "it says: ")
CERTAIN = ('The rule deny shell.run "git push:*" denies this call',)
AGAIN = "a call that the tool can judge may be permitted"
CHANGED = "a call that is changed so may be permitted"
NEVER = "with these arguments it is not permitted"
ROWS: list[tuple[ToolUse, tuple[str, ...], str]] = [
    (line("for ((i=0;i<3;i++)); do echo $i; done"), (*MIGHT, "cannot be read"), AGAIN),
    (line("a=(1 2); echo ${a[1]}"), (*MIGHT, "cannot be read", "an array"), AGAIN),
    (line("echo 'open"), (*MIGHT, "cannot be read"), AGAIN),
    (line(" && ".join(["true"] * 300)), (*MIGHT, "more than 256 commands"), AGAIN),
    (line('eval "$X"'), (*MIGHT, "known only when the line runs"), AGAIN),
    (line("unheard-of git push"), (*MIGHT, "is not known"), AGAIN),
    # What is known to match is named so, also beside what cannot be judged.
    (line("git push"), CERTAIN, NEVER),
    (line("git -C folder push origin"), CERTAIN, NEVER),
    (line('sudo git push; eval "$X"'), CERTAIN, NEVER),
    # How to narrow the call.
    (use("grep", pattern="x"), ('deny files "*.lock"', "`path` and `glob` narrow it"), CHANGED),
    (use("read", path="a.lock"), ('deny files "*.lock" denies this call',), NEVER),
]


@pytest.mark.parametrize(
    "way", [by_permissions, by_policy_elsewhere, elsewhere_by_permissions], ids=lambda way: ""
)
async def test_denial_names_its_true_reason_and_whether_another_call_may_run(
    way: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.lock").touch()
    results: dict[str, ToolResult] = {}
    async with way([Shell(tmp_path), Files(tmp_path)]) as turn:
        for asked, _, _ in ROWS:
            (results[str(asked.arguments)],) = await turn.run([asked])
    for asked, words, after in ROWS:
        result = results[str(asked.arguments)]
        text = result.for_model()
        assert (result.state, result.executed) == ("denied", "no"), text
        assert "error permission_denied" in text
        assert all(each in text for each in words), text
        assert after in text
        is_judged = "might cover" not in text
        assert is_judged == (words[0] not in MIGHT)
        error = result.error
        assert error is not None
        assert isinstance(error.details["rule"], Mapping)
        assert error.details.get("uncertain", False) is not is_judged


async def test_narrower_call_that_the_denial_asks_for_runs(tmp_path: Path) -> None:
    (tmp_path / "a.lock").touch()
    (tmp_path / "a.txt").write_text("x\n", encoding="utf-8")
    async with by_permissions([Shell(tmp_path), Files(tmp_path)]) as turn:
        (result,) = await turn.run([use("grep", pattern="x", glob="*.txt")])
    assert result.state == "ok"
