"""The toolkit `codegen`: what it writes, what is asked before, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.workspace.plain_user import as_plain_user
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    InvalidArguments,
    Permissions,
    Rule,
    ToolContext,
    ToolFailed,
    ToolUse,
    Turn,
    builder_of,
)
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.permissions.rule import RuleBehavior
from toolbus.scaffolds import scaffold
from toolbus_server.testing import room_of
from toolbus_toolkits.codegen import Codegen, codegen
from toolbus_toolkits.files import Files, files, text_tools
from toolbus_toolkits.skills import Skills
from toolbus_toolkits.workspace import Location, replaced

Way = Callable[[Path], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def in_process(root: Path) -> AsyncIterator[Any]:
    toolkit = Files(root)
    async with Turn(None, always=[toolkit, Codegen(toolkit)]) as turn:
        yield turn.call


@asynccontextmanager
async def hosted(root: Path) -> AsyncIterator[Any]:
    toolkit = Files(root)
    async with (
        room_of("host", "ann") as (host, ann),
        host.host(toolkit),
        host.host(Codegen(toolkit)),
    ):
        yield ann.call


@asynccontextmanager
async def built(root: Path) -> AsyncIterator[Any]:
    builders = [builder_of(factory, root=root) for factory in (files, codegen)]
    tools = [builder.type() for builder in builders]
    async with Turn(None, builders=builders, tools=tools) as turn:
        yield turn.call


@pytest.mark.parametrize("way", [in_process, hosted, built])
async def test_what_is_written_is_filled_by_edits(way: Way, tmp_path: Path) -> None:
    async with way(tmp_path) as call:
        for kind in ("toolkit", "tool", "agent", "workflow", "skill"):
            path = f"made/{kind}"
            written = await call("codegen.write", target=kind, name="my-own", path=path)
            expected = scaffold(kind, "my-own")
            assert {file["path"] for file in written["files"]} == {f"{path}/{e}" for e in expected}
            for file, text in zip(written["files"], expected.values(), strict=True):
                assert (tmp_path / file["path"]).read_text() == file["text"] == text
                change = {"old_text": text, "new_text": "mine\n", "token": file["token"]}
                await call("files.edit", path=file["path"], **change)
                assert (tmp_path / file["path"]).read_text() == "mine\n"
        with pytest.raises(ToolFailed, match="is there already, and is not replaced") as refused:
            await call("codegen.write", target="toolkit", name="my-own", path="made/toolkit")
        assert (refused.value.executed, refused.value.details["reason"]) == ("no", "exists")
        for name in ("", "..", "a/b", "A", "a-"):
            with pytest.raises(ToolFailed, match="is not a name") as refused:
                await call("codegen.write", target="tool", name=name)
            assert refused.value.executed == "no"
        with pytest.raises(InvalidArguments, match="/name"):
            await call("codegen.write", target="tool", name="x" * 10_000)


def test_a_skill_is_read_as_one(tmp_path: Path) -> None:
    for path, text in scaffold("skill", "yes").items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    (skill,) = Skills([tmp_path]).list()
    assert skill.name == "yes"


async def test_a_host_remembers_what_it_has_written_for_a_caller(tmp_path: Path) -> None:
    async with hosted(tmp_path) as call:
        await call("codegen.write", target="tool", name="own")
        await call("files.write", path="own.py", text="mine\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("there", "closed", ".git"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "there/test_own.py").write_text("mine")
    (root / "linked").mkdir()
    (root / "linked/test_own.py").symlink_to(tmp_path / "outside/test_own.py")
    (root / "closed").chmod(0o555)
    return root


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "class"}, "bad_name"),
        ({"name": "json"}, "bad_name"),
        ({"path": "there"}, "exists"),
        ({"path": "there/test_own.py"}, "not_a_folder"),
        ({"path": ".."}, "outside"),
        ({"path": "/"}, "outside"),
        ({"path": "out"}, "outside"),
        ({"path": "linked"}, "outside"),
        ({"path": "~/x"}, "no_path"),
        ({"path": "x" * 256}, "no_path"),
        ({"path": "closed"}, "not_permitted"),
        ({"path": "closed/new"}, "not_permitted"),
    ],
)
def test_nothing_is_written_where_one_file_cannot_be(
    root: Path, arguments: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its threads begin on that of the plain user.
    monkeypatch.setattr(text_tools, "CHANGE_THREADS", WorkerThreads("plain", 1))
    toolkit = Codegen(Files(root))
    before = sorted(root.parent.rglob("*"))
    use = {"target": "tool", "name": "own", **arguments}
    with pytest.raises(ToolFailed) as failed:
        as_plain_user(lambda: asyncio.run(toolkit.execute(ToolContext(), "write", use)))
    assert (failed.value.executed, failed.value.details["reason"]) == ("no", reason)
    assert sorted(root.parent.rglob("*")) == before


async def test_an_error_names_the_files_that_were_made_before(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_until_full(location: Location, *rest: Any) -> None:
        if location.name == "test_own.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replaced(location, *rest)

    monkeypatch.setattr(text_tools, "replaced", replace_until_full)
    use = {"target": "agent", "name": "own", "path": "new"}
    with pytest.raises(ToolFailed) as failed:
        await Codegen(Files(root)).execute(ToolContext(), "write", use)
    assert failed.value.message == (
        "'new/test_own.jsonl' cannot be written: the disk is full; made before that: new/own.py,"
        " new/test_own.py"
    )
    assert (failed.value.executed, failed.value.details["reason"]) == ("yes", "no_space")
    assert sorted(os.listdir(root / "new")) == ["own.py", "test_own.py"]


def rules(behavior: RuleBehavior, match: str) -> Permissions:
    return Permissions(rules=[Rule(behavior=behavior, tool="codegen", match=match)])


@pytest.mark.parametrize(
    ("permissions", "path", "asked", "state"),
    [
        (Permissions(), "src", "makes `src/own.py`, with ", "ok"),
        (Permissions(), ".git", "it says what git does", "ok"),
        (Permissions(), "..", "", "denied"),
        (Permissions(), "there", "would fail for `there/test_own.py`: ", "failed"),
        (Permissions(mode="accept_edits"), "src", "", "ok"),
        (Permissions(mode="accept_edits"), ".git", "it says what git does", "ok"),
        (Permissions(mode="explore"), "src", "", "denied"),
        (rules("allow", "src/**"), "src", "", "ok"),
        (rules("allow", "src/**"), ".", "makes `own.py`, with ", "ok"),
        (rules("allow", "src/own.py"), "src", "makes `src/own.py`, with ", "ok"),
        (rules("allow", ".git/**"), ".git", "it says what git does", "ok"),
        (rules("deny", "test_*.py"), "src", "", "denied"),
    ],
)
async def test_it_is_asked_about_as_files_are(
    root: Path, permissions: Permissions, path: str, asked: str, state: str
) -> None:
    requests = []

    async def person(request: ApprovalRequest) -> ApprovalDecision:
        requests.append(request)
        return ApprovalDecision.allow()

    use = ToolUse("1", "codegen.write", {"target": "tool", "name": "own", "path": path})
    toolkits = [Codegen(Files(root))]
    async with Turn(None, always=toolkits, permissions=permissions, approve=person) as turn:
        (result,) = await turn.run([use])
    assert result.state == state
    assert len(requests) == bool(asked)
    for request in requests:
        assert asked in request.assessment.message
        texts = scaffold("tool", "own").values()
        assert state == "failed" or all(
            f"+{line}" in request.assessment.preview for text in texts for line in text.splitlines()
        )
        if path == "src":
            suggested = [Rule(behavior="allow", tool="codegen.write", match="src/**")]
            assert [*request.assessment.suggestions] == suggested


def test_files_that_are_only_read_cannot_be_written_through(root: Path) -> None:
    with pytest.raises(ValueError, match="read only"):
        Codegen(Files(root, read_only=True))
