"""Commands of a confined shell: what they reach, what works in it, and what permissions know."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.pytest_plugins.missing_parts import not_verified
from support.rooms.turns import turn_hosted, turn_in_process
from support.sandbox.reach import system_path, working
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    Permissions,
    ToolContext,
    ToolFailed,
    ToolUse,
    Turn,
    builder_of,
)
from toolbus.factories.factory import read_factory
from toolbus_toolkits.sandbox import (
    Backend,
    SandboxConfig,
    SandboxPolicy,
    SandboxUnavailable,
    ToolRiskProfile,
    summary,
)
from toolbus_toolkits.shell import Shell, ShellConfig, shell

__all__ = ["system_path"]
Call = Callable[..., Coroutine[Any, Any, Any]]


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> Any:
    return _working(request.param)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    return folder


_working = partial(working, what="commands in a sandbox")


def _caller(workdir: Path, **options: Any) -> Call:
    toolkit = Shell(workdir, **options)

    async def call(tool: str = "run", **arguments: Any) -> Any:
        return (await toolkit.execute(ToolContext(), tool, arguments)).value

    return call


async def test_a_command_reaches_its_folder_and_nothing_outside(
    project: Path, backend: str
) -> None:
    run = _caller(project, sandbox=backend)
    inside = await run(command="echo a > a.txt && cat a.txt && mkdir -p b/c && pwd")
    assert (inside["exit"], inside["stdout"]) == (0, f"a\n{project}\n")
    assert (inside["sandbox"], (project / "b" / "c").is_dir()) == (backend, True)
    read = await run(command="cat ../outside.txt")
    assert (read["exit"], read["stdout"]) == (1, "")
    assert "outside.txt: " in read["stderr"]
    written = await run(command="echo b > ../outside.txt; echo b > /etc/toolbus-proof")
    assert written["exit"] == 1
    assert "/etc/toolbus-proof: " in written["stderr"]
    assert (project.parent / "outside.txt").read_text() == "outside"


@pytest.mark.parametrize("network", [False, True])
async def test_a_command_uses_the_network_only_where_it_may(
    project: Path, backend: str, network: bool
) -> None:
    run = _caller(project, sandbox=backend, network=network)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "/".join(map(str, server.getsockname()))
        connected = await run(command=f"exec 3<> /dev/tcp/{address}")
    assert (connected["exit"] == 0) == network, connected


async def test_an_unconfined_shell_is_defined_as_before(project: Path) -> None:
    assert set(await _caller(project)(command="true")) == {
        *("exit", "stdout", "stderr", "timed_out", "truncated", "job"),
    }
    schemas = [
        next(tool.output_schema for tool in Shell(project, sandbox=sandbox).tools)
        for sandbox in (None, "auto")
    ]
    found = [schema is not None and "protected" in schema["properties"] for schema in schemas]
    assert found == [False, True]


async def test_secrets_are_unreadable_and_hooks_unwritable_where_it_is_protected(
    project: Path,
) -> None:
    run = _caller(project, sandbox=_working("bubblewrap"))
    (project / ".env").write_text("secret")
    assert (await run(command="git init -q"))["exit"] == 0
    result = await run(command="cat .env; touch .git/hooks/pre-commit; echo x >> .git/config")
    assert (result["protected"], result["stdout"]) == (True, "")
    assert result["stderr"].count("Read-only file system") == 2
    job = await run(command="sleep 100", background=True)
    beside = await run(command="cat .env")
    if not beside["protected"]:  # before bubblewrap 0.12
        assert beside["stdout"] == "secret"
    await run("stop", job=job["job"])
    assert (await run(command="cat .env"))["protected"]


async def test_nothing_is_protected_by_landlock_and_the_result_says_so(project: Path) -> None:
    run = _caller(project, sandbox=_working("landlock"))
    (project / ".env").write_text("secret")
    result = await run(command="cat .env")
    assert (result["stdout"], result["protected"]) == ("secret", False)


async def test_jobs_are_confined(project: Path, backend: str) -> None:
    async with turn_in_process(Shell(project, sandbox=backend)) as turn:
        started = await turn.call("shell.run", command="bash", background=True)
        assert (started["sandbox"], started["stdout"]) == (backend, "")
        job, text = started["job"], "cat ../outside.txt; echo x > x; echo done\n"
        await turn.call("shell.write", job=job, text=text)
        page: Any = {"text": ""}
        while "done" not in page["text"]:
            page = await turn.call("shell.read", job=job)
        assert "outside.txt: " in page["text"]
        assert (project / "x").exists()


async def test_directory_and_variables_are_those_of_the_last_command(
    project: Path, backend: str
) -> None:
    run = _caller(project, sandbox=backend, keep=True, env={"GIVEN": "1"})
    await run(command="mkdir sub; cd sub; export OWN=$'a\\nb' GIVEN=2")
    result = await run(command='pwd; echo "$OWN $GIVEN"')
    assert result["stdout"] == f"{project}/sub\na\nb 2\n"
    variables = (await run(command="env"))["stdout"]
    assert "TOOLBUS_" not in variables
    assert (await run(command='[ -d "$HOME" ] && ls -A "$HOME" && touch "$HOME/x"'))["exit"] == 0
    await run(command="cd /tmp")  # its own one, which ends with it
    with pytest.raises(ToolFailed, match="/tmp is not in the sandbox: nothing was run") as failed:
        await run(command="pwd")
    assert failed.value.executed == "no"
    assert (await run(command="pwd"))["stdout"] == f"{project}\n"


async def test_folders_of_the_sandbox_are_no_change_of_the_session(
    project: Path, backend: str
) -> None:
    async with _Agent(project, "default", sandbox=backend, keep=True) as agent:
        for _ in range(2):
            assert (await agent.run("ls && pwd")).value["exit"] == 0
        assert agent.asked == []


async def test_working_directories_of_the_turn_may_be_changed_too(
    project: Path, tmp_path: Path, backend: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for folders, exit in (([other], 0), ([], 1)):
        permissions = Permissions("bypass", workdirs=folders)
        toolkit = Shell(project, sandbox=backend)
        async with Turn(None, always=[toolkit], permissions=permissions) as turn:
            result = await turn.call("shell.run", command=f"echo x > {other}/x && ls {other}")
            assert (result["exit"], result["stdout"]) == (exit, "" if exit else "x\n")


async def test_a_working_directory_that_became_a_symlink_is_refused(
    tmp_path: Path, backend: str
) -> None:
    for name in ("repo/app", "other"):
        (tmp_path / name).mkdir(parents=True)
    config = SandboxConfig.model_validate({"backend": backend, "write": [str(tmp_path / "repo")]})
    run = _caller(tmp_path / "repo" / "app", sandbox=config)
    assert (await run(command="mv ../app ../was; ln -s ../other ../app"))["exit"] == 0
    with pytest.raises(ToolFailed, match="is reached by a symlink now"):
        await run(command="echo x > x")
    assert os.listdir(tmp_path / "other") == []


TOOLS = {
    "git": "git init -q && git -c user.name=a -c user.email=a@b commit -qm one --allow-empty"
    " && git log --format=%s",
    "make": "printf 'all:\\n\\t@echo one\\n' > Makefile && make -s",
    "cc": "echo 'int puts(const char *); int main(void) { puts(\"one\"); }' > a.c && cc a.c"
    " && ./a.out",
    "npm": 'echo \'{"scripts": {"test": "echo one"}}\' > package.json && npm test --silent',
    "pytest": "printf 'def test_a(): pass\\ndef test_b(): pass\\n' > test_a.py"
    " && PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pytest -q -p xdist -n2 test_a.py"
    " | grep -q '2 passed' && echo one",
    "uv": "export UV_PYTHON=$(command -v python) UV_OFFLINE=1; uv init -q --bare"
    " && uv run -q python -c 'print(\"one\")'",
}


@pytest.mark.parametrize("program", TOOLS)
async def test_tools_of_developers_work(project: Path, backend: str, program: str) -> None:
    path = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    if shutil.which(program, path=path) is None:
        not_verified(f"{program} in a sandbox", f"there is no {program}", ci_has_it=False)
    result = await _caller(project, sandbox=backend, env={"PATH": path})(command=TOOLS[program])
    assert (result["exit"], result["stdout"]) == (0, "one\n"), result


class _Agent:
    """Runs lines of an agent by a shell that is confined, and notes what a person is asked."""

    def __init__(self, project: Path, mode: Any = "accept_edits", **options: Any) -> None:
        self.toolkit = Shell(project, **options)
        self.asked: list[str] = []
        self.meanwhile: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self.turn = Turn(
            None, always=[self.toolkit], permissions=Permissions(mode), approve=self._approve
        )

    async def _approve(self, request: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(request.decision.reason)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return ApprovalDecision.allow()

    async def __aenter__(self) -> _Agent:
        await self.turn.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.turn.__aexit__(*error)

    async def run(self, command: str, **arguments: Any) -> Any:
        # Some models give each call the same id.
        use = ToolUse("call_0", "shell.run", {"command": command, **arguments})
        (result,) = await self.turn.run([use])
        return result

    async def run_all(self, *commands: str) -> Any:
        uses = [ToolUse(str(n), "shell.run", {"command": line}) for n, line in enumerate(commands)]
        return await self.turn.run(uses)


UNKNOWN = "./build.sh"
ASKED = {
    # What a person is asked in each mode and sandbox: nothing, or the words.
    ("accept_edits", "bubblewrap", UNKNOWN): "",
    ("accept_edits", "bubblewrap", "git commit -qm x; make; python3 x.py > log"): "",
    ("default", "bubblewrap", UNKNOWN): "confined to the working directories, without network",
    ("accept_edits", "landlock", UNKNOWN): "It is confined: what its sandbox refuses fails",
    ("accept_edits", None, UNKNOWN): "is not known.",
    ("accept_edits", "subprocess", UNKNOWN): "is not known.",
    ("accept_edits", "bubblewrap", "cat .env"): "It is confined: what its sandbox refuses fails",
    (
        "accept_edits",
        "bubblewrap",
        "./build.sh .env",
    ): "It is confined: what its sandbox refuses fails",
    (
        "accept_edits",
        "bubblewrap",
        "./build.sh > .git/config",
    ): "It is confined: what its sandbox refuses fails",
    ("accept_edits", "bubblewrap", "rm -rf ~"): "It is confined: what its sandbox refuses fails",
    (
        "accept_edits",
        "bubblewrap",
        "./build.sh > ../x",
    ): "It is confined: what its sandbox refuses fails",
    (
        "accept_edits",
        "bubblewrap",
        "cd ..; ./build.sh",
    ): "It is confined: what its sandbox refuses fails",
}


@pytest.mark.parametrize(("mode", "backend", "line"), ASKED)
async def test_what_a_sandbox_keeps_within_is_an_edit_and_all_else_is_asked_about(
    project: Path, mode: str, backend: str | None, line: str
) -> None:
    if backend is not None:
        _working(backend)
    async with _Agent(project, mode, sandbox=backend) as agent:
        await agent.run(line)
    words = ASKED[mode, backend, line]
    assert [words in text for text in agent.asked] == ([True] if words else [])


@pytest.mark.parametrize(
    "options", [{"network": True}, {"protect": False}, {"read": ["/var"]}, {"unix_sockets": True}]
)
async def test_a_program_that_may_reach_more_is_asked_about(
    project: Path, options: dict[str, Any]
) -> None:
    config = SandboxConfig.model_validate({"backend": _working("bubblewrap"), **options})
    async with _Agent(project, sandbox=config) as agent:
        await agent.run(UNKNOWN)
    assert len(agent.asked) == 1


async def test_what_was_judged_as_protected_starts_protected_or_not_at_all(project: Path) -> None:
    (project / ".env").write_text("secret")
    (project / "read.sh").write_text("cat .env")
    async with _Agent(project, "default", sandbox=_working("bubblewrap")) as agent:
        alone = await agent.run("bash read.sh")
        assert alone.error is None, alone.error
        assert (alone.value["protected"], alone.value["stdout"]) == (True, "")
        beside = _caller(project, sandbox="bubblewrap")
        # A job starts in the folder while a person is asked, after the line was judged.
        agent.meanwhile = lambda: beside(command="sleep 100", background=True)
        late = await agent.run("bash read.sh")
        if late.error is None:  # bubblewrap 0.12 protects beside other programs
            assert late.value["protected"], (late.value, agent.asked)
            return
        assert (late.error.executed, late.error.details["reason"]) == ("no", "changed")
        assert late.error.message.endswith("nothing was run, call it again")
        again = await agent.run("bash read.sh")
        assert again.error is None, again.error
        assert "confined to the working directories" not in agent.asked[-1]
        assert (again.value["protected"], again.value["stdout"]) == (False, "secret")
        await beside("stop", job="1")


async def test_calls_at_a_time_wait_for_each_other_to_be_protected(project: Path) -> None:
    (project / ".env").write_text("secret")
    (project / "x.sh").write_text("cat .env; echo $1 >> done")
    lines = ["sleep 0.2", "bash x.sh 1", "ls", "bash x.sh 2", "bash x.sh 3"]
    async with _Agent(project, sandbox=_working("bubblewrap")) as agent:
        results = await agent.run_all(*lines)
        assert [result.error for result in results] == [None] * 5
        assert [results[index].value["stdout"] for index in (1, 3, 4)] == [""] * 3
        assert [results[index].value["protected"] for index in (1, 3, 4)] == [True] * 3
    assert agent.asked == []
    assert sorted((project / "done").read_text().split()) == ["1", "2", "3"]


async def test_a_call_whose_time_ends_while_it_waits_has_not_run(project: Path) -> None:
    os.mkfifo(project / "started")
    reading = os.open(project / "started", os.O_RDONLY | os.O_NONBLOCK)
    started = asyncio.Event()
    asyncio.get_running_loop().add_reader(reading, started.set)
    async with _Agent(project, sandbox=_working("bubblewrap")) as agent:
        uses = [
            ToolUse("1", "shell.run", {"command": "echo > started; sleep 100"}),
            ToolUse("2", "shell.run", {"command": "bash x.sh", "timeout_s": 0.2}),
        ]
        first = asyncio.create_task(agent.turn.run(uses[:1]))
        async with asyncio.timeout(PATIENCE_S):
            await started.wait()
        (late,) = await agent.turn.run(uses[1:])
        first.cancel()
    asyncio.get_running_loop().remove_reader(reading)
    os.close(reading)
    if late.error is None:  # bubblewrap 0.12 protects beside other programs
        assert late.value["protected"], (late.value, agent.asked)
        return
    assert (late.error.executed, late.error.details["reason"]) == ("no", "changed")
    assert "another confined program runs" in late.error.message


async def test_a_question_about_a_call_counts_on_nothing(project: Path) -> None:
    _working("bubblewrap")
    permissions = Permissions("accept_edits", trusted_owners=["host"])
    async with turn_hosted(Shell(project, sandbox="bubblewrap"), permissions=permissions) as turn:
        (result,) = await turn.run([ToolUse("1", "shell.run", {"command": UNKNOWN})])
        assert result.state == "denied"
    policy = Permissions("accept_edits")
    async with turn_hosted(Shell(project, sandbox="bubblewrap", policy=policy)) as turn:
        result = await turn.call("shell.run", command=UNKNOWN)
        assert (result["exit"], result["protected"]) == (127, True)


async def test_a_program_of_path_cannot_be_changed_by_what_was_not_asked_about(
    project: Path,
) -> None:
    (project / "bin").mkdir()
    (project / "x.sh").write_text("touch bin/ls; touch other")
    path = f"{project}/bin:{os.environ['PATH']}"
    async with _Agent(project, sandbox=_working("bubblewrap"), env={"PATH": path}) as agent:
        result = await agent.run("bash x.sh")
        assert agent.asked == []
        assert "bin/ls': Read-only file system" in result.value["stderr"]
        assert sorted(os.listdir(project)) == ["bin", "other", "x.sh"]
        assert os.listdir(project / "bin") == []
    (project / "bin").rmdir()  # now a command could make it
    async with _Agent(project, sandbox="bubblewrap", env={"PATH": path}) as agent:
        await agent.run("bash x.sh")
        assert len(agent.asked) == 1


async def test_a_toolkit_that_nothing_confines_does_not_start(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    config = SandboxConfig(backend="docker", image="alpine")
    toolkit = Shell(project, sandbox=config, env={"PATH": os.defpath})
    with pytest.raises(SandboxUnavailable, match=r"confines programs here. docker: there"):
        async with Turn(None, always=[toolkit]):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": "chroot"}, "backend: Input should be"),
        ({"sandbox": "microsandbox"}, "microsandbox is not supported"),
        ({"sandbox": {"backend": "subprocess", "hide": []}}, "confines nothing: it has no hide"),
        ({"sandbox": {"backend": "subprocess", "protect": True}}, "it cannot protect"),
        ({"sandbox": '{"netwrok": true}'}, "netwrok: Extra inputs"),
        ({"sandbox": '{"backend"'}, "it is not JSON: Expecting"),
        ({"network": True}, "name a sandbox too"),
        ({"sandbox": "auto", "workdir": "/"}, "/ cannot be given"),
        ({"sandbox": {"backend": "docker", "image": "a"}, "keep": True}, "keep is not supported"),
    ],
)
def test_a_sandbox_that_is_none_is_refused_with_words(
    project: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ShellConfig.model_validate({"workdir": project, **options})


async def test_a_policy_decides_about_run(project: Path, backend: Backend) -> None:
    profile = ToolRiskProfile("shell.run", force_backend=backend, max_timeout_s=2)
    policy = SandboxPolicy([profile], config=SandboxConfig(network=True))
    result = await _caller(project, sandbox=policy)(command="sleep 100")
    assert (result["sandbox"], result["timed_out"]) == (backend, True)
    low = SandboxPolicy([ToolRiskProfile("shell", risk="low")])
    assert "sandbox" not in await _caller(project, sandbox=low)(command="true")
    with pytest.raises(ValueError, match="into the config or a profile of the policy"):
        Shell(project, sandbox=low, network=True)


@pytest.mark.parametrize(("given", "backend"), [(True, "auto"), (False, None), (None, None)])
def test_a_sandbox_may_be_switched_on_and_off(
    project: Path, given: bool | None, backend: str | None
) -> None:
    found = ShellConfig.model_validate({"workdir": project, "sandbox": given}).confinement
    assert (found and found.backend) == backend


def test_the_sandbox_is_for_the_operator_alone() -> None:
    assert "sandbox" not in builder_of(shell, workdir=".").type.model_fields


async def test_the_host_says_at_its_start_what_confines_and_what_is_not_held(
    project: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    for policy in (None, Permissions("bypass")):
        caplog.clear()
        async with turn_hosted(Shell(project, sandbox=backend, policy=policy)):
            assert summary(backend) in caplog.text


def test_flags_of_the_host_say_what_a_program_says(project: Path) -> None:
    factory = read_factory(shell)
    assert factory is not None
    fields = {field.name: field for field in factory.fields}
    text = f'{{"read": ["{project}"], "protect": true}}'
    for given, backend, read in (("landlock", "landlock", ()), (text, "auto", (str(project),))):
        values = {"sandbox": fields["sandbox"].from_text(given), "network": True}
        assert fields["network"].kind == "switch"
        config = factory.read({"workdir": project, **values})
        assert isinstance(config, ShellConfig)
        assert config.confinement is not None
        found = config.confinement
        assert (found.backend, found.read, found.network) == (backend, read, True)
