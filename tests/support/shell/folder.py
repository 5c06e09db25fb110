"""A folder to judge command lines in: a small project under git, and what is around it."""

from __future__ import annotations

import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProjectFolder", "make_project"]

_FILES = {
    "work/README.md": "# Project\n\nfoo and bar\n",
    "work/a.txt": "banana\napple\ncherry\napple\n",
    "work/b.txt": "one two three\nfour five six\n",
    "work/my file.txt": "a name with a space\n",
    "work/data.json": '{"name": "foo", "items": [1, 2, 3]}\n',
    "work/data.csv": "id,name\n1,foo\n2,bar\n",
    "work/commands.txt": "w out.txt\n",
    "work/list.txt": "a.txt\nb.txt\n",
    "work/patch.diff": "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n-banana\n+bandana\n apple\n",
    "work/Makefile": "all:\n\ttouch made\n",
    "work/package.json": '{"name": "project", "scripts": {"test": "touch tested"}}\n',
    "work/run.sh": "#!/bin/sh\ntouch written\n",
    "work/src/main.py": 'import util\n\nprint("foo", util.bar())\n',
    "work/src/util.py": "def bar() -> str:\n    return 'bar'\n",
    "work/src/deep/note.txt": "deep\n",
    "work/tests/test_main.py": "def test_foo() -> None:\n    assert True\n",
    "work/odd/-oout": "a name that looks like an option\n",
    "work/odd/a b": "x\n",
    "work/.env": "KEY=secret\n",
    "work/.vscode/settings.json": "{}\n",
    "outside/kept.txt": "kept\n",
    "home/.bashrc": "export A=1\n",
    "home/.gitconfig": "[user]\n\tname = Ann\n\temail = ann@example.org\n",
    "home/.ssh/id_ed25519": "secret\n",
    "home/notes.txt": "notes\n",
}
_GIT = """
init -q -b main
add README.md a.txt b.txt data.json src tests Makefile run.sh package.json
commit -q -m first
branch feature
tag v1
tag -a v2 -m second
remote add origin https://example.org/project.git
stash -q
"""


@dataclass(frozen=True, slots=True)
class ProjectFolder:
    """Where lines are judged and run."""

    work: Path
    """The working directory."""
    home: Path
    outside: Path
    """A folder outside of the working directory; `work/link` leads there, `back` in it to `src`."""


def make_project(place: Path) -> ProjectFolder:
    """Make the folder below an empty folder."""
    for name, text in _FILES.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    work = place / "work"
    (place / "home" / ".npm").mkdir()  # the cache of npm, which even `npm ls` makes
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("../outside")
    (work / "linked.txt").symlink_to("a.txt")
    (work / "bashrc").symlink_to("../home/.bashrc")
    (place / "outside" / "back").symlink_to("../work/src")
    with tarfile.open(work / "archive.tar", "w") as archive:
        archive.add(work / "src", "src")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    for arguments in _GIT.strip().splitlines():
        if arguments.startswith("stash"):
            (work / "b.txt").write_text("stashed\n")
        subprocess.run(["git", *arguments.split()], cwd=work, env=environment, check=True)
    with (work / "src" / "main.py").open("a") as file:
        file.write("# changed\n")
    _make_hostile_repository(work / "odd" / "bare", environment)
    return ProjectFolder(work, place / "home", place / "outside")


def _make_hostile_repository(folder: Path, environment: dict[str, str]) -> None:
    """Make a repository without a working tree, whose settings run a program that writes."""
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], env=environment, check=True)
    for name in ("core.fsmonitor", "core.pager", "diff.external"):
        command = ["git", "-C", str(folder), "config", name, "touch /tmp/ran; false"]
        subprocess.run(command, env=environment, check=True)
    command = ["git", "-C", str(folder), "config", "core.worktree", str(folder.parent)]
    subprocess.run(command, env=environment, check=True)
