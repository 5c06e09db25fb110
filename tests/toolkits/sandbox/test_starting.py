"""What a confined command reaches, and what is refused before it starts."""

from __future__ import annotations

import asyncio
import glob
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from support.patience import PATIENCE_S
from support.pytest_plugins.missing_parts import not_verified
from support.sandbox.commands import run
from toolbus_toolkits.launcher import LaunchFailed, start_command
from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, confinement, would_protect
from toolbus_toolkits.sandbox.bubblewrap import MAX_PLACES, Bubblewrap
from toolbus_toolkits.sandbox.probe import found_backend
from toolbus_toolkits.sandbox.protection import CONFINED_FOLDERS, ConfinedFolders
from toolbus_toolkits.sandbox.starting import confined_start

Confining: TypeAlias = Callable[..., SandboxConfig]


@pytest.fixture
def bubblewrap() -> Confining:
    """Make a config for bubblewrap."""

    def make(*write: Path, **options: Any) -> SandboxConfig:
        return SandboxConfig(backend="bubblewrap", **options).with_roots(write)

    return make


async def test_a_command_changes_its_folder_and_reads_the_system_and_nothing_else(
    confining: Confining, tmp_path: Path
) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (other / "file").write_text("secret")
    line = (
        f"echo text > new; ls /usr/bin/env; cat {other}/file; echo x > {other}/new; cat /etc/shadow"
    )
    ended = await run(line, confining(root), root)
    assert ended.output == "/usr/bin/env\n"
    assert ended.errors.count("No such file") + ended.errors.count("Permission denied") == 3
    assert ended.backend == confining(root).backend
    assert (root / "new").read_text() == "text\n"
    assert not (other / "new").exists()


async def test_nobody_finds_what_another_command_left_in_its_home_and_in_tmp(
    confining: Confining, tmp_path: Path
) -> None:
    line = 'ls -A ~ "${TMPDIR:-/tmp}" | grep -v :; echo x > ~/left; echo y > "${TMPDIR:-/tmp}/left"'
    for _ in range(2):
        ended = await run(line, confining(tmp_path), tmp_path, TMPDIR="/no/such/folder")
        assert "left" not in ended.output
        assert ended.errors == ""


@pytest.mark.parametrize(
    "name", ["a\nb", "--", "-", "a b'\"$(id),c", "ü", "x" * 200 + "/" + "y" * 200]
)
async def test_folders_of_any_name_are_given(
    confining: Confining, tmp_path: Path, name: str
) -> None:
    root = tmp_path / name
    root.mkdir(parents=True)
    (root / ".env").write_text("secret")
    ended = await run("echo text > new; cat new", confining(root), root)
    assert ended.output == "text\n"
    assert (root / "new").exists()


async def test_a_path_of_nearly_4_kib_is_given_or_nothing_starts(
    confining: Confining, tmp_path: Path
) -> None:
    names = ("n" * 200 + "/") * 30
    long, longest = (tmp_path / names[: length - len(str(tmp_path))] for length in (3900, 4090))
    longest.mkdir(parents=True)
    long.mkdir(exist_ok=True)
    ended = await run("echo x > new; echo ran", confining(long), long)
    assert ended.output == "ran\n"
    assert (long / "new").exists()
    if confining(long).backend == "bubblewrap":  # it puts a few characters in front of each path
        with pytest.raises(
            LaunchFailed, match=r"nothing confines programs here: .* type of source"
        ):
            await run("true", SandboxConfig(backend="bubblewrap", write=(str(longest),)), longest)


async def test_the_network_is_there_only_for_the_config_that_asks(
    confining: Confining, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected"
        within = confining(tmp_path)
        assert (await run(line, within, tmp_path)).output == ""
        once = within.model_copy(update={"network": True})
        assert (await run(line, once, tmp_path)).output == "connected\n"
        assert (await run(line, within, tmp_path)).output == ""


async def test_sockets_of_this_machine_are_there_only_for_the_config_that_asks(
    confining: Confining, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/socket")
        server.listen()
        line = "/usr/bin/python3 -c 'import socket; socket.socket(1).connect(\"socket\")'"
        assert "Permission denied" in (await run(line, confining(tmp_path), tmp_path)).errors
        ended = await run(line, confining(tmp_path, unix_sockets=True), tmp_path)
        assert ended.status == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
async def test_variables_of_a_command_are_not_those_of_what_confines_it(
    confining: Confining, project: Path, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    code = f'void begin(void) {{ close(creat("{proof}", 0600)); }}'
    (project / "x.c").write_text(f"__attribute__((constructor)) {code}")
    plain = SandboxConfig(backend="subprocess").with_roots([project])
    await run("cc -w -shared -fPIC -o x.so x.c", plain, project)
    preload = {"LD_PRELOAD": str(project / "x.so")}
    await run("true", confining(project), project, **preload)
    assert not proof.exists()
    await run("true", plain, project, **preload)
    assert proof.exists()


@pytest.mark.parametrize("name", ["A-B", "A", "A=B", ""])
async def test_a_variable_cannot_bring_an_option(
    confining: Confining, project: Path, name: str
) -> None:
    variables = {name: "x\0--bind\0/\0/"}
    with pytest.raises(LaunchFailed, match="cannot have the variable"):
        await run("true", confining(project), project, **variables)


async def test_a_command_has_no_descriptor_of_its_host(
    confining: Confining, tmp_path: Path
) -> None:
    ended = await run("ls /proc/self/fd | wc -l", confining(tmp_path), tmp_path)
    assert ended.output == "4\n"  # three, and the one that `ls` reads the folder by


async def test_a_program_that_the_sandbox_does_not_show_is_not_started(
    confining: Confining, tmp_path: Path
) -> None:
    root, program = tmp_path / "root", tmp_path / "program"
    root.mkdir()
    shutil.copy("/bin/true", program)
    options: dict[str, Any] = {"env": {}, "cwd": root, "on_output": print}
    with pytest.raises(LaunchFailed, match=f"does not show {program}: add it to `read`"):
        await start_command([str(program)], sandbox=confining(root), **options)
    reading = confining(root, read=(str(program),))
    command = await start_command([str(program)], sandbox=reading, **options)
    assert await command.wait() == 0


async def test_a_folder_that_is_removed_while_a_command_runs_is_refused_to_the_next(
    confining: Confining, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    config = confining(root)
    started = asyncio.Event()
    command = await start_command(
        ["bash", "-c", "echo; read; exit 5"],
        env={"PATH": os.environ["PATH"]},
        cwd=root,
        on_output=lambda *_: started.set(),
        stdin=True,
        sandbox=config,
    )
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
        root.rmdir()
        with pytest.raises(LaunchFailed, match="does not exist any more"):
            await run("true", config, "/")
        command.close_stdin()
        assert await command.wait() == 5


SECRETS = (".env", "conf/.env.local", "id_rsa", ".ssh/config")
SETTINGS = (
    *(".git/hooks/pre-commit", ".git/config", ".toolbus/permissions.toml", ".vscode/tasks.json"),
    "packages/a/.vscode/tasks.json",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (*SECRETS, *SETTINGS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in (*SECRETS, *SETTINGS):
        path = root / name
        path.write_text((path.read_text() if path.exists() else "") + "# secret\n")
    return root


async def test_secrets_cannot_be_read_and_settings_not_changed_in_the_folder_of_a_command(
    bubblewrap: Confining, project: Path
) -> None:
    before = {name: (project / name).read_text() for name in SETTINGS}
    line = "".join(f"cat {name}; echo x > {name}; " for name in SECRETS)
    line += "".join(f"echo x >> {name}; rm -f {name}; " for name in SETTINGS)
    line += "mv .git other; mv .vscode other; rm -rf .git; echo new > .git/hooks/post-commit"
    ended = await run(line, bubblewrap(project), project)
    assert ended.is_protected
    assert "secret" not in ended.output
    assert before == {name: (project / name).read_text() for name in SETTINGS}
    assert all((project / name).read_text() == "# secret\n" for name in SECRETS)
    assert not (project / ".git/hooks/post-commit").exists()


def test_whether_a_start_would_be_protected_is_known_before_it(
    confining: Confining, project: Path
) -> None:
    config = confining(project)
    assert would_protect(config) == (config.backend == "bubblewrap")
    assert not would_protect(confining(project, protect=False))
    use = CONFINED_FOLDERS.enter((str(project.parent),), sets_up=False)
    backend = found_backend(config)
    is_new = isinstance(backend, Bubblewrap) and backend.follows_no_symlink
    assert would_protect(config) == is_new
    use.leave()


async def test_the_python_of_this_process_cannot_be_changed(
    bubblewrap: Confining, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "venv" / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(project / "venv"))
    config = bubblewrap(project, protect=False)
    line = "touch venv/bin/x; mv venv old; rm -r venv; touch done"
    ended = await asyncio.gather(*(run(line, config, project) for _ in range(3)))
    assert all("venv/bin/x': Read-only file system" in one.errors for one in ended)
    assert sorted(os.listdir(project / "venv")) == ["bin"]
    assert (project / "done").exists()


async def test_the_folder_above_a_hidden_file_cannot_be_moved(
    bubblewrap: Confining, tmp_path: Path
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_text("secret")
    config = bubblewrap(tmp_path, hide=(str(tmp_path / "a" / "b" / "x"),))
    ended = await run("mv a c; mv a/b a/d", config, tmp_path)
    assert ended.errors.count("Device or resource busy") == 2


async def test_git_takes_its_config_from_nowhere_else(
    bubblewrap: Confining, tmp_path: Path
) -> None:
    line = "git init -q . && mkdir .git/worktrees"
    assert (await run(line, bubblewrap(tmp_path), tmp_path)).status == 0
    ended = await run("echo /x > .git/commondir; git status -s", bubblewrap(tmp_path), tmp_path)
    assert "commondir: Read-only file system" in ended.errors
    assert ended.status == 0
    assert not (tmp_path / ".git" / "commondir").exists()


def test_a_folder_that_is_replaced_while_a_program_starts_is_refused(
    confining: Confining, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    config = confining(tmp_path / "root")
    plan = confinement(config, "/")
    (tmp_path / "root").rename(tmp_path / "was")
    (tmp_path / "root").symlink_to(tmp_path)
    backend = found_backend(config)
    if isinstance(backend, Bubblewrap):
        with pytest.raises(SandboxUnavailable, match="reached by a symlink now"):
            confined_start(backend, config, plan, ["/bin/true"], {})
        return
    start = confined_start(backend, config, plan, ["/bin/true"], {})
    try:
        ended = subprocess.run(start.argv, pass_fds=start.descriptors, capture_output=True)
        assert b"Too many levels of symbolic links" in ended.stderr
    finally:
        start.end()


async def test_git_commits_in_a_protected_folder(bubblewrap: Confining, tmp_path: Path) -> None:
    line = (
        "echo x > file && git add file"
        " && git -c user.name=a -c user.email=a@b commit -qm one && git log --oneline | wc -l"
    )
    await run("git init -q; rm -r .git/hooks", bubblewrap(tmp_path), tmp_path)
    ended = await run(line, bubblewrap(tmp_path, protect=True), tmp_path)
    assert (ended.output, ended.errors, ended.is_protected) == ("1\n", "", True)
    assert "Read-only" in (await run("touch .git/hooks/x", bubblewrap(tmp_path), tmp_path)).errors


async def test_below_0_12_a_folder_is_protected_for_one_command_at_a_time(
    bubblewrap: Confining, project: Path, tmp_path: Path
) -> None:
    found = found_backend(bubblewrap(project))
    if not isinstance(found, Bubblewrap) or found.follows_no_symlink:
        not_verified("bubblewrap below 0.12", "it is newer here", ci_has_it=False)
    started = asyncio.Event()
    first = await start_command(
        ["bash", "-c", "echo; read"],
        env={"PATH": os.environ["PATH"]},
        cwd=project,
        on_output=lambda *_: started.set(),
        stdin=True,
        sandbox=bubblewrap(project),
    )
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
        assert first.is_protected
        assert not (await run("true", bubblewrap(project / "conf"), project / "conf")).is_protected
        other = tmp_path / "other"
        other.mkdir()
        assert (await run("true", bubblewrap(other), other)).is_protected
        strict = bubblewrap(project, protect=True)
        with pytest.raises(LaunchFailed, match=r"bubblewrap 0\.12 or newer is needed"):
            await run("true", strict, project)
        hiding = bubblewrap(project, hide=(str(project / "conf"),))
        with pytest.raises(LaunchFailed, match="another confined program runs in the same folder"):
            await run("true", hiding, project)
        first.close_stdin()
        await first.wait()
        assert (await run("cat .env", strict, project)).is_protected


def test_a_start_waits_until_another_one_is_set_up_in_its_folder() -> None:
    folders = ConfinedFolders()
    first = folders.enter(("/a",), sets_up=True)
    assert folders.enter(("/b",), sets_up=True).is_alone
    uses, was_set_up = [], []

    def enter() -> None:
        uses.append(folders.enter(("/a/b",), sets_up=True))
        was_set_up.append(not first.is_setting_up)

    thread = threading.Thread(target=enter)
    thread.start()
    first.set_up()
    thread.join(PATIENCE_S)
    assert was_set_up == [True]
    assert not uses[0].is_alone
    first.leave()
    uses[0].leave()
    assert folders.enter(("/a",), sets_up=True).is_alone


async def test_landlock_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    for options in ({"protect": True}, {"hide": (str(tmp_path / "secret"),)}):
        config = SandboxConfig(backend="landlock", **options).with_roots([tmp_path])
        with pytest.raises(LaunchFailed, match="use bubblewrap"):
            await run("true", config, tmp_path)
        auto = config.model_copy(update={"backend": "auto"})
        assert (await run("true", auto, tmp_path)).backend == "bubblewrap"


async def test_ten_thousand_secrets_are_hidden_by_their_folder_or_refused(
    bubblewrap: Confining, tmp_path: Path
) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    paths = [folder / f"{number}.pem" for number in range(10_000)]
    for path in paths:
        path.touch()
    line = "ls keys/1.pem"
    ended = await run(line, bubblewrap(tmp_path), tmp_path)
    assert (ended.output, ended.is_protected) == ("keys/1.pem\n", False)
    for options in ({"protect": True}, {"hide": tuple(map(str, paths))}):
        with pytest.raises(
            LaunchFailed, match=rf"more than {MAX_PLACES} files, .*: hide the folders"
        ):
            await run(line, bubblewrap(tmp_path, **options), tmp_path)
    ended = await run(line, bubblewrap(tmp_path, protect=True, hide=(str(folder),)), tmp_path)
    assert "Permission denied" in ended.errors


async def test_as_many_places_as_are_allowed_can_be_hidden(
    bubblewrap: Confining, tmp_path: Path
) -> None:
    for number in range(MAX_PLACES - 20):
        (tmp_path / f"{number}.pem").write_text("secret")
    ended = await run("cat *.pem", bubblewrap(tmp_path, protect=True), tmp_path)
    assert ended.output == ""
    assert ended.errors.count("Permission denied") == MAX_PLACES - 20


BOMB = """
import os, signal
children = 0
try:
    while children < 50 and os.fork():
        children += 1
    else:
        if children < 50:
            signal.pause()
except BlockingIOError:
    pass
print(children)
os.killpg(0, 9)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="the kernel counts the processes of others")
async def test_processes_of_root_are_limited_by_a_control_group_or_the_limit_is_refused(
    confining: Confining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = confining(tmp_path).model_copy(update={"max_processes": 10})
    monkeypatch.setattr("toolbus_toolkits.sandbox.pids_cgroup._GROUPS", tmp_path / "none")
    with pytest.raises(LaunchFailed, match="the kernel limits no processes of root but by"):
        await run("true", config, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(
        "toolbus_toolkits.sandbox.pids_cgroup.secrets.token_hex", lambda _: str(os.getpid())
    )
    config = confining(tmp_path, max_processes=10)  # or it is skipped
    (tmp_path / "bomb.py").write_text(BOMB)
    ended = await run("exec /usr/bin/python3 -u bomb.py", config, tmp_path)
    assert ended.output == "9\n"
    assert not glob.glob(f"/sys/fs/cgroup/**/toolbus-{os.getpid()}", recursive=True)


async def test_subprocess_confines_nothing(tmp_path: Path) -> None:
    plain = SandboxConfig(backend="subprocess").with_roots([tmp_path])
    ended = await run("cat /etc/passwd | head -c1; echo $HOME", plain, tmp_path)
    assert (ended.backend, ended.is_protected) == ("subprocess", False)
    assert ended.output == f"r{Path.home()}\n"


HOST = """
import asyncio, os, sys
from toolbus_toolkits.launcher import *
from toolbus_toolkits.sandbox import SandboxConfig

async def main():
    ready = asyncio.Event()
    command = await start_command(
        ["bash", "-c", "setsid sleep 600 & echo; sleep 600"], env=dict(os.environ), cwd="/",
        on_output=lambda *_: ready.set(), sandbox=SandboxConfig(backend=sys.argv[1]))
    await ready.wait()
    print(command.pid, flush=True)
    await command.wait()

asyncio.run(main())
"""


def test_a_confined_command_ends_when_its_host_is_killed(confining: Confining) -> None:
    command = [sys.executable, "-c", HOST, confining().backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        leader = psutil.Process(int(host.stdout.readline()))
        processes = [leader, *leader.children(recursive=True)]
        host.kill()
    assert not psutil.wait_procs(processes, PATIENCE_S)[1]
