"""The toolkit `files`, used in each way that there is: what its tools promise together."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from support.patience import PATIENCE_S
from support.processes.launch import clean_environment
from support.processes.logged_host import host_of
from support.rooms.events import listed
from support.rooms.turns import turn_built, turn_hosted, turn_in_process
from toolbus import AgentState, FileChunk, ToolFailed, Turn, builder_of
from toolbus_server.testing import running_server
from toolbus_toolkits.files import Files, FilesConfig, files

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def _in_process(root: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_in_process(Files(root))


def _hosted(root: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_hosted(files(FilesConfig(root=root)))


def _built(root: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_built(files, "files", root=root)


@pytest.mark.parametrize("offered", [_in_process, _hosted, _built])
async def test_files_are_read_and_changed_in_each_way_the_toolkit_is_offered(
    tmp_path: Path, offered: Any
) -> None:
    (tmp_path / "old.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (tmp_path / "a.png").write_bytes(PNG)
    async with offered(tmp_path) as turn:
        with pytest.raises(ToolFailed) as raised:
            await turn.call("files.edit", path="old.txt", old_text="two", new_text="2")
        assert (raised.value.details["reason"], raised.value.executed) == ("never_read", "no")

        part = await turn.call("files.read", path="old.txt", limit=2)
        assert (
            part["text"] == "     1\tone\n     2\ttwo\n[lines 1 to 2 of 3: read on with offset=3]"
        )
        assert part["truncated"] is True
        edited = await turn.call("files.edit", path="old.txt", old_text="one\n", new_text="1\n1b\n")
        assert edited["diff"] == (
            "--- old.txt\n+++ old.txt\n@@ -1,3 +1,4 @@\n-one\n+1\n+1b\n two\n three"
        )
        added = await turn.call("files.insert", path="old.txt", line=3, text="2b")
        assert (tmp_path / "old.txt").read_bytes() == b"1\r\n1b\r\ntwo\r\n2b\r\nthree\r\n"
        with pytest.raises(ToolFailed, match="lines 1 to 5; read all of them first"):
            await turn.call("files.write", path="old.txt", text="new\n")
        whole = await turn.call("files.read", path="old.txt")
        assert whole["token"] == added["token"]
        await turn.call("files.write", path="old.txt", text="new\nlines\n")
        assert (tmp_path / "old.txt").read_bytes() == b"new\r\nlines\r\n"

        made = await turn.call("files.write", path="sub/dir/new.txt", text="é\n")
        assert made["diff"] == "--- /dev/null\n+++ sub/dir/new.txt\n@@ -0,0 +1 @@\n+é"
        assert (tmp_path / "sub/dir/new.txt").read_text() == "é\n"
        await turn.call("files.edit", path="sub/dir/new.txt", old_text="é", new_text="ü")

        image = (await turn.invoke("files.read", {"path": "a.png"})).value
        assert isinstance(image, FileChunk)
        assert (image.name, image.mime_type, await image.read()) == ("a.png", "image/png", PNG)


async def test_what_an_agent_has_seen_outlives_its_turn_and_the_toolkit(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    state = AgentState()

    async def call(tool: str, **arguments: Any) -> Any:
        builder = builder_of(files, root=tmp_path)
        tools = [builder.type(name="files")]
        async with Turn(None, builders=[builder], tools=tools, state=state) as turn:
            return await turn.call(f"files.{tool}", path="a.txt", **arguments)

    await call("read")
    state = AgentState.from_json(state.to_json())
    await call("edit", old_text="one", new_text="1")
    await call("edit", old_text="two", new_text="2")
    state = AgentState.from_json('{"version": 1, "state": {"files": {"seen": {"x": [1, []]}}}}')
    with pytest.raises(ToolFailed, match="you have not read it"):
        await call("write", text="")
    assert (tmp_path / "a.txt").read_text() == "1\n2\n"


async def test_a_token_of_another_host_counts_as_proof(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    async with _in_process(tmp_path) as here, _hosted(tmp_path) as elsewhere:
        token = (await elsewhere.call("files.read", path="a.txt"))["token"]
        change = {"path": "a.txt", "old_text": "one", "new_text": "1"}
        await here.call("files.edit", change | {"token": token})
        for turn in (here, elsewhere):
            with pytest.raises(ToolFailed) as raised:
                await turn.call("files.write", path="a.txt", text="", token=token)
            assert raised.value.details["reason"] == "changed"
        with pytest.raises(ToolFailed) as raised:
            await elsewhere.call("files.edit", change)
        assert raised.value.details["reason"] == "changed"


@asynccontextmanager
async def _editor(url: str, token: str, name: str, host: str) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.processes.file_editor", url, token, name, host),
        cwd=Path(__file__).parents[2],
        env=clean_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("hosts", [("one", "one"), ("one", "two")])
async def test_two_callers_from_other_processes_lose_no_edit(
    tmp_path: Path, hosts: tuple[str, str]
) -> None:
    names = ["a.txt", "b.txt", "c.txt"]
    for name in names:
        (tmp_path / name).write_text("begin\nend\n")
    # Of two owners only one may have a public toolkit of a name.
    command = ["-m", "toolbus", "host", "files", "--private", "--share", "*"]
    command += ["--root", str(tmp_path)]
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server() as server,
        server.room("watcher") as watcher,
        AsyncExitStack() as stack,
    ):
        for host in sorted(set(hosts)):
            await stack.enter_async_context(host_of(server.url, server.token(host), command))
        async with watcher.events() as events:
            while [kit.name for kit in await listed(watcher)].count("files") < len(set(hosts)):
                await anext(events)
        editors = [
            await stack.enter_async_context(_editor(server.url, server.token(name), name, host))
            for name, host in zip(("ann", "bob"), hosts, strict=True)
        ]
        for editor in editors:
            assert await editor.stdout.readline() == b"read\n"
        for editor in editors:
            editor.stdin.write(b"\n")
        outcomes = [await editor.stdout.readline() for editor in editors]
        # Of two edits of one version one is done: for each of the three files, `changed` or not.
        for first, second in zip(*(line.split() for line in outcomes), strict=True):
            assert {first, second} == {b"done", b"changed"}
        for editor in editors:
            assert await editor.stdout.readline() == b"ended\n"
    for name in names:
        lines = (tmp_path / name).read_text().splitlines()
        assert (lines[0], lines[-1]) == ("begin", "end")
        for caller in ("ann", "bob"):
            own = [line for line in lines if line.startswith(caller)]
            assert [line for line in own if "first" not in line] == [
                f"{caller} {number}" for number in range(10)
            ]
        assert sum("first" in line for line in lines) == 1
        assert len(lines) == 2 + 1 + 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": ""}, "it is empty"),
        ({"root": ".", "further_roots": ["/", ""]}, "it is empty"),
        ({"root": "~nobody-of-this-name/x"}, "no such folder"),
        ({"root": ".", "further_roots": ["/does/not/exist"]}, "no such folder"),
    ],
)
def test_a_root_must_be_a_folder(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FilesConfig.model_validate(options)


@pytest.mark.parametrize(
    "name", ["further_roots", "additional_dangerous_files", "additional_dangerous_directories"]
)
def test_a_text_is_no_list_of_its_letters(name: str) -> None:
    options: dict[str, Any] = {name: "."}
    with pytest.raises(ValidationError, match="valid tuple"):
        Files(**options)
