"""One process: a shell decides about command lines, runs one, and ends a tree of processes.

A decision is about lines as an agent writes them. What a run costs is compared with bash alone.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.role import Facts, keep_calling, run_role, serve_orders
from toolbus import JsonChunk, ToolContext, Toolkit
from toolbus_toolkits.shell import Shell
from toolbus_toolkits.shell.assessing import assess_line
from toolbus_toolkits.shell.config import shell_environment
from toolbus_toolkits.workspace import Roots, SensitivePaths

PATTERNS = ("git commit:*", "git push:*", "npm run:*", "pytest:*", "rm:*", "sudo:*", "make")
LINES = (
    "ls",
    "ls -la src tests",
    "pwd && ls",
    "cat README.md",
    "cat pyproject.toml | head -40",
    "git status",
    "git status --short && git diff --stat",
    "git log --oneline -20",
    "git diff HEAD~1 -- src/app.py",
    "git show HEAD:src/app.py | sed -n '1,80p'",
    "git branch -D old",
    "git add -A && git commit -m 'Mend the reader' && git push origin main",
    "grep -rn 'def main' --include='*.py' src | head -20",
    "rg -n --hidden 'TODO|FIXME' -g '!node_modules' .",
    "find . -name '*.py' -not -path './.venv/*' | xargs wc -l | sort -n | tail -5",
    "find build -name '*.o' -exec rm {} +",
    "cd src && python -m pytest -q tests/test_reader.py 2>&1 | tail -30",
    "python3 -c 'import sys; print(sys.version)'",
    "npm run build && npm run test -- --watch=false",
    "make -j4 test || (cat build/test.log; exit 1)",
    "mkdir -p build/out && cp src/app.py build/out/",
    "mv notes.txt docs/notes.md; rm -rf build",
    "sed -i 's/old/new/g' src/*.py",
    'for file in src/*.py; do wc -l "$file"; done',
    "if [ -f package.json ]; then cat package.json; else echo none; fi",
    "curl -sS https://example.org/data.json | jq '.items[] | .name'",
    "tar -xzf data.tar.gz -C /tmp/data && ls /tmp/data",
    "LANG=C sort -u words.txt | uniq -c | sort -rn | head",
    "cat > notes.md <<'END'\nFirst line\nSecond line\nEND",
    "docker ps -a --format '{{.Names}}' && kubectl get pods -n web",
    "sudo systemctl restart nginx",
    'echo "today is $(date +%F)" >> log.txt',
)
FILES = (
    *("README.md", "pyproject.toml", "package.json", "notes.txt", "words.txt", "docs/notes.md"),
    *(f"{folder}/part{number}.py" for folder in ("src", "tests") for number in range(20)),
)
BARE = ("bash", "--noprofile", "--norc", "-c")
MARK = f"86399.{os.getpid():07}"
"""How long the processes of a tree sleep: this number finds those of this process."""
SLEEPS = 20
TREE = (
    f"bash -c 'bash -c \"for i in {{2..{SLEEPS}}}; do sleep {MARK} & done; "
    f"setsid sleep {MARK} & wait\" & wait'"
)


def decide_about(workdir: Path) -> Any:
    """Make the call that judges the next line."""
    lines = cycle(LINES)
    environment = shell_environment({}, ())
    roots, sensitive = Roots([workdir]), SensitivePaths()

    async def call(*_: int) -> Any:
        return assess_line(
            next(lines),
            directory=str(workdir),
            environment=environment,
            roots=roots,
            sensitive=sensitive,
            patterns=PATTERNS,
        )

    return call


def run_bare(workdir: Path) -> None:
    """Run `true` with bash and nothing else.

    It blocks, because that is the fastest way: the event loop of uvloop copies the memory of this
    process for each subprocess, which takes several milliseconds.
    """
    done = subprocess.run(
        [*BARE, "true"], cwd=workdir, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise AssertionError(f"true ended with {done.returncode}")


async def run_tool(shell: Toolkit) -> None:
    """Run `true` as `shell.run`."""
    chunk = await shell.execute(ToolContext(), "run", {"command": "true"})
    if not isinstance(chunk, JsonChunk) or chunk.json["exit"] != 0:
        raise AssertionError(f"true ended with {chunk!r}")


async def cancel_tree(shell: Toolkit) -> float:
    """Cancel a call with a tree of processes; return the seconds until all have ended."""
    call = asyncio.ensure_future(shell.execute(ToolContext(), "run", {"command": TREE}))
    while len(sleeping := sleeping_pids()) < SLEEPS:
        if call.done():
            raise AssertionError(f"the tree has ended by itself: {call.result()!r}")
        await asyncio.sleep(0.01)
    ends = [ended(os.pidfd_open(pid)) for pid in sleeping]
    began_s = time.perf_counter()
    call.cancel()
    await asyncio.gather(call, *ends, return_exceptions=True)
    return time.perf_counter() - began_s


def sleeping_pids() -> list[int]:
    """Return the processes of trees."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = folder.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is none
            continue
        if words[:2] == [b"sleep", MARK.encode()]:
            found.append(int(folder.name))
    return found


async def ended(opened: int) -> None:
    """Wait until a process has ended; close what it was opened by."""
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(opened, is_over.set)
    try:
        await is_over.wait()
    finally:
        loop.remove_reader(opened)
        os.close(opened)


async def caller(_facts: Facts) -> None:
    """Do again and again what an order names."""
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        workdir = Path(folder)
        for name in FILES:
            path = workdir / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("text\n" * 20, encoding="utf-8")
        shell = Shell(workdir)
        decide = decide_about(workdir)

        async def bare(*_: int) -> Any:
            run_bare(workdir)

        async def tool(*_: int) -> Any:
            await run_tool(shell)

        async def cancel(seconds: float) -> Facts:
            """Cancel trees for some time, and at least two."""
            began_s = time.perf_counter()
            each_s = [await cancel_tree(shell) for _ in range(2)]
            while time.perf_counter() - began_s < seconds:
                each_s.append(await cancel_tree(shell))
            took_s = time.perf_counter() - began_s
            p50_us = statistics.median(each_s) * 1e6
            return {"amount": len(each_s), "took_s": took_s, "p50_us": p50_us}

        async def call(what: str, seconds: float, in_flight: int) -> Facts:
            if what == "cancel":
                return await cancel(seconds)
            call = {"decide": decide, "bare": bare, "tool": tool}[what]
            return await keep_calling(call, seconds, in_flight)

        await serve_orders({"call": call}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
