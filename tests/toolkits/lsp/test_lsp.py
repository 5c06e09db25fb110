"""The toolkit `lsp`: what its tools answer in each way there is, and what servers may do."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.lsp import scripted_server
from support.patience import PATIENCE_S
from support.rooms.events import until
from support.rooms.turns import turn_built, turn_hosted, turn_in_process
from support.sandbox.reach import system_path, working
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    Permissions,
    ToolContext,
    ToolFailed,
    ToolUse,
    Turn,
)
from toolbus_toolkits.files import Files
from toolbus_toolkits.launcher import LaunchFailed
from toolbus_toolkits.lsp import Lsp, LspConfig, documents, lsp, server, servers, tools

__all__ = ["system_path"]
Call = Callable[..., Coroutine[Any, Any, Any]]

MODULE = """\
def doubled(number: int) -> int:
    \"\"\"Return twice a number.\"\"\"
    return 2 * number
"""
USE = "from module import doubled\n\nä = '😀', doubled('3')\nprint(doubled(4))\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "module.py").write_text(MODULE)
    (folder / "use.py").write_text(USE)
    return folder


@pytest.mark.parametrize(
    "offered",
    [
        lambda project: turn_in_process(Lsp(project)),
        lambda project: turn_hosted(lsp(LspConfig(workdir=project))),
        lambda project: turn_built(lsp, "lsp", workdir=project),
    ],
    ids=["in process", "hosted", "built"],
)
async def test_a_project_is_known_in_each_way_the_toolkit_is_offered(
    project: Path, offered: Any
) -> None:
    defined = {"path": "module.py", "line": 1, "column": 5, "text": MODULE.splitlines()[0]}
    uses = [
        {"path": "use.py", "line": line, "column": column, "text": USE.splitlines()[line - 1]}
        for line, column in ((1, 20), (3, 10), (4, 7))
    ]
    symbol = {**defined, "name": "doubled", "kind": "function", "container": ""}
    async with offered(project) as turn:
        found = await turn.call("lsp.symbols", query="doubl")
        assert found == {"symbols": [symbol], "truncated": False}
        parameter = {**defined, "column": 13, "kind": "variable", "container": "doubled"}
        found = await turn.call("lsp.symbols", path="module.py")
        assert found["symbols"] == [symbol, {**parameter, "name": "number"}]

        at = {"path": "use.py", "line": 3, "column": 12}
        found = await turn.call("lsp.definition", **at)
        assert found == {"symbol": "doubled", "locations": [defined], "truncated": False}
        found = await turn.call("lsp.references", **at)
        assert (found["locations"], found["truncated"]) == ([defined, *uses], False)
        found = await turn.call("lsp.hover", **at)
        assert "doubled(number: int) -> int" in found["text"]
        assert "Return twice a number." in found["text"]

        found = await turn.call("lsp.diagnostics", path="use.py")
        (mistake,) = found["diagnostics"]
        place = [mistake[key] for key in ("line", "column", "end_line", "end_column")]
        assert place == [3, 18, 3, 21]
        assert (mistake["severity"], mistake["code"]) == ("error", "reportArgumentType")
        nothing = {"symbol": "", "text": "", "truncated": False}
        assert await turn.call("lsp.hover", path="use.py", line=2, column=1) == nothing


async def test_answers_are_about_what_was_just_written(project: Path) -> None:
    async with Turn(None, always=[Lsp(project), Files(project)]) as turn:

        async def mistakes(path: str = "use.py") -> list[str]:
            found = await turn.call("lsp.diagnostics", path=path)
            return [each["code"] for each in found["diagnostics"]]

        assert await mistakes() == ["reportArgumentType"]
        await turn.call("files.read", path="module.py")
        await turn.call(
            "files.edit", path="module.py", old_text="number: int", new_text="number: str"
        )
        # Both lines are wrong now: the file with the mistakes was not changed.
        assert await mistakes("module.py") == ["reportReturnType"]
        assert await mistakes() == ["reportArgumentType"]
        os.rename(project / "module.py", project / "other.py")
        assert "reportMissingImports" in await mistakes()
        await turn.call("files.write", path="module.py", text="doubled = print\n")
        assert await mistakes() == []
        for text in ("doubled = 1", "doubled = print"):  # made in place, once more after it left
            (project / "module.py").unlink()
            assert "reportMissingImports" in await mistakes()
            (project / "module.py").write_text(text)
            (project / "module.py").unlink()
            (project / "module.py").write_text(text)
            assert "reportMissingImports" not in await mistakes()
        (project / "pyproject.toml").write_text('[tool.pyright]\ntypeCheckingMode = "strict"\n')
        (project / "use.py").write_text("def half(number):\n    return number / 2\n")
        assert "reportMissingParameterType" in await mistakes()


@asynccontextmanager
async def _scripted(project: Path, mode: str, **options: Any) -> AsyncIterator[Call]:
    """Give what calls a tool about `a.x`, in a project with the server of `mode`."""
    log = project.parent / "log"
    words = [sys.executable, "-S", scripted_server.__file__, mode, str(log)]
    log.touch()
    toolkit = Lsp(project, servers={".x": shlex.join(words)}, **options)

    async def call(tool: str = "hover", path: str = "a.x", **arguments: Any) -> Any:
        if tool not in ("diagnostics", "symbols"):
            arguments = {"line": 1, "column": 1, **arguments}
        return (await toolkit.execute(ToolContext(), tool, {"path": path, **arguments})).value

    (project / "a.x").write_text("one\ntwo\n")
    async with Turn(None, always=[toolkit]):
        yield call


def _received(project: Path, method: str) -> list[Any]:
    lines = (project.parent / "log").read_text().splitlines()
    messages = map(json.loads, lines)
    return [message.get("params") for message in messages if message.get("method") == method]


async def test_a_server_has_the_text_of_a_file_as_it_is(project: Path) -> None:
    file = project / "a.x"
    async with _scripted(project, "plain") as call:

        async def text() -> Any:
            return (await call())["text"]

        assert await text() == "one\ntwo"
        assert await text() == "one\ntwo"
        assert _received(project, "textDocument/didChange") == []
        file.write_text("three")
        assert await text() == "three"
        file.with_name("draft").write_text("four")
        os.replace(file.with_name("draft"), file)
        assert await text() == "four"
        file.write_bytes(b"\xef\xbb\xbffive \xff")
        assert await text() == "five �"
        file.unlink()
        with pytest.raises(ToolFailed, match=r"'a\.x' does not exist"):
            await call()
        (project / "inner").mkdir()
        (project / "inner" / "b.x").write_text("b")
        assert (await call(path="inner/b.x"))["text"] == "b"
        file.write_text("six")
        os.rename(project / "inner", project / "moved")
        assert await text() == "six"
        assert len(_received(project, "initialize")) == 1
    uri = file.as_uri()
    opened = [each["textDocument"] for each in _received(project, "textDocument/didOpen")]
    closed = [each["textDocument"] for each in _received(project, "textDocument/didClose")]
    inner = (project / "inner" / "b.x").as_uri()
    assert [each["uri"] for each in opened] == [uri, inner, uri]
    assert closed == [{"uri": uri}, {"uri": inner}]
    changes = [each["changes"] for each in _received(project, "workspace/didChangeWatchedFiles")]
    folder = {"uri": (project / "inner").as_uri(), "type": 3}
    assert [folder in each for each in changes] == [False] * (len(changes) - 1) + [True]


async def test_only_so_many_files_are_open(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MAX_OPEN", 1)
    async with _scripted(project, "plain") as call:
        (project / "b.x").write_text("b")
        assert (await call())["text"] == "one\ntwo"
        assert (await call(path="b.x"))["text"] == "b"
        assert (await call())["text"] == "one\ntwo"
    assert len(_received(project, "textDocument/didClose")) == 2


async def test_where_changes_are_lost_the_server_is_started_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_MAX_CHANGES", 2)
    async with _scripted(project, "plain") as call:
        await call()
        for number in range(3):
            (project / f"{number}.x").touch()
        (project / "a.x").write_text("changed")
        assert (await call())["text"] == "changed"
    assert len(_received(project, "initialize")) == 2


async def test_where_another_folder_is_in_its_place_the_server_is_started_again(
    project: Path,
) -> None:
    async with _scripted(project, "plain") as call:
        await call()
        os.rename(project, project.with_name("moved"))
        os.mkdir(project)
        (project / "a.x").write_text("another")
        assert (await call())["text"] == "another"
    assert len(_received(project, "initialize")) == 2


async def test_what_is_installed_starts_the_server_again(project: Path) -> None:
    packages = project / "node_modules" / "new"
    async with _scripted(project, "plain") as call:
        await call()
        packages.mkdir(parents=True)
        (packages / "index.x").touch()
        await call()
        (packages / "__pycache__").mkdir()
        (packages / "__pycache__" / "index.pyc").touch()
        await call()
    assert len(_received(project, "initialize")) == 2


async def test_a_server_that_tells_diagnostics_is_asked_by_the_text(project: Path) -> None:
    async with _scripted(project, "plain") as call:
        (project / "a.x").write_text("a!\nb\nc!")
        found = await call("diagnostics")
        assert [each["line"] for each in found["diagnostics"]] == [1, 3]
        (project / "a.x").write_text("a")
        assert await call("diagnostics") == {"diagnostics": [], "truncated": False}


# What a server does, what the call then says, and how often the server was started.
ENDINGS = {
    "dies": ("has ended 4 times in 10 minutes, .*: it was ended by SIGKILL", 4),
    "no server": ("does not run: it has not begun: it ended with status 3", 0),
    "endless head": ("does not run: it has not begun: what it writes is no message", 0),
    "huge": ("does not run: it has not begun: it wrote a message of 99,999,999,999 bytes", 0),
    "flooding": ("has ended 4 times in 10 minutes, .*: it writes without end", 4),
    "hanging": ("does not run: it has not begun in 0 s", 0),
    "refusing": (r"the language server answered: no\\nsuch \\x1b\[31m thing", 1),
    "deep": ("has ended 4 times in 10 minutes, .*: it wrote JSON that is no message", 4),
    "wide": ("the language server answered: an answer that is not read: a part of its", 1),
    "wrong": ("the language server's answer is not of its protocol", 1),
}


@pytest.mark.parametrize("mode", ENDINGS)
async def test_a_server_that_does_not_serve_fails_the_call(
    project: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, starts = ENDINGS[mode]
    monkeypatch.setattr(server, "_MAX_UNASKED_BYTES", 4_000_000)
    if mode == "hanging":
        monkeypatch.setattr(server, "_INITIALIZE_S", 0.1)
    async with _scripted(project, mode) as call:
        with pytest.raises(ToolFailed, match=words):
            await call()
    assert len(_received(project, "initialized")) == starts


async def test_what_ends_too_often_is_started_again_later(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _scripted(project, "dies 4") as call:
        for _ in range(2):
            with pytest.raises(ToolFailed, match="ended 4 times"):
                await call()
        assert len(_received(project, "initialize")) == 4
        monkeypatch.setattr(servers, "_WITHIN_S", 0.0)
        assert (await call())["text"] == "one\ntwo"


async def test_a_server_that_ends_meanwhile_or_is_busy_is_asked_again(project: Path) -> None:
    async with _scripted(project, "dies 1") as call:
        assert (await call())["text"] == "one\ntwo"
    assert len(_received(project, "initialize")) == 2
    async with _scripted(project, "changing") as call:
        assert (await call())["text"] == "one\ntwo"


async def test_a_question_ends_with_its_call_and_with_its_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_MAX_ANSWER_S", 0.5)
    async with _scripted(project, "silent") as call:
        with pytest.raises(ToolFailed, match="has not answered in 0 s"):
            await call()
        assert (await call("definition"))["symbol"] == "one"  # it goes on
        monkeypatch.setattr(tools, "_MAX_ANSWER_S", PATIENCE_S)
        calling = asyncio.create_task(call())
        await until(lambda: len(_received(project, "textDocument/hover")) == 2)
        calling.cancel()
        await asyncio.wait([calling])
        assert (await call("definition"))["symbol"] == "one"
    assert len(_received(project, "$/cancelRequest")) == 2


async def test_a_server_may_ask_for_settings_and_change_nothing(project: Path) -> None:
    settings = {"x": {"deep": [1]}, "y": True}
    async with _scripted(project, "asking", settings={"x.deep": [1], "y": True}) as call:
        answers = json.loads((await call())["text"])
    edited, shown, chosen, command, found, folders = answers
    assert (edited["applied"], shown, chosen) == (False, {"success": False}, None)
    assert command["code"] == -32601
    assert found == [[1], True, settings, settings]
    assert folders == [{"uri": project.as_uri(), "name": "project"}]


async def test_of_what_is_outside_or_secret_only_the_path_is_shown(project: Path) -> None:
    (project / ".env").write_text("TOKEN=secret")
    (project / "link").symlink_to("/etc/hostname")
    async with _scripted(project, "plain") as call:
        found = await call("definition")
        assert [(each["path"], each["text"]) for each in found["locations"]] == [
            (".env", None),
            (str(project / "link"), None),
            (f"{project.as_uri()}/%00", None),
            ("/etc/hostname", None),
            ("x:thing", None),
        ]
    async with _scripted(project, "many") as call:
        found = await call("references")
        assert (len(found["locations"]), found["truncated"]) == (200, True)


async def test_a_path_or_a_place_that_is_not_there_is_refused(project: Path) -> None:
    (project / "out.x").symlink_to("/etc/hostname")
    (project / "folder.x").mkdir()
    os.mkfifo(project / "pipe.x")
    with (project / "large.x").open("wb") as file:
        file.truncate(5 * 1024 * 1024)
    refused: dict[str, dict[str, Any]] = {
        "'out.x' is outside of what these tools reach": {"path": "out.x"},
        "'../x.x' is outside of what these tools reach": {"path": "../x.x"},
        "'none.x' does not exist": {"path": "none.x"},
        "'folder.x' is a folder, not a file": {"path": "folder.x"},
        "'pipe.x' is a FIFO, not a file": {"path": "pipe.x"},
        "large.x is larger than 2,097,152 bytes": {"path": "large.x"},
        "no language server for files that end with .y": {"path": "a.y"},
        "no language server for files without an end": {"path": "a"},
        "there is no language server for go: .* --server go=COMMAND": {"path": "a.go"},
        "the file has 3 lines, and no line 4": {"line": 4},
        "line 1 has 3 characters, and no column 5": {"column": 5},
    }
    for name in ("a.y", "a", "a.go"):
        (project / name).touch()
    async with _scripted(project, "plain") as call:
        for words, arguments in refused.items():
            with pytest.raises(ToolFailed, match=words):
                await call(**arguments)
        with pytest.raises(ToolFailed, match=r"give `path` .* or `query`"):
            await call("symbols", path=None)
        assert (await call(line=1, column=4))["symbol"] == "one"


async def test_a_server_that_is_not_installed_is_found_at_the_start(project: Path) -> None:
    with pytest.raises(LaunchFailed, match="the server for go is not installed: /none"):
        async with turn_hosted(Lsp(project, servers={"go": "/none"})):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"servers": {"klingon": "x"}},
            "'klingon' is no language: write the end of its files",
        ),
        ({"servers": {"go": " "}}, "the command of go is empty"),
        ({"servers": {"go": "'x"}}, "the command of go: No closing quotation"),
        ({"servers": {".": "x"}}, r"'\.' is no language"),
        ({"settings": {"a": 1, "a.b": 2}}, "'a' in 'a.b' has a value too"),
        ({"further_roots": ["/none"]}, "there is no such folder: '/none'"),
        ({"sandbox": {"backend": "docker", "image": "x"}}, "docker is not supported here"),
    ],
)
def test_a_wrong_option_is_refused(project: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Lsp(project, **options)


_HOVER = {"path": "use.py", "line": 1, "column": 20}


async def test_a_start_without_a_sandbox_asks_a_person(project: Path) -> None:
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(request)
        return ApprovalDecision.allow()

    toolkit = Lsp(project)
    turn = Turn(None, always=[toolkit], permissions=Permissions("default"), approve=approve)
    async with turn:
        for number in "12":
            (result,) = await turn.run([ToolUse(number, "lsp.hover", _HOVER)])
            assert result.state == "ok"
        (question,) = asked
        assert "starts the language server for python" in question.assessment.message
        (slot,) = toolkit._servers._slots.values()
        assert slot.server is not None
        os.killpg(slot.server._program.pid, 9)
        await until(lambda: not slot.is_running)
        await turn.run([ToolUse("3", "lsp.hover", _HOVER)])
        assert len(asked) == 2
    async with Turn(None, always=[Lsp(project)], permissions=Permissions("explore")) as turn:
        (result,) = await turn.run([ToolUse("1", "lsp.hover", _HOVER)])
        assert result.state == "denied"


async def test_a_call_that_was_allowed_since_its_server_ran_starts_none(project: Path) -> None:
    toolkit = Lsp(project)
    async with Turn(None, always=[toolkit], permissions=Permissions("explore")) as turn:
        toolkit._servers.runs = lambda key: True  # type: ignore[method-assign]
        (result,) = await turn.run([ToolUse("1", "lsp.hover", _HOVER)])
    assert "has to be started, and was not when the call was allowed" in str(result.error)


async def test_a_confined_server_reads_only_and_no_person_is_asked(project: Path) -> None:
    working("bubblewrap", what="language servers in a sandbox")
    secret = project / ".env"
    secret.write_text("TOKEN=secret")
    (project / "a.x").write_text("one")
    shutil.copy(scripted_server.__file__, project / "server.py")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        words = [sys.executable, "-S", "server.py", "reaching", f"/none/{port}"]
        toolkit = Lsp(project, sandbox="bubblewrap", servers={".x": shlex.join(words)})
        async with Turn(None, always=[toolkit], permissions=Permissions("explore")) as turn:
            for _ in range(2):
                found = await turn.call("lsp.hover", path="a.x", line=1, column=1)
                assert json.loads(found["text"]) == [0, 1, 2, 3]
                (project / "new").write_text("TOKEN=other")
                os.replace(project / "new", secret)  # as editors do: another file
            (result,) = await turn.run([ToolUse("1", "lsp.hover", _HOVER)])
            assert result.state == "ok"


async def test_landlock_hides_no_secret_of_a_project_and_says_so(project: Path) -> None:
    working("landlock", what="language servers in a sandbox")
    async with Turn(None, always=[Lsp(project, sandbox="landlock")]) as turn:
        assert "int" in (await turn.call("lsp.hover", **_HOVER))["text"]
        (project / ".env").write_text("TOKEN=secret")
        with pytest.raises(ToolFailed, match="landlock cannot hide the secrets"):
            await turn.call("lsp.hover", **_HOVER)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sandbox": "landlock"},
        {"sandbox": "subprocess"},
        {"sandbox": "bubblewrap", "network": True},
        {"sandbox": {"backend": "bubblewrap", "protect": False}},
    ],
)
def test_what_may_do_more_than_read_is_asked_about(project: Path, options: Any) -> None:
    assert not Lsp(project, **options)._servers.reads_only()


async def test_a_call_starts_only_the_servers_that_it_was_judged_by(project: Path) -> None:
    """A file that comes after the judgement starts nothing."""
    toolkit = Lsp(project)
    find = toolkit._servers.language_of

    def found_late(path: str) -> str:
        toolkit._servers.language_of = find  # type: ignore[method-assign]
        raise ToolFailed("it is not there yet")

    async with Turn(None, always=[toolkit], permissions=Permissions("explore")) as turn:
        toolkit._servers.language_of = found_late  # type: ignore[method-assign]
        (result,) = await turn.run([ToolUse("1", "lsp.hover", _HOVER)])
    assert "has to be started, and was not when the call was allowed" in str(result.error)
