"""Code that is confined: what it reaches, which interpreters it has, and what permissions know."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.rooms.turns import turn_hosted
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
from toolbus_toolkits.python import Python
from toolbus_toolkits.python.config import folders_of
from toolbus_toolkits.sandbox import (
    SandboxConfig,
    SandboxPolicy,
    ToolRiskProfile,
    summary,
)

__all__ = ["system_path"]
Call = Callable[..., Coroutine[Any, Any, Any]]
PYENV = sorted(Path("~/.pyenv/versions").expanduser().glob("3.12*/bin/python3"))


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> Any:
    return _working(request.param)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    return folder


_working = partial(working, what="code in a sandbox")


def _caller(workdir: Path, **options: Any) -> Call:
    toolkit = Python(workdir, **options)

    async def call(tool: str = "run", **arguments: Any) -> Any:
        value = (await toolkit.execute(ToolContext(), tool, arguments)).value
        return value[0] if isinstance(value, list) else value

    return call


@pytest.mark.parametrize("keep", [False, True])
async def test_code_reaches_its_folder_and_nothing_outside(
    project: Path, backend: str, keep: bool
) -> None:
    call = _caller(project, sandbox=backend)
    inside = await call(code="open('a.txt', 'w').write('abc')", keep=keep)
    assert (inside["value"], inside["files"]) == ("3", ["a.txt"])
    assert inside["sandbox"] == backend
    for code in ("open('../outside.txt').read()", "open('/etc/toolbus-proof', 'w')"):
        refused = await call(code=code, keep=keep)
        assert "Error: [Errno " in refused["error"]
    await call("reset")


@pytest.mark.parametrize("network", [False, True])
async def test_code_uses_the_network_only_where_it_may(
    project: Path, backend: str, network: bool
) -> None:
    call = _caller(project, sandbox=backend, network=network)
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection({server.getsockname()}).close()"
        assert ((await call(code=code))["error"] is None) == network


# Interpreters


async def test_an_environment_elsewhere_is_shown_and_one_in_the_folder_may_be_changed(
    project: Path, backend: str
) -> None:
    for place in (project / "venv", project.parent / "venv"):
        make = "import sys, venv; venv.create(sys.argv[1], symlinks=True)"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", make, place)
        assert await process.wait() == 0
        (packages,) = place.glob("lib/*/site-packages")
        (packages / "own.py").write_text("found = 1")
        call = _caller(project, sandbox=backend, interpreter=place / "bin" / "python")
        code = f"import own\nopen({str(packages / 'new.py')!r}, 'w')\nown.found"
        result = await call(code=code)
        if place.parent == project:
            assert (result["value"], result["files"]) == ("1", [])
        else:
            assert "new.py" in result["error"].splitlines()[-1]


@pytest.mark.skipif(not PYENV, reason="no Python of pyenv is here")
async def test_a_python_in_the_home_of_the_user_is_shown(project: Path, backend: str) -> None:
    call = _caller(project, sandbox=backend, interpreter=PYENV[0])
    result = await call(code="import ssl, sys\nsys.prefix")
    assert result["value"] == repr(str(PYENV[0].parent.parent)), result


def test_only_folders_of_python_are_shown_for_an_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def python(*names: str, link: Path | None = None) -> Path:
        path = tmp_path.joinpath(*names, "bin", "python")
        path.parent.mkdir(parents=True)
        if link is None:
            path.touch()
            (tmp_path.joinpath(*names) / "lib" / "python3.12").mkdir(parents=True)
            (tmp_path.joinpath(*names) / "lib" / "python3.12" / "os.py").touch()
        else:
            path.symlink_to(link)
        return path

    def shown(path: Path) -> list[str]:
        return [str(Path(folder).relative_to(tmp_path)) for folder in folders_of(path)]

    real = python("home", "uv", "3.12.1")
    (tmp_path / "home" / "uv" / "3.12").symlink_to("3.12.1")
    named = tmp_path / "home" / "uv" / "3.12" / "bin" / "python"
    assert shown(real) == ["home/uv/3.12.1"]
    venv = python("venv", link=named)
    assert shown(venv) == ["home/uv"]
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    assert shown(venv) == ["venv", "home/uv"]
    (tmp_path / "secrets" / "bin").mkdir(parents=True)
    (tmp_path / "secrets" / "bin" / "python").touch()
    assert shown(python("elsewhere", link=tmp_path / "secrets" / "bin" / "python")) == []
    assert shown(python("home")) == []


# Permissions


class _Agent:
    """Runs code of an agent, and notes what a person is asked."""

    def __init__(self, project: Path, mode: Any = "accept_edits", **options: Any) -> None:
        self.asked: list[str] = []
        self.meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.toolkit = Python(project, **options)
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

    async def run(self, code: str, **arguments: Any) -> Any:
        (result,) = await self.turn.run(
            [ToolUse("call_0", "python.run", {"code": code, **arguments})]
        )
        if result.error is not None:
            raise result.error
        return result.value


ASKED = {
    # What a person is asked in each mode and sandbox: nothing, or the words.
    ("accept_edits", "bubblewrap"): "",
    ("default", "bubblewrap"): "confined to the working directories, without network",
    ("accept_edits", "landlock"): "It is confined.",
    ("accept_edits", "subprocess"): "may do whatever the user of its host may",
    ("bypass", None): "",
}


@pytest.mark.parametrize(("mode", "backend"), ASKED)
@pytest.mark.parametrize("keep", [False, True])
async def test_what_a_sandbox_keeps_within_is_an_edit_and_all_else_is_asked_about(
    project: Path, mode: str, backend: str | None, keep: bool
) -> None:
    if backend is not None:
        _working(backend)
    async with _Agent(project, mode, sandbox=backend) as agent:
        for number in range(2):  # the second one finds the interpreter of the first
            result = await agent.run("1", keep=keep)
            assert (result["value"], len(agent.asked)) == (
                "1",
                (number + 1) * bool(ASKED[mode, backend]),
            )
    words = ASKED[mode, backend]
    assert all(words in text for text in agent.asked), agent.asked


@pytest.mark.parametrize("options", [{"network": True}, {"protect": False}, {"read": ["/var"]}])
async def test_code_that_may_reach_more_is_asked_about(
    project: Path, options: dict[str, Any]
) -> None:
    config = SandboxConfig.model_validate({"backend": _working("bubblewrap"), **options})
    async with _Agent(project, sandbox=config) as agent:
        await agent.run("1")
    assert len(agent.asked) == 1


async def test_secrets_are_kept_from_code_that_was_not_asked_about(project: Path) -> None:
    (project / ".env").write_text("secret")
    async with _Agent(project, sandbox=_working("bubblewrap")) as agent:
        for keep in (False, True):
            result = await agent.run("open('.env').read()", keep=keep)
            assert (result["protected"], result["value"]) == (True, "''") or result["error"]
    assert agent.asked == []


async def test_an_interpreter_that_was_not_judged_is_asked_about_and_replaces_none(
    project: Path,
) -> None:
    async with _Agent(project, "default", sandbox=_working("bubblewrap")) as agent:

        async def start_unjudged() -> None:
            context = ToolContext()
            await agent.toolkit.execute(context, "reset", {})
            await agent.toolkit.execute(context, "run", {"code": "x = 1", "keep": True})

        await agent.run("x = 0", keep=True)
        agent.meanwhile = start_unjudged
        with pytest.raises(ToolFailed, match=r"another one by now; .* call it again") as raised:
            await agent.run("x = 2", keep=True)
        assert (raised.value.executed, raised.value.details["reason"]) == ("no", "changed")
        assert (await agent.run("x", keep=True))["value"] == "1"
    confined = "confined to the working directories, without network"
    assert [confined in text for text in agent.asked] == [True, True, False]


async def test_a_policy_decides_about_run(project: Path, backend: Any) -> None:
    profile = ToolRiskProfile("python.run", force_backend=backend, max_timeout_s=0.5)
    policy = SandboxPolicy([profile], config=SandboxConfig(network=True))
    result = await _caller(project, sandbox=policy)(code="while True: pass")
    assert (result["sandbox"], result["timed_out"]) == (backend, True)
    low = SandboxPolicy([ToolRiskProfile("python", risk="low")])
    assert "sandbox" not in await _caller(project, sandbox=low)(code="1")


async def test_the_host_says_at_its_start_what_confines(
    project: Path, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with turn_hosted(Python(project, sandbox=backend)):
        assert summary(backend) in caplog.text
