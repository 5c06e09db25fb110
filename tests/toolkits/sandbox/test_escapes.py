"""Attempts to leave a sandbox: each is held, or its row of `holds.py` says that it is not.

Each start of a sandbox makes all attempts once; what became of each is a test.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from support.pytest_plugins.missing_parts import not_verified
from support.sandbox import starter, under_filter
from support.sandbox.escapes import ESCAPES, Escape
from support.sandbox.landlock import PROGRAM, landlock_abi, script_of
from support.sandbox.outside import Outside, outside
from toolbus_toolkits.sandbox import HOLDS, Backend

_NOBODY = 65534
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


class Start(NamedTuple):
    """By what, and for whom, a sandbox is started."""

    backend: Backend
    user: str
    abi: int | None = None
    """The version of Landlock that the kernel is taken to have; None takes the real one."""
    is_filtered: bool = False
    """Whether it is started under a filter like that of Docker."""

    def __str__(self) -> str:
        abi = f"ABI-{self.abi}" if self.abi else ""
        return " ".join(filter(None, (self.backend, abi, self.user, "filtered" * self.is_filtered)))

    @property
    def user_id(self) -> int:
        """The id of the user."""
        if os.geteuid() == 0:
            return 0 if self.user == "root" else _NOBODY
        if self.user == "root":
            not_verified(f"escapes of {self}", "the tests do not run as root", ci_has_it=False)
        return os.geteuid()


STARTS = [
    *(Start("landlock", user, None, f) for user in ("root", "nobody") for f in (False, True)),
    *(Start("landlock", "nobody", abi) for abi in (1, 3, 5)),
    *(Start("bubblewrap", user) for user in ("root", "nobody")),
]
FILTERED = [Start("bubblewrap", user, is_filtered=True) for user in ("root", "nobody")]


def words(start: Start, world: Outside, **config: Any) -> list[str]:
    """Return the words before a program that start a sandbox."""
    config |= {
        "backend": start.backend,
        "write": world.roots,
        "read": [str(world.readable)],
        "hide": world.hidden,
    }
    script = script_of(start.abi) if start.abi else ""
    argv = [sys.executable, starter.__file__, json.dumps(config), script]
    if start.is_filtered:
        folder = str(PROGRAM.parent)
        argv = [sys.executable, "-I", "-S", under_filter.__file__, folder, *argv]
    return argv


def require(start: Start, world: Outside) -> None:
    """Skip the test as NOT VERIFIED where the machine does not let a sandbox start."""
    what = f"escapes of {start}"
    if start.backend == "landlock" and landlock_abi() < (start.abi or 1):
        not_verified(what, "the kernel has no such Landlock", ci_has_it=False)
    plain = start._replace(is_filtered=False)
    tried = world.run(words(plain, world), "")
    if tried.returncode:
        not_verified(what, tried.stderr.strip()[-200:] or "it did not start", ci_has_it=False)


@pytest.fixture(scope="module")
def attempted(request: pytest.FixtureRequest) -> Iterator[tuple[Start, Outside]]:
    """What became of all attempts behind one start."""
    start: Start = request.param
    with outside(start.user_id) as world:
        require(start, world)
        stderr = world.attempt(words(start, world))
        assert len(world.outputs) == len(ESCAPES), stderr
        yield start, world


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
@pytest.mark.parametrize("attempted", STARTS, indirect=True, ids=str, scope="module")
def test_an_attempt_is_held_or_the_table_says_that_it_is_not(
    attempted: tuple[Start, Outside], escape: Escape
) -> None:
    start, world = attempted
    is_held = HOLDS[escape.row].of(start.backend).startswith("yes")
    seen = world.succeeded(escape.name)
    if is_held:
        assert not seen, f"{seen}: {world.outputs[escape.name]}"
    # An old Landlock and a user without rights hold some more by chance.
    elif start.abi is None and not escape.needs_root:
        assert seen, world.outputs[escape.name]


@pytest.mark.long
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_each_attempt_succeeds_where_nothing_confines(user: str) -> None:
    """Or nobody would see that one is held by mistake of the attempt."""
    start = Start("subprocess", user)
    with outside(start.user_id) as world:
        # Nothing that root mounts stays.
        private = ["unshare", "--mount", "--propagation", "private"] if user == "root" else []
        world.attempt(private)
        held = {one.name for one in ESCAPES if not world.succeeded(one.name)}
        namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
        is_refused = world.run([*private, *namespaces], "").returncode != 0
    expected = {one.name for one in ESCAPES if one.needs_root and user != "root"}
    if is_refused:  # by a system that allows user namespaces to some programs only
        expected.add("mounts in a new user namespace")
    assert held == expected


@pytest.mark.parametrize("start", FILTERED, ids=str)
def test_nothing_runs_where_the_system_refuses_namespaces(start: Start) -> None:
    with outside(start.user_id) as world:
        require(start, world)
        stderr = world.attempt(words(start, world))
        assert "user namespaces are not allowed" in stderr
        assert world.outputs == {}
        assert not any(world.succeeded(escape.name) for escape in ESCAPES)


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
def test_a_fork_bomb_ends_at_its_limit(backend: Backend) -> None:
    start = Start(backend, "nobody")
    bomb = """
import os, signal, sys
children = []
try:
    while len(children) < 200:
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()
except BlockingIOError:
    pass
print(len(children), flush=True)
os.killpg(0, 9)
"""
    with outside(start.user_id) as world:
        require(start, world)
        ended = world.run(words(start, world, max_processes=20), bomb)
        assert 0 < int(ended.stdout) <= 20, ended.stderr
