"""The file that was judged is the file that is used, whatever is swapped between."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.rooms.turns import turn_hosted, turn_in_process
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    Chunk,
    Permissions,
    Rule,
    ToolContext,
    ToolFailed,
)
from toolbus.errors import PermissionDenied
from toolbus_server.testing import room_of
from toolbus_toolkits.files import Files, assessed_paths
from toolbus_toolkits.files.assessed_paths import AssessedPaths


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / ".env").write_text("secret\n")
    (tmp_path / "plain.txt").write_text("plain\n")
    (tmp_path / "other.txt").write_text("other\n")
    point(tmp_path, "plain.txt")
    return tmp_path


def point(work: Path, target: str) -> None:
    """Let `link` lead to another file."""
    (work / "link").unlink(missing_ok=True)
    (work / "link").symlink_to(target)


CALLS: dict[str, dict[str, Any]] = {
    "read": {"path": "link"},
    "get": {"path": "link"},
    "write": {"path": "link", "text": "new\n"},
    "edit": {"path": "link", "old_text": "plain", "new_text": "new"},
    "insert": {"path": "link", "line": 0, "text": "new\n"},
    "grep": {"pattern": "x", "path": "link"},
    "list": {"path": "link"},
    "glob": {"pattern": "*", "path": "link"},
    "put": {"path": "link"},
    "watch": {"path": "link"},
}


async def _dropped(chunk: Chunk) -> None:
    pass


@pytest.mark.parametrize("tool", CALLS)
async def test_a_link_that_is_swapped_after_the_assessment_refuses_the_call(
    work: Path, tool: str
) -> None:
    toolkit = Files(work)
    await toolkit.assess(ToolContext(), tool, CALLS[tool])
    point(work, ".env")
    context = ToolContext(on_chunk=_dropped)
    attachment = b"new\n" if tool == "put" else None
    with pytest.raises(ToolFailed, match="leads elsewhere") as raised:
        await toolkit.execute(context, tool, CALLS[tool], attachment)
    assert raised.value.details == {"reason": "changed"}
    assert not raised.value.retryable  # a client would repeat it unjudged
    assert (work / ".env").read_text() == "secret\n"
    if tool in ("write", "edit", "insert", "put"):
        assert raised.value.executed == "no"


async def test_the_next_call_is_judged_anew(work: Path) -> None:
    toolkit = Files(work)
    await toolkit.assess(ToolContext(), "read", {"path": "link"})
    point(work, "other.txt")
    with pytest.raises(ToolFailed):
        await toolkit.execute(ToolContext(), "read", {"path": "link"})
    await toolkit.assess(ToolContext(), "read", {"path": "link"})
    read: Any = await toolkit.execute(ToolContext(), "read", {"path": "link"})
    assert "other" in read.value["text"]


@pytest.mark.parametrize("target", ["link", "plain.txt/x", "/etc/hostname", "nothing"])
async def test_a_file_that_was_not_there_was_not_judged(work: Path, target: str) -> None:
    toolkit = Files(work)
    point(work, target)
    await toolkit.assess(ToolContext(), "read", {"path": "link"})
    point(work, ".env")
    with pytest.raises(ToolFailed, match="leads elsewhere"):
        await toolkit.execute(ToolContext(), "read", {"path": "link"})


async def test_a_call_that_nobody_judged_runs(work: Path) -> None:
    point(work, ".env")
    read: Any = await Files(work).execute(ToolContext(), "read", {"path": "link"})
    assert "secret" in read.value["text"]


def take(paths: AssessedPaths, target: str, context: ToolContext | None = None) -> bool:
    return paths.take(context or ToolContext(), "link", target)


def test_of_calls_that_were_judged_differently_each_is_refused() -> None:
    """The toolkit cannot tell which judgement belongs to which call."""
    paths = AssessedPaths()
    paths.note(ToolContext(), "link", "/plain")
    paths.note(ToolContext(), "link", "/env")
    assert not take(paths, "/env")
    assert not take(paths, "/env")
    paths.note(ToolContext(), "link", "/env")
    assert take(paths, "/env")


def test_each_call_takes_one_of_equal_judgements() -> None:
    paths = AssessedPaths()
    paths.note(ToolContext(), "link", "/plain")
    paths.note(ToolContext(), "link", "/plain")
    assert take(paths, "/plain")
    assert not take(paths, "/env")
    assert take(paths, "/env")


def test_what_a_policy_judged_within_the_call_is_of_this_call() -> None:
    paths = AssessedPaths()
    first = ToolContext()
    second = ToolContext()
    paths.note(first, "link", "/plain")
    paths.note(first, "link", "/plain")
    paths.note(second, "link", "/plain")
    assert take(paths, "/plain", first)
    assert not take(paths, "/env", second)
    assert take(paths, "/env")


def test_a_judgement_is_of_one_asker_and_one_path_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = AssessedPaths()
    paths.note(ToolContext(), "link", "/plain")
    assert paths.take(ToolContext(), "other", "/env")
    monkeypatch.setattr(assessed_paths, "_MAX_AGE_S", -1.0)
    paths.note(ToolContext(), "link", "/plain")
    assert take(paths, "/env")


def test_what_is_remembered_is_bounded_and_many_targets_are_none() -> None:
    paths = AssessedPaths()
    for number in range(3_000):
        paths.note(ToolContext(), f"{number}", "/x")
        paths.note(ToolContext(), "link", f"/{number}")
    (remembered,) = paths._by_asker.values()
    assert len(remembered) <= 1024
    assert len(remembered["link"]) <= 9
    assert not take(paths, "/2999")


@pytest.mark.parametrize("offered", [turn_in_process, turn_hosted])
async def test_a_link_that_is_swapped_while_a_person_is_asked_changes_nothing(
    work: Path, offered: Any
) -> None:
    messages = []

    async def person(question: ApprovalRequest) -> ApprovalDecision:
        messages.append(question.assessment.message)
        point(work, "other.txt")
        return ApprovalDecision.allow()

    async with AsyncExitStack() as stack:
        options = {"permissions": Permissions(trusted_owners=["host"]), "approve": person}
        turn = await stack.enter_async_context(offered(Files(work), **options))
        await turn.call("files.read", path="plain.txt")
        await turn.call("files.read", path="other.txt")
        with pytest.raises(ToolFailed, match="leads elsewhere") as raised:
            await turn.call("files.write", path="link", text="new\n")
        assert raised.value.executed == "no"
        assert messages == ["replaces 1 line of `link` (which is `plain.txt`) by 1"]
        await turn.call("files.write", path="other.txt", text="new\n")
    assert (work / "other.txt").read_text() == "new\n"
    assert (work / "plain.txt").read_text() == "plain\n"


async def test_a_policy_binds_callers_of_a_host(work: Path) -> None:
    rules = [Rule(behavior="deny", tool="files", match="other.txt")]
    toolkit = Files(work, policy=Permissions("bypass", rules))
    async with turn_hosted(toolkit) as turn:
        await turn.call("files.read", path="link")
        point(work, "other.txt")
        for arguments in ({"path": "link"}, {"path": "./other.txt"}):
            with pytest.raises(PermissionDenied):
                await turn.call("files.read", **arguments)
        with pytest.raises(PermissionDenied):
            await turn.call("files.read", path="/etc/hostname")
        with pytest.raises(PermissionDenied):
            await turn.call("files.grep", pattern="x")
        found = await turn.call("files.grep", pattern="plain", glob="!other.txt")
        assert found["matches"] == ["plain.txt"]


async def test_a_link_that_is_swapped_after_the_policy_has_judged_refuses_the_call(
    work: Path,
) -> None:
    toolkit = Files(work, policy=Permissions("bypass"))
    tool = toolkit.get_tool("read")
    inner = tool.execute

    async def execute(*args: Any, **options: Any) -> Any:
        point(work, ".env")
        return await inner(*args, **options)

    tool.execute = execute  # type: ignore[method-assign]
    async with turn_hosted(toolkit) as turn:
        with pytest.raises(ToolFailed, match="leads elsewhere"):
            await turn.call("files.read", path="link")


@pytest.mark.parametrize("tool", ["read", "list", "glob", "grep"])
async def test_of_several_hosts_the_one_that_judged_runs_the_call(work: Path, tool: str) -> None:
    async with (
        room_of("host", "host", "agent") as (one, other, agent),
        one.host(Files(work), public=True),
        other.host(Files(work), public=True),
    ):
        for _ in range(10):
            await agent.assess(f"files.{tool}", CALLS[tool])
            point(work, ".env")
            with pytest.raises(ToolFailed, match="leads elsewhere"):
                await agent.invoke(f"files.{tool}", CALLS[tool])
            point(work, "plain.txt")
