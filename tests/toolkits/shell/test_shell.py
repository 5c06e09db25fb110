"""The toolkit `shell`, used in each way that there is: `run` and what it promises."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from support.patience import PATIENCE_S
from support.processes.held_pipe import held_pipe
from support.rooms.turns import turn_built, turn_hosted, turn_in_process
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
from toolbus_server.testing import room_of, running_server
from toolbus_toolkits.shell import Shell, ShellConfig, shell, tools

Call = Callable[..., Coroutine[Any, Any, Any]]


def _in_process(workdir: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_in_process(Shell(workdir))


def _hosted(workdir: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_hosted(shell(ShellConfig(workdir=workdir)))


def _built(workdir: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_built(shell, "shell", workdir=workdir)


@pytest.mark.parametrize("offered", [_in_process, _hosted, _built])
async def test_commands_and_jobs_run_in_each_way_the_toolkit_is_offered(
    tmp_path: Path, offered: Any
) -> None:
    seen: list[Any] = []
    async with offered(tmp_path) as turn:
        assert await turn.call("shell.run", command="echo out; echo err >&2; exit 3") == {
            "exit": 3,
            "stdout": "out\n",
            "stderr": "err\n",
            "timed_out": False,
            "truncated": False,
            "job": None,
        }
        where = await turn.call("shell.run", command="pwd; cat")
        assert where["stdout"] == f"{os.path.realpath(tmp_path)}\n"  # noqa: ASYNC240 - a folder of the test

        def note(value: Any) -> None:
            seen.append(value)
            (tmp_path / "go").touch()

        line = "echo first; until [ -e go ]; do sleep 0.01; done; rm go"
        await turn.invoke("shell.run", {"command": line}, on_progress=note)
        assert seen[0] == {"stdout": "first\n", "stderr": ""}
        line = "echo early; sleep 60"
        ended = await turn.call("shell.run", command=line, timeout_s=1)
        assert (ended["timed_out"], ended["exit"], ended["stdout"]) == (True, None, "early\n")
        # Before the deadline of the call, so that the output is not lost.
        late = (await turn.invoke("shell.run", {"command": line}, timeout_s=3)).value
        assert (late["timed_out"], late["stdout"]) == (True, "early\n")

        job = (await turn.call("shell.run", command="cat", background=True))["job"]
        assert await turn.call("shell.write", job=job, text="hello\n") == {"waiting": False}
        page: Any = {"text": ""}
        while not page["text"]:
            page = await turn.call("shell.read", job=job)
        assert page == {"text": "hello\n", "next": 6, "size": 6, "running": True, "exit": None}
        (listed,) = await turn.call("shell.jobs")
        assert (listed["job"], listed["command"], listed["running"]) == (job, "cat", True)
        assert (await turn.call("shell.stop", job=job))["exit"] == 137


def _caller(workdir: Path, **options: Any) -> Call:
    toolkit = Shell(workdir, **options)

    async def call(tool: str = "run", **arguments: Any) -> Any:
        return (await toolkit.execute(ToolContext(), tool, arguments)).value

    return call


async def test_a_long_output_is_cut_in_its_middle_and_can_be_read_to_its_end(
    tmp_path: Path,
) -> None:
    call = _caller(tmp_path)
    result = await call(command="seq 1 20000; echo failed >&2")
    assert (result["truncated"], result["stderr"]) == (True, "failed\n")
    assert len(result["stdout"]) + len(result["stderr"]) <= 30_000
    assert result["stdout"].startswith("1\n2\n")
    assert result["stdout"].endswith("19999\n20000\n")
    first, _, rest = result["stdout"].partition("\n[")
    offset = int(rest.partition("offset ")[2].partition("]")[0])
    text, page = first, {"next": offset, "size": offset + 1}
    while page["next"] < page["size"]:
        page = await call("read", job=result["job"], offset=page["next"])
        text += page["text"]
    assert text.replace("failed\n", "") == "".join(f"{number}\n" for number in range(1, 20001))


async def test_both_streams_share_the_characters_of_one_result(tmp_path: Path) -> None:
    result = await _caller(tmp_path)(command="seq 1 20000; seq 1 20000 >&2")
    assert min(len(result["stdout"]), len(result["stderr"])) > 14_000
    assert len(result["stdout"]) + len(result["stderr"]) <= 30_000


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"\303\244\342\202\254", "ä€"),
        (r"\377\303", "��"),
        (r"a\0b\033[31m", r"a\x00b\x1b[31m"),
        (r"50%%\r100%%\r\nend", "50%\n100%\nend"),
        (r"\342\200\256abc", r"\u202eabc"),
    ],
)
async def test_output_is_shown_as_text_that_hides_nothing(
    tmp_path: Path, written: str, shown: str
) -> None:
    result = await _caller(tmp_path)(command=f"printf '{written}'")
    assert result["stdout"] == shown


@pytest.mark.parametrize("command", ["yes", "cat /dev/zero >&2"])
async def test_endless_output_ends_the_command_and_leaves_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(tools, "_MAX_OUTPUT_BYTES", 6 * 1024 * 1024)
    call = _caller(tmp_path)
    running = asyncio.create_task(call(command=command))
    assert (await call(command="echo 1"))["stdout"] == "1\n"
    result = await running
    assert result["exit"] is None
    assert result["stderr"].endswith("[it was ended: it wrote more than 6,291,456 bytes]\n")
    page = await call("read", job=result["job"], offset=400_000)
    assert "characters are not kept any more]" in page["text"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (" \n", "is empty"),
        ("echo a\0b", "contains a NUL"),
        ("echo \ud800", "unicode"),
        ("é" * 65_000, "at most 122,880"),
        ("", "shorter than 1"),
        ("e" * 70_000, "longer than"),
    ],
)
async def test_a_command_that_bash_cannot_be_given_is_refused(
    tmp_path: Path, command: str, words: str
) -> None:
    with pytest.raises((ToolFailed, InvalidArguments), match=words):
        await _caller(tmp_path)(command=command)


async def test_a_command_of_the_largest_size_runs(tmp_path: Path) -> None:
    command = "true " + "é" * 61_000
    assert (await _caller(tmp_path, keep=True)(command=command))["exit"] == 0


@pytest.mark.parametrize("offered", [_in_process, _hosted])
async def test_an_error_says_that_no_command_was_started(tmp_path: Path, offered: Any) -> None:
    async with offered(tmp_path) as turn:
        await turn.call("shell.run", command="rmdir $PWD")
        for arguments in ({"command": "true"}, {"command": "true", "background": True}):
            with pytest.raises(ToolFailed, match="there is no folder") as raised:
                await turn.call("shell.run", **arguments)
            assert raised.value.executed == "no"


async def test_a_folder_that_vanished_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    call = _caller(folder)
    folder.rmdir()
    with pytest.raises(ToolFailed, match=f"there is no folder {folder}"):
        await call(command="true")
    with pytest.raises(ToolFailed, match=f"there is no folder {folder}"):
        await call(command="true", background=True)
    assert await call("jobs") == []


async def test_a_cancelled_call_ends_all_that_it_started(tmp_path: Path) -> None:
    line = "exec >held; setsid sleep 60 & sleep 60 & echo ready; wait"
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        running = asyncio.create_task(_caller(tmp_path)(command=line))
        assert await held.readline() == b"ready\n"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await held.read() == b""


async def test_a_caller_that_leaves_ends_its_command(tmp_path: Path) -> None:
    line = "exec >held; echo ready; sleep 60"
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server() as server,
        server.room("host") as host,
        host.host(Shell(tmp_path), public=True),
        held_pipe(tmp_path / "held") as held,
    ):
        async with server.room("agent") as agent:
            running = asyncio.create_task(agent.call("shell.run", command=line))
            assert await held.readline() == b"ready\n"
        assert await held.read() == b""
        assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], Exception)


@pytest.mark.parametrize(
    ("limit", "command"),
    [
        ({"max_file_mib": 1}, "head -c 2M /dev/zero >big"),
        ({"max_memory_mib": 64}, "head -c 256M /dev/zero | tail -n 1 >big"),
    ],
)
async def test_each_process_has_the_limits_of_the_operator(
    tmp_path: Path, limit: dict[str, int], command: str
) -> None:
    result = await _caller(tmp_path, **limit)(command=f"set -o pipefail; {command}")
    assert result["exit"] != 0
    assert not result["timed_out"]


async def test_commands_get_no_setting_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TOOLBUS_TOKEN", "OPENAI_API_KEY", "SSH_AUTH_SOCK", "GIT_DIR"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}:bin:")
    call = _caller(tmp_path, inherit=["SSH_AUTH_SOCK"], env={"MODE": "test"})
    found = (await call(command="env"))["stdout"]
    variables = dict(line.split("=", 1) for line in found.splitlines())
    assert [name for name, value in variables.items() if value == "secret"] == ["SSH_AUTH_SOCK"]
    assert (variables["MODE"], variables["GIT_OPTIONAL_LOCKS"]) == ("test", "0")
    assert variables["PIP_DISABLE_PIP_VERSION_CHECK"] == "1"
    assert all(map(os.path.isabs, variables["PATH"].split(":")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workdir": "/does/not/exist"}, "no such folder"),
        ({"env": {"TOOLBUS_TOKEN": "x"}}, "a setting of toolbus"),
        ({"inherit": ["TOOLBUS_TOKEN"]}, "a setting of toolbus"),
        ({"env": {"A=B": "x"}}, "no name of a variable"),
        ({"env": {"A": "x\0"}}, "contains NUL"),
        ({"env": {"BASH_ENV": "x"}}, "changes how bash reads"),
        ({"max_jobs": 0}, "greater than or equal to 1"),
        ({"additional_dangerous_files": "*.csv"}, "valid tuple"),
        ({"inherit": "HOME"}, "valid tuple"),
    ],
)
def test_an_invalid_config_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Shell(**options)


def test_without_bash_there_is_no_shell(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no bash in PATH"):
        Shell(tmp_path, env={"PATH": str(tmp_path)})


def test_a_request_to_a_builder_cannot_widen_what_commands_may(tmp_path: Path) -> None:
    assert list(builder_of(shell, workdir=tmp_path).type.model_fields) == ["name", "keep"]


@pytest.mark.parametrize(
    ("command", "asks"),
    [("ls", False), ("rm -r old", True), ("git status", False), ("ls; git push", True)],
)
async def test_a_policy_is_asked_about_the_command_line(
    tmp_path: Path, command: str, asks: bool
) -> None:
    rules = [Rule(behavior="allow", tool="shell.run", match="git status:*")]
    policy = Permissions("default", rules, trusted_owners=[])
    toolkit = Shell(tmp_path, policy=policy)
    assessment = await toolkit.assess(ToolContext(), "run", {"command": command})
    assert assessment.refusal == ""
    assert (assessment.asks != "") is asks


@pytest.mark.parametrize(
    ("command", "immune"),
    [
        ("cp a .venv/bin/ls", True),
        ("touch tools/link/ls", True),
        ("mkdir -p node_modules", True),
        ("cp -r x/. .", True),
        ("touch a; cp a b; mkdir -p .venv/lib", False),
    ],
)
async def test_no_accepted_edit_makes_a_file_that_takes_the_place_of_a_command(
    tmp_path: Path, command: str, immune: bool
) -> None:
    for folder in (".venv/bin", "tools", "x/.venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tools/link").symlink_to(tmp_path / ".venv/bin")
    (tmp_path / "x/.venv/bin/ls").touch()
    folders = [tmp_path / ".venv/bin", tmp_path / "node_modules/.bin"]
    path = ":".join([*map(str, folders), os.environ["PATH"]])
    assessment = await Shell(tmp_path, env={"PATH": path}).assess(
        ToolContext(), "run", {"command": command}
    )
    assert (assessment.immune, assessment.within_workdir) == (immune, not immune)
    assert ("is in PATH" in assessment.message) is immune


async def test_a_shell_without_a_policy_says_so_when_it_is_hosted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with room_of("host") as (host,):
        async with host.host(Shell(tmp_path, policy=Permissions("bypass"))):
            assert "has no policy" not in caplog.text
        async with host.host(Shell(tmp_path)):
            assert "toolkit shell has no policy: whoever may call it runs any" in caplog.text


@pytest.mark.parametrize("package", ["tree_sitter", "tree_sitter_bash"])
def test_a_missing_extra_is_named(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import toolbus_toolkits.shell"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr.strip().splitlines()[-1] == (
        "ModuleNotFoundError: the toolkit shell needs more packages: pip install 'toolbus[shell]'"
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("git commit --allow-empty", "empty commit message"),
        ("git commit --allow-empty -qm a && git tag -a v1", "no tag message"),
        ("git -c core.editor=vi commit --allow-empty", "empty commit message"),
        ("git commit --allow-empty -qm a && git commit --amend --allow-empty", "a"),
        ("git commit --allow-empty -qm a && git rebase -i --root", "Successfully rebased"),
        ('$EDITOR a; $VISUAL a; echo "$TERM"; a=$(GIT_PAGER= git var GIT_PAGER)', "dumb"),
    ],
)
async def test_no_editor_waits_for_a_person(tmp_path: Path, command: str, words: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("vi", "vim", "nano", "editor"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexec sleep 600\n")
        (tmp_path / "bin" / name).chmod(0o755)
    names = {
        f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), **names}
    toolkit = Shell(tmp_path, env=env)
    result: Any = (
        await toolkit.execute(ToolContext(), "run", {"command": f"git init -q; {command}"})
    ).value
    assert not result["timed_out"]
    assert words in result["stdout"] + result["stderr"]


async def test_an_editor_that_the_operator_names_is_used(tmp_path: Path) -> None:
    toolkit = Shell(tmp_path, env={"EDITOR": "ed", "TERM": "xterm"})
    command = 'echo "$EDITOR $TERM $VISUAL"'
    result: Any = (await toolkit.execute(ToolContext(), "run", {"command": command})).value
    assert result["stdout"] == "ed xterm true\n"


@pytest.mark.parametrize(
    "command",
    [
        '"./my script.sh" x',
        "./my\\ script.sh",
        "export A=1; npm test",
        "A=1 npm test",
        'npm test "$X" && touch "$X"',
        "npm ci\nnpm test > out.txt\n",
        "npm ci && make a && cargo b && go c && tox && ruff check && mypy",
        "for X in a b; do npm run $X; done",
        "git commit -m 'a\n\nb' && FOO='x y' make",
        "LIST=$(npm ls); make",
    ],
)
async def test_a_line_that_is_always_allowed_is_not_asked_about_again(
    tmp_path: Path, command: str
) -> None:
    questions: list[ApprovalRequest] = []

    async def person(question: ApprovalRequest) -> ApprovalDecision:
        questions.append(question)
        return ApprovalDecision.allow("state", rule=question.decision.suggestions)

    (tmp_path / "bin").mkdir()
    for name in ("npm", "make", "cargo", "go", "tox", "ruff", "mypy", "git"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    toolkit = Shell(tmp_path, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    async with Turn(None, always=[toolkit], permissions=Permissions(), approve=person) as turn:
        for _ in range(2):
            await turn.run([ToolUse("1", "shell.run", {"command": command})])
    assert len(questions) == 1
    assert questions[0].decision.suggestions
