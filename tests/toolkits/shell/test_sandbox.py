"""The sandbox of the tests sees whatever a command line changes, wherever that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.shell.folder import make_project
from support.shell.sandbox import sandbox

SEEN = {
    "ps eww -p 1": "showed the variables of a process",
    "ps eww -p 2 1>&2": "showed the variables of a process",
    "cat /proc/2/environ": "showed the variables of a process",
    "yes | head -c 200000; xargs -0 < /proc/$PPID/environ": "showed the variables of a process",
    "touch x": "changed {work}, changed {work}/x",
    "rm a.txt": "changed {work}, changed {work}/a.txt",
    "touch x; rm x": "changed {work}",
    "echo more >> a.txt": "changed {work}/a.txt",
    "chmod 600 a.txt": "changed {work}/a.txt",
    "touch a.txt": "changed {work}/a.txt",
    "ln -sfn src link": "changed {work}, changed {work}/link",
    "mkfifo src/pipe": "changed {work}/src, changed {work}/src/pipe",
    "touch link/x": "changed {outside}, changed {outside}/x",
    "echo x > /etc/toolbus-proof": "changed /etc, changed /etc/toolbus-proof",
    "touch /tmp/toolbus-proof": "changed /tmp/toolbus-proof",
    "touch /dev/shm/x": "changed /dev/shm, changed /dev/shm/x",
    "touch /run/x": "changed /run, changed /run/x",
    "mkdir /x": "changed /, changed /x",
    "setsid sleep 1000 & disown; exit": "left sleep behind",
    "renice 19 2": "changed the state of the system",
    "kill -STOP -1": "changed a process that it did not start",
    "kill -9 -1": "changed a process that it did not start",
    "hostname other": "changed the state of the system",
    "mount -nt tmpfs none src": "changed the state of the system",
}
UNSEEN = (
    "sleep 1000 &",
    "mktemp | xargs rm",
    "ls -lR . | head -3",
    "cat <(ls) a.txt",
    "git log --oneline",
    "cat < /dev/zero | head -c9",
    "env",
    "ps auxww",
)


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}


def test_sandbox_sees_each_change(tmp_path: Path, variables: dict[str, str]) -> None:
    project = make_project(tmp_path)
    expected = {
        line: text.format(work=project.work, outside=project.outside) for line, text in SEEN.items()
    }
    with sandbox(project.work, variables) as inside:
        found = {outcome.line: outcome.fault for outcome in inside.run(SEEN)}
        after = {outcome.line: outcome.fault for outcome in inside.run(UNSEEN)}
        committed = next(inside.run(["git commit -qam second"]))
        long = next(inside.run(["sleep 1000 & cat a.txt; sleep 1000"], timeout_s=1))
    assert found == expected
    assert after == dict.fromkeys(UNSEEN, "")
    assert f"changed {project.work}/.git/refs/heads/main" in committed.fault
    assert (long.timed_out, long.exit, long.output.split()[0]) == (True, None, "banana")
    assert not (project.work / "x").exists(), "what a line changes stays in the sandbox"
