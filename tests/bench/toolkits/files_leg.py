"""One process: files are searched, read and changed, and rg and plain functions do the same.

The tree has 10,000 files of 2 to 10 KB in 500 folders, as of a program of that size: 60 MB, which
the system keeps in memory.
"""

from __future__ import annotations

import os
import random
import subprocess
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

from bench.role import Facts, keep_calling, run_role, serve_orders
from toolbus import JsonChunk, ToolContext, Toolkit
from toolbus_toolkits.files import Files

Call: TypeAlias = Callable[..., Awaitable[Any]]

FILES = 10_000
FOLDERS = 500
LINES = (30, 150)
"""The fewest and the most of a file."""
WORDS = "self return value for name in path if not def line text raise error None import".split()
TEXTS = {"rare": ("needle_rare", 1_000), "common": ("needle_common", 3), "absent": ("needle_no", 0)}
"""A text, and one of how many files has it; 0 for none."""
PAGE_LINES = 1_600
PAGE_LINE = f"{'word ' * 12}123\n"
"""Of 64 bytes: with the lines, 100 KiB."""
CHANGES = (("the first words", "the second words"), ("the second words", "the first words"))
SCRIPTS = sysconfig.get_path("scripts")
RG = ("rg", "--no-config", "--hidden", "--no-messages", "--color=never", "--glob=!.git")


def make_tree(root: Path) -> None:
    """Write the files."""
    chance = random.Random(1)
    lines = [f"    {' '.join(chance.choices(WORDS, k=10))}\n" for _ in range(1_000)]
    for number in range(FILES):
        path = root / f"part{number % 10}" / f"area{number % FOLDERS}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = chance.choices(lines, k=chance.randint(*LINES))
        text += [f"{name}\n" for name, every in TEXTS.values() if every and number % every == 0]
        path.write_text("".join(text), encoding="utf-8")


def searching(root: Path, files: Toolkit) -> dict[str, Call]:
    """Make the calls that search, by their names."""

    def grep(text: str, count: int) -> Call:
        async def call(*_: int) -> None:
            found = await result_of(files, "grep", pattern=text)
            if len(found["matches"]) != min(count, 250) or found["truncated"] != (count > 250):
                raise AssertionError(f"grep found {len(found['matches'])} files for {text}")

        return call

    def rg(text: str, count: int) -> Call:
        environment = {**os.environ, "PATH": os.pathsep.join((SCRIPTS, os.environ["PATH"]))}
        command = [*RG, "--files-with-matches", f"--regexp={text}", "./"]

        # It blocks, as in `shell_leg`: that is the fastest way.
        async def call(*_: int) -> None:
            done = subprocess.run(  # noqa: ASYNC221
                command,
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            if done.stdout.count(b"\n") != count:
                raise AssertionError(f"rg found other files for {text}: {done}")

        return call

    async def glob(*_: int) -> None:
        found = await result_of(files, "glob", pattern="**/*.py")
        if len(found["paths"]) != 1_000 or not found["truncated"]:
            raise AssertionError(f"glob found {len(found['paths'])} files")

    calls: dict[str, Call] = {"glob": glob}
    for name, (text, every) in TEXTS.items():
        count = len(range(0, FILES, every)) if every else 0
        calls[f"grep {name}"] = grep(text, count)
        calls[f"rg {name}"] = rg(text, count)
    return calls


def changing(root: Path, files: Toolkit) -> dict[str, Call]:
    """Make the calls that read and change a file, by their names."""
    page = root / "page.txt"
    bare_page = root / "bare.txt"
    before = PAGE_LINE * (PAGE_LINES // 2)
    after = PAGE_LINE * (PAGE_LINES // 2 - 1)
    for path in (page, bare_page):
        path.write_text(f"{before}{CHANGES[0][0]}\n{after}", encoding="utf-8")
    changes = cycle(CHANGES)
    bare_changes = cycle(CHANGES)

    async def read(*_: int) -> None:
        found = await result_of(files, "read", path=page.name)
        if found["text"].count("\n") < PAGE_LINES // 2:
            raise AssertionError("read shows another text")

    async def bare_read(*_: int) -> None:
        bare_page.read_bytes().decode()

    async def edit(*_: int) -> None:
        old, new = next(changes)
        await result_of(files, "edit", path=page.name, old_text=old, new_text=new)

    async def bare_edit(*_: int) -> None:
        old, new = next(bare_changes)
        text = bare_page.read_bytes()
        bare_page.write_bytes(text.replace(old.encode(), new.encode(), 1))

    return {"read": read, "bare read": bare_read, "edit": edit, "bare edit": bare_edit}


async def result_of(files: Toolkit, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, and return its result."""
    chunk = await files.execute(ToolContext(), tool, arguments)
    if not isinstance(chunk, JsonChunk):
        raise AssertionError(f"the result of {tool} is {chunk!r}")
    found: dict[str, Any] = chunk.json
    return found


async def caller(_facts: Facts) -> None:
    """Do again and again what an order names."""
    with (
        tempfile.TemporaryDirectory(prefix="toolbus-bench-") as tree,
        tempfile.TemporaryDirectory(prefix="toolbus-bench-") as pages,
    ):
        make_tree(Path(tree))
        files = Files(pages)
        calls = searching(Path(tree), Files(tree)) | changing(Path(pages), files)
        await result_of(files, "read", path="page.txt")  # what is not seen is not changed

        async def call(what: str, seconds: float, in_flight: int) -> Facts:
            return await keep_calling(calls[what], seconds, in_flight)

        await serve_orders({"call": call}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
